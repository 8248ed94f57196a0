/* SPDX-License-Identifier: Apache-2.0 */
/* Pages of a Mooncake master to lists of segments. Pure. */
#ifndef DRAY_AGENT_PLACEMENT_MASTER_PAGE_H
#define DRAY_AGENT_PLACEMENT_MASTER_PAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/err.h"

struct master_segment {
	const char *name;     /* host:port */
	const char *endpoint; /* host:port where its owner's handshake listens; "" unknown */
	const char *status;   /* as the master says: OK, DRAINING and the like; "" unknown */
	const char *protocol; /* tcp, rdma and the like; "" unknown */
	int64_t capacity;     /* bytes; -1 unknown */
	int64_t allocated;    /* of these; -1 unknown */
};

struct master_list {
	struct master_segment *v; /* by name, none twice: several of one name are summed */
	size_t n, max;
	size_t left_out; /* entries whose name is no segment */
	char *text;      /* what the strings lie in */
	size_t used;
};

#define MASTER_LIST_NULL ((struct master_list){ NULL, 0, 0, 0, NULL, 0 })

void master_list_deinit(struct master_list *l);

/*
 * ret: a list that is MASTER_LIST_NULL; to be deinitialised in any case. 0; or -EPROTO with reterr, which says what
 * is wrong where; or -ENOMEM. A page may have more members and families than these know, and not other types.
 */
int master_page_detail(const char *body, size_t n, struct master_list *ret,
		       struct dray_err *reterr);

/*
 * The same from the metrics, whose gauges are hints: a label disappears as soon as one of several chunks of its owner is
 * unmounted, and comes back from zero. What is below zero is unknown, then. No gauges: no segments.
 */
int master_page_metrics(const char *body, size_t n, struct master_list *ret,
			struct dray_err *reterr);

#endif
