/* SPDX-License-Identifier: Apache-2.0 */
/* Which listening sockets are segments, what these are called, and the addresses of this node that name them. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/placement/segment/internal.h"
#include "lib/log.h"
#include "netdetect/choose/address.h"

int listeners_configure(struct segments *ss)
{
	const struct dray_strv *words = &ss->deps.cfg->segment.ports;
	struct port_rule *rules = calloc(dray_max(words->n, (size_t)1), sizeof(*rules));
	size_t n = 0;

	if (!rules)
		return -ENOMEM;
	for (size_t i = 0; i < words->n && !list_is_none(words); i++)
		n += port_rule_parse(words->v[i], &rules[n], NULL) == 0;
	free(ss->ports);
	ss->ports = rules;
	ss->n_ports = n;
	return 0;
}

static bool rule_has(const struct port_rule *r, unsigned port)
{
	return port >= r->first && port <= r->last;
}

static bool is_v4(const struct nd_listener *l)
{
	return l->family == AF_INET || IN6_IS_ADDR_V4MAPPED(&l->addr);
}

/* The number that a listener is bound to, as a segment with this port; where it is bound to all: loopback. */
static void listener_address(const struct nd_listener *l, unsigned port, char *buf, size_t n)
{
	char text[INET6_ADDRSTRLEN];
	bool v4 = is_v4(l);

	if (l->match == ND_MATCH_WILDCARD)
		snprintf(buf, n, v4 || l->dual ? "127.0.0.1:%u" : "[::1]:%u", port);
	else
		snprintf(buf, n, v4 ? "%s:%u" : "[%s]:%u",
			 nd_addr_text(&l->addr, v4 ? AF_INET : AF_INET6, text), port);
}

static void listener_assign(struct segment *s, const struct nd_listener *l,
			    const struct port_rule *rule)
{
	struct segments *ss = s->ss;
	bool news = !(s->sources & SEGMENT_LISTENER);
	char place[SEGMENT_NAME_BYTES];
	struct probe_target target;

	if (s->listener_round == ss->round)
		return;
	listener_address(l, l->port, place, sizeof(place));
	if (probe_target_of(place, rule->kind, &target, NULL) < 0)
		return;
	s->listener_round = ss->round;
	segment_mention(s, SEGMENT_LISTENER, true);
	segment_target(&s->listener, &target);
	segment_recheck(s);
	/* it has just opened: no need to wait for the next turn */
	if (news && s->watch && s->state != DMSG_SEGMENT_STATE_READY)
		watch_now(s->watch);
}

/* Could connections to that number reach it? */
static bool family_fits(const struct nd_listener *l, const struct dray_addr *addr)
{
	return l->dual || is_v4(l) == (addr->sa.sa_family == AF_INET);
}

/*
 * A segment of this node that another source mentions, with that port, may well be this listener: under
 * another address of ours, or under one that only others know (segment.local).
 */
static bool could_be(const struct segment *s, const struct nd_listener *l, unsigned port)
{
	char host[DRAY_HOST_BYTES], place[SEGMENT_NAME_BYTES];
	struct dray_addr addr;
	unsigned own;
	bool number;

	if (!s->local || dray_host_port_split(s->name, host, &own) < 0 || own != port ||
	    !(s->sources & ~(unsigned)SEGMENT_LISTENER))
		return false;
	number = dray_addr_parse(s->name, &addr) == 0;
	if (l->match == ND_MATCH_WILDCARD)
		return !number || family_fits(l, &addr);
	listener_address(l, port, place, sizeof(place));
	return !strcmp(place, s->name) || !number || !locality_has_addr(&s->ss->locality, &addr);
}

/* Is that name one to go by? Not what a client's hint calls it, nor what a master calls loopback. */
static bool is_name(const struct segment *s)
{
	return (s->sources & SEGMENT_CONFIG) ||
	       ((s->sources & SEGMENT_MASTER) && !segment_is_loopback(s));
}

/* What it is called where nobody has said so; "": that cannot be said. */
static void listener_name(const struct segments *ss, const struct nd_listener *l, unsigned port,
			  char *name, size_t n)
{
	bool v4 = is_v4(l) || (l->dual && *ss->advertised4);
	const char *address = v4 ? ss->advertised4 : ss->advertised6;

	if (l->match == ND_MATCH_WILDCARD && *address)
		snprintf(name, n, v4 ? "%s:%u" : "[%s]:%u", address, port);
	else
		listener_address(l, port, name, n);
}

