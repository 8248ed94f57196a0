/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments of one Mooncake master, read from its admin pages in turns: /get_segments_detail, and /metrics of masters
 * that do not have that. Control thread only; nothing blocks. Nothing is kept: whoever is told keeps what it knew when
 * a read fails. Nothing is logged here.
 */
#ifndef DRAY_AGENT_PLACEMENT_MASTER_MASTER_H
#define DRAY_AGENT_PLACEMENT_MASTER_MASTER_H

#include <stdint.h>
#include <systemd/sd-event.h>

#include "agent/placement/net/resolver.h"
#include "agent/placement/master/page.h"
#include "lib/cleanup.h"
#include "lib/err.h"

struct master;

/*
 * After each read: all segments, sorted by name, with why NULL; or why it failed, and no segments. Segments are valid
 * during the call. From the event loop alone; may configure and free the master.
 */
typedef void (*master_read_fn)(void *arg, struct master *m, const struct master_segment *segments,
			       size_t n, const struct dray_err *why);

struct master_limits {
	int64_t interval_ns; /* between reads, 10 % more or less; after failures 1 s, doubling, to a minute or the interval */
	int64_t timeout_ns; /* of each page */
	size_t page_bytes;  /* largest page */
};

struct master_deps {
	sd_event *event;           /* borrowed */
	struct resolver *resolver; /* borrowed; outlives the master */
	const char *url; /* copied: http://HOST:PORT, a page behind it such as /metrics is left out */
	struct master_limits limits;
	master_read_fn up;
	void *arg;
};

/* The first read begins at once, in the loop. 0, or -EINVAL or -ENOMEM with reterr. */
int master_new(struct master **ret, const struct master_deps *deps, struct dray_err *reterr);
/* A read under way is cancelled. Takes NULL. Returns NULL. */
struct master *master_free(struct master *m);

DRAY_DEFINE_CLEANUP(struct master *, master_free);

/* From the next read on; where that is later than the new interval has it, it comes earlier. */
void master_configure(struct master *m, const struct master_limits *limits);

/* "http://HOST:PORT", and what was behind it as far as it is no page of ours. */
const char *master_url(const struct master *m);

struct master_totals {
	uint64_t reads, failures; /* that ended; of these, failed */
	size_t left_out;          /* of the last good read: entries whose name is no segment */
	bool from_metrics;        /* the last good read came from /metrics: its numbers are hints */
};

void master_totals(const struct master *m, struct master_totals *ret);

#endif
