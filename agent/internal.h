/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by agent.c, wiring.c and events.c. Control thread only. */
#pragma once

#include "agent/control/agent.h"

/* Sockets passed by systemd, by name; -1: not passed. data-NAME: of a further tenant. */
struct passed_sockets {
	int data, control;
	struct passed_data_socket tenants[TENANTS_MAX];
	unsigned n_tenants;
	int peer[16];
	unsigned n_peer;
};

/* The caller owns the sockets. 0, or -errno with reterr. */
int agent_sockets_take(struct passed_sockets *p, struct dray_err *reterr);

/* Creates every module and opens the listeners. 0, or -errno with reterr; agent_deinit() frees the modules. */
int agent_start_modules(struct agent *a, const struct dray_config *cfg, struct dray_err *reterr);
/* Drops privileges, starts the threads, and installs the system call filter. 0, or -errno with reterr. */
int agent_start_work(struct agent *a, const struct dray_config *cfg, struct dray_err *reterr);

/* Handler of the workers' event descriptors; arg: the agent. */
int agent_pump_events(sd_event_source *source, int fd, uint32_t revents, void *arg);
