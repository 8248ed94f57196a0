/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/data/worker/store_source.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/data/transfer/object.h"
#include "agent/data/worker/store_place.h"
#include "agent/data/worker/store_reading.h"
#include "agent/data/worker/store_wanted.h"
#include "agent/model/keys.h"
#include "lib/cleanup.h"
#include "lib/crc32c.h"

/* An agent that does not send the bytes of a source at this rate counts as lost: its bytes are asked for elsewhere. */
#define SOURCE_WAIT_NS DRAY_NS_PER_SEC
#define SOURCE_LEAST_RATE (32ull << 20)

static void next_source(struct fetch *f);

/*
 * Gives leases back from which nothing more is read, while others are still needed: of objects that are read, that are lost, that are
 * too large for their ranges, or that came here by another way.
 */
static void sources_end(struct fetch *f)
{
	struct store_ask *k = f->ask;
	uint32_t n = 0;

	for (uint32_t i = 0; i < k->n_sources; i++)
		k->sources[i].wanted = false;
	for (uint32_t i = 0; i < k->n; i++)
		if (f->landings[i].wanted && !k->sources[k->v[i].source].wanted) {
			k->sources[k->v[i].source].wanted = true;
			n++;
		} else if (!f->landings[i].wanted && k->v[i].held) {
			held_end(dray_take(k->v[i].held));
		}
	/* else all end with the ask */
	for (uint32_t i = 0; n && i < k->n_sources; i++)
		if (!k->sources[i].wanted)
			source_done(worker_of_fetch(f), k, i);
}

/* What is read from a source, and by how many operations. */
struct source_reads {
	struct landing *landings;
	uint32_t n, n_ops;
	uint64_t bytes;
};

static void source_ops(struct fetch *f, struct source_reads *r)
{
	*r = (struct source_reads){ .landings = f->landings + f->ask->n };
	for (uint32_t i = 0; i < f->ask->n; i++) {
		if (!f->landings[i].wanted || f->ask->v[i].source != f->source)
			continue;
		r->landings[r->n++] = f->landings[i];
		r->n_ops += place_ops(f, i, f->ops + (size_t)r->n_ops * DMSG_OP_SIZE);
		r->bytes += f->landings[i].bytes;
	}
}

/*
 * Nothing more is read from this agent: while it is lost, the transports would still take a transfer with it. It is asked for these
 * objects again only if that may go better: its lease has ended, perhaps because others were read before; RDMA was too slow, and TCP may
 * be in time; or the stream was lost on which they followed an answer. slow: only its time has passed. silent: nothing came meanwhile.
 */
static void agent_lost(struct fetch *f, const struct reading *r, bool slow, bool silent)
{
	bool otherwise = (slow && r->remote.keys) || r->remote.trailing;
	dray_handle peer = r->view.peer;

	for (uint32_t i = 0; i < f->ask->n; i++) {
		struct store_asked *k = &f->ask->v[i];
		const struct store_source *s = &f->ask->sources[k->source];
		bool lasts;

		if (!f->landings[i].wanted || s->view.peer != peer)
			continue;
		/* deadlines are in milliseconds */
		lasts = worker_of_fetch(f)->core.now_ns < s->end_ns - DRAY_NS_PER_MS;
		if (lasts && !otherwise)
			k->avoid = peer;
		if (silent)
			k->silent = peer;
		place_lost(f, i, slow || !lasts);
	}
}

/* The lease of the source has ended: nothing was read, or it may be bytes of another object. */
static void source_lapsed(struct fetch *f)
{
	for (uint32_t i = 0; i < f->ask->n; i++)
		if (f->landings[i].wanted && f->ask->v[i].source == f->source)
			place_lost(f, i, true);
}

/* The bytes of so many keys came with, or behind, an answer. */
static void count_answered(const struct fetch *f, uint64_t n)
{
	struct data_counters *counters = worker_of_fetch(f)->core.counters;

	core_count(counters, DRAY_METRIC_STORE_REMOTE_ANSWERED_TOTAL, f->keeps ? 0 : n);
	core_count(counters, DRAY_METRIC_STORE_REMOTE_FOUND_TOTAL, f->ask->sent ? 0 : n);
}

/* All its bytes are in place. */
static void source_arrived(struct fetch *f, const struct reading *r)
{
	const struct arriving *next = r->arriving;

	if (r->remote.trailing)
		count_answered(f, r->n_arriving);
	f->batch->agents_ns = dray_now().ns;
	for (uint32_t i = 0; i < f->ask->n; i++)
		if (f->landings[i].wanted && f->ask->v[i].source == f->source)
			place_arrived(f, i,
				      atomic_load_explicit(&next++->crc, memory_order_relaxed));
}

