/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For verbs that go on until somebody ends them: while they wait, SIGINT and SIGTERM become an orderly end. While
 * they write, these end the process as ever: a reader that has stopped would hold it otherwise.
 */
#ifndef DRAY_CTL_INTERRUPT_H
#define DRAY_CTL_INTERRUPT_H

#include <signal.h>

#include "ctl/ctl.h"

struct ctl_interrupt {
	int fd;
};

/* 0 or -1. */
int ctl_interrupt_begin(struct ctl_interrupt *i, struct ctl_err *reterr);
void ctl_interrupt_end(struct ctl_interrupt *i);

enum ctl_wake {
	CTL_WAKE_END = 0, /* a signal came, or nobody reads `out` any more */
	CTL_WAKE_READY,   /* fd is readable */
	CTL_WAKE_TIME,    /* the time is over */
};

/* fd may be -1, timeout_ns below 0: for ever. One of enum ctl_wake, or -1. */
int ctl_interrupt_wait(struct ctl_interrupt *i, FILE *out, int fd, int64_t timeout_ns,
		       struct ctl_err *reterr);

#endif
