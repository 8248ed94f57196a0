/* SPDX-License-Identifier: Apache-2.0 */
/* One c-ares channel on the event loop, with the name servers configured when it was made. For the resolver only. */
#pragma once

#include <stdbool.h>
#include <systemd/sd-event.h>

#include "lib/addr.h"
#include "lib/err.h"

struct dns;

#define DNS_ADDRS_MAX 16
#define DNS_REASON_MAX 160

struct dns_answer {
	int code; /* enum dray_error; 0 where there are addresses */
	unsigned n;
	int ttl_s;                             /* of the shortest record; 0 for /etc/hosts */
	struct dray_addr addrs[DNS_ADDRS_MAX]; /* port 0 */
	char reason[DNS_REASON_MAX];           /* without addresses: why, without the name */
};

/* May be called within dns_lookup(). Must not free the channel. */
typedef void (*dns_fn)(void *arg, const struct dns_answer *a);

/* servers, resolv_conf: see resolver_pretend(); NULL: those of the system. 0, or -errno with reterr. */
int dns_new(struct dns **ret, sd_event *event, const char *servers, const char *resolv_conf,
	    struct dray_err *reterr);
/* Lookups in progress end without a callback. Not from within dns_fn. Takes NULL. Returns NULL. */
struct dns *dns_free(struct dns *d);

/* fn is called once, within some seconds, unless the channel is freed before. */
void dns_lookup(struct dns *d, const char *host, dns_fn fn, void *arg);

/* True if resolv.conf has changed since the channel was made. */
bool dns_outdated(const struct dns *d);
