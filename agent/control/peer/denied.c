/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses whose agent did not prove the key, as `drayctl peers` shows them: a segment that this agent connected to, or the
 * host of a connection that it accepted. Each of them is logged once. The list is bounded, because any host can cause
 * an entry; the oldest entry makes room.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/peer/internal.h"
#include "lib/log.h"
#include "lib/time.h"

#define DENIED_MAX 64
/* An entry ends that long after the last attempt. */
#define DENIED_KEPT_NS (600 * DRAY_NS_PER_SEC)

struct denied {
	struct dray_list link; /* in p->denied, by the last attempt */
	bool initiator;        /* this agent connected */
	char where[SEGMENT_MAX + 1];
	struct dray_err why;
	int64_t since_ns, last_ns;
};

static void denied_drop(struct peers *p, struct denied *d)
{
	dray_list_del(&d->link);
	p->n_denied--;
	free(d);
}

/* The address without its port, which differs between connections. */
static void host_show(const struct dray_addr *addr, char host[DRAY_HOST_BYTES])
{
	char text[DRAY_ADDR_TEXT_MAX];
	unsigned port;

	if (dray_host_port_split(dray_addr_show(addr, text, sizeof(text)), host, &port) < 0)
		snprintf(host, DRAY_HOST_BYTES, "?");
}

static struct denied *denied_find(struct peers *p, bool initiator, const char *where)
{
	dray_list_for_each(&p->denied, d, struct denied, link)
		if (d->initiator == initiator && !strcmp(d->where, where))
			return d;
	return NULL;
}

static void expire(struct peers *p, int64_t now)
{
	dray_list_for_each(&p->denied, d, struct denied, link)
		if (now - d->last_ns >= DENIED_KEPT_NS)
			denied_drop(p, d);
}

static struct denied *denied_new(struct peers *p, bool initiator, const char *where, int64_t now)
{
	struct denied *oldest = dray_list_first(&p->denied, struct denied, link);
	struct denied *d = calloc(1, sizeof(*d));

	if (!d)
		return NULL;
	if (p->n_denied == DENIED_MAX && oldest)
		denied_drop(p, oldest);
	*d = (struct denied){ .initiator = initiator, .since_ns = now };
	snprintf(d->where, sizeof(d->where), "%s", where);
	dray_list_init(&d->link);
	p->n_denied++;
	return d;
}

/* True if the address is new in the list. */
static bool denied_add(struct peers *p, bool initiator, const char *where,
		       const struct dray_err *why)
{
	int64_t now = peers_now(p);
	struct denied *d;
	bool known;

	expire(p, now);
	d = denied_find(p, initiator, where);
	known = d;
	if (!d)
		d = denied_new(p, initiator, where, now);
	if (!d)
		return false;
	d->why = *why;
	d->last_ns = now;
	dray_list_move(&p->denied, &d->link);
	return !known;
}

void denied_connect(struct peers *p, const char *segment, const struct dray_err *why)
{
	if (denied_add(p, true, segment, why))
		log_limited(DRAY_LOG_WARNING, AREA, "the agent at %s does not hold our key: %s",
			    segment, why->msg);
}

bool denied_accept(struct peers *p, const struct dray_addr *from, const struct dray_err *why)
{
	char host[DRAY_HOST_BYTES];

	host_show(from, host);
	if (!denied_add(p, false, host, why))
		return false;
	log_limited(DRAY_LOG_WARNING, AREA,
		    "a program at %s connected that does not hold our key: %s", host, why->msg);
	return true;
}

void denied_clear(struct peers *p, const struct peer *proved)
{
	char host[DRAY_HOST_BYTES];

	host_show(&proved->addr, host);
	dray_list_for_each(&p->denied, d, struct denied, link)
		if (!strcmp(d->where, d->initiator ? proved->segment : host))
			denied_drop(p, d);
}

void denied_each(struct peers *p, void (*fn)(void *arg, const struct dray_dbus_peer *peer),
		 void *arg)
{
	int64_t now = peers_now(p);

	expire(p, now);
	dray_list_for_each(&p->denied, d, struct denied, link)
		fn(arg, &(struct dray_dbus_peer){
				.agent_id = "",
				.segment = d->where,
				.state = "denied",
				.reason = d->why.msg,
				.since_ns = dray_span(now - d->since_ns),
				.heartbeat_age_ns = dray_span(now - d->last_ns),
				.initiator = d->initiator,
			});
}

void denied_free(struct peers *p)
{
	dray_list_for_each(&p->denied, d, struct denied, link)
		denied_drop(p, d);
}
