/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Servers take an address only if there is none under its key yet, so that one that an earlier engine of this name has left is removed
 * first. The one of a live engine, too: two engines of one name are told by the log.
 */
#include "agent/control/mooncake/publish.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/mooncake/metadata.h"
#include "lib/backoff.h"
#include "lib/cleanup.h"
#include "lib/log.h"
#include "lib/time.h"
#include "schema/gen/errors.h"

/* Between two descriptors: many changes within this time are one request. */
#define PAUSE_NS (20 * DRAY_NS_PER_MS)
/* Pauses after failed requests. */
#define RETRY_MIN_NS (200 * DRAY_NS_PER_MS)
#define RETRY_MAX_NS (30 * DRAY_NS_PER_SEC)
/* How long the end of the agent waits for the removal of its keys. */
#define STOP_NS (2 * DRAY_NS_PER_SEC)

/* The server's value of a key. */
enum value {
	VALUE_UNKNOWN,
	VALUE_ABSENT,
	VALUE_OTHER,
	VALUE_OWN,
};

enum ask { ASK_NOTHING, ASK_GET, ASK_PUT, ASK_DELETE };

static const char *const methods[] = {
	[ASK_GET] = "GET",
	[ASK_PUT] = "PUT",
	[ASK_DELETE] = "DELETE",
};

/* Compared by address. */
static const char state_absent[] = "absent", state_empty[] = "empty",
		  state_published[] = "published", state_failing[] = "failing";

struct publisher {
	struct mooncake_server *server;
	struct resolver *resolver;
	sd_event_source *timer, *limit;
	struct http_call *call;
	enum metadata_key key; /* of the request in progress */
	enum ask ask;
	bool on;
	struct {
		enum value value;
		bool own;  /* this agent may have put it there */
		bool seen; /* the server had it from this agent */
	} keys[METADATA_KEY_N];
	uint64_t changes;    /* of the descriptor that was sent last */
	int64_t put_ns;      /* when it was */
	int64_t compared_ns; /* when all keys were found to be true */
	bool comparing;      /* since they are asked for again */
	uint32_t fails;      /* in a row */
	unsigned buffers;    /* in the descriptor that was sent last */
	const char *state;   /* the last one that was told */
	void (*gone)(void *arg);
	void *gone_arg;
};

static void arm(struct publisher *p, int64_t at_ns)
{
	sd_event_source_set_time(p->timer, (uint64_t)at_ns / 1000 + 1);
	sd_event_source_set_enabled(p->timer, SD_EVENT_ONESHOT);
}

/* The host as a resolver takes it, which is without brackets. */
static size_t address_text(const struct publisher *p, char *to, size_t n)
{
	char host[DRAY_HOST_BYTES] = "";
	unsigned port = 0;

	dray_host_port_split(p->server->name, host, &port);
	return (size_t)snprintf(to, n, "{\"ip_or_host_name\":\"%s\",\"rpc_port\":%u}", host, port);
}

/* What the key's value has to be; the address uses buf. NULL: there is no memory. */
static const char *text_of(const struct publisher *p, enum metadata_key key, char *buf, size_t n,
			   size_t *ret_n)
{
	const char *text;

	if (key == METADATA_ADDRESS) {
		*ret_n = address_text(p, buf, n);
		return buf;
	}
	text = descriptor_text(p->server, ret_n);
	/* without the end of the line, as engines put it there */
	if (text)
		(*ret_n)--;
	return text;
}

static enum ask next_ask(const struct publisher *p, enum metadata_key key)
{
	if (!p->on)
		return p->keys[key].own ? ASK_DELETE : ASK_NOTHING;
	switch (p->keys[key].value) {
	case VALUE_UNKNOWN:
		return ASK_GET;
	case VALUE_ABSENT:
		return ASK_PUT;
	case VALUE_OTHER:
		return key == METADATA_ADDRESS ? ASK_DELETE : ASK_PUT;
	case VALUE_OWN:
		break;
	}
	return key == METADATA_SEGMENT && p->changes != descriptor_changes(p->server) ? ASK_PUT :
											ASK_NOTHING;
}

static void gone(struct publisher *p)
{
	void (*fn)(void *arg) = dray_take(p->gone);

	p->limit = sd_event_source_disable_unref(p->limit);
	if (fn)
		fn(p->gone_arg);
}

static void tell(struct publisher *p, const char *state, const char *why)
{
	const struct mooncake_deps *d = &p->server->deps;
	const char *before = p->state;

	if (before == state)
		return;
	p->state = state;
	if (d->published)
		d->published(d->arg, p->server->name, before, state, why);
}

