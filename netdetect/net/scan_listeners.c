/* SPDX-License-Identifier: Apache-2.0 */
/* Reads listening sockets from sock_diag, and their owners from /proc. */
#include "netdetect/net/listener.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <linux/inet_diag.h>
#include <linux/sock_diag.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "netdetect/source/netlink.h"

#define STATE_LISTEN 10 /* TCP_LISTEN of the kernel's net/tcp_states.h */

static bool is_local(const struct nd_links *links, const struct in6_addr *a)
{
	for (size_t i = 0; i < links->n_addrs; i++)
		if (IN6_ARE_ADDR_EQUAL(&links->addrs[i].addr, a))
			return true;
	return false;
}

static enum nd_listener_match match_of(const struct nd_listener *l, const struct nd_links *links)
{
	if (IN6_IS_ADDR_UNSPECIFIED(&l->addr))
		return ND_MATCH_WILDCARD;
	if (nd_addr_is_loopback(&l->addr))
		return ND_MATCH_LOOPBACK;
	return is_local(links, &l->addr) ? ND_MATCH_ADDRESS : ND_MATCH_NONE;
}

/* Bound to an address of the node, or to all addresses while an interface here has that one. */
static bool is_of_node(const struct nd_listener *l, const struct nd_links *links, const char *text)
{
	uint8_t bytes[16], family = strchr(text, ':') ? AF_INET6 : AF_INET;
	struct in6_addr a;

	if (inet_pton(family, text, bytes) != 1)
		return false;
	nd_addr_set(&a, family, bytes);
	if (IN6_ARE_ADDR_EQUAL(&a, &l->addr))
		return true;
	return l->match == ND_MATCH_WILDCARD && (l->family == family || l->dual) &&
	       is_local(links, &a);
}

ND_ORDER(by_inode, struct nd_listener, inode);

static void set_owner(const struct nd_source *s, struct nd_listeners *l, uint32_t inode, int pid)
{
	struct nd_listener key = { .inode = inode };
	struct nd_listener *found = bsearch(&key, l->v, l->n, sizeof(key), by_inode);

	if (!found || found->pid)
		return;
	found->pid = pid;
	nd_read_text(s, found->process, sizeof(found->process), "/proc/%d/comm", pid);
}

static void find_sockets_of(const struct nd_source *s, struct nd_listeners *l, int pid)
{
	dray_auto(closedir) DIR *dir = nd_open_dir(s, "/proc/%d/fd", pid);
	char target[64];
	const char *name;

	while ((name = nd_next_entry(dir))) {
		ssize_t n = readlinkat(dirfd(dir), name, target, sizeof(target) - 1);
		unsigned inode;

		target[n > 0 ? n : 0] = '\0';
		if (sscanf(target, "socket:[%u]", &inode) == 1)
			set_owner(s, l, inode, pid);
	}
}

static void find_owners(const struct nd_source *s, struct nd_listeners *l)
{
	dray_auto(closedir) DIR *dir = nd_open_dir(s, "/proc");
	const char *name;

	if (!l->n)
		return;
	qsort(l->v, l->n, sizeof(*l->v), by_inode);
	while ((name = nd_next_entry(dir)))
		if (isdigit((unsigned char)*name))
			find_sockets_of(s, l, (int)strtol(name, NULL, 10));
}

static int by_port(const void *a, const void *b)
{
	const struct nd_listener *x = a, *y = b;
	int r = dray_compare(x->port, y->port);

	if (!r)
		r = memcmp(&x->addr, &y->addr, sizeof(x->addr));
	return r ? r : dray_compare(x->family, y->family);
}

static int dump(const struct nd_source *s, uint8_t family, struct nd_listeners *l,
		struct dray_err *reterr)
{
	struct inet_diag_req_v2 body = { .sdiag_family = family,
					 .sdiag_protocol = IPPROTO_TCP,
					 .idiag_states = 1u << STATE_LISTEN };

	return nd_query(s, ND_GET_LISTENERS, &body, sizeof(body), nd_listener_message, l, &l->n,
			NULL, reterr);
}

int nd_listeners_scan(const struct nd_source *s, const struct nd_links *links,
		      const struct dray_strv *node, bool owners, struct nd_listeners *ret,
		      struct dray_err *reterr)
{
	struct nd_listeners l = { 0 };
	int r = dump(s, AF_INET, &l, reterr);

	/* a recording has both families in one file */
	if (r >= 0 && nd_is_live(s))
		r = dump(s, AF_INET6, &l, reterr);
	if (r < 0) {
		nd_listeners_deinit(&l);
		return r;
	}
	if (owners)
		find_owners(s, &l);
	for (size_t i = 0; i < l.n; i++) {
		l.v[i].match = match_of(&l.v[i], links);
		for (size_t k = 0; k < node->n; k++)
			l.v[i].node_address |= is_of_node(&l.v[i], links, node->v[k]);
	}
	if (l.n)
		qsort(l.v, l.n, sizeof(*l.v), by_port);
	*ret = l;
	return 0;
}

static bool listener_equal(const struct nd_listener *a, const struct nd_listener *b)
{
	return a->family == b->family && a->port == b->port &&
	       IN6_ARE_ADDR_EQUAL(&a->addr, &b->addr) && a->dual == b->dual &&
	       a->ifindex == b->ifindex && a->uid == b->uid && a->inode == b->inode &&
	       a->match == b->match && a->node_address == b->node_address && a->pid == b->pid;
}

bool nd_listeners_equal(const struct nd_listeners *a, const struct nd_listeners *b)
{
	for (size_t i = 0; i < a->n && a->n == b->n; i++)
		if (!listener_equal(&a->v[i], &b->v[i]))
			return false;
	return a->n == b->n;
}

void nd_listeners_deinit(struct nd_listeners *l)
{
	free(l->v);
	*l = (struct nd_listeners){ 0 };
}
