/* SPDX-License-Identifier: Apache-2.0 */
/* Requests and dumps over netlink (libmnl), or out of a recorded machine. Blocking, bounded. */
#ifndef DRAY_NETDETECT_SOURCE_NETLINK_H
#define DRAY_NETDETECT_SOURCE_NETLINK_H

#include <linux/netlink.h>

#include "lib/err.h"
#include "netdetect/source/source.h"

/*
 * One message of a dump: its payload, without the netlink header. Returns 0 to go on or -errno to end
 * the dump. The bytes are the kernel's or anybody's: check every length.
 */
typedef int (*nd_message_fn)(uint16_t type, const void *payload, size_t n, void *arg);

/*
 * Walks a buffer of netlink messages. 0, 1 after NLMSG_DONE, -EBADMSG where a message is cut short,
 * -EINTR where one carries NLM_F_DUMP_INTR, the error that an NLMSG_ERROR names, or what fn returned.
 */
int nd_messages(const void *buf, size_t n, nd_message_fn fn, void *arg);

/* Forgets what a dump has brought so far, since it starts again. */
typedef void (*nd_restart_fn)(void *arg);

/*
 * A dump of netlink family `protocol`: type and body of the request, its answers to fn. An interrupted
 * dump (NLM_F_DUMP_INTR) or an overrun (ENOBUFS) is begun anew after restart(arg), 8 times at most. A
 * recorded machine answers with the file `record`. 0 or -errno, with the reason in reterr;
 * -EPROTONOSUPPORT and -EOPNOTSUPP where this kernel does not have it.
 */
int nd_dump(const struct nd_source *s, int protocol, const char *record, uint16_t type,
	    const void *body, size_t n, nd_message_fn fn, nd_restart_fn restart, void *arg,
	    struct dray_err *reterr);

/* One request with one answer (no NLM_F_DUMP). The same returns; a recorded machine as above. */
int nd_request(const struct nd_source *s, int protocol, const char *record, uint16_t type,
	       const void *body, size_t n, nd_message_fn fn, void *arg, struct dray_err *reterr);

#endif
