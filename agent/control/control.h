/* SPDX-License-Identifier: Apache-2.0 */
/* Control socket: D-Bus peer to peer by sd-bus, interface dev.dray.Agent1. Control thread only. */
#ifndef DRAY_AGENT_CONTROL_CONTROL_H
#define DRAY_AGENT_CONTROL_CONTROL_H

#include "agent/agent.h"

struct control;

/* listen_fd: passed by systemd (name "control"), or -1: the path of control.socket is bound. */
int control_new(struct control **ret, struct agent *agent, int listen_fd, struct dray_err *reterr);
struct control *control_free(struct control *c);

/* Emits StateChanged and PropertiesChanged to every connection. */
void control_state_changed(struct control *c, enum agent_state old, enum agent_state new);

/* Sends out what is queued, at most this long; before exit. */
void control_flush(struct control *c);

#endif
