/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/process/turn_work.h"

/*
 * The loop first takes the source that has been ready for longest. A source made by sd_event_add_defer() counts as ready since it was made,
 * also while it is off, so it would go before all others in each turn. A timer that is overdue is ready since the turn that it was armed.
 */
int turn_work_init(struct turn_work *w, sd_event *event, unsigned max, sd_event_time_handler_t fn,
		   void *arg)
{
	int r = sd_event_add_time(event, &w->source, CLOCK_MONOTONIC, 0, 1, fn, arg);

	w->max = max;
	return r < 0 ? r : sd_event_source_set_enabled(w->source, SD_EVENT_OFF);
}

void turn_work_deinit(struct turn_work *w)
{
	w->source = sd_event_source_disable_unref(w->source);
}

bool turn_work_has_room(struct turn_work *w)
{
	uint64_t turn;

	if (!w->source || sd_event_get_iteration(sd_event_source_get_event(w->source), &turn) < 0)
		return true;
	if (turn != w->turn) {
		w->turn = turn;
		w->done = 0;
	}
	return w->done < w->max;
}

void turn_work_go_on(struct turn_work *w)
{
	sd_event_source_set_enabled(w->source, SD_EVENT_ONESHOT);
}
