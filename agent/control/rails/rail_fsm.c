/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/rails/rail_fsm.h"

#include "lib/assert.h"
#include "lib/cleanup.h"

/* For which result of the last scan a transition holds. */
enum port { ANY, USABLE, UNUSABLE };

static const struct transition {
	enum rail_state from;
	enum rail_event event;
	enum port port;
	struct rail_step step;
} transitions[] = {
	{ RAIL_ABSENT, RAIL_EVENT_USABLE, ANY, { RAIL_OPENING, RAIL_ACTION_OPEN } },
	{ RAIL_OPENING, RAIL_EVENT_OPENED, USABLE, { RAIL_UP, RAIL_ACTION_UP } },
	{ RAIL_OPENING, RAIL_EVENT_OPENED, UNUSABLE, { RAIL_DOWN, 0 } },
	{ RAIL_OPENING, RAIL_EVENT_OPEN_FAILED, ANY, { RAIL_FAILED, RAIL_ACTION_WAIT } },
	{ RAIL_OPENING, RAIL_EVENT_GONE, ANY, { RAIL_CLOSING, RAIL_ACTION_CLOSE } },
	{ RAIL_UP, RAIL_EVENT_UNUSABLE, ANY, { RAIL_DOWN, RAIL_ACTION_LOSE } },
	{ RAIL_UP, RAIL_EVENT_MOVED, ANY, { RAIL_UP, RAIL_ACTION_LOSE | RAIL_ACTION_UP } },
	{ RAIL_UP, RAIL_EVENT_GONE, ANY, { RAIL_CLOSING, RAIL_ACTION_LOSE | RAIL_ACTION_CLOSE } },
	{ RAIL_DOWN, RAIL_EVENT_USABLE, ANY, { RAIL_UP, RAIL_ACTION_UP } },
	{ RAIL_DOWN, RAIL_EVENT_MOVED, ANY, { RAIL_UP, RAIL_ACTION_UP } },
	{ RAIL_DOWN, RAIL_EVENT_GONE, ANY, { RAIL_CLOSING, RAIL_ACTION_CLOSE } },
	{ RAIL_FAILED, RAIL_EVENT_GONE, ANY, { RAIL_ABSENT, 0 } },
	{ RAIL_FAILED, RAIL_EVENT_RETRY, USABLE, { RAIL_OPENING, RAIL_ACTION_OPEN } },
	{ RAIL_FAILED, RAIL_EVENT_RETRY, UNUSABLE, { RAIL_ABSENT, 0 } },
	/* a device that is still there was closed because of a fault: it is opened after a pause */
	{ RAIL_CLOSING, RAIL_EVENT_CLOSED, USABLE, { RAIL_FAILED, RAIL_ACTION_WAIT } },
	{ RAIL_CLOSING, RAIL_EVENT_CLOSED, UNUSABLE, { RAIL_ABSENT, 0 } },
};

struct rail_step rail_step(enum rail_state state, enum rail_event event, bool usable)
{
	dray_assert(state < RAIL_STATE_N);
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(transitions); i++) {
		const struct transition *t = &transitions[i];

		if (t->from == state && t->event == event &&
		    (t->port == ANY || t->port == (usable ? USABLE : UNUSABLE)))
			return t->step;
	}
	return (struct rail_step){ state, 0 };
}

const char *rail_state_name(enum rail_state s)
{
	static const char *const names[RAIL_STATE_N] = { "absent", "opening", "up",
							 "down",   "failed",  "closing" };

	return s < RAIL_STATE_N ? names[s] : "";
}

const char *rail_event_name(enum rail_event e)
{
	static const char *const names[RAIL_EVENT_N] = {
		"usable", "unusable", "moved", "gone", "opened", "open failed", "closed", "retry"
	};

	return e < RAIL_EVENT_N ? names[e] : "";
}
