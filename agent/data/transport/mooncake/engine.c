/* SPDX-License-Identifier: Apache-2.0 */
/* The engines, their channels, and the order of work on their streams. */
#include "agent/data/transport/mooncake/mooncake.h"

#include <errno.h>
#include <stdlib.h>

#include "agent/data/transfer/xfer.h"
#include "lib/backoff.h"
#include "lib/ballast.h"
#include "lib/fds.h"
#include "schema/gen/errors.h"

/* Attempts in a row, at least, before the engine counts as lost. */
#define GIVE_UP_ATTEMPTS 3
#define UNREACHABLE \
	"Mooncake's engine at the remote's address does not answer: import its segment again"
#define NO_FDS                                                                                 \
	"this agent has no free file descriptor for a connection to Mooncake's engine: raise " \
	"its NOFILE limit"
#define NO_MEMORY "this agent has no memory for a connection to Mooncake's engine"

static struct mooncake_engine *find(struct mooncake *m, dray_handle engine)
{
	dray_list_for_each(&m->engines, e, struct mooncake_engine, engines_link)
		if (e->link->peer == engine)
			return e;
	return NULL;
}

void mooncake_engine_up(struct mooncake *m, const struct transport_message *msg)
{
	struct mooncake_engine *e = dray_calloc_sure(1, sizeof(*e));
	struct mooncake_link *link = msg->arg;

	e->m = m;
	e->link = &link->link;
	e->with_status = link->with_status;
	for (unsigned k = 0; k < 2; k++) {
		struct mooncake_channel *ch = &e->channels[k];

		stage_channel_init(&ch->ch, &transport_mooncake, (enum dmsg_class)k, e->link, ch,
				   &e->staged, &ch->pull_link, &m->pulling[k]);
		ch->engine = e;
		dray_list_init(&ch->streams);
	}
	dray_list_add(&m->engines, &e->engines_link);
}

static void engine_free(struct mooncake_engine *e)
{
	for (unsigned k = 0; k < 2; k++) {
		dray_list_for_each(&e->channels[k].streams, s, struct mooncake_stream, link)
			mooncake_stream_close(s);
		stage_channel_deinit(&e->channels[k].ch);
	}
	dray_list_del(&e->engines_link);
	free(e);
}

static void tell(struct mooncake *m, enum mooncake_message type, dray_handle engine)
{
	m->c->up->event(m->c, &(struct event){ .type = EVENT_TRANSPORT,
					       .message = { .transport = TRANSPORT_MOONCAKE,
							    .type = type,
							    .peer = engine } });
}

void mooncake_engine_down(struct mooncake *m, dray_handle engine)
{
	struct mooncake_engine *e = find(m, engine);

	/* its remotes were dropped, so no transfer uses it */
	if (e)
		engine_free(e);
	tell(m, MOONCAKE_ENGINE_GONE, engine);
}

void mooncake_engines_deinit(struct mooncake *m)
{
	dray_list_for_each(&m->engines, e, struct mooncake_engine, engines_link)
		engine_free(e);
}

void mooncake_streams_free(struct mooncake *m)
{
	struct mooncake_stream *s;

	while ((s = dray_list_pop(&m->over, struct mooncake_stream, link)))
		free(s);
}

struct channel *mooncake_engine_channel(struct core *c, void *state, const struct xfer *x)
{
	const struct remote_view *remote = object_remote(x->remote);
	const struct region_view *local = object_region(x->local);
	struct mooncake_engine *e = remote->mooncake ? find(state, remote->peer) : NULL;
	struct stage_channel *ch;

	if (!e)
		return NULL;
	ch = &e->channels[x->class].ch;
	if (local->memory == REGION_HOST)
		return &ch->direct;
	return stage_reaches(c, local) ? &ch->staged : NULL;
}

void mooncake_engine_stop(struct core *c, void *state, struct xfer *x, bool urgent)
{
	struct mooncake_channel *ch = x->channel->owner;
	struct dray_list over = DRAY_LIST_INIT(over);

	dray_list_for_each(&ch->streams, s, struct mooncake_stream, link)
		mooncake_stream_stop(s, x, urgent, &over);
	/* afterwards, because a stream that is torn gives slices back that were not begun */
	stage_channel_stop(c, &ch->ch, x, urgent, &over);
	xfer_slices_end(c, &over, 0);
}

static bool has(const struct mooncake_engine *e, const struct xfer *x)
{
	return x->state == XFER_RUNNING && (stage_channel_has(&e->channels[0].ch, x) ||
					    stage_channel_has(&e->channels[1].ch, x));
}

static void stop_unreachable(struct core *c, struct xfer *x, void *arg)
{
	if (has(arg, x))
		xfer_stop(c, x, DRAY_E_PEER_LOST, UNREACHABLE, false);
}

static void stop_lacking(struct core *c, struct xfer *x, void *arg)
{
	const struct mooncake_engine *e = arg;
	bool fds = dray_lacks_fds(e->lack);
	const struct mooncake_channel *ch = has(e, x) ? x->channel->owner : NULL;

	/* over streams that are open they go on */
	if (ch && ch->lacks && !ch->n_open)
		xfer_stop(c, x, fds ? DRAY_E_NO_FDS : DRAY_E_NO_MEMORY, fds ? NO_FDS : NO_MEMORY,
			  false);
}

