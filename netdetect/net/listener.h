/* SPDX-License-Identifier: Apache-2.0 */
/* Listening TCP sockets of this network namespace: candidates for segments of this node (sock_diag(7)). */
#pragma once

#include "lib/strv.h"
#include "netdetect/net/link.h"

enum nd_listener_match {
	ND_MATCH_NONE,     /* bound to an address that no interface has any more */
	ND_MATCH_ADDRESS,  /* bound to one local address */
	ND_MATCH_WILDCARD, /* bound to all of them */
	ND_MATCH_LOOPBACK, /* reachable from this host only */
};

struct nd_listener {
	uint8_t family;
	struct in6_addr addr; /* IPv4 mapped; all zero: wildcard */
	uint16_t port;
	bool dual;   /* an IPv6 wildcard that accepts IPv4 too */
	int ifindex; /* bound to this device; 0: none */
	uint32_t uid, inode;
	int pid;          /* 0: unknown (no permission, or another PID namespace) */
	char process[32]; /* comm(5), "" unknown */
	enum nd_listener_match match;
	bool node_address; /* reachable under one of node.addresses */
};

struct nd_listeners {
	struct nd_listener *v; /* by port, then address */
	size_t n;
};

/*
 * node: numeric addresses of the node. owners: look up the owning processes in /proc (walks the
 * descriptors of every process that this one may inspect). 0, or -errno with *ret unchanged. Any thread; blocks.
 */
int nd_listeners_scan(const struct nd_source *s, const struct nd_links *links,
		      const struct dray_strv *node, bool owners, struct nd_listeners *ret,
		      struct dray_err *reterr);
void nd_listeners_deinit(struct nd_listeners *l);

/* True if both have the same sockets, with the same addresses and owners. Pure. */
bool nd_listeners_equal(const struct nd_listeners *a, const struct nd_listeners *b);

/* Adds a message to a struct nd_listeners, as nd_message_fn. Pure. */
int nd_listener_message(uint16_t type, const void *payload, size_t n, void *arg);
