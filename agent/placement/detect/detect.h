/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps the scan of netdetect current. A thread scans, because opening a device can take long, and scans again when the
 * kernel reports changes; the control thread gets each result. The kernel does not report listening sockets, so every
 * segment.listen_interval the control thread compares the number of TCP sockets with that of the last read. The thread reads the
 * listening sockets if it differs, and after thirty comparisons in any case. While it stays, the pause grows with that time, to four
 * intervals.
 */
#pragma once

#include <sched.h>
#include <systemd/sd-event.h>

#include "lib/cleanup.h"
#include "lib/cpu.h"
#include "netdetect/scan.h"
#include "schema/gen/config.h"

struct detect;

struct detect_deps {
	sd_event *event;
	const struct dray_config *cfg; /* borrowed for the agent's life */
	/* Control thread; `now` is valid until the next call, or as long as a reference is held. */
	void (*changed)(void *arg, struct nd_scan *now);
	/*
	 * The CPUs that this process may use have changed. The kernel does not report that, so they are read with each
	 * scan and each of these comparisons; the limit of the cgroup every ten seconds.
	 */
	void (*cpus)(void *arg, const struct dray_cpus *now);
	/*
	 * The listening sockets, after each read; their addresses are matched with the last scan. It may take over the
	 * array. NULL: they are not read.
	 */
	void (*listeners)(void *arg, struct nd_listeners *now);
	void *arg;
};

/* Starts the thread; the first result comes as an event. 0 or -errno with reterr. Control thread. */
int detect_new(struct detect **ret, const struct detect_deps *deps, struct dray_err *reterr);

/* Ends the thread; one that hangs in a device is left to the end of the process. */
struct detect *detect_free(struct detect *d);
DRAY_DEFINE_CLEANUP(struct detect *, detect_free);

/* The last scan, valid until the next `changed`. NULL before the first one, and if d is NULL. */
const struct nd_scan *detect_scan(const struct detect *d);

/*
 * The node for worker `index`; -1: any. cpus: the CPUs of the node that are in `allowed`. Workers get the nodes of
 * agent.numa_nodes in turn, else the nodes of RNICs with an active port, else the nodes of GPUs. Nodes without an allowed
 * CPU are skipped. On a machine with one node only agent.numa_nodes counts. Pure.
 */
int pinning_node(const struct nd_scan *scan, const struct dray_config *cfg, unsigned index,
		 const cpu_set_t *allowed, cpu_set_t *cpus);

/* Whether the node that agent.numa_nodes names has an allowed CPU. Pure. */
bool pinning_has(const struct nd_scan *scan, const char *node, const cpu_set_t *allowed);

/* A config_check: can a scan follow the keys rdma.gid_*? Pure. */
int detect_check_config(const struct dray_config *cfg, enum dray_config_key_id key,
			struct dray_err *reterr);
