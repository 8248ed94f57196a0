/* SPDX-License-Identifier: Apache-2.0 */
/* A worker's table of published objects. */
#ifndef DRAY_AGENT_DATA_TRANSFER_OBJECT_H
#define DRAY_AGENT_DATA_TRANSFER_OBJECT_H

#include "agent/data/transfer/core.h"

int objects_init(struct core *c);
void objects_deinit(struct core *c);

/* Publishes a view (borrowed until object_dropped). 0 or -ENOMEM. */
int object_publish(struct core *c, const struct object_view *view);

/* The object's keys from now on (NULL: none); the reference is consumed. An object that is gone has none. */
void object_set_keys(struct core *c, enum object_kind kind, dray_handle handle,
		     struct rail_keys *keys);

/* NULL if unknown or stale. */
struct object *object_find(struct core *c, enum object_kind kind, dray_handle handle);

/* The same; NULL, too, while it is being dropped. */
struct object *object_get(struct core *c, enum object_kind kind, dray_handle handle);

/* Why an object that object_get() refuses is being dropped, or lately was; 0 if it is unknown. */
uint32_t object_drop_code(struct core *c, enum object_kind kind, dray_handle handle);

static inline void object_hold(struct object *o)
{
	o->users++;
}

/* May run up->object_dropped. */
void object_release(struct core *c, struct object *o);

#endif
