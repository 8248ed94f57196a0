/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For verbs that run until a signal ends them. While drayctl waits here, SIGINT and SIGTERM end it in order. While it
 * writes, they kill it as usual, because a reader that has stopped would otherwise block it.
 */
#ifndef DRAY_CTL_INTERRUPT_H
#define DRAY_CTL_INTERRUPT_H

#include "ctl/ctl.h"

enum ctl_wake {
	CTL_WAKE_END = 0, /* a signal came, or the reader closed standard output */
	CTL_WAKE_READY,   /* fd is readable */
	CTL_WAKE_TIME,    /* the time is over */
	CTL_WAKE_CLOSED,  /* only of ctl_bus_wait(): the agent closed the connection */
};

/* fd may be -1; timeout_ns below 0 is no limit. One of enum ctl_wake, or -1. */
int ctl_interrupt_wait(struct ctl *c, int fd, int64_t timeout_ns);

#endif
