/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/directory/directory.h"

#include <errno.h>
#include <inttypes.h>
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
#define SINCE ":since"

const char *directory_state_name(enum directory_state s)
{
	static const char *const names[DIRECTORY_STATE_N] = {
		[DIRECTORY_DOWN] = "down",
		[DIRECTORY_OK] = "ok",
		[DIRECTORY_REFUSING] = "refusing",
	};

	return names[s];
}

void directory_set(struct directory *d, enum directory_state s, const struct dray_err *why)
{
	struct dray_err err = dray_err_of(why ? why->code : 0,
					  strchr(d->url.host, ':') ? "[%s]:%u%s%s" : "%s:%u%s%s",
					  d->url.host, d->url.port, why ? ": " : "",
					  why ? why->msg : "");

	if (d->state == s && !strcmp(d->why.msg, err.msg))
		return;
	d->state = s;
	d->why = err;
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

void directory_refused(struct directory *d, const redisReply *r, bool enters)
{
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
			link_fail(d->link, DRAY_E_DENIED,
				  "the user in store.directory may not use ZREVRANGEBYSCORE there");
		break;
	case REFUSAL_AUTH:
		link_fail(d->link, DRAY_E_DENIED,
			  "the server wants a password now: see store.directory_password_file");
		break;
	case REFUSAL_LOADING:
		link_fail(d->link, DRAY_E_BUSY, "the server is still loading its data");
		break;
	case REFUSAL_REPLICA:
		link_fail(d->link, DRAY_E_DENIED,
			  "the server is a replica, or has lost its primary or replicas: name the "
			  "primary in store.directory");
		break;
	case REFUSAL_OTHER:
	case REFUSAL_TYPE:
	case REFUSAL_MOVED:
	case REFUSAL_ASK:
	case REFUSAL_CLUSTER:
	case REFUSAL_N:
		/* a matter of this key */
		break;
	}
}

bool directory_is_complete(const struct directory *d)
{
	return link_time_ms(d->link) >= d->incomplete_ms;
}

static void on_set(void *arg, uint32_t i, const redisReply *r)
{
	struct directory *d = arg;

	/* a server that has just started; other refusals are those of entries, too */
	if (r && r->type == REDIS_REPLY_ERROR && answer_refusal(r) == REFUSAL_LOADING)
		directory_refused(d, r, true);
}

static void on_since(void *arg, uint32_t i, const redisReply *r)
{
	struct directory *d = arg;
	int64_t now = link_time_ms(d->link), ms;

	/* Without the time nobody knows what it should have. The clock of the agent that wrote it may have been ahead. */
	if (r && answer_number(r, &ms) == 0)
		d->incomplete_ms = dray_min(ms, now) + INCOMPLETE_MS;
}

/* Finds out since when the directory has its entries. */
static void ask_since(struct directory *d)
{
	char name[DIRECTORY_PREFIX_MAX + sizeof(SINCE)], now[24];
	size_t n = (size_t)snprintf(name, sizeof(name), "%s" SINCE, d->names.prefix);
	struct link_word set[] = { { "SET", 3 }, { name, n }, { now, 0 }, { "NX", 2 } };
	struct link_op *op;

	d->incomplete_ms = INT64_MAX;
	set[2].n = (size_t)snprintf(now, sizeof(now), "%" PRId64, link_time_ms(d->link));
	op = link_begin(d->link, on_set, d);
	if (op)
		link_command(d->link, op, set, 4);
	op = link_begin(d->link, on_since, d);
	if (op)
		link_command(d->link, op, (struct link_word[]){ { "GET", 3 }, { name, n } }, 2);
	link_send(d->link);
}

static void on_up(void *arg)
{
	struct directory *d = arg;

	ask_since(d);
	directory_set(d, DIRECTORY_OK, NULL);
	entries_begin(d);
}

static void on_down(void *arg, const struct dray_err *why)
{
	struct directory *d = arg;

	d->totals.errors++;
	entries_pause(d);
	directory_set(d, DIRECTORY_DOWN, why);
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
		r = link_new(&d->link,
			     &(struct link_config){ .event = d->deps.event,
						    .resolver = d->resolver,
						    .tls = d->login.tls,
						    .host = d->url.host,
						    .port = d->url.port,
						    .login = &d->login.link,
						    .late_ns = cfg->store.directory_timeout,
						    .up = on_up,
						    .down = on_down,
						    .arg = d },
			     reterr);
	if (r < 0)
		return r;
	r = names_init(&d->names, cfg->store.directory_prefix);
	if (r >= 0)
		r = finds_init(d);
	if (r >= 0)
		r = entries_init(d);
	return r < 0 ? dray_err_set(reterr, r, DRAY_E_NO_MEMORY, "no memory for store.directory") :
		       0;
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
	link_free(d->link);
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
