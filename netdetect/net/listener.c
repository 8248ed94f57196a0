/* SPDX-License-Identifier: Apache-2.0 */
#include "netdetect/net/listener.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/sock_diag.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "netdetect/source/attr.h"
#include "schema/gen/errors.h"

#define STATE_LISTEN 10 /* TCP_LISTEN of the kernel's net/tcp_states.h */

/* --- one message ---------------------------------------------------------------------------------------- */

static int diag_attr(const struct nd_attr *a, void *arg)
{
	struct nd_listener *l = arg;

	if (a->type == INET_DIAG_SKV6ONLY)
		l->dual = !nd_attr_u8(a);
	return 0;
}

static void address(uint8_t family, const uint32_t bytes[4], struct in6_addr *ret)
{
	memset(ret, 0, sizeof(*ret));
	if (family == AF_INET6) {
		memcpy(ret, bytes, 16);
	} else if (bytes[0]) {
		ret->s6_addr[10] = ret->s6_addr[11] = 0xff;
		memcpy(ret->s6_addr + 12, bytes, 4);
	}
}

int nd_listener_message(uint16_t type, const void *payload, size_t n, void *arg)
{
	struct nd_listeners *out = arg;
	struct nd_listener l = { .dual = false }, *place;
	struct inet_diag_msg m;
	int r;

	if (type != SOCK_DIAG_BY_FAMILY)
		return 0;
	if (n < sizeof(m))
		return -EBADMSG;
	memcpy(&m, payload, sizeof(m));
	if ((m.idiag_family != AF_INET && m.idiag_family != AF_INET6) ||
	    m.idiag_state != STATE_LISTEN)
		return 0;
	l.family = m.idiag_family;
	address(l.family, m.id.idiag_src, &l.addr);
	l.port = ntohs(m.id.idiag_sport);
	l.ifindex = (int)m.id.idiag_if;
	l.uid = m.idiag_uid;
	l.inode = m.idiag_inode;
	r = nd_attrs((const uint8_t *)payload + sizeof(m), n - sizeof(m), diag_attr, &l);
	if (r < 0)
		return r;
	if (l.family != AF_INET6 || !IN6_IS_ADDR_UNSPECIFIED(&l.addr))
		l.dual = false;
	place = nd_grow((void **)&out->v, &out->n, sizeof(l));
	if (!place)
		return -ENOMEM;
	*place = l;
	return 0;
}

/* --- what it is good for ----------------------------------------------------------------------------------- */

static bool is_loopback(const struct nd_listener *l)
{
	return IN6_IS_ADDR_V4MAPPED(&l->addr) ? l->addr.s6_addr[12] == 127 :
						IN6_IS_ADDR_LOOPBACK(&l->addr);
}

static enum nd_listener_match match_of(const struct nd_listener *l, const struct nd_links *links)
{
	if (IN6_IS_ADDR_UNSPECIFIED(&l->addr))
		return ND_MATCH_WILDCARD;
	if (is_loopback(l))
		return ND_MATCH_LOOPBACK;
	for (size_t i = 0; i < links->n_addrs; i++)
		if (IN6_ARE_ADDR_EQUAL(&links->addrs[i].addr, &l->addr))
			return ND_MATCH_ADDRESS;
	return ND_MATCH_NONE;
}

static bool parse(const char *text, struct in6_addr *ret, uint8_t *ret_family)
{
	uint32_t v4;

	if (inet_pton(AF_INET6, text, ret) == 1) {
		*ret_family = AF_INET6;
		return true;
	}
	if (inet_pton(AF_INET, text, &v4) != 1)
		return false;
	*ret_family = AF_INET;
	memset(ret, 0, sizeof(*ret));
	ret->s6_addr[10] = ret->s6_addr[11] = 0xff;
	memcpy(ret->s6_addr + 12, &v4, 4);
	return true;
}

/* Under an address of the node: bound to it, or to all where this namespace has the address. */
static bool of_node(const struct nd_listener *l, const struct nd_links *links, const char *text)
{
	struct in6_addr a;
	uint8_t family;

	if (!parse(text, &a, &family))
		return false;
	if (IN6_ARE_ADDR_EQUAL(&a, &l->addr))
		return true;
	if (l->match != ND_MATCH_WILDCARD || (l->family != family && !l->dual))
		return false;
	for (size_t i = 0; i < links->n_addrs; i++)
		if (IN6_ARE_ADDR_EQUAL(&links->addrs[i].addr, &a))
			return true;
	return false;
}

