/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changes as they happen: links, addresses and routes (rtnetlink multicast), RDMA devices
 * (RDMA_NL_GROUP_NOTIFY, Linux 6.12), ports (async events of devices that open). It says that something
 * changed and of what sort; what it is now, a new scan says.
 */
#ifndef DRAY_NETDETECT_MONITOR_H
#define DRAY_NETDETECT_MONITOR_H

#include "netdetect/scan.h"

enum nd_change {
	ND_CHANGE_LINKS = 1,   /* links, addresses, routes */
	ND_CHANGE_DEVICES = 2, /* RDMA devices came, went, changed name or netdev */
	ND_CHANGE_PORTS = 4,   /* port state, GID or P_Key table of a device that is held open */
	ND_CHANGE_OVERRUN = 8, /* events were lost: take all for changed */
};

struct nd_monitor;

/* 0 or -errno. One thread at a time; never blocks. */
int nd_monitor_new(struct nd_monitor **ret, struct dray_err *reterr);
struct nd_monitor *nd_monitor_free(struct nd_monitor *m);

/* Readable when there is something: an epoll descriptor, the monitor's. */
int nd_monitor_fd(const struct nd_monitor *m);

/* Takes all that is there: enum nd_change, or'ed; 0: nothing. The monitor stays usable after an overrun. */
unsigned nd_monitor_read(struct nd_monitor *m);

/*
 * Holds open the devices of the scan that open, for their async events, and lets go of those that are not
 * in it. A device that is going away is let go of at once (IBV_EVENT_DEVICE_FATAL), for the kernel waits.
 */
void nd_monitor_follow(struct nd_monitor *m, const struct nd_scan *scan);

/* Which kinds of event this kernel gives, for the log. */
const char *nd_monitor_describe(const struct nd_monitor *m);

#endif
