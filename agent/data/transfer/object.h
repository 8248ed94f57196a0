/* SPDX-License-Identifier: Apache-2.0 */
/* A worker's table of published objects. */
#pragma once

#include "agent/data/transfer/core.h"

int objects_init(struct core *c);
void objects_deinit(struct core *c);

/* Sets up a zeroed object, which object_publish() does; without it, the object is in no table and never dropped. */
void object_init(struct object *o, const struct object_view *view);

/* Publishes a view (borrowed until object_dropped). */
void object_publish(struct core *c, const struct object_view *view);

/* All memory of the region is open. xfers_opened() follows. */
void object_set_open(struct core *c, dray_handle region);

/* Sets the object's keys (NULL: none). The reference is consumed, also if the object is unknown. */
void object_set_keys(struct core *c, enum object_kind kind, dray_handle handle,
		     struct rail_keys *keys);

/* The object, also while it is being dropped. NULL: unknown or stale. */
struct object *object_find(struct core *c, enum object_kind kind, dray_handle handle);

/* The object, or NULL: unknown, stale or being dropped. */
struct object *object_get(struct core *c, enum object_kind kind, dray_handle handle);

/* Why an object that object_get() refuses is being dropped or was lost; 0: unknown. */
uint32_t object_drop_code(struct core *c, enum object_kind kind, dray_handle handle);

static inline void object_hold(struct object *o)
{
	o->users++;
}

/*
 * What devices do with this remote ends well before peer.fence_timeout (transport.h): its owner takes it back, or a request waits for
 * that.
 */
void object_hasten(struct core *c, const struct object *remote);
/* The same within this time. */
void object_hasten_within(struct core *c, const struct object *remote, int64_t ns);

/* A remote, or a region, was taken away: its own session has not released it. */
bool object_is_taken(const struct object *o);

/* May run EVENT_DROPPED. */
void object_release(struct core *c, struct object *o);
