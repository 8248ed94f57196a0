/* SPDX-License-Identifier: Apache-2.0 */
/* Requests over netlink (libmnl), answered by the kernel or by a recorded machine. Blocks, with a timeout. */
#ifndef DRAY_NETDETECT_SOURCE_NETLINK_H
#define DRAY_NETDETECT_SOURCE_NETLINK_H

#include <linux/netlink.h>

#include "lib/err.h"
#include "netdetect/source/source.h"

/*
 * Takes one message: its payload, without the netlink header. Returns 0 to continue, or -errno to end the
 * dump. A recording or another process may have made the bytes: check every length.
 */
typedef int (*nd_message_fn)(uint16_t type, const void *payload, size_t n, void *arg);

/*
 * Calls fn for each message of a buffer. 0, 1 after NLMSG_DONE or an acknowledgement, -EBADMSG if a message
 * is cut short, -EINTR if one carries NLM_F_DUMP_INTR, the error of an NLMSG_ERROR, or what fn returned.
 */
int nd_messages(const void *buf, size_t n, nd_message_fn fn, void *arg);

struct nd_query {
	int protocol;       /* NETLINK_ROUTE, ... */
	const char *record; /* ND_RECORD_*: the answer of a recorded machine */
	uint16_t type;
	bool dump; /* the answer is a dump, otherwise one message */
	const void *body;
	size_t n;
	nd_message_fn fn;
	void *arg;
	/*
	 * Elements that fn has collected, or NULL. An interrupted dump (NLM_F_DUMP_INTR) or an overrun (ENOBUFS)
	 * is repeated up to 8 times; before that the number is set back to its first value.
	 */
	size_t *count;
};

/* 0, or -errno with reterr set; -EPROTONOSUPPORT and -EOPNOTSUPP if the kernel lacks the protocol or request. */
int nd_query_run(const struct nd_source *s, const struct nd_query *q, struct dray_err *reterr);

#endif
