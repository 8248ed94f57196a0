/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What netdetect finds, kept current. A thread of its own scans, since opening a device can take long,
 * and scans again when the kernel tells of changes; the control thread gets each result whole. No event tells
 * of listening sockets: these are looked for every segment.listen_interval, and given out where they differ.
 */
#ifndef DRAY_AGENT_PLACEMENT_DETECT_DETECT_H
#define DRAY_AGENT_PLACEMENT_DETECT_DETECT_H

#include <systemd/sd-event.h>

#include "lib/cleanup.h"
#include "lib/cpu.h"
#include "netdetect/scan.h"
#include "schema/gen/config.h"

struct detect;

struct detect_deps {
	sd_event *event;
	const struct dray_config *cfg; /* borrowed for the agent's life */
	/* Control thread; `now` lives until the next call, or as long as a reference is held. */
	void (*changed)(void *arg, struct nd_scan *now);
	/*
	 * What this process may use of the CPUs has changed: looked for with each scan, and with each look for
	 * listening sockets, since nothing tells of it.
	 */
	void (*cpus)(void *arg, const struct dray_cpus *now);
	/* The same as changed, for listening sockets, after the scan that their addresses were matched with. May be NULL. */
	void (*listeners)(void *arg, const struct nd_listeners *now);
	void *arg;
};

/* Starts the thread; the first result comes as an event. 0 or -errno with reterr. Control thread. */
int detect_new(struct detect **ret, const struct detect_deps *deps, struct dray_err *reterr);

/* Ends the thread; one that hangs in a device is left to the end of the process. */
struct detect *detect_free(struct detect *d);
DRAY_DEFINE_CLEANUP(struct detect *, detect_free);

/* The last result; NULL until the first, and without a detect. The detect's, until the next `changed`. */
const struct nd_scan *detect_scan(const struct detect *d);

/* A config_check: can a scan follow the keys rdma.gid_*? Pure. */
int detect_check_config(const struct dray_config *cfg, enum dray_config_key_id *ret_key,
			struct dray_err *reterr);

#endif
