/* SPDX-License-Identifier: Apache-2.0 */
/* A port that accepts a connection. It is closed in good order: a reset is an error in the owner's log. */
#include "agent/placement/probe/internal.h"

static void ready(struct probe *p, bool connected)
{
	probe_succeed(p, "it accepts connections");
}

const struct probe_ops probe_tcp_ops = {
	.try_address = probe_connect,
	.ready = ready,
};
