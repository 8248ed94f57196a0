/* SPDX-License-Identifier: Apache-2.0 */
/* Parses pages of a Mooncake master into lists of segments. Pure. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/err.h"

struct master_segment {
	const char *name;     /* host:port */
	const char *endpoint; /* host:port of the handshake daemon of its owner; "" unknown */
	const char *status;   /* OK, DRAINING, ... as on the page; "" unknown */
	const char *protocol; /* tcp, rdma, ...; "" unknown */
	int64_t capacity;     /* bytes; -1 unknown */
	int64_t allocated;    /* bytes in use; -1 unknown */
};

struct master_list {
	struct master_segment *v; /* sorted by name; several entries of one name are summed */
	size_t n;
	size_t left_out; /* entries whose name is not a segment */
	char *text;      /* holds the strings */
	size_t used;
};

#define MASTER_LIST_NULL ((struct master_list){ .v = NULL })

void master_list_deinit(struct master_list *l);

/*
 * ret is MASTER_LIST_NULL; the caller deinitialises it in any case. 0; or -EPROTO with reterr, which names the place
 * and the fault; or -ENOMEM. Unknown members and metrics are ignored; known ones must have the right type.
 */
int master_page_detail(const char *body, size_t n, struct master_list *ret,
		       struct dray_err *reterr);

/*
 * The same for the metrics. Their gauges are rough: when one of several chunks of an owner is unmounted, its label
 * disappears and later restarts from zero. A value below zero is unknown. Without gauges there are no segments.
 */
int master_page_metrics(const char *body, size_t n, struct master_list *ret,
			struct dray_err *reterr);