static void set_published(struct publisher *p, bool on)
{
	struct mooncake_server *s = p->server;

	if (!on)
		tell(p, state_absent, "the segment may not be used any more");
	else if (p->buffers)
		tell(p, state_published, "there are exports with an address for Mooncake");
	else
		tell(p, state_empty, "there are no exports with an address for Mooncake");

	if (s->totals.published == on)
		return;
	s->totals.published = on;
	if (on)
		log_info(AREA, "the segment is at the metadata server segment=%s", s->name);
	else if (!p->on)
		log_info(AREA, "the segment is removed from the metadata server segment=%s",
			 s->name);
}

static void failed(struct publisher *p, const struct dray_err *why)
{
	struct mooncake_server *s = p->server;

	p->keys[p->key].value = VALUE_UNKNOWN;
	s->totals.metadata_failures++;
	if (p->on)
		s->totals.published = false;
	if (!p->fails++)
		log_warning(AREA,
			    "the segment is %s the metadata server, trying again: %s segment=%s",
			    p->on ? "not at" : "still at", why->msg, s->name);
	tell(p, state_failing, why->msg);
	arm(p, dray_now().ns + backoff_spread(backoff_pause(p->fails, RETRY_MIN_NS, RETRY_MAX_NS)));
}

static void step(struct publisher *p);

static void compare(struct publisher *p, const struct http_answer *answer)
{
	char buf[DRAY_HOST_BYTES + 64];
	size_t n = 0;
	const char *text = text_of(p, p->key, buf, sizeof(buf), &n);
	bool same = text && answer->n == n && !memcmp(answer->body, text, n);
	bool changed = p->key == METADATA_SEGMENT && p->changes != descriptor_changes(p->server);

	if (!same && p->keys[p->key].seen && !changed)
		log_warning(AREA,
			    "another engine has replaced this segment at the metadata server; give "
			    "each engine a name of its own (mooncake.advertise) segment=%s",
			    p->server->name);
	else if (!same && !p->keys[p->key].seen)
		log_info(
			AREA,
			"replacing what an earlier engine has left at the metadata server segment=%s",
			p->server->name);
	p->keys[p->key].value = same ? VALUE_OWN : VALUE_OTHER;
	p->keys[p->key].own |= same;
	if (same && p->key == METADATA_SEGMENT)
		p->buffers = p->server->descriptor.buffers;
	p->keys[p->key].seen = same;
}

static void on_answer(void *arg, const struct http_answer *answer, const struct dray_err *why)
{
	struct publisher *p = arg;
	struct dray_err err;

	p->call = NULL;
	if (!why && answer->status != 200 && (answer->status != 404 || p->ask == ASK_PUT)) {
		err = metadata_refusal(p->server->cfg, answer);
		why = &err;
	}
	if (why) {
		failed(p, why);
		return;
	}
	if (p->ask == ASK_PUT) {
		p->keys[p->key].value = VALUE_OWN;
		p->keys[p->key].seen = true;
	} else if (p->ask == ASK_GET && answer->status == 200) {
		compare(p, answer);
	} else {
		p->keys[p->key].value = VALUE_ABSENT;
		p->keys[p->key].own = p->keys[p->key].seen = false;
	}
	if (p->fails)
		log_notice(AREA, "the metadata server answers again segment=%s", p->server->name);
	p->fails = 0;
	step(p);
}

static int put_prepare(struct publisher *p, struct http_request *request, char *buf, size_t n)
{
	request->content = text_of(p, p->key, buf, n, &request->content_n);
	if (!request->content)
		return -ENOMEM;
	/* even if it fails, the server may have taken it */
	p->keys[p->key].own = true;
	if (p->key == METADATA_SEGMENT) {
		p->changes = descriptor_changes(p->server);
		p->buffers = p->server->descriptor.buffers;
		p->put_ns = dray_now().ns;
	}
	return 0;
}

