/* SPDX-License-Identifier: Apache-2.0 */
/* Requests over netlink (libmnl), answered by the kernel or by a recorded machine. Blocks, with a timeout. */
#pragma once

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

enum nd_request {
	ND_GET_LINKS,
	ND_GET_ADDRS,
	ND_GET_ROUTES,
	ND_GET_RULES,
	ND_GET_ROUTE_TO, /* one route; live only */
	ND_GET_LISTENERS,
	ND_GET_RDMA_DEVICES,
	ND_GET_RDMA_PORTS, /* of one device if live, of all devices if recorded */
	ND_GET_RDMA_RESOURCES,
	ND_GET_RDMA_SYSTEM,
};

/* The file that a recorded machine has in netlink/ for the request. */
const char *nd_record_name(enum nd_request r);

/*
 * True for the -errno of a request that another try may answer: it was interrupted, late, or met a want of memory or descriptors. With any
 * other one the kernel lacks or forbids the request, which kernels and filters say in many ways. Pure.
 */
bool nd_is_transient(int r);

/*
 * Sends a request with n bytes of body, and calls fn for each message of the answer. An interrupted dump
 * (NLM_F_DUMP_INTR) or an overrun (ENOBUFS) is repeated up to 8 times, after pauses of 1 to 8 ms. count, sum: the elements that
 * fn has collected, and a sum over messages, or NULL; a repetition sets both back to their first values. 0, or -errno with reterr set.
 */
int nd_query(const struct nd_source *s, enum nd_request request, const void *body, size_t n,
	     nd_message_fn fn, void *arg, size_t *count, uint64_t *sum, struct dray_err *reterr);
