/* SPDX-License-Identifier: Apache-2.0 */
/* Work of which one turn of the event loop does a bounded part, so that other events do not wait for all of it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

struct turn_work {
	sd_event_source *source; /* NULL: there are no turns, and all is done at once */
	uint64_t turn;           /* the one that `done` is about */
	unsigned done, max;      /* in one turn; the owner counts `done` */
};

/* fn(arg) goes on with the work. 0 or -errno. */
int turn_work_init(struct turn_work *w, sd_event *event, unsigned max, sd_event_time_handler_t fn,
		   void *arg);
void turn_work_deinit(struct turn_work *w);
/* This turn may do more. */
bool turn_work_has_room(struct turn_work *w);
/* fn runs once, in a later turn, after all sources that are ready now. */
void turn_work_go_on(struct turn_work *w);
