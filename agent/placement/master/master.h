/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the segments of one Mooncake master from its admin pages at intervals: /get_segments_detail, or /metrics if the
 * master has no such page. Control thread only; nothing blocks. The module keeps no segments and does not log.
 */
#ifndef DRAY_AGENT_PLACEMENT_MASTER_MASTER_H
#define DRAY_AGENT_PLACEMENT_MASTER_MASTER_H

#include <stdint.h>
#include <systemd/sd-event.h>

#include "agent/placement/master/page.h"
#include "agent/placement/net/resolver.h"
#include "lib/cleanup.h"
#include "lib/err.h"

struct master;

/*
 * Called after each read, from the event loop: with all segments, sorted by name, and why NULL; or with why the read
 * failed, and no segments. Segments are valid during the call. It may configure and free the master.
 */
typedef void (*master_read_fn)(void *arg, struct master *m, const struct master_segment *segments,
			       size_t n, const struct dray_err *why);

struct master_limits {
	/* Between reads, plus or minus 10 %. After failures 1 s, doubling up to a minute or the interval. */
	int64_t interval_ns;
	int64_t timeout_ns; /* of each page */
	size_t page_bytes;  /* of the largest page */
};

struct master_deps {
	sd_event *event;           /* borrowed */
	struct resolver *resolver; /* borrowed; outlives the master */
	const char *url; /* http://HOST:PORT; a page such as /metrics is cut off; copied */
	struct master_limits limits;
	master_read_fn up;
	void *arg;
};

/* The first read begins in the next turn of the loop. 0, or -EINVAL or -ENOMEM with reterr. */
int master_new(struct master **ret, const struct master_deps *deps, struct dray_err *reterr);
/* Cancels a read in progress. Takes NULL. Returns NULL. */
struct master *master_free(struct master *m);

DRAY_DEFINE_CLEANUP(struct master *, master_free);

/* The limits count from the next read, which comes earlier if the new interval is shorter. */
void master_configure(struct master *m, const struct master_limits *limits);

/* "http://HOST:PORT", and the path before the pages. */
const char *master_url(const struct master *m);

struct master_totals {
	uint64_t reads, failures; /* reads that ended; reads that failed */
	size_t left_out;          /* of the last good read: entries whose name is no segment */
	bool from_metrics;        /* the last good read came from /metrics: its numbers are rough */
};

void master_totals(const struct master *m, struct master_totals *ret);

#endif
