/* SPDX-License-Identifier: Apache-2.0 */
/* Dropping published objects: their users are stopped, or may finish. */
#ifndef DRAY_AGENT_DATA_TRANSFER_DROP_H
#define DRAY_AGENT_DATA_TRANSFER_DROP_H

#include "agent/data/transfer/core.h"

/*
 * Starts to drop: new use is refused, transfers and slices that hold it are stopped with `code`; when the
 * last is gone up->object_dropped runs (possibly from inside this call). Unknown handles answer at once.
 */
void object_drop(struct core *c, enum object_kind kind, dray_handle handle, uint32_t code,
		 bool urgent);

/* The same, but what holds it may finish. */
void object_retire(struct core *c, enum object_kind kind, dray_handle handle, uint32_t code);

/* What is being retired is stopped after all, or a drop becomes urgent. Has no answer of its own. */
void object_drop_escalate(struct core *c, enum object_kind kind, dray_handle handle, uint32_t code,
			  bool urgent);

#endif
