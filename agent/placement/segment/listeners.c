/* SPDX-License-Identifier: Apache-2.0 */
/* Listening sockets that are segments, their names, and the addresses of this node for these names. */
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

/* HOST:PORT of the address that a listener is bound to; loopback if it is bound to all addresses. */
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

/* 0 or negative, as probe_target_of(). */
static int listener_target(const struct nd_listener *l, const struct port_rule *rule,
			   struct probe_target *ret)
{
	char place[SEGMENT_NAME_BYTES];

	listener_address(l, l->port, place, sizeof(place));
	return probe_target_of(place, rule->kind, ret, NULL);
}

/* Its listener was not there before. */
static void listener_opened(struct segment *s)
{
	if (s->watch && s->state != DMSG_SEGMENT_STATE_READY)
		watch_now(s->watch);
}

static void listener_assign(struct segment *s, const struct nd_listener *l,
			    const struct port_rule *rule)
{
	struct segments *ss = s->ss;
	bool news = !(s->sources & SEGMENT_LISTENER);
	struct probe_target target;

	if (s->listener_round == ss->round || listener_target(l, rule, &target) < 0)
		return;
	s->listener_round = ss->round;
	segment_mention(s, SEGMENT_LISTENER, true);
	segment_target(&s->listener, &target);
	segment_recheck(s);
	if (news)
		listener_opened(s);
}

/* The listener says only how the segment is probed. */
static void listener_probe(struct segment *s, const struct nd_listener *l,
			   const struct port_rule *rule)
{
	struct segments *ss = s->ss;
	struct probe_target target;
	bool news = !s->probe_round;

	if (s->probe_round == ss->round || listener_target(l, rule, &target) < 0)
		return;
	s->probe_round = ss->round;
	/* listener_assign() or listener_leave() decides about it in this round */
	if (s->sources & SEGMENT_LISTENER)
		return;
	if (!s->listener || !probe_target_equal(s->listener, &target)) {
		segment_target(&s->listener, &target);
		segment_recheck(s);
	}
	if (news)
		listener_opened(s);
}

/* Can a connection to that address reach the listener? */
static bool family_fits(const struct nd_listener *l, const struct dray_addr *addr)
{
	return l->dual || is_v4(l) == (addr->sa.sa_family == AF_INET);
}

/*
 * A segment of this node with that port, which another source mentions, may be this listener: under another address of
 * the node, or under one that only other networks know (segment.local).
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

/* It must not become a candidate for those who do not see the hint. */
static bool is_only_hinted(const struct segment *s)
{
	return !(s->sources & ~(unsigned)(SEGMENT_LISTENER | SEGMENT_HINT));
}

/* Does the name replace the one that we would choose? Not if it comes only from a hint, or is a master's loopback name. */
static bool is_name(const struct segment *s)
{
	return (s->sources & SEGMENT_CONFIG) ||
	       ((s->sources & SEGMENT_MASTER) && !segment_is_loopback(s));
}

/* The name of a listener that no source names. */
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

static unsigned segment_port(const struct nd_listener *l, const struct port_rule *rule)
{
	return rule->segment_port ? rule->segment_port : l->port;
}

void listeners_find(struct segment *s)
{
	struct segments *ss = s->ss;
	char host[DRAY_HOST_BYTES];
	unsigned port;

	if (!s->local || !ss->located || !s->sources ||
	    dray_host_port_split(s->name, host, &port) < 0)
		return;
	if (!is_only_hinted(s)) {
		/* it may be the name of a listener, which the next decision finds out */
		ss->renamed = true;
		segments_decide_soon(ss);
		return;
	}
	for (size_t r = 0; r < ss->n_ports; r++)
		for (size_t i = 0; i < ss->listeners.n; i++) {
			const struct nd_listener *l = &ss->listeners.v[i];

			if (segment_port(l, &ss->ports[r]) == port &&
			    rule_has(&ss->ports[r], l->port) && l->match != ND_MATCH_NONE &&
			    could_be(s, l, port))
				listener_probe(s, l, &ss->ports[r]);
		}
}

static void listener_apply(struct segments *ss, const struct nd_listener *l,
			   const struct port_rule *rule)
{
	unsigned port = segment_port(l, rule);
	bool named = false, ready = false;
	char name[SEGMENT_NAME_BYTES];
	struct segment *s;

	dray_list_for_each(&ss->all, known, struct segment, link) {
		if (!could_be(known, l, port))
			continue;
		if (is_only_hinted(known)) {
			listener_probe(known, l, rule);
			continue;
		}
		listener_assign(known, l, rule);
		named |= is_name(known);
		ready |= is_name(known) && known->state == DMSG_SEGMENT_STATE_READY;
	}
	listener_name(ss, l, port, name, sizeof(name));
	if (!dray_endpoint_valid(name) || !strcmp(name, ss->self))
		return;
	s = segment_find(ss, name);
	/* a master that was not read yet may have another name for it */
	if (!s && !named && !(l->match == ND_MATCH_WILDCARD && masters_pending(ss)))
		s = segment_ensure(ss, name, SEGMENT_LISTENER);
	if (!s || s->listener_round == ss->round)
		return;
	/* our name for it stays until the other one is ready */
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

/* The segment is still probed there, so it becomes lost; but a name of ours that another one replaces is forgotten. */
static void listener_leave(struct segment *s)
{
	struct segments *ss = s->ss;
	bool was = s->sources & SEGMENT_LISTENER;
	bool probed = s->probe_round && s->probe_round != ss->round;

	if (s->misnamed_round == ss->round && !(s->sources & ~(unsigned)SEGMENT_LISTENER)) {
		log_info(AREA, "%s is forgotten: its listener has another name now", s->name);
		state_drop_segment(ss->deps.state, s->name);
		segment_remove(s);
		segments_decide_soon(ss);
		return;
	}
	if (was) {
		segment_mention(s, SEGMENT_LISTENER, false);
		segment_recheck(s);
	}
	/* the rule of segment.ports that made it a segment is gone */
	if (s->listener && !any_rule_has(ss, s->listener->port)) {
		segment_target(&s->restored, s->listener);
		segment_target(&s->listener, NULL);
		segment_recheck(s);
	}
	if (probed)
		s->probe_round = 0;
	if (was)
		segments_decide_soon(ss);
	if ((was || probed) && s->watch)
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

void segments_listeners_changed(struct segments *ss, struct nd_listeners *now)
{
	if (nd_listeners_equal(&ss->listeners, now))
		return;
	nd_listeners_deinit(&ss->listeners);
	ss->listeners = *now;
	*now = (struct nd_listeners){ .v = NULL };
	listeners_apply(ss);
}

/* The address of one family that others use: that of the agent itself, else the best one. */
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
	/* most changes of links and routes leave the addresses as they are */
	if (moved)
		dray_list_for_each(&ss->all, s, struct segment, link) {
			segment_locate(s);
			segment_recheck(s);
		}
	listeners_apply(ss);
	segments_decide_soon(ss);
}
