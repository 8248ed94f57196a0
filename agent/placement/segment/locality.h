/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which addresses are this node's: those of its interfaces, those that node.addresses names, and what
 * segment.local says. Pure but for the memory it keeps.
 */
#ifndef DRAY_AGENT_PLACEMENT_SEGMENT_LOCALITY_H
#define DRAY_AGENT_PLACEMENT_SEGMENT_LOCALITY_H

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
 * Takes the addresses of all interfaces (links may be NULL: none) and those of `node`, in the place of those
 * of before. 1; 0: they are the same; -ENOMEM and nothing has changed.
 */
int locality_set_addresses(struct locality *l, const struct nd_links *links,
			   const struct dray_strv *node);
/* Takes the words of segment.local, which have passed their check. 0, or -ENOMEM and nothing has changed. */
int locality_set_rules(struct locality *l, const struct dray_strv *words);
void locality_deinit(struct locality *l);

/* Loopback counts: who says 127.0.0.1 on this node means this node. */
bool locality_has_addr(const struct locality *l, const struct dray_addr *addr);

/*
 * Is the segment on this node? 1 or 0, and why in reason. -EAGAIN: its host is a name that no rule knows; its
 * addresses decide.
 */
int locality_find(const struct locality *l, const char *segment, char *reason, size_t n);

#endif
