/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many times on one timer of the event loop: what is due is found without a look at the others, and however much is due at once, other
 * sources of the loop run after a few.
 */
#pragma once

#include <systemd/sd-event.h>

#include "lib/heap.h"

struct timers {
	struct dray_heap heap;
	sd_event_source *source;
	int64_t armed_ns; /* not later than the first node; INT64_MAX: off */
	/* May set any node. The node that is due is out of the heap. */
	void (*due)(struct dray_heap_node *node, int64_t now);
};

/* Nodes that become due in one turn of the loop. */
#define TIMERS_TURN 32

/* accuracy_us: by how much a time may be late, so that several become due in one turn. 0 or -errno. */
int timers_init(struct timers *t, sd_event *event, uint64_t accuracy_us, int64_t priority,
		void (*due)(struct dray_heap_node *node, int64_t now));
/* Leaves the nodes untouched. A zeroed one is valid. */
void timers_deinit(struct timers *t);

/* Room for n nodes. 0 or -ENOMEM. */
static inline int timers_reserve(struct timers *t, uint32_t n)
{
	return dray_heap_reserve(&t->heap, n);
}

/* The node, for which there is room, becomes due at this monotonic time. INT64_MAX: never. */
void timers_set(struct timers *t, struct dray_heap_node *node, int64_t at_ns);
