/* SPDX-License-Identifier: Apache-2.0 */
/*
 * States of a rail, which is a port of an RDMA device. The caller carries out the actions.
 *
 *              usable            opened
 *   down/absent ------> opening --------> up <------> down (device open)
 *        ^                 | failed        \            /
 *        |                 v                \ gone     / gone
 *        |  gone        failed -- retry      v        v
 *        +-------------------'               closing ----> absent
 */
#pragma once

#include <stdbool.h>

enum rail_state {
	RAIL_ABSENT,  /* no device, or a closed device with an unusable port */
	RAIL_OPENING, /* its device is being opened */
	RAIL_UP,      /* queue pairs may be made */
	RAIL_DOWN,    /* the device is open, the port has no link or no usable GID */
	RAIL_FAILED,  /* the device could not be opened; retried after a pause */
	RAIL_CLOSING, /* its device is being closed */
	RAIL_STATE_N
};

enum rail_event {
	RAIL_EVENT_USABLE,   /* the port is active and has a GID */
	RAIL_EVENT_UNUSABLE, /* no longer */
	RAIL_EVENT_MOVED,    /* usable, with another GID or GID index than before */
	RAIL_EVENT_GONE,     /* the device was removed, or has failed for good */
	RAIL_EVENT_OPENED,
	RAIL_EVENT_OPEN_FAILED,
	RAIL_EVENT_CLOSED,
	RAIL_EVENT_RETRY, /* the pause is over */
	RAIL_EVENT_N
};

enum rail_action {
	RAIL_ACTION_OPEN = 1,  /* the device, if it is not open; completion queues */
	RAIL_ACTION_UP = 2,    /* tell workers and peers */
	RAIL_ACTION_LOSE = 4,  /* its queue pairs are lost */
	RAIL_ACTION_CLOSE = 8, /* the device */
	RAIL_ACTION_WAIT = 16, /* before RETRY */
};

struct rail_step {
	enum rail_state state;
	unsigned actions; /* of enum rail_action; LOSE comes first */
};

/* usable: result of the last scan of the port. */
struct rail_step rail_step(enum rail_state state, enum rail_event event, bool usable);

const char *rail_state_name(enum rail_state s);
const char *rail_event_name(enum rail_event e);
