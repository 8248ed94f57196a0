/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/directory/directory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/directory/internal.h"
#include "agent/placement/net/resolver.h"
#include "lib/time.h"
#include "schema/gen/errors.h"

/*
 * A directory that has lost its entries gets those of all agents in this time. Until then, what it does not name is asked for everywhere.
 * The key PREFIX:since has the time when the first agent came.
 */
#define INCOMPLETE_MS 10000
#define SINCE "since"
/* Between two questions for it, while it is not known. */
#define SINCE_AGAIN_NS DRAY_NS_PER_SEC
/* A key that nobody has. */
#define NOBODY "check"

const char *directory_state_name(enum directory_state s)
{
	static const char *const names[DIRECTORY_STATE_N] = {
		[DIRECTORY_DOWN] = "down",
		[DIRECTORY_OK] = "ok",
		[DIRECTORY_REFUSING] = "refusing",
	};

	return names[s];
}

static void check_failed(struct directory *d, enum directory_state s, struct dray_err why)
{
	d->failed.any = true;
	d->failed.state = s;
	d->failed.why = why;
}

void directory_set(struct directory *d, enum directory_state s, const struct dray_err *why)
{
	const struct directory_host *at = d->servers.n ? &d->servers.v[0]->at : &d->url.hosts[0];
	struct dray_err err = dray_err_of(why ? why->code : 0,
					  strchr(at->host, ':') ? "[%s]:%u%s%s" : "%s:%u%s%s",
					  at->host, at->port, why ? ": " : "", why ? why->msg : "");

	/* one that refuses entry after entry may do so in other words each time */
	if (d->state == s && (s == DIRECTORY_REFUSING || !strcmp(d->why.msg, err.msg)))
		return;
	d->state = s;
	d->why = err;
	if (s != DIRECTORY_OK)
		check_failed(d, s, err);
	d->deps.changed(d->deps.arg, s, &err);
}

/* It takes no entries for now. */
static void takes_none(struct directory *d, int code, const char *text, const char *advice)
{
	struct dray_err why =
		dray_err_of(code, "the server takes no entries (%s): %s", text, advice);

	entries_refused(d);
	directory_set(d, DIRECTORY_REFUSING, &why);
}

void directory_refused(struct server *s, const redisReply *r, bool enters)
{
	struct directory *d = s->d;
	char text[100] = "";

	d->totals.errors++;
	if (r->type != REDIS_REPLY_ERROR)
		return;
	answer_text(r, text, sizeof(text));
	switch (answer_refusal(r)) {
	case REFUSAL_FULL:
		takes_none(d, DRAY_E_BUSY, text,
			   "give it more memory or disk, or a policy that evicts "
			   "(maxmemory-policy)");
		break;
	case REFUSAL_DENIED:
		if (enters)
			takes_none(d, DRAY_E_DENIED, text,
				   "let the user in store.directory use ZADD, ZREM, "
				   "ZREMRANGEBYSCORE and PEXPIRE on store.directory_prefix");
		else
			link_fail(s->link, DRAY_E_DENIED,
				  "the user in store.directory may not use ZREVRANGEBYSCORE there");
		break;
	case REFUSAL_AUTH:
		link_fail(s->link, DRAY_E_DENIED,
			  "the server wants a password now: see store.directory_password_file");
		break;
	case REFUSAL_LOADING:
		link_fail(s->link, DRAY_E_BUSY, "the server is still loading its data");
		break;
	case REFUSAL_SCRIPT:
		link_fail(s->link, DRAY_E_BUSY, "a script keeps the server busy");
		break;
	case REFUSAL_REPLICA:
		link_fail(s->link, DRAY_E_DENIED,
			  "the server is a replica, or has lost its primary or replicas: name the "
			  "primary in store.directory");
		break;
	case REFUSAL_MOVED:
	case REFUSAL_ASK:
		if (d->url.sentinel)
			takes_none(d, DRAY_E_UNSUPPORTED, text,
				   "it is part of a cluster: name its servers in "
				   "store.directory, without sentinels");
		break;
	case REFUSAL_OTHER:
	case REFUSAL_CLIENTS:
	case REFUSAL_HOST:
	case REFUSAL_TYPE:
	case REFUSAL_CLUSTER:
	case REFUSAL_N:
		/* a matter of this key */
		break;
	}
}

