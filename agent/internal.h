/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by agent.c, wiring.c and events.c. Control thread only. */
#ifndef DRAY_AGENT_INTERNAL_H
#define DRAY_AGENT_INTERNAL_H

#include "agent/control/agent.h"

/* Descriptors passed by systemd, by name. */
struct passed_sockets {
	int data, control;
	int peer[16];
	unsigned n_peer;
};

/* Takes them over. 0, or -errno with reterr. */
int agent_sockets_take(struct passed_sockets *p, struct dray_err *reterr);

/* Makes every module, and listens. 0, or -errno with reterr; agent_deinit() undoes what was done. */
int agent_start_modules(struct agent *a, const struct dray_config *cfg, struct dray_err *reterr);
/* Drops privileges, starts the threads, and enters the sandbox. Likewise. */
int agent_start_work(struct agent *a, const struct dray_config *cfg, struct dray_err *reterr);

/* A worker's event descriptor is readable; arg: the agent. */
int agent_pump_events(sd_event_source *source, int fd, uint32_t revents, void *arg);

#endif