/* Its bytes came with the answer to the lookup. */
static void source_copy(struct fetch *f)
{
	struct worker *w = worker_of_fetch(f);
	uint8_t *store = store_region(w->store)->extents[0].base;
	uint32_t n = 0;

	for (uint32_t i = 0; i < f->ask->n; i++) {
		const struct store_asked *k = &f->ask->v[i];
		const uint8_t *from = f->ask->sources[f->source].bytes + k->offset;

		if (!f->landings[i].wanted || k->source != f->source)
			continue;
		memcpy(store + store_object_offset(f->landings[i].object), from, k->length);
		place_arrived(f, i, dray_crc32c(0, from, k->length));
		n++;
	}
	count_answered(f, n);
	if (n)
		f->batch->agents_ns = dray_now().ns;
}

/* The word of the other agent, whatever it is. */
static bool is_refused(const struct xfer *x)
{
	return x->detail && !strcmp(x->detail, XFER_REFUSED_DETAIL);
}

/*
 * The code that the request ends with: the client, its deadline, its session or the end of the agent has stopped it, perhaps while the
 * transfer was being stopped for another reason and devices were waited for. 0: its source has failed, or was too slow.
 */
static uint32_t request_code(const struct fetch *f, const struct xfer *x)
{
	const struct object *local = x->local;

	if (f->session->dead || x->request_stops)
		return x->code;
	/* the region of the client is gone */
	if (local->drop_code && local->drop_mode != DROP_RETIRE)
		return local->drop_code;
	if (fetch_is_late(f))
		return DRAY_E_DEADLINE;
	if (is_refused(x))
		return 0;
	/* pages of the region are gone */
	if (x->code == DRAY_E_REGION_FAULT)
		return x->code;
	return x->code == DRAY_E_CANCELLED || x->code == DRAY_E_SESSION_CLOSED ? x->code : 0;
}

static int slice_arrived(const struct xfer *x, const struct slice *s)
{
	const struct fetch *f = x->ended_arg;

	return arriving_add(f->reading->arriving, f->reading->n_arriving, s);
}

static void source_read(struct core *c, struct xfer *x)
{
	struct fetch *f = x->ended_arg;
	struct reading *r = dray_take(f->reading);
	bool silent = x->code == DRAY_E_TIMEOUT && !is_refused(x);
	uint32_t code = x->code ? request_code(f, x) : 0;

	silence_end(&f->silence);
	f->lingering = reading_end(worker_of_fetch(f), r) ? r : NULL;
	if (code) {
		fetch_fail(f, code, NULL);
		return;
	}
	/* the word of this agent: fetch_fenced() */
	if (x->code == DRAY_E_REVOKED && !is_refused(x))
		source_lapsed(f);
	else if (x->code)
		agent_lost(f, r, silent || (x->code == DRAY_E_DEADLINE && !is_refused(x)), silent);
	else if (c->now_ns >= f->ask->sources[f->source].end_ns)
		source_lapsed(f);
	else
		source_arrived(f, r);
	f->lingering = NULL;
	f->source++;
	sources_end(f);
	next_source(f);
}

/*
 * When its bytes are of no use any more: an agent that hangs must not delay the other sources by more than about a second. A copy that is
 * kept has one source.
 */
static int64_t source_end_ns(const struct fetch *f, uint64_t bytes)
{
	int64_t slow =
		SOURCE_WAIT_NS + (int64_t)(bytes / SOURCE_LEAST_RATE * (uint64_t)DRAY_NS_PER_SEC);
	int64_t end = f->batch->end_ns;

	if (!f->keeps)
		end = dray_min(end, worker_of_fetch(f)->core.now_ns + slow);
	return dray_min(end, f->ask->sources[f->source].end_ns);
}

/* The ask that has the lease of the source: that of an EXISTS if it was taken over. */
static struct store_ask *lease_of(const struct fetch *f, uint32_t *ret_source)
{
	const struct store_ask *k = f->ask;

	for (uint32_t i = k->n_asked; i < k->n; i++)
		if (k->v[i].held && k->v[i].source == f->source)
			return held_lease(k->v[i].held, ret_source);
	*ret_source = f->source;
	return f->ask;
}

/* 0, or -EINVAL with err. */
static int source_start(struct fetch *f, const struct source_reads *reads, struct dray_err *err)
{
	struct wsession *s = f->session;
	uint32_t source;
	struct store_ask *lease = lease_of(f, &source);
	struct reading *reading = reading_new(s->worker, lease, source, reads->landings, reads->n);
	struct xfer_request r = {
		.spec = { .direction = DMSG_DIRECTION_READ,
			  .class = DMSG_CLASS_BULK,
			  .deadline_ms = batch_ms_until(worker_of_fetch(f),
							source_end_ns(f, reads->bytes)),
			  .local = f->region },
		.request_id = f->batch->call.request_id,
		.ops = f->ops,
		.n_ops = reads->n_ops,
		.ops_ours = true,
		.outlived = true,
		.arrived = slice_arrived,
		.ended = source_read,
		.ended_arg = f,
	};

	if (!reading)
		return dray_err_set(err, -EINVAL, DRAY_E_NO_MEMORY, "no memory for the request");
	r.local = reads->landings[0].object ? &reading->local : NULL;
	r.remote = &reading->remote;
	f->reading = reading;
	idset_del(&s->ids, r.request_id);
	silence_watch(&f->silence, s, r.request_id);
	/* the fetch may have ended when it returns */
	request_start(s, &r, err);
	if (!err->code)
		return 0;
	silence_end(&f->silence);
	f->reading = NULL;
	reading_free(reading);
	return -EINVAL;
}