void directory_check(struct directory *d)
{
	const struct key_command check = { .kind = KEY_CHECK,
					   .n_name = sizeof(NOBODY) - 1,
					   .name = NOBODY };

	if (d->checking)
		return;
	d->failed.any = false;
	for (unsigned i = 0; i < d->servers.n; i++) {
		struct server *s = d->servers.v[i];
		struct batch *b = batch_new(s, NULL, "");

		/* the state says nothing about one server while others of the cluster are connected */
		if (!link_is_up(s->link) && servers_are_up(d))
			check_failed(d, DIRECTORY_DOWN,
				     dray_err_of(DRAY_E_PEER_UNREACHABLE,
						 "%.100s:%u is not connected", s->at.host,
						 s->at.port));
		if (!b)
			continue;
		d->checking++;
		batch_add(b, &check);
		batch_send(b);
	}
}

void directory_check_answer(struct server *s, const redisReply *r)
{
	struct directory *d = s->d;
	char text[100];

	d->checking--;
	if (!r || r->type != REDIS_REPLY_ERROR)
		return;
	/* the state is that of entries and finds, which may be allowed all the same */
	if (answer_refusal(r) == REFUSAL_DENIED)
		check_failed(
			d, DIRECTORY_REFUSING,
			dray_err_of(DRAY_E_DENIED,
				    "%.100s: the user in store.directory may not use a command "
				    "that agents need (%s)",
				    d->why.msg, answer_text(r, text, sizeof(text))));
	else
		directory_refused(s, r, true);
	/* a connection that this ends gives a reason that says more */
	if (!d->failed.any)
		check_failed(d, DIRECTORY_REFUSING,
			     dray_err_of(DRAY_E_DENIED, "%.100s:%u does not take a command (%s)",
					 s->at.host, s->at.port,
					 answer_text(r, text, sizeof(text))));
}

struct directory_check directory_checked(const struct directory *d)
{
	/* a connection that has failed is ended, with the reason, in a turn of its own */
	bool ends = d->state != DIRECTORY_DOWN && !servers_are_up(d);

	if (d->failed.any && !d->checking)
		return (struct directory_check){ d->failed.state, d->failed.why.msg, false };
	return (struct directory_check){ d->state, d->why.msg,
					 d->checking || ends || !*d->why.msg };
}

/* A server with such an answer to the first command is of no use now, also for what it might say of keys. */
static bool is_unusable(const redisReply *r)
{
	enum refusal refusal = r->type == REDIS_REPLY_ERROR ? answer_refusal(r) : REFUSAL_OTHER;

	return refusal == REFUSAL_LOADING || refusal == REFUSAL_SCRIPT ||
	       refusal == REFUSAL_REPLICA;
}

void directory_since(struct server *s, unsigned part, const redisReply *r)
{
	int64_t now = link_time_ms(s->link), ms;

	if (part == 0 && is_unusable(r))
		/* other refusals are those of entries, too */
		directory_refused(s, r, true);
	else if (part == 0)
		directory_used(s->d);
	/* Without the time nobody knows what it should have. The clock of the agent that wrote it may have been ahead. */
	if (part == 1 && answer_number(r, &ms) == 0 && ms >= 0)
		s->d->complete_ns =
			dray_now().ns + (dray_min(ms, now) + INCOMPLETE_MS - now) * DRAY_NS_PER_MS;
}

