/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When detect looks for listening sockets, and whether a look is a search or only a comparison of the number of TCP sockets.
 * The pause between looks grows while the number stays, whether or not searches were made meanwhile. Pure.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "netdetect/net/socket_count.h"

struct pace {
	struct nd_socket_count count; /* just before the last search */
	int64_t steady_ns;            /* since when it is the same number */
	int64_t looked_ns;            /* the last look's end */
	unsigned skipped;             /* searches left out since the last one */
};

/* When the next look is due. interval_ns: segment.listen_interval. */
int64_t pace_due_ns(const struct pace *p, int64_t interval_ns);
/* The next look has to search, if this is the number of TCP sockets now. */
bool pace_must_search(const struct pace *p, const struct nd_socket_count *now);
/* A search has been left out. */
void pace_skipped(struct pace *p, int64_t now_ns);
/* A search begins. count: before it reads the first socket, so that one that opens meanwhile makes the number differ. */
void pace_searches(struct pace *p, const struct nd_socket_count *count, int64_t now_ns);
/* It has ended, and the pause begins. found: it has read all sockets. */
void pace_searched(struct pace *p, bool found, int64_t now_ns);
