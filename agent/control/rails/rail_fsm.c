/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/rails/rail_fsm.h"

#include "lib/assert.h"

static struct rail_step stay(enum rail_state s)
{
	return (struct rail_step){ s, 0 };
}

static struct rail_step absent(enum rail_event e)
{
	if (e == RAIL_EVENT_USABLE)
		return (struct rail_step){ RAIL_OPENING, RAIL_ACTION_OPEN };
	return stay(RAIL_ABSENT);
}

static struct rail_step opening(enum rail_event e, bool usable)
{
	/* opened, it is looked at again; before that nothing can be done about it */
	if (e == RAIL_EVENT_OPENED)
		return usable ? (struct rail_step){ RAIL_UP, RAIL_ACTION_UP } : stay(RAIL_DOWN);
	if (e == RAIL_EVENT_OPEN_FAILED)
		return (struct rail_step){ RAIL_FAILED, RAIL_ACTION_WAIT };
	if (e == RAIL_EVENT_GONE)
		return (struct rail_step){ RAIL_CLOSING, RAIL_ACTION_CLOSE };
	return stay(RAIL_OPENING);
}

static struct rail_step up(enum rail_event e)
{
	if (e == RAIL_EVENT_UNUSABLE)
		return (struct rail_step){ RAIL_DOWN, RAIL_ACTION_LOSE };
	if (e == RAIL_EVENT_MOVED)
		return (struct rail_step){ RAIL_UP, RAIL_ACTION_LOSE | RAIL_ACTION_UP };
	if (e == RAIL_EVENT_GONE)
		return (struct rail_step){ RAIL_CLOSING, RAIL_ACTION_LOSE | RAIL_ACTION_CLOSE };
	return stay(RAIL_UP);
}

static struct rail_step down(enum rail_event e)
{
	if (e == RAIL_EVENT_USABLE || e == RAIL_EVENT_MOVED)
		return (struct rail_step){ RAIL_UP, RAIL_ACTION_UP };
	if (e == RAIL_EVENT_GONE)
		return (struct rail_step){ RAIL_CLOSING, RAIL_ACTION_CLOSE };
	return stay(RAIL_DOWN);
}

static struct rail_step failed(enum rail_event e, bool usable)
{
	if (e == RAIL_EVENT_GONE || (e == RAIL_EVENT_RETRY && !usable))
		return stay(RAIL_ABSENT);
	if (e == RAIL_EVENT_RETRY)
		return (struct rail_step){ RAIL_OPENING, RAIL_ACTION_OPEN };
	return stay(RAIL_FAILED);
}

static struct rail_step closing(enum rail_event e, bool usable)
{
	/* one that is still there was closed for a fault: not at once again */
	if (e == RAIL_EVENT_CLOSED)
		return usable ? (struct rail_step){ RAIL_FAILED, RAIL_ACTION_WAIT } :
				stay(RAIL_ABSENT);
	return stay(RAIL_CLOSING);
}

struct rail_step rail_step(enum rail_state state, enum rail_event event, bool usable)
{
	switch (state) {
	case RAIL_ABSENT:
		return absent(event);
	case RAIL_OPENING:
		return opening(event, usable);
	case RAIL_UP:
		return up(event);
	case RAIL_DOWN:
		return down(event);
	case RAIL_FAILED:
		return failed(event, usable);
	case RAIL_CLOSING:
		return closing(event, usable);
	case RAIL_STATE_N:
		break;
	}
	dray_assert(false);
	return stay(state);
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
