/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The servers of the directory. There is one, unless it says that it is part of a cluster: then each has some of the slots that keys are
 * divided into. A map of them is read when a key is found to be elsewhere, and again while a server is down.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/directory/internal.h"
#include "lib/time.h"
#include "schema/gen/errors.h"

#define ASK_AGAIN_NS DRAY_NS_PER_SEC

static void on_up(void *arg)
{
	directory_up(arg);
}

static void on_down(void *arg, const struct dray_err *why)
{
	struct server *s = arg;
	struct servers *ss = &s->d->servers;

	/* another one may have its slots now */
	if (ss->map)
		sd_event_source_set_enabled(ss->timer, SD_EVENT_ONESHOT);
	directory_down(s, why);
}

static struct server *server_new(struct directory *d, const struct directory_host *at,
				 struct dray_err *reterr)
{
	struct servers *ss = &d->servers;
	struct server *s = ss->n < SERVERS_MAX ? calloc(1, sizeof(*s)) : NULL;

	if (!s) {
		dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a server");
		return NULL;
	}
	s->d = d;
	s->at = *at;
	if (link_new(&s->link,
		     &(struct link_config){ .event = d->deps.event,
					    .resolver = d->resolver,
					    .tls = d->login.tls,
					    .host = s->at.host,
					    .port = s->at.port,
					    .login = &d->login.link,
					    .late_ns = d->deps.cfg->store.directory_timeout,
					    .up = on_up,
					    .down = on_down,
					    .arg = s },
		     reterr) < 0) {
		free(s);
		return NULL;
	}
	ss->v[ss->n++] = s;
	return s;
}

static bool same(const struct directory_host *a, const struct directory_host *b)
{
	return a->port == b->port && !strcmp(a->host, b->host);
}

/* NULL: there are too many, or there is no memory. */
static struct server *server_at(struct directory *d, const struct directory_host *at)
{
	for (unsigned i = 0; i < d->servers.n; i++)
		if (same(&d->servers.v[i]->at, at))
			return d->servers.v[i];
	return server_new(d, at, NULL);
}

bool servers_are_up(const struct directory *d)
{
	for (unsigned i = 0; i < d->servers.n; i++)
		if (link_is_up(d->servers.v[i]->link))
			return true;
	return false;
}

static unsigned slot_of(const struct directory *d, const struct key_command *k)
{
	char text[NAME_BYTES];
	size_t n = d->names.n_prefix;

	memcpy(text, d->names.prefix, n);
	text[n++] = ':';
	memcpy(text + n, k->name, k->n_name);
	return cluster_slot(text, n + k->n_name);
}

struct server *server_of(struct directory *d, const struct key_command *k)
{
	const struct servers *ss = &d->servers;
	unsigned index = ss->map ? ss->map->of[slot_of(d, k)] : 0;
	struct server *s = index ? ss->mapped[index - 1] : ss->v[0];

	/* any server of a cluster says who has the key */
	for (unsigned i = 0; ss->map && !index && i < ss->n && !link_is_up(s->link); i++)
		s = ss->v[i];
	return s && link_is_up(s->link) ? s : NULL;
}

/* --- the map of a cluster ------------------------------------------------------------------------------ */

static void map_ask(struct directory *d)
{
	static const struct key_command nodes = { .kind = KEY_NODES };
	struct servers *ss = &d->servers;
	struct batch *b = NULL;

	ss->asked_ns = dray_now().ns;
	sd_event_source_set_time(ss->timer, (uint64_t)(ss->asked_ns + ASK_AGAIN_NS) / 1000);
	/* another one than last time, if there are several */
	for (unsigned i = 0; i < ss->n && !b; i++)
		b = batch_new(ss->v[(ss->turn + i) % ss->n], NULL, "");
	ss->turn++;
	if (!b)
		return;
	batch_add(b, &nodes);
	batch_send(b);
}

static bool is_mapped_down(const struct directory *d)
{
	const struct servers *ss = &d->servers;

	for (unsigned i = 0; ss->map && i < ss->map->n; i++)
		if (!ss->mapped[i] || !link_is_up(ss->mapped[i]->link))
			return true;
	return false;
}

static int on_timer(sd_event_source *source, uint64_t usec, void *arg)
{
	struct directory *d = arg;

	map_ask(d);
	if (is_mapped_down(d))
		sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
	return 0;
}

static bool map_make(struct servers *ss)
{
	if (!ss->map)
		ss->map = calloc(1, sizeof(*ss->map));
	return ss->map;
}

/* The place of the server in the map; 0: there is none left. */
static uint8_t map_place(struct servers *ss, struct server *s)
{
	unsigned i = 0;

	while (i < ss->map->n && ss->mapped[i] != s)
		i++;
	if (i == CLUSTER_SERVERS_MAX)
		return 0;
	if (i == ss->map->n) {
		ss->mapped[i] = s;
		ss->map->servers[i] = s->at;
		ss->map->n++;
	}
	return (uint8_t)(i + 1);
}

struct server *server_redirected(struct server *from, const redisReply *r, bool asks)
{
	struct directory *d = from->d;
	struct servers *ss = &d->servers;
	struct directory_host at;
	struct server *s;
	unsigned slot;