/* --- owners -------------------------------------------------------------------------------------------------- */

static int by_inode(const void *a, const void *b)
{
	const struct nd_listener *x = a, *y = b;

	return x->inode < y->inode ? -1 : x->inode > y->inode;
}

static void own(const struct nd_source *s, struct nd_listeners *l, uint32_t inode, int pid)
{
	struct nd_listener key = { .inode = inode };
	struct nd_listener *found = bsearch(&key, l->v, l->n, sizeof(key), by_inode);

	if (!found || found->pid)
		return;
	found->pid = pid;
	nd_read_text(s, found->process, sizeof(found->process), "/proc/%d/comm", pid);
}

static bool look_into(const struct nd_source *s, struct nd_listeners *l, const char *pid)
{
	char path[ND_PATH_MAX], target[64];
	DIR *dir = opendir(nd_path(s, path, "/proc/%s/fd", pid));
	struct dirent *e;

	if (!dir)
		return false;
	while ((e = readdir(dir))) {
		unsigned inode;
		ssize_t n;

		if (e->d_name[0] == '.')
			continue;
		n = readlinkat(dirfd(dir), e->d_name, target, sizeof(target) - 1);
		if (n <= 0)
			continue;
		target[n] = '\0';
		if (sscanf(target, "socket:[%u]", &inode) == 1)
			own(s, l, inode, (int)strtol(pid, NULL, 10));
	}
	closedir(dir);
	return true;
}

static void find_owners(const struct nd_source *s, struct nd_listeners *l)
{
	char path[ND_PATH_MAX];
	DIR *dir = opendir(nd_path(s, path, "/proc"));
	struct dirent *e;

	if (!dir)
		return;
	if (l->n)
		qsort(l->v, l->n, sizeof(*l->v), by_inode);
	while ((e = readdir(dir)))
		if (isdigit((unsigned char)e->d_name[0]))
			l->owners |= look_into(s, l, e->d_name);
	closedir(dir);
}

/* --- the scan ------------------------------------------------------------------------------------------------- */

static int by_port(const void *a, const void *b)
{
	const struct nd_listener *x = a, *y = b;
	int r;

	if (x->port != y->port)
		return x->port < y->port ? -1 : 1;
	r = memcmp(&x->addr, &y->addr, sizeof(x->addr));
	return r ? r : (int)x->family - (int)y->family;
}

struct family_dump {
	struct nd_listeners *l;
	size_t before;
};

static int family_message(uint16_t type, const void *payload, size_t n, void *arg)
{
	return nd_listener_message(type, payload, n, ((struct family_dump *)arg)->l);
}

/* Only what this dump has brought. */
static void family_restart(void *arg)
{
	struct family_dump *d = arg;

	d->l->n = d->before;
}

static int dump(const struct nd_source *s, uint8_t family, struct nd_listeners *l,
		struct dray_err *reterr)
{
	struct inet_diag_req_v2 req = { .sdiag_family = family,
					.sdiag_protocol = IPPROTO_TCP,
					.idiag_states = 1u << STATE_LISTEN };
	struct family_dump arg = { l, l->n };

	return nd_dump(s, NETLINK_SOCK_DIAG, ND_RECORD_LISTEN, SOCK_DIAG_BY_FAMILY, &req,
		       sizeof(req), family_message, family_restart, &arg, reterr);
}

int nd_listeners_scan(const struct nd_source *s, const struct nd_links *links,
		      const char *const *node, size_t n_node, bool owners, struct nd_listeners *ret,
		      struct dray_err *reterr)
{
	struct nd_listeners l = { 0 };
	int r = dump(s, AF_INET, &l, reterr);

	/* a recording has both families in one */
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
		for (size_t k = 0; k < n_node; k++)
			l.v[i].node_address |= of_node(&l.v[i], links, node[k]);
	}
	if (l.n)
		qsort(l.v, l.n, sizeof(*l.v), by_port);
	*ret = l;
	return 0;
}

static bool listener_equal(const struct nd_listener *a, const struct nd_listener *b)
{
	return a->family == b->family && a->port == b->port &&
	       !memcmp(&a->addr, &b->addr, sizeof(a->addr)) && a->dual == b->dual &&
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
