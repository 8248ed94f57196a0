/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/peer/timers.h"

#include "lib/assert.h"
#include "lib/cleanup.h"

static void arm(struct timers *t)
{
	const struct dray_heap_node *first = dray_heap_first(&t->heap);

	/* a timer that is too early finds nothing due and is set again, which costs less than to set it for each change */
	if (!first || first->key >= t->armed_ns)
		return;
	t->armed_ns = first->key;
	/* rounded up: a timer that comes too early would only be set again */
	sd_event_source_set_time(t->source, (uint64_t)dray_max(first->key, (int64_t)0) / 1000 + 1);
	sd_event_source_set_enabled(t->source, SD_EVENT_ONESHOT);
}

static int on_timer(sd_event_source *s, uint64_t usec, void *userdata)
{
	struct timers *t = userdata;
	struct dray_heap_node *first;
	int64_t now;

	dray_assert(sd_event_now(sd_event_source_get_event(s), CLOCK_MONOTONIC, &usec) >= 0);
	now = (int64_t)usec * 1000;
	/* nodes that are set meanwhile do not arm it: it is armed once, at the end */
	t->armed_ns = INT64_MIN;
	for (unsigned i = 0; i < TIMERS_TURN; i++) {
		first = dray_heap_first(&t->heap);
		if (!first || first->key > now)
			break;
		dray_heap_del(&t->heap, first);
		t->due(first, now);
	}
	t->armed_ns = INT64_MAX;
	arm(t);
	return 0;
}

int timers_init(struct timers *t, sd_event *event, uint64_t accuracy_us, int64_t priority,
		void (*due)(struct dray_heap_node *node, int64_t now))
{
	int r;

	*t = (struct timers){ .armed_ns = INT64_MAX, .due = due };
	r = sd_event_add_time(event, &t->source, CLOCK_MONOTONIC, 0, accuracy_us, on_timer, t);
	if (r >= 0)
		r = sd_event_source_set_enabled(t->source, SD_EVENT_OFF);
	if (r >= 0)
		r = sd_event_source_set_priority(t->source, priority);
	return r < 0 ? r : 0;
}

void timers_deinit(struct timers *t)
{
	t->source = sd_event_source_disable_unref(t->source);
	dray_heap_deinit(&t->heap);
}

void timers_set(struct timers *t, struct dray_heap_node *node, int64_t at_ns)
{
	if (at_ns == INT64_MAX) {
		dray_heap_del(&t->heap, node);
		return;
	}
	if (dray_heap_has(node) && node->key == at_ns)
		return;
	dray_assert(dray_heap_set(&t->heap, node, at_ns) == 0);
	arm(t);
}
