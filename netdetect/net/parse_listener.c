/* SPDX-License-Identifier: Apache-2.0 */
/* Parses sock_diag messages: bytes to listeners. */
#include "netdetect/net/listener.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/sock_diag.h>
#include <string.h>

#include "lib/array.h"
#include "netdetect/source/attr.h"

#define STATE_LISTEN 10 /* TCP_LISTEN of the kernel's net/tcp_states.h */

static int diag_attr(const struct nd_attr *a, void *arg)
{
	struct nd_listener *l = arg;

	if (a->type == INET_DIAG_SKV6ONLY)
		l->dual = !nd_attr_number(a, 1);
	return 0;
}

int nd_listener_message(uint16_t type, const void *payload, size_t n, void *arg)
{
	struct nd_listeners *out = arg;
	struct nd_listener l = { .dual = false };
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
	/* the wildcard of either family is all zero */
	if (l.family == AF_INET6 || m.id.idiag_src[0])
		nd_addr_set(&l.addr, l.family, m.id.idiag_src);
	l.port = ntohs(m.id.idiag_sport);
	l.ifindex = (int)m.id.idiag_if;
	l.uid = m.idiag_uid;
	l.inode = m.idiag_inode;
	r = nd_attrs((const uint8_t *)payload + sizeof(m), n - sizeof(m), diag_attr, &l);
	if (r < 0)
		return r;
	if (l.family != AF_INET6 || !IN6_IS_ADDR_UNSPECIFIED(&l.addr))
		l.dual = false;
	return DRAY_APPEND(out->v, out->n, l);
}
