/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the segments of one Mooncake master from its admin pages at intervals: /get_segments_detail, or /metrics if the
 * master has no such page. Control thread only; nothing blocks. The module keeps no segments and does not log.
 */
#pragma once

#include <stdint.h>
#include <systemd/sd-event.h>

#include "agent/placement/master/page.h"
#include "agent/placement/net/http_client.h"
#include "agent/placement/net/resolver.h"
#include "lib/cleanup.h"
#include "lib/err.h"
#include "schema/gen/config.h"

struct master;

/*
 * Called after each read, from the event loop: with the list of segments, which is valid during the call, and why NULL;
 * or with why the read failed, and list NULL. It may configure and free the master.
 */
typedef void (*master_read_fn)(void *arg, const struct master_list *list,
			       const struct dray_err *why);

struct master_deps {
	sd_event *event;           /* borrowed */
	struct resolver *resolver; /* borrowed; outlives the master */
	const char *url; /* http://HOST:PORT; a page such as /metrics is cut off; copied */
	/*
	 * borrowed; mooncake.interval, timeout and page_bytes are read anew at each use. Reads are an interval apart, plus
	 * or minus 10 %; after failures 1 s, doubling up to a minute or the interval.
	 */
	const struct dray_config *cfg;
	master_read_fn up;
	void *arg;
};

/* The first read begins in the next turn of the loop. 0, or -EINVAL or -ENOMEM with reterr. */
int master_new(struct master **ret, const struct master_deps *deps, struct dray_err *reterr);
/* Cancels a read in progress. Takes NULL. Returns NULL. */
struct master *master_free(struct master *m);

DRAY_DEFINE_CLEANUP(struct master *, master_free);

/* cfg has new values: the next read comes earlier if the new interval is shorter. */
void master_reconfigured(struct master *m);

/* "http://HOST:PORT", perhaps with a path; lives as long as the master. */
const char *master_url(const struct master *m);
/* A request for a page, without fn and arg. 0, or -EINVAL: its name is too long. */
int master_request(const struct master *m, const char *page, struct http_request *ret);
