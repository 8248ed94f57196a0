/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages between agent/control/mooncake and agent/data/transport/mooncake (struct transport_message). `id` is the
 * number of a data connection, which the control thread gives.
 */
#pragma once

#include "agent/model/message.h"

/* Transfers of this agent never use this transport: it only serves. */
#define TRANSPORT_MOONCAKE DMSG_TRANSPORT_NONE

enum mooncake_message {
	MOONCAKE_ADOPT =
		1, /* to a worker: serve the connection; code: its descriptor, which the worker owns */
	MOONCAKE_CLOSE,  /* to a worker: close it, whatever it does; id 0: all */
	MOONCAKE_CLOSED, /* from a worker: it is closed */
};
