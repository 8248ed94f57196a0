/* SPDX-License-Identifier: Apache-2.0 */
/* Control socket: D-Bus peer to peer by sd-bus, interface dev.dray.Agent1. Control thread only. */
#pragma once

#include "agent/control/agent.h"

struct bus_server;

/* listen_fd: the socket "control" passed by systemd, or -1 to bind the path of control.socket. */
int bus_server_new(struct bus_server **ret, struct agent *agent, int listen_fd,
		   struct dray_err *reterr);
struct bus_server *bus_server_free(struct bus_server *server);
