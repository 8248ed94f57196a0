/* SPDX-License-Identifier: Apache-2.0 */
/* Dropping published objects: their users are stopped, or may finish. */
#ifndef DRAY_AGENT_DATA_TRANSFER_DROP_H
#define DRAY_AGENT_DATA_TRANSFER_DROP_H

#include "agent/data/transfer/core.h"

/*
 * Drops the object: new use is refused, and transfers and slices that hold it are stopped with `code`. When the last of
 * them has ended EVENT_DROPPED runs, possibly inside this call. For an unknown handle it runs at once.
 */
void object_drop(struct core *c, enum object_kind kind, dray_handle handle, uint32_t code,
		 bool urgent);

/* The same, but transfers and slices that hold the object may finish. */
void object_retire(struct core *c, enum object_kind kind, dray_handle handle, uint32_t code);

/* Stops the users of an object that is being retired, or makes a drop urgent. It has no answer of its own. */
void object_drop_escalate(struct core *c, enum object_kind kind, dray_handle handle, uint32_t code,
			  bool urgent);

#endif
