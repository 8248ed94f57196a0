/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drives all sessions from one thread, with the plan's method of waiting. A single session waits in libdray. libdray
 * cannot wait for several sessions together; for those, adaptive polls all of them for as long as libdray would, and
 * then sleeps on their descriptors.
 */
#pragma once

#include "ctl/bench/load.h"
#include "ctl/bench/session.h"

struct bench_drive {
	const struct bench_plan *plan;
	struct bench_session *sessions; /* plan->sessions, borrowed */
	int epoll_fd;
	int64_t spin_ns;
	/* After its failure no further transfer is started. Borrowed; NULL: there is none. */
	const struct bench_load *load;
	/* of the present lap */
	struct bench_lap *lap;
	int64_t ends_ns;
	uint64_t left; /* transfers that may still be started */
	uint64_t in_flight;
	int64_t active_ns; /* time of the last start or end of a transfer */
};

#define BENCH_DRIVE_NULL ((struct bench_drive){ .epoll_fd = -1 })

/* 0 or -1; the caller closes in any case. */
int bench_drive_open(struct bench_drive *d, const struct bench_plan *p,
		     struct bench_session *sessions);
void bench_drive_close(struct bench_drive *d);

/* Runs `count` transfers, or for this time if count is 0, until all have ended, or the load fails. Fills *ret. 0 or -1. */
int bench_drive_lap(struct bench_drive *d, uint64_t count, int64_t duration_ns,
		    struct bench_lap *ret);
