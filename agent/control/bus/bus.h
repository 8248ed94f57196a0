/* SPDX-License-Identifier: Apache-2.0 */
/* Control socket: D-Bus peer to peer by sd-bus, interface dev.dray.Agent1. Control thread only. */
#ifndef DRAY_AGENT_CONTROL_BUS_BUS_H
#define DRAY_AGENT_CONTROL_BUS_BUS_H

#include "agent/control/agent.h"

struct control;

/* listen_fd: passed by systemd (name "control"), or -1: the path of control.socket is bound. */
int control_new(struct control **ret, struct agent *agent, int listen_fd, struct dray_err *reterr);
struct control *control_free(struct control *c);

/*
 * Signals to every connection; those of struct control_signals are reached through the agent. Texts may be the clients' own words.
 */
void control_rail_changed(struct control *c, const char *device, uint32_t port, const char *before,
			  const char *after, const char *why);
void control_peer_changed(struct control *c, dray_handle peer, const char *segment,
			  const char *before, const char *after, const char *why);
void control_session_closed(struct control *c, dray_handle session, const char *name,
			    const char *why);

#endif