static void ask(struct publisher *p)
{
	struct dray_err err = DRAY_ERR_NULL;
	char buf[DRAY_HOST_BYTES + 64];
	struct http_request request;
	int r = metadata_request(p->server->cfg, p->key, p->server->name, &request, &err);

	request.event = p->server->deps.event;
	request.resolver = p->resolver;
	request.method = methods[p->ask];
	request.fn = on_answer;
	request.arg = p;
	if (r >= 0 && p->ask == ASK_PUT && put_prepare(p, &request, buf, sizeof(buf)) < 0)
		r = dray_err_set(&err, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for its description");
	if (r >= 0)
		r = http_start(&p->call, &request, &err);
	if (r < 0)
		failed(p, &err);
}

/* Nothing is left to do. */
static void settled(struct publisher *p)
{
	set_published(p, p->on);
	/* a descriptor that was sent proves nothing about the address */
	if (p->comparing || !p->compared_ns)
		p->compared_ns = dray_now().ns;
	p->comparing = false;
	if (p->on)
		arm(p, p->compared_ns + p->server->cfg->mooncake.interval);
	else
		gone(p);
}

/* Sends the next request, if there is one to send now. */
static void step(struct publisher *p)
{
	struct mooncake_server *s = p->server;

	if (p->call)
		return;
	for (unsigned i = 0; i < METADATA_KEY_N; i++) {
		p->key = (enum metadata_key)(p->on ? i : METADATA_KEY_N - 1 - i);
		p->ask = next_ask(p, p->key);
		if (p->ask == ASK_NOTHING)
			continue;
		/* an engine keeps what it has read, so that it does not get to see a segment whose memory is not registered */
		if (p->on && s->rdma && !p->keys[METADATA_SEGMENT].own &&
		    !rails_guest_ready(*s->deps.rails)) {
			arm(p, dray_now().ns + s->cfg->mooncake.interval);
			return;
		}
		if (p->ask == ASK_PUT && p->key == METADATA_SEGMENT && p->put_ns &&
		    dray_now().ns < p->put_ns + PAUSE_NS)
			arm(p, p->put_ns + PAUSE_NS);
		else
			ask(p);
		return;
	}
	settled(p);
}

static int on_timer(sd_event_source *source, uint64_t usec, void *arg)
{
	struct publisher *p = arg;
	bool own = true;

	for (unsigned i = 0; i < METADATA_KEY_N; i++)
		own &= p->keys[i].value == VALUE_OWN;
	if (!p->call && p->on && own &&
	    dray_now().ns >= p->compared_ns + p->server->cfg->mooncake.interval) {
		p->comparing = true;
		for (unsigned i = 0; i < METADATA_KEY_N; i++)
			p->keys[i].value = VALUE_UNKNOWN;
	}
	step(p);
	return 0;
}

void publisher_wake(struct publisher *p)
{
	/* after a failure the pause goes on */
	if (p && !p->call && !p->fails)
		arm(p, dray_now().ns);
}

void publisher_set(struct publisher *p, bool on)
{
	if (!p || p->on == on)
		return;
	p->on = on;
	p->fails = 0;
	publisher_wake(p);
}

static int on_limit(sd_event_source *source, uint64_t usec, void *arg)
{
	struct publisher *p = arg;

	log_warning(AREA,
		    "the metadata server did not remove this segment in time; engines will not "
		    "reach it until an agent with its name is back segment=%s",
		    p->server->name);
	gone(p);
	return 0;
}

void publisher_stop(struct publisher *p, void (*fn)(void *arg), void *arg)
{
	bool own = p && p->call;

	for (unsigned i = 0; p && i < METADATA_KEY_N; i++)
		own |= p->keys[i].own;
	if (p) {
		p->on = false;
		p->fails = 0;
		publisher_wake(p);
	}
	if (!own || sd_event_add_time_relative(p->server->deps.event, &p->limit, CLOCK_MONOTONIC,
					       STOP_NS / 1000, 0, on_limit, p) < 0) {
		fn(arg);
		return;
	}
	p->gone = fn;
	p->gone_arg = arg;
}

int publisher_new(struct publisher **ret, struct mooncake_server *s, struct dray_err *reterr)
{
	struct publisher *p = calloc(1, sizeof(*p));
	struct http_request request;
	int r = -ENOMEM;

	if (p)
		r = sd_event_add_time(s->deps.event, &p->timer, CLOCK_MONOTONIC, 0, 0, on_timer, p);
	if (r < 0) {
		free(p);
		return dray_err_set(reterr, r, DRAY_E_NO_MEMORY, "mooncake.metadata: %s",
				    dray_errno_text(r));
	}
	p->server = s;
	p->on = true;
	p->state = state_absent;
	r = metadata_request(s->cfg, METADATA_ADDRESS, s->name, &request, reterr);
	if (r >= 0)
		r = resolver_new(&p->resolver, s->deps.event, reterr);
	if (r < 0)
		publisher_free(p);
	else
		*ret = p;
	return r;
}

struct publisher *publisher_free(struct publisher *p)
{
	if (!p)
		return NULL;
	http_call_cancel(p->call);
	sd_event_source_disable_unref(p->timer);
	sd_event_source_disable_unref(p->limit);
	resolver_free(p->resolver);
	free(p);
	return NULL;
}