static bool look_again(struct fetch *f)
{
	struct store_ask *k = f->again ? NULL : wanted_again(f->session, f->ask);

	for (uint32_t i = 0; i < f->ask->n; i++)
		if (f->ask->v[i].status == DMSG_STORE_STATUS_NOT_TRIED && !k) {
			f->ask->v[i].status = DMSG_STORE_STATUS_LOST;
			place_failed(f, &f->ask->v[i]);
		}
	if (!k)
		return false;
	f->again = true;
	ask_end(worker_of_fetch(f), dray_take(f->ask));
	fetch_send(f, k);
	return true;
}

/* The next source that has something to read, unless its lease has ended or its bytes are here. False: there is none. */
static bool find_source(struct fetch *f, struct source_reads *ret)
{
	for (; f->source < f->ask->n_sources; f->source++) {
		if (f->ask->sources[f->source].bytes) {
			source_copy(f);
			continue;
		}
		source_ops(f, ret);
		if (ret->n && worker_of_fetch(f)->core.now_ns < f->ask->sources[f->source].end_ns)
			return true;
		if (!ret->n)
			continue;
		source_lapsed(f);
		sources_end(f);
	}
	return false;
}

static void next_source(struct fetch *f)
{
	struct wsession *s = f->session;
	struct dray_err err = DRAY_ERR_NULL;
	struct source_reads reads;
	bool found = find_source(f, &reads);

	/* the end of the former transfer has given its id back */
	if (!found && !idset_has(&s->ids, f->batch->call.request_id) &&
	    idset_add(&s->ids, f->batch->call.request_id) < 0) {
		dray_err_set(&err, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for the request");
		fetch_fail(f, 0, &err);
	} else if (found && source_start(f, &reads, &err) < 0) {
		fetch_fail(f, 0, &err);
	} else if (!found && !look_again(f)) {
		places_done(f);
	}
}

/* Bytes that follow an answer do not wait until there are places for them: they are discarded, and their keys looked up again. */
static bool places_too_late(struct fetch *f)
{
	struct store_ask *k = f->ask;

	if (!k->n_sources || !k->sources[0].trailing)
		return false;
	for (uint32_t i = 0; i < k->n; i++)
		if (f->landings[i].wanted || (i >= f->placed && !k->v[i].status))
			place_lost(f, i, true);
	dray_list_del(&f->step);
	return places_found(f);
}

/* Reads what has places, when all that can be have theirs. */
static void sources_go_on(struct fetch *f)
{
	if (!places_found(f) && !places_too_late(f))
		return;
	dray_list_del(&f->asking);
	sources_end(f);
	next_source(f);
}

void sources_read(struct fetch *f, struct store_ask *k)
{
	struct dray_err err = DRAY_ERR_NULL;

	f->source = 0;
	f->ask = k;
	if (!places_begin(f)) {
		dray_err_set(&err, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for the request");
		fetch_fail(f, 0, &err);
		return;
	}
	owner_charge(f->session->xs.owner, (uint64_t)k->n * KEY_WORK);
	sources_go_on(f);
}

int64_t sources_step(struct worker *w)
{
	struct fetch *f = dray_list_first(&w->steps, struct fetch, step);

	if (f) {
		dray_list_del(&f->step);
		if (fetch_is_late(f))
			fetch_fail(f, DRAY_E_DEADLINE, NULL);
		else if (f->placing)
			sources_go_on(f);
		else
			places_done(f);
	}
	return dray_list_empty(&w->steps) ? INT64_MAX : w->core.now_ns;
}

void source_fenced(struct fetch *f, uint32_t source)
{
	struct wsession *s = f->session;

	/* of another key of the same lease */
	if (!f->ask->sources[source].end_ns)
		return;
	f->ask->sources[source].end_ns = 0;
	if (f->reading && f->source == source) {
		xfer_stop(&s->worker->core, xfer_find(&s->xs, f->batch->call.request_id),
			  DRAY_E_REVOKED, NULL, false);
		return;
	}
	for (uint32_t i = 0; i < f->ask->n; i++)
		if (f->landings[i].wanted && f->ask->v[i].source == source)
			place_lost(f, i, true);
	/* else some are still wanted without a place */
	if (!f->placing)
		sources_end(f);
}
