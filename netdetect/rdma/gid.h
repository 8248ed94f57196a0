/* SPDX-License-Identifier: Apache-2.0 */
/* GID tables of ports (IBTA 4.1.1, annexes A16 and A17). choose/gid.h ranks them. */
#pragma once

#include <net/if.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum nd_gid_type { ND_GID_IB, ND_GID_ROCE_V1, ND_GID_ROCE_V2 };
const char *nd_gid_type_name(enum nd_gid_type t);

enum nd_gid_class { /* of the address in the GID, best first */
		    ND_GID_IPV4,
		    ND_GID_IPV6,       /* global or unique local */
		    ND_GID_LINK_LOCAL, /* fe80::/10, 169.254/16; the usual one on InfiniBand */
};

/* Result of making an address handle to the GID itself (ibv_create_ah()). */
enum nd_proof { ND_PROOF_NONE, ND_PROOF_OK, ND_PROOF_FAILED };

#define ND_REASON_MAX 200
/* struct ibv_global_route has 8 bits for the index. */
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
	/* set by nd_gids_rank() */
	int score; /* higher is better; below 0: rejected */
	bool rejected;
	char reason[ND_REASON_MAX]; /* why it was chosen or rejected */
};

struct nd_gids {
	struct nd_gid *v; /* once ranked: best first, rejected ones last */
	size_t n;
	uint32_t table; /* entries of the port, used or not */
	uint32_t unmapped; /* entries of other network namespaces; sysfs hides some of them from v (EINVAL on the type) */
};

/* NULL if every GID is rejected. */
const struct nd_gid *nd_gids_best(const struct nd_gids *g);

enum nd_gid_class nd_gid_class_of(const struct in6_addr *gid);

/* "10.0.0.1" for ::ffff:10.0.0.1, "fe80::1"; buf of INET6_ADDRSTRLEN. */
const char *nd_gid_text(const struct in6_addr *gid, char *buf);
