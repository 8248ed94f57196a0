/* SPDX-License-Identifier: Apache-2.0 */
/* A port that accepts a connection. The connection is closed without a reset, which the server would log as an error. */
#include "agent/placement/probe/internal.h"

static void ready(struct probe *p, bool connected)
{
	probe_succeed(p, "it accepts connections");
}

const struct probe_ops probe_tcp_ops = {
	.try_address = probe_connect,
	.ready = ready,
};