static void listener_apply(struct segments *ss, const struct nd_listener *l,
			   const struct port_rule *rule)
{
	unsigned port = rule->segment_port ? rule->segment_port : l->port;
	bool named = false, ready = false;
	char name[SEGMENT_NAME_BYTES];
	struct segment *s;

	dray_list_for_each(&ss->all, known, struct segment, link) {
		if (!could_be(known, l, port))
			continue;
		listener_assign(known, l, rule);
		named |= is_name(known);
		ready |= is_name(known) && known->state == DMSG_SEGMENT_STATE_READY;
	}
	listener_name(ss, l, port, name, sizeof(name));
	if (!dray_endpoint_valid(name) || !strcmp(name, ss->self))
		return;
	s = segment_find(ss, name);
	/* a master that has not been heard yet may call it otherwise */
	if (!s && !named && !(l->match == ND_MATCH_WILDCARD && masters_pending(ss)))
		s = segment_ensure(ss, name, false);
	if (!s || s->listener_round == ss->round)
		return;
	/* our own name stands until the other is ready */
	if (ready)
		s->misnamed_round = ss->round;
	else
		listener_assign(s, l, rule);
}

static bool any_rule_has(const struct segments *ss, unsigned port)
{
	for (size_t i = 0; i < ss->n_ports; i++)
		if (rule_has(&ss->ports[i], port))
			return true;
	return false;
}

/* It goes on being probed there, which tells that it is lost; unless that was only our name for another. */
static void listener_leave(struct segment *s)
{
	struct segments *ss = s->ss;

	if (s->misnamed_round == ss->round && !(s->sources & ~(unsigned)SEGMENT_LISTENER)) {
		log_info(AREA, "%s is forgotten: what listens there is called otherwise", s->name);
		state_drop_segment(ss->deps.state, s->name);
		segment_remove(s);
		segments_decide_soon(ss);
		return;
	}
	if (!(s->sources & SEGMENT_LISTENER))
		return;
	segment_mention(s, SEGMENT_LISTENER, false);
	/* a rule that is gone takes its word back */
	if (s->listener && !any_rule_has(ss, s->listener->port)) {
		segment_target(&s->restored, s->listener);
		segment_target(&s->listener, NULL);
		segment_recheck(s);
	}
	segments_decide_soon(ss);
	if (s->watch)
		watch_now(s->watch);
}

void listeners_apply(struct segments *ss)
{
	if (!ss->located)
		return;
	ss->round++;
	for (size_t r = 0; r < ss->n_ports; r++)
		for (size_t i = 0; i < ss->listeners.n; i++)
			if (rule_has(&ss->ports[r], ss->listeners.v[i].port) &&
			    ss->listeners.v[i].match != ND_MATCH_NONE)
				listener_apply(ss, &ss->listeners.v[i], &ss->ports[r]);
	dray_list_for_each(&ss->all, s, struct segment, link)
		if (s->listener_round != ss->round)
			listener_leave(s);
}

void segments_listeners_changed(struct segments *ss, const struct nd_listeners *now)
{
	struct nd_listener *v = calloc(dray_max(now->n, (size_t)1), sizeof(*v));

	if (!v)
		return;
	if (now->n)
		memcpy(v, now->v, now->n * sizeof(*v));
	nd_listeners_deinit(&ss->listeners);
	ss->listeners = (struct nd_listeners){ .v = v, .n = now->n };
	listeners_apply(ss);
}

/* --- addresses ----------------------------------------------------------------------------------- */

/* What others know this node by, in one family: as the agent itself, else the best address. */
static void find_advertised(const struct segments *ss, const struct nd_links *links, bool v4,
			    char host[DRAY_HOST_BYTES])
{
	dray_auto_free struct nd_candidate *c = NULL;
	struct dray_addr addr;
	unsigned port;
	size_t n = 0;

	if (dray_addr_parse(ss->self, &addr) == 0 && !dray_addr_is_loopback(&addr) &&
	    (addr.sa.sa_family == AF_INET) == v4 &&
	    dray_host_port_split(ss->self, host, &port) == 0)
		return;
	*host = '\0';
	if (nd_advertise_rank(links, v4, !v4, &c, &n) == 0 && n && !c[0].rejected)
		nd_addr_text(&c[0].addr->addr, c[0].addr->family, host);
}

void segments_links_changed(struct segments *ss, const struct nd_links *links,
			    const char *own_segment)
{
	int changed = locality_set_addresses(&ss->locality, links, &ss->deps.cfg->node.addresses);
	bool moved = changed || !ss->located || strcmp(ss->self, own_segment) != 0;

	if (changed < 0) {
		log_error(AREA, "out of memory; addresses of this node stay as they were");
		return;
	}
	snprintf(ss->self, sizeof(ss->self), "%s", own_segment);
	ss->located = true;
	find_advertised(ss, links, true, ss->advertised4);
	find_advertised(ss, links, false, ss->advertised6);
	/* routes and links change far more often than addresses */
	if (moved)
		dray_list_for_each(&ss->all, s, struct segment, link) {
			segment_locate(s);
			segment_recheck(s);
		}
	listeners_apply(ss);
	segments_decide_soon(ss);
}