/* Finds out since when the directory has its entries. False: that cannot be asked now. */
static bool ask_since(struct server *s)
{
	const struct key_command since = { .kind = KEY_SINCE,
					   .n_name = sizeof(SINCE) - 1,
					   .name = SINCE };
	struct batch *b = batch_new(s, NULL, "");

	s->d->since_ns = dray_now().ns;
	s->d->complete_ns = INT64_MAX;
	if (!b)
		return false;
	batch_add(b, &since);
	batch_send(b);
	return true;
}

bool directory_is_complete(struct server *s)
{
	int64_t now = dray_now().ns;

	/* it has not said since when it has entries: it may have had no memory for that */
	if (s->d->complete_ns == INT64_MAX && now > s->d->since_ns + SINCE_AGAIN_NS)
		ask_since(s);
	return now >= s->d->complete_ns;
}

void directory_used(struct directory *d)
{
	/* one that takes no entries may do so at another server still */
	if (d->state == DIRECTORY_DOWN && servers_are_up(d))
		directory_set(d, DIRECTORY_OK, NULL);
}

void directory_up(struct server *s)
{
	/* the server is used when it has answered this */
	if (ask_since(s))
		entries_begin(s->d);
	else
		link_fail(s->link, DRAY_E_NO_MEMORY, "no memory for a command");
}

void directory_down(struct server *s, const struct dray_err *why)
{
	struct directory *d = s->d;

	d->totals.errors++;
	/* the others of a cluster go on */
	if (servers_are_up(d))
		return;
	entries_pause(d);
	directory_set(d, DIRECTORY_DOWN, why);
	sentinels_ask(d);
}

static int start(struct directory *d, struct dray_err *reterr)
{
	const struct dray_config *cfg = d->deps.cfg;
	int r = directory_url_parse(cfg->store.directory, &d->url, reterr);

	if (r >= 0)
		r = login_init(&d->login, cfg, d->url.tls, d->url.user, d->url.database, reterr);
	if (r >= 0)
		r = resolver_new(&d->resolver, d->deps.event, reterr);
	if (r >= 0)
		r = servers_init(d, reterr);
	if (r < 0)
		return r;
	r = names_init(&d->names, cfg->store.directory_prefix);
	if (r >= 0 && d->url.sentinel)
		r = sentinels_init(d);
	if (r >= 0)
		r = finds_init(d);
	if (r >= 0)
		r = entries_init(d);
	return r < 0 ? dray_err_set(reterr, r, DRAY_E_NO_MEMORY, "no memory for store.directory") :
		       0;
}

int directory_files_check(const struct dray_config *cfg, struct dray_err *reterr)
{
	struct directory_url url;
	struct login login;
	int r;

	if (!*cfg->store.directory)
		return 0;
	r = directory_url_parse(cfg->store.directory, &url, reterr);
	if (r < 0)
		return r;
	r = login_init(&login, cfg, url.tls, url.user, url.database, reterr);
	login_deinit(&login);
	return r;
}

int directory_new(struct directory **ret, const struct directory_deps *deps,
		  struct dray_err *reterr)
{
	struct directory *d = calloc(1, sizeof(*d));
	int r;

	if (!d)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY,
				    "no memory for store.directory");
	d->deps = *deps;
	dray_list_init(&d->finds.all);
	dray_list_init(&d->batches);
	r = start(d, reterr);
	if (r < 0) {
		directory_free(d);
		return r;
	}
	*ret = d;
	return 0;
}

struct directory *directory_free(struct directory *d)
{
	if (!d)
		return NULL;
	finds_deinit(d);
	entries_deinit(d);
	sentinels_deinit(d);
	servers_deinit(d);
	batches_free(d);
	resolver_free(d->resolver);
	names_deinit(&d->names);
	login_deinit(&d->login);
	free(d);
	return NULL;
}

struct directory_totals directory_totals(const struct directory *d)
{
	struct directory_totals t = { 0 };

	if (!d)
		return t;
	t = d->totals;
	t.state = d->state;
	return t;
}
