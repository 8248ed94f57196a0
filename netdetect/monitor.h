/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reports that something changed, and of what kind: links, addresses and routes (rtnetlink multicast), RDMA devices
 * (RDMA_NL_GROUP_NOTIFY, Linux 6.12, and device events), ports (async events of devices that open). The new state
 * is found by a new scan.
 */
#pragma once

#include "netdetect/scan.h"

enum nd_change {
	ND_CHANGE_LINKS = 1,   /* links, addresses, routes */
	ND_CHANGE_DEVICES = 2, /* RDMA devices came, went, changed name or netdev */
	ND_CHANGE_PORTS = 4,   /* port state, GID or P_Key table of a device that is held open */
	ND_CHANGE_OVERRUN = 8, /* events were lost: anything may have changed */
};

struct nd_monitor;

/* 0 or -errno. One thread at a time; never blocks. */
int nd_monitor_new(struct nd_monitor **ret, struct dray_err *reterr);
struct nd_monitor *nd_monitor_free(struct nd_monitor *m);

/* An epoll descriptor, owned by the monitor; readable while events are pending. */
int nd_monitor_fd(const struct nd_monitor *m);

/* Takes all pending events. enum nd_change, or'ed; 0: none. The monitor stays usable after an overrun. */
unsigned nd_monitor_read(struct nd_monitor *m);

/*
 * Holds open, for their async events, the devices of the scan that open, and closes all others. A device that is
 * being removed (IBV_EVENT_DEVICE_FATAL) is closed at once, because the kernel waits for that. 0, or -errno if a device was
 * not opened for want of descriptors: its events are missed until the next call opens it.
 */
int nd_monitor_follow(struct nd_monitor *m, const struct nd_scan *scan);

/* The sources of events that this kernel has, for the log. */
const char *nd_monitor_describe(const struct nd_monitor *m);
