/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Is a segment on this node? If its host is a name, the addresses of the name decide. All segments of a name share one
 * lookup, a limited number of lookups run at a time, and each is repeated after a while.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/placement/segment/internal.h"

#define LOOKUP_TIMEOUT_NS (5 * DRAY_NS_PER_SEC)
/* Intervals of lookups, the second for hosts without a candidate, so that the agents of a cluster do not flood its DNS. */
#define LOOKUP_AGAIN_NS (60 * DRAY_NS_PER_SEC)
#define LOOKUP_OTHERS_NS (15 * 60 * DRAY_NS_PER_SEC)
#define LOOKUPS_MAX 32

static void set_local(struct segment *s, bool local, const char *where)
{
	bool was = s->local;

	s->local = local;
	segment_text(&s->where, where);
	if (was != local)
		segment_recheck(s);
}

/* Whether the host is this node by its present addresses; the reason goes to where. */
static bool host_find(struct host *h, const char *fault, char *where, size_t n)
{
	bool local = false;

	h->loopback = h->n_addrs > 0;
	for (unsigned i = 0; i < h->n_addrs; i++) {
		local |= locality_has_addr(&h->ss->locality, &h->addrs[i]);
		h->loopback &= dray_addr_is_loopback(&h->addrs[i]);
	}
	if (h->known)
		snprintf(where, n, "%.200s is %sa name of this node", h->name, local ? "" : "not ");
	else
		snprintf(where, n, "the addresses of %.100s are not known%s%.150s", h->name,
			 *fault ? ": " : "", fault);
	return local;
}

static void on_answer(void *arg, const struct dray_addr *addrs, unsigned n,
		      const struct dray_err *why)
{
	char where[DRAY_HOST_BYTES + DRAY_ERR_MSG_MAX];
	struct host *h = arg;
	bool local;

	h->query = NULL;
	h->ss->n_lookups--;
	/* after a failed lookup the former addresses stay */
	if (!why || !h->known) {
		h->known = !why;
		h->n_addrs = dray_min(n, (unsigned)HOST_ADDRS_MAX);
		for (unsigned i = 0; i < h->n_addrs; i++)
			h->addrs[i] = addrs[i];
		local = host_find(h, why ? why->msg : "", where, sizeof(where));
		/* even if local is unchanged: the host is known now */
		dray_list_for_each(&h->segments, s, struct segment, of_host) {
			bool was = s->local;

			s->local = local;
			segment_text(&s->where, where);
			segment_recheck(s);
			if (local && !was)
				listeners_find(s);
		}
	}
	hosts_refresh(h->ss);
}

static void look_up(struct segments *ss, struct host *h)
{
	struct dray_err err = DRAY_ERR_NULL;

	h->lookup_ns = dray_now().ns;
	if (resolver_lookup(ss->resolver, h->name, 1, LOOKUP_TIMEOUT_NS, on_answer, h, &h->query,
			    &err) < 0)
		h->query = NULL;
	else
		ss->n_lookups++;
}

static bool matters(const struct host *h)
{
	dray_list_for_each(&h->segments, s, struct segment, of_host)
		if (!dray_list_empty(&s->foreground))
			return true;
	return false;
}

/* The list is in the order of visits, new hosts first. */
void hosts_refresh(struct segments *ss)
{
	int64_t now = dray_now().ns;

	if (!ss->located)
		return;
	dray_list_for_each(&ss->hosts, h, struct host, link) {
		if (ss->n_lookups >= LOOKUPS_MAX ||
		    (h->visited_ns && now - h->visited_ns < LOOKUP_AGAIN_NS))
			return;
		h->visited_ns = now;
		dray_list_move(&ss->hosts, &h->link);
		if (!h->query && (!h->lookup_ns || !h->known || matters(h) ||
				  now - h->lookup_ns >= LOOKUP_OTHERS_NS))
			look_up(ss, h);
	}
}

static struct host *host_ensure(struct segments *ss, const char *name)
{
	size_t n = strlen(name);
	struct host *h =
		dray_map_entry(dray_map_find(&ss->hosts_by_name, name, n), struct host, by_name);

	if (h)
		return h;
	h = calloc(1, sizeof(*h));
	if (!h)
		return NULL;
	h->ss = ss;
	snprintf(h->name, sizeof(h->name), "%s", name);
	dray_list_init(&h->segments);
	dray_list_add_front(&ss->hosts, &h->link);
	dray_map_add(&ss->hosts_by_name, &h->by_name, h->name, strlen(h->name));
	return h;
}

/* The host is freed with its last segment. */
void segment_leave_host(struct segment *s)
{
	struct segments *ss = s->ss;
	struct host *h = dray_take(s->host);

	dray_list_del(&s->of_host);
	if (!h || !dray_list_empty(&h->segments))
		return;
	if (h->query)
		ss->n_lookups--;
	resolver_cancel(h->query);
	dray_map_del(&ss->hosts_by_name, &h->by_name);
	dray_list_del(&h->link);
	free(h);
}

void segment_locate(struct segment *s)
{
	struct segments *ss = s->ss;
	char where[DRAY_HOST_BYTES + DRAY_ERR_MSG_MAX];
	char name[DRAY_HOST_BYTES];
	bool local = false;
	unsigned port;
	int r = locality_find(&ss->locality, s->name, where, sizeof(where));

	if (r != -EAGAIN) {
		segment_leave_host(s);
		set_local(s, r > 0, where);
		return;
	}
	if (!s->host && dray_host_port_split(s->name, name, &port) == 0) {
		s->host = host_ensure(ss, name);
		if (s->host)
			dray_list_add(&s->host->segments, &s->of_host);
	}
	if (s->host && s->host->known)
		local = host_find(s->host, "", where, sizeof(where));
	set_local(s, local, where);
	hosts_refresh(ss);
}

bool segment_is_loopback(const struct segment *s)
{
	struct dray_addr addr;

	if (s->host)
		return s->host->loopback;
	return dray_addr_parse(s->name, &addr) == 0 && dray_addr_is_loopback(&addr);
}