void mooncake_channel_failed(struct mooncake_channel *ch, int error)
{
	struct mooncake_engine *e = ch->engine;
	struct mooncake *m = e->m;
	struct core *c = m->c;
	bool lacks = dray_is_own_lack(error);
	struct mooncake_fails *f = lacks ? &ch->lacking : &ch->refused;
	int64_t pause;

	ch->lacks = lacks;
	if (!f->n++)
		f->since_ns = c->now_ns;
	pause = backoff_pause(ch->refused.n + ch->lacking.n, c->cfg.backoff_min_ns,
			      c->cfg.backoff_max_ns);
	ch->connect_ns = c->now_ns + backoff_spread(dray_max(pause, (int64_t)DRAY_NS_PER_MS));
	mooncake_timer(m, ch->connect_ns);
	if (f->n < GIVE_UP_ATTEMPTS || e->lost ||
	    (error != -ECONNREFUSED && c->now_ns - f->since_ns < c->cfg.connect_timeout_ns))
		return;
	/* its transfers cannot end here, which may be inside of a walk over streams */
	if (lacks)
		e->lack = error;
	else
		e->lost = true;
	mooncake_timer(m, c->now_ns);
}

/* The engine stays: later transfers try again. */
static void end_lack(struct mooncake_engine *e)
{
	xfers_each(e->m->c, stop_lacking, e);
	e->lack = 0;
	for (unsigned k = 0; k < 2; k++)
		e->channels[k].lacking.n = 0;
}

static void lose(struct mooncake_engine *e)
{
	struct mooncake *m = e->m;

	e->told = true;
	tell(m, MOONCAKE_ENGINE_LOST, e->link->peer);
	xfers_each(m->c, stop_unreachable, e);
}

/* Ending a slice can end any stream, so the walk begins again after each. */
static void streams_tick(struct mooncake_channel *ch)
{
	bool again = true;

	while (again) {
		again = false;
		dray_list_for_each(&ch->streams, s, struct mooncake_stream, link) {
			again = mooncake_stream_tick(s);
			if (again)
				break;
		}
	}
}

void mooncake_engines_tick(struct mooncake *m)
{
	dray_list_for_each(&m->engines, e, struct mooncake_engine, engines_link)
		for (unsigned k = 0; k < 2; k++) {
			struct mooncake_channel *ch = &e->channels[k];

			streams_tick(ch);
			if (stage_channel_has_work(&ch->ch))
				stage_channel_pull_later(&ch->ch);
		}
	dray_list_for_each(&m->engines, e, struct mooncake_engine, engines_link)
		if (e->lost && !e->told)
			lose(e);
		else if (e->lack)
			end_lack(e);
}

/* A channel whose streams take no slices now leaves the list. */
static void pull(struct mooncake *m, unsigned class, int64_t *budget)
{
	struct dray_list now = DRAY_LIST_INIT(now);
	struct mooncake_channel *ch;

	dray_list_splice(&now, &m->pulling[class]);
	while ((ch = dray_list_pop(&now, struct mooncake_channel, pull_link)))
		if (*budget <= 0 || mooncake_channel_pull(ch, budget))
			stage_channel_pull_later(&ch->ch);
}

static void work(struct mooncake *m, unsigned class, int64_t *budget)
{
	struct mooncake_stream *s;

	pull(m, class, budget);
	while (*budget > 0 &&
	       (s = dray_list_pop(&m->calling[class], struct mooncake_stream, ready_link))) {
		mooncake_stream_step(s, budget);
		/* a step without bytes counts, too: every turn must end */
		*budget -= MOONCAKE_CALL_COST;
		if (mooncake_stream_wants(s) && dray_list_empty(&s->ready_link))
			dray_list_add(&m->calling[class], &s->ready_link);
		if (!dray_list_empty(&m->pulling[class]))
			pull(m, class, budget);
	}
}

bool mooncake_engines_idle(const struct mooncake *m)
{
	return dray_list_empty(&m->calling[0]) && dray_list_empty(&m->calling[1]) &&
	       dray_list_empty(&m->pulling[0]) && dray_list_empty(&m->pulling[1]) &&
	       dray_list_empty(&m->over);
}

bool mooncake_engines_progress(struct mooncake *m)
{
	static const enum dmsg_class order[] = { DMSG_CLASS_LATENCY, DMSG_CLASS_BULK };
	bool more = false;

	if (mooncake_engines_idle(m))
		return false;
	mooncake_streams_free(m);
	for (unsigned i = 0; i < 2; i++) {
		int64_t budget = MOONCAKE_TURN_BYTES;

		work(m, order[i], &budget);
		more |= !dray_list_empty(&m->calling[order[i]]) ||
			(budget <= 0 && !dray_list_empty(&m->pulling[order[i]]));
	}
	return more;
}
