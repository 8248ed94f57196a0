/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The addresses of this node: of its interfaces, of node.addresses, and of segment.local. No I/O.
 */
#pragma once

#include "agent/config/segment_rules.h"
#include "lib/strv.h"
#include "netdetect/net/link.h"

struct locality {
	struct in6_addr *addrs; /* IPv4 mapped, sorted */
	size_t n_addrs;
	struct local_rule *rules;
	size_t n_rules;
};

#define LOCALITY_NULL ((struct locality){ .addrs = NULL })

/*
 * Replaces the addresses by those of all interfaces (links NULL: none) and of `node`. 1; 0: they are the same; -ENOMEM:
 * nothing has changed.
 */
int locality_set_addresses(struct locality *l, const struct nd_links *links,
			   const struct dray_strv *node);
/* Replaces the rules by the words of segment.local, which are valid. 0; -ENOMEM: nothing has changed. */
int locality_set_rules(struct locality *l, const struct dray_strv *words);
void locality_deinit(struct locality *l);

/* Loopback addresses are addresses of this node. */
bool locality_has_addr(const struct locality *l, const struct dray_addr *addr);

/*
 * Is the segment on this node? 1 or 0, with the reason. -EAGAIN: its host is a name without a rule, so the addresses of
 * the name decide.
 */
int locality_find(const struct locality *l, const char *segment, char *reason, size_t n);
