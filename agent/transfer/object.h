/* SPDX-License-Identifier: Apache-2.0 */
/* A worker's table of published objects. */
#ifndef DRAY_AGENT_TRANSFER_OBJECT_H
#define DRAY_AGENT_TRANSFER_OBJECT_H

#include "agent/transfer/core.h"

int objects_init(struct core *c);
void objects_deinit(struct core *c);

/* Publishes a view (borrowed until object_dropped). 0 or -ENOMEM. */
int object_publish(struct core *c, const struct object_view *view);

/* NULL if unknown, stale or being dropped. */
struct object *object_get(struct core *c, enum object_kind kind, dray_handle handle);

/*
 * Starts to drop: new use is refused, transfers and slices that hold it are stopped with `code`; when the last is
 * gone up->object_dropped runs (possibly from inside this call). Unknown handles answer at once. A drop under way is made urgent, if
 * asked for, by object_drop_escalate(), which has no answer of its own.
 */
void object_drop(struct core *c, enum object_kind kind, dray_handle handle, uint32_t code,
		 bool urgent);
void object_drop_escalate(struct core *c, enum object_kind kind, dray_handle handle);

static inline void object_hold(struct object *o)
{
	o->users++;
}

/* May run up->object_dropped. */
void object_release(struct core *c, struct object *o);

#endif
