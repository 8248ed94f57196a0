/* SPDX-License-Identifier: Apache-2.0 */
/* Listening TCP sockets of this network namespace: where segments of this node can be (sock_diag(7)). */
#ifndef DRAY_NETDETECT_NET_LISTENER_H
#define DRAY_NETDETECT_NET_LISTENER_H

#include "netdetect/net/link.h"

enum nd_listener_match {
	ND_MATCH_NONE,     /* of no local address (a bound address that is gone) */
	ND_MATCH_ADDRESS,  /* of one local address */
	ND_MATCH_WILDCARD, /* of all of them */
	ND_MATCH_LOOPBACK, /* for this host alone */
};

struct nd_listener {
	uint8_t family;
	struct in6_addr addr; /* IPv4 mapped; all zero: wildcard */
	uint16_t port;
	bool dual;   /* an IPv6 wildcard that takes IPv4 too */
	int ifindex; /* bound to a device; 0: none */
	uint32_t uid, inode;
	int pid;          /* 0: not permitted to know, or of another pid namespace */
	char process[32]; /* comm(5), "" unknown */
	enum nd_listener_match match;
	bool node_address; /* reachable under one of node.addresses */
};

struct nd_listeners {
	struct nd_listener *v; /* by port, then address */
	size_t n;
	bool owners; /* the owning processes could be looked for */
};

/*
 * node: numeric addresses of the node, or NULL. owners: look for the owning processes in /proc (costs a
 * walk over all descriptors one may see). 0 or -errno; on error nothing is left. Any thread, blocking.
 */
int nd_listeners_scan(const struct nd_source *s, const struct nd_links *links,
		      const char *const *node, size_t n_node, bool owners, struct nd_listeners *ret,
		      struct dray_err *reterr);
void nd_listeners_deinit(struct nd_listeners *l);

/* Do both have the same sockets, with the same addresses and owners? Pure. */
bool nd_listeners_equal(const struct nd_listeners *a, const struct nd_listeners *b);

/* nd_message_fn (arg: struct nd_listeners *). */
int nd_listener_message(uint16_t type, const void *payload, size_t n, void *arg);

#endif
