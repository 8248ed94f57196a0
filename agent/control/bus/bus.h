/* SPDX-License-Identifier: Apache-2.0 */
/* Control socket: D-Bus peer to peer by sd-bus, interface dev.dray.Agent1. Control thread only. */
#ifndef DRAY_AGENT_CONTROL_BUS_BUS_H
#define DRAY_AGENT_CONTROL_BUS_BUS_H

#include "agent/control/agent.h"

struct bus_server;

/* listen_fd: the socket "control" passed by systemd, or -1 to bind the path of control.socket. */
int bus_server_new(struct bus_server **ret, struct agent *agent, int listen_fd,
		   struct dray_err *reterr);
struct bus_server *bus_server_free(struct bus_server *server);

/* Signals to every connection; agent->bus_signals has the others. Texts may contain bytes that are not UTF-8. */
void bus_server_rail_changed(struct bus_server *server, const char *device, uint32_t port,
			     const char *before, const char *after, const char *why);
void bus_server_peer_changed(struct bus_server *server, dray_handle peer, const char *segment,
			     const char *before, const char *after, const char *why);
void bus_server_session_closed(struct bus_server *server, dray_handle session, const char *name,
			       const char *why);

#endif
