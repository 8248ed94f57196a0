/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages between agent/control/mooncake and agent/data/transport/mooncake (struct transport_message). Of the data connections
 * that this agent accepts, `id` is the number, which the control thread gives; of engines that it imported from, `peer` is the handle.
 */
#pragma once

#include "agent/model/message.h"
#include "agent/model/peer_link.h"

#define TRANSPORT_MOONCAKE DMSG_TRANSPORT_MOONCAKE

/* How workers reach an engine that this agent has imported from. */
struct mooncake_link {
	struct peer_link link; /* addr: of its data connections */
	bool with_status;      /* it knows version 2 of the data protocol */
};

enum mooncake_message {
	MOONCAKE_ADOPT, /* to a worker: serve the connection; code: its descriptor, which the worker owns */
	MOONCAKE_CLOSE,  /* to a worker: close it, whatever it does; id 0: all */
	MOONCAKE_CLOSED, /* from a worker: it is closed */
	MOONCAKE_ENGINE_UP, /* to every worker; arg: struct mooncake_link, borrowed until it answers _DOWN */
	MOONCAKE_ENGINE_DOWN, /* to every worker: no remote of the engine is left; answered by _GONE */
	MOONCAKE_ENGINE_GONE, /* from a worker: it has forgotten the engine */
	MOONCAKE_ENGINE_LOST, /* from a worker: the engine cannot be reached any more */
};
