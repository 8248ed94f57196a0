/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Resolves host names by c-ares on the agent's event loop: /etc/hosts first, then the name servers of
 * /etc/resolv.conf, which is read again when it has changed. Control thread only; nothing blocks.
 *
 * Queries for one name share one lookup. Its result is cached for the lifetime of the records, at least 5 and at most
 * 30 s, and a failure for 2 s, so that a thousand segments on one name cost one lookup in a while.
 */
#pragma once

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
 * addrs: addresses with a route come first, and IPv4 before IPv6; each has the port of the query; valid during the
 * call. why: NULL, or the reason that there are no addresses. The query has ended and must not be cancelled. fn may
 * start and cancel other queries and free the resolver.
 */
typedef void (*resolver_fn)(void *arg, const struct dray_addr *addrs, unsigned n,
			    const struct dray_err *why);

/* event: borrowed. A missing name server is no error here but one of each query. 0, or -errno with reterr. */
int resolver_new(struct resolver **ret, sd_event *event, struct dray_err *reterr);
/* Cancels all queries. Takes NULL. Returns NULL. */
struct resolver *resolver_free(struct resolver *r);

DRAY_DEFINE_CLEANUP(struct resolver *, resolver_free);

/*
 * host: a name, or an IPv4 or IPv6 address without brackets and zone; copied. port: 0 to 65535. fn is called exactly
 * once unless the query is cancelled, from the event loop and not inside this call, within timeout_ns (more than 0).
 * ret: for resolver_cancel(); may be NULL. 0, or -errno with reterr and no callback: -EINVAL if host is malformed.
 */
int resolver_lookup(struct resolver *r, const char *host, unsigned port, int64_t timeout_ns,
		    resolver_fn fn, void *arg, struct resolver_query **ret,
		    struct dray_err *reterr);

/* fn will not be called. Takes NULL. Returns NULL. */
struct resolver_query *resolver_cancel(struct resolver_query *q);

/*
 * For tests only: uses other name servers, such as "127.0.0.1:5353,[::1]:53", and another file instead of
 * /etc/resolv.conf; NULL: those of the system. Both are borrowed. Empties the cache.
 */
void resolver_pretend(struct resolver *r, const char *servers, const char *resolv_conf);
