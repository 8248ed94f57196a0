/* SPDX-License-Identifier: Apache-2.0 */
/* GID tables of ports and which GID to use (IBTA 4.1.1, annexes A16 and A17). */
#ifndef DRAY_NETDETECT_RDMA_GID_H
#define DRAY_NETDETECT_RDMA_GID_H

#include <net/if.h>
#include <netinet/in.h>

#include "netdetect/source/source.h"

enum nd_gid_type { ND_GID_IB, ND_GID_ROCE_V1, ND_GID_ROCE_V2 };
const char *nd_gid_type_name(enum nd_gid_type t);

enum nd_gid_class { /* of the address that it is, best first */
		    ND_GID_IPV4,
		    ND_GID_IPV6,       /* global or unique local */
		    ND_GID_LINK_LOCAL, /* fe80::/10, 169.254/16; the usual one on InfiniBand */
};

enum nd_proof { ND_PROOF_NONE, ND_PROOF_OK, ND_PROOF_FAILED }; /* ibv_create_ah() to itself */

#define ND_REASON_MAX 200
/* struct ibv_global_route has 8 bits for it. */
#define ND_GID_INDEX_MAX 255

struct nd_gid {
	uint32_t index;
	enum nd_gid_type type;
	enum nd_gid_class class;
	struct in6_addr gid; /* wire order */
	int ifindex;         /* 0: no netdev in this namespace */
	char netdev[IFNAMSIZ];
	bool netdev_up;
	enum nd_proof proof;
	int proof_error;
	/* filled by nd_gids_rank() */
	int score; /* higher is better; below 0: rejected */
	bool rejected;
	char reason[ND_REASON_MAX]; /* in words: why this one, or why not */
};

struct nd_gids {
	struct nd_gid *v; /* best first once ranked; rejected ones at the end, by index */
	size_t n;
	uint32_t table; /* entries the port has, used or not */
	uint32_t unmapped; /* entries that sysfs shows and this namespace may not use (EINVAL on the type) */
};

struct nd_gid_choice {
	uint8_t family; /* AF_INET, AF_INET6, or AF_UNSPEC: IPv4 first */
	int fixed_index; /* the operator's; -1: none. Wins always, even over rejection, and says so */
	bool infiniband;
	uint32_t flid; /* for routable InfiniBand; 0: none */
};

/*
 * Scores, reasons and order. Pure: depends on the arguments alone, and gives the same for the same.
 * Rules, strongest first: usable in this namespace; netdev there and up; not refused by the device;
 * RoCE v2 before v1; addresses of real networks before bridges and tunnels of containers, which no other
 * machine reaches; routable before link-local; the family asked for; the lower address, so that a table
 * filled in another order gives the same; lowest index last.
 */
void nd_gids_rank(struct nd_gids *g, const struct nd_gid_choice *choice);

/* The best, or NULL where every one is rejected. */
const struct nd_gid *nd_gids_best(const struct nd_gids *g);

enum nd_gid_class nd_gid_class_of(const struct in6_addr *gid);

/* FLID of a routable InfiniBand port, out of its table; 0: none. For nd_gid_choice. */
uint32_t nd_gids_flid(const struct nd_gids *g);

/* "10.0.0.1" for ::ffff:10.0.0.1, "fe80::1"; buf of INET6_ADDRSTRLEN. */
const char *nd_gid_text(const struct in6_addr *gid, char *buf);

#endif