	/* behind sentinels there is one server, which servers_set() replaces */
	if (d->url.sentinel || cluster_redirection(r, from->at.host, &slot, &at) < 0)
		return NULL;
	s = server_at(d, &at);
	if (asks || !s || !map_make(ss))
		return s;
	ss->map->of[slot] = map_place(ss, s);
	/* where one slot has moved, others have */
	if (dray_now().ns > ss->asked_ns + ASK_AGAIN_NS)
		map_ask(d);
	else
		sd_event_source_set_enabled(ss->timer, SD_EVENT_ONESHOT);
	return s;
}

static void server_free(struct server *s)
{
	link_free(s->link);
	free(s);
}

static bool is_mapped(const struct servers *ss, const struct server *s)
{
	for (unsigned i = 0; ss->map && i < ss->map->n; i++)
		if (ss->mapped[i] == s)
			return true;
	return false;
}

/* Servers that the cluster does not have any more. The one that has just answered stays until next time. */
static void leave_others(struct directory *d, const struct server *answers)
{
	struct servers *ss = &d->servers;
	struct server *gone[SERVERS_MAX];
	unsigned n = 1, n_gone = 0;

	for (unsigned i = 1; i < ss->n; i++)
		if (ss->v[i] == answers || is_mapped(ss, ss->v[i]))
			ss->v[n++] = ss->v[i];
		else
			gone[n_gone++] = ss->v[i];
	ss->n = n;
	for (unsigned i = 0; i < n_gone; i++) {
		batches_lose(gone[i]);
		server_free(gone[i]);
	}
}

/* Another server has a slot, or none. Each server may list them in an order of its own. */
static bool is_changed(const struct cluster_map *from, const struct cluster_map *to)
{
	uint8_t was[1 + CLUSTER_SERVERS_MAX] = { 0 };

	for (unsigned i = 0; i < to->n; i++) {
		was[i + 1] = UINT8_MAX;
		for (unsigned k = 0; k < from->n; k++)
			if (same(&to->servers[i], &from->servers[k]))
				was[i + 1] = (uint8_t)(k + 1);
	}
	for (unsigned i = 0; i < CLUSTER_SLOTS; i++)
		if (from->of[i] != was[to->of[i]])
			return true;
	return false;
}

/* Takes the map over. False: no memory. */
static bool map_take(struct directory *d, const struct cluster_map *map)
{
	struct servers *ss = &d->servers;

	if (!map_make(ss))
		return false;
	*ss->map = *map;
	for (unsigned i = 0; i < map->n; i++)
		ss->mapped[i] = server_at(d, &map->servers[i]);
	return true;
}

/* The server of store.directory is part of no cluster any more. */
static bool is_alone(const struct server *s, const redisReply *r)
{
	return s == s->d->servers.v[0] && r->type == REDIS_REPLY_ERROR &&
	       strstr(r->str, "cluster support disabled");
}

static void map_forget(struct directory *d)
{
	struct servers *ss = &d->servers;

	free(dray_take(ss->map));
	free(dray_take(ss->said));
	leave_others(d, ss->v[0]);
	/* it lacks the entries of the others */
	entries_begin(d);
}

void servers_answer(struct server *s, const redisReply *r)
{
	struct directory *d = s->d;
	struct cluster_map **said = &d->servers.said, *map;
	bool changed;

	if (!r)
		return;
	if (is_alone(s, r)) {
		map_forget(d);
		return;
	}
	map = malloc(sizeof(*map));
	if (!map || cluster_nodes(r, s->at.host, map) < 0 || !map_take(d, map)) {
		d->totals.errors++;
		free(map);
		return;
	}
	/* entries may be missing where slots have moved to; what a redirection alone says may never be in the map */
	changed = !*said || is_changed(*said, map);
	free(*said);
	*said = map;
	if (changed)
		entries_begin(d);
	leave_others(d, s);
	if (is_mapped_down(d))
		sd_event_source_set_enabled(d->servers.timer, SD_EVENT_ONESHOT);
}

bool servers_set(struct directory *d, const struct directory_host *at)
{
	struct servers *ss = &d->servers;
	struct server *old = ss->v[0], *new;
	struct dray_err why;

	if (old && same(&old->at, at))
		return false;
	new = server_new(d, at, NULL);
	if (!new)
		return false;
	if (!old)
		return true;
	ss->v[--ss->n] = NULL;
	ss->v[0] = new;
	batches_lose(old);
	server_free(old);
	entries_pause(d);
	why = dray_err_of(DRAY_E_PEER_LOST, "the sentinels have named it as the primary");
	directory_set(d, DIRECTORY_DOWN, &why);
	return true;
}

int servers_init(struct directory *d, struct dray_err *reterr)
{
	int r = sd_event_add_time(d->deps.event, &d->servers.timer, CLOCK_MONOTONIC, 0, 1000,
				  on_timer, d);

	if (r >= 0)
		r = sd_event_source_set_enabled(d->servers.timer, SD_EVENT_OFF);
	if (r < 0)
		return dray_err_set(reterr, r, DRAY_E_NO_MEMORY, "no memory for store.directory");
	if (d->url.sentinel)
		return 0;
	return server_new(d, &d->url.hosts[0], reterr) ? 0 : -ENOMEM;
}

void servers_deinit(struct directory *d)
{
	struct servers *ss = &d->servers;

	for (unsigned i = 0; i < ss->n; i++)
		server_free(ss->v[i]);
	sd_event_source_disable_unref(ss->timer);
	free(ss->map);
	free(ss->said);
}
