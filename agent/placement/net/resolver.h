/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host names to addresses, by c-ares on the agent's event loop: /etc/hosts first, then the name servers of
 * /etc/resolv.conf, which is read again when it has changed. Control thread only; nothing blocks, and there are no
 * threads.
 *
 * Questions about one name share one lookup. What it found is kept as long as its records say, 5 to 30 s, and a
 * failure for 2 s, so that a thousand segments on one name cost one lookup in a while.
 */
#ifndef DRAY_AGENT_PLACEMENT_NET_RESOLVER_H
#define DRAY_AGENT_PLACEMENT_NET_RESOLVER_H

#include <stdint.h>
#include <systemd/sd-event.h>

#include "agent/placement/net/dns.h"
#include "lib/addr.h"
#include "lib/cleanup.h"
#include "lib/err.h"

struct resolver;
struct resolver_query;

#define RESOLVER_ADDRS_MAX DNS_ADDRS_MAX

/*
 * addrs: those with a route first, of these IPv4 before IPv6, each with the port asked for; valid during the call.
 * why: NULL, or the reason that there is none; n is 0 then. The query is gone: it is not cancelled any more. May ask,
 * cancel other queries and free the resolver.
 */
typedef void (*resolver_fn)(void *arg, const struct dray_addr *addrs, unsigned n,
			    const struct dray_err *why);

/* event: borrowed. 0, or -errno with reterr. That there is no name server is told to those who ask. */
int resolver_new(struct resolver **ret, sd_event *event, struct dray_err *reterr);
/* Queries that are not answered yet are cancelled. Takes NULL. Returns NULL. */
struct resolver *resolver_free(struct resolver *r);

DRAY_DEFINE_CLEANUP(struct resolver *, resolver_free);

/*
 * host: a name, or an IPv4 or IPv6 address without brackets and zone; copied. port: 0 to 65535. fn is called exactly
 * once unless the query is cancelled, from the event loop and never in here, after timeout_ns (more than 0) at the
 * latest. ret: to cancel it; may be NULL. 0, or -errno with reterr and no call: -EINVAL for what can be no host.
 */
int resolver_lookup(struct resolver *r, const char *host, unsigned port, int64_t timeout_ns,
		    resolver_fn fn, void *arg, struct resolver_query **ret,
		    struct dray_err *reterr);

/* fn is not called. Takes NULL. Returns NULL. */
struct resolver_query *resolver_cancel(struct resolver_query *q);

/*
 * For tests alone: other name servers, such as "127.0.0.1:5353,[::1]:53", and another file instead of
 * /etc/resolv.conf; NULL: as usual. Both are borrowed. What is known is forgotten.
 */
void resolver_pretend(struct resolver *r, const char *servers, const char *resolv_conf);

#endif
