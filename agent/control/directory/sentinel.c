/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/directory/sentinel.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/directory/internal.h"
#include "lib/backoff.h"
#include "lib/time.h"
#include "schema/gen/errors.h"

#define PAUSE_MIN_NS (100 * DRAY_NS_PER_MS)
#define PAUSE_MAX_NS (5 * DRAY_NS_PER_SEC)
/* Between two questions, while the primary cannot be used. */
#define ASK_AGAIN_NS DRAY_NS_PER_SEC

struct sentinels {
	struct directory *d;
	struct link *link; /* to one of them; NULL: the timer runs */
	unsigned at;       /* that one */
	unsigned failures; /* one after the other */
	bool vain;         /* its last answer has not helped */
	sd_event_source *timer;
};

static void wake_in(struct sentinels *ss, int64_t ns)
{
	sd_event_source_set_time_relative(ss->timer, (uint64_t)ns / 1000);
	sd_event_source_set_enabled(ss->timer, SD_EVENT_ONESHOT);
}

/* Without a primary there is no directory. */
static void failed(struct directory *d, int code, const char *text)
{
	const struct directory_host *h = &d->url.hosts[d->sentinels->at];
	struct dray_err why =
		dray_err_of(code, "the sentinel %.60s:%u: %.140s", h->host, h->port, text);

	d->totals.errors++;
	if (!servers_are_up(d))
		directory_set(d, DIRECTORY_DOWN, &why);
}

/* False: it is no address. */
static bool address_get(const redisReply *r, struct directory_host *ret)
{
	struct dray_addr a;
	int64_t port;

	if (r->type != REDIS_REPLY_ARRAY || r->elements != 2 ||
	    r->element[0]->type != REDIS_REPLY_STRING ||
	    (size_t)r->element[0]->len >= sizeof(ret->host) ||
	    answer_number(r->element[1], &port) < 0 || port < 1 || port > UINT16_MAX)
		return false;
	snprintf(ret->host, sizeof(ret->host), "%s", r->element[0]->str);
	ret->port = (unsigned)port;
	return dray_host_is_address(ret->host, &a) || dray_host_is_name(ret->host);
}

static void on_answer(void *arg, uint32_t i, const redisReply *r)
{
	struct directory *d = arg;
	struct directory_host at;
	char text[100];

	if (!r)
		return;
	d->sentinels->vain = true;
	if (r->type == REDIS_REPLY_NIL || (r->type == REDIS_REPLY_ARRAY && !r->elements))
		failed(d, DRAY_E_NOT_FOUND,
		       "it does not know the service behind # in store.directory");
	else if (r->type == REDIS_REPLY_ERROR)
		failed(d, DRAY_E_DENIED, answer_text(r, text, sizeof(text)));
	else if (!address_get(r, &at))
		failed(d, DRAY_E_PROTOCOL, "its answer is malformed");
	else
		d->sentinels->vain = !servers_set(d, &at);
}

static struct link_word word(const char *text)
{
	return (struct link_word){ text, strlen(text) };
}

static void ask(struct sentinels *ss)
{
	struct link_op *op = ss->link ? link_begin(ss->link, on_answer, ss->d) : NULL;

	if (!op)
		return;
	link_command(ss->link, op,
		     (struct link_word[]){ word("SENTINEL"), word("GET-MASTER-ADDR-BY-NAME"),
					   word(ss->d->url.service) },
		     3);
	link_send(ss->link);
	wake_in(ss, ASK_AGAIN_NS);
}

static void on_up(void *arg)
{
	struct sentinels *ss = arg;

	ss->failures = 0;
	ask(ss);
}

static void leave(struct sentinels *ss)
{
	ss->link = link_free(ss->link);
	ss->at = (ss->at + 1) % ss->d->url.n_hosts;
	ss->vain = false;
}

/* The next one is asked instead. */
static void on_down(void *arg, const struct dray_err *why)
{
	struct sentinels *ss = arg;

	failed(ss->d, why->code, why->msg);
	leave(ss);
	wake_in(ss, backoff_spread(backoff_pause(++ss->failures, PAUSE_MIN_NS, PAUSE_MAX_NS)));
}

static void connect_to_next(struct sentinels *ss)
{
	static const struct link_login nobody = { .user = "" };
	struct directory *d = ss->d;
	const struct directory_host *h = &d->url.hosts[ss->at];
	const struct link_config cfg = { .event = d->deps.event,
					 .resolver = d->resolver,
					 .tls = d->login.tls,
					 .host = h->host,
					 .port = h->port,
					 .login = &nobody,
					 .is_sentinel = true,
					 .late_ns = d->deps.cfg->store.directory_timeout,
					 .up = on_up,
					 .down = on_down,
					 .arg = ss };

	if (link_new(&ss->link, &cfg, NULL) < 0)
		wake_in(ss, PAUSE_MAX_NS);
}

static int on_timer(sd_event_source *source, uint64_t usec, void *arg)
{
	struct sentinels *ss = arg;

	if (ss->link && servers_are_up(ss->d))
		return 0;
	/* one that is cut off from the others may not know the primary that they have made */
	if (ss->vain && ss->d->url.n_hosts > 1)
		leave(ss);
	if (ss->link)
		ask(ss);
	else
		connect_to_next(ss);
	return 0;
}

void sentinels_ask(struct directory *d)
{
	/* if none is connected, the next one that is gets the question */
	if (d->sentinels && d->sentinels->link)
		wake_in(d->sentinels, 0);
}

int sentinels_init(struct directory *d)
{
	struct sentinels *ss = calloc(1, sizeof(*ss));

	if (!ss)
		return -ENOMEM;
	ss->d = d;
	d->sentinels = ss;
	return sd_event_add_time_relative(d->deps.event, &ss->timer, CLOCK_MONOTONIC, 0, 1000,
					  on_timer, ss);
}

void sentinels_deinit(struct directory *d)
{
	struct sentinels *ss = d->sentinels;

	if (!ss)
		return;
	sd_event_source_disable_unref(ss->timer);
	link_free(ss->link);
	free(ss);
}
