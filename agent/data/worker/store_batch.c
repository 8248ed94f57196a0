/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PUT and GET: the bytes of a batch of keys are one transfer between the client's region and the store's memory, so that all its rules
 * (slices, deadline, cancel, end of a region or a session) hold for it as well. A GET of objects that are only on disk is a transfer whose
 * bytes may move as the objects come to memory.
 */
#include "agent/data/worker/store_batch.h"

#include <errno.h>
#include <stdlib.h>

#include "agent/data/worker/store_request.h"
#include "agent/model/store_ask.h"
#include "lib/cleanup.h"

/* Keys of a PUT or GET that are looked at before other owners have their turn. */
#define KEYS_STEP 256

void batch_free(struct batch *b)
{
	if (b)
		store_ask_free(b->replicas);
	free(b);
}

DRAY_DEFINE_CLEANUP(struct batch *, batch_free);

/* How many agents have the object of each key. */
static struct dray_blob copies_of(struct core *c, struct batch *b)
{
	uint64_t made = 0, failed = 0;

	for (uint32_t i = 0; i < b->n; i++) {
		b->copies[i] = !result_is_stored(&b->results[i]) ? 0 : b->copies[i] > 1 ? 2 : 1;
		made += b->copies[i] == 2;
		failed += b->copies[i] == 1;
	}
	core_count(c->counters, DRAY_METRIC_STORE_REPLICAS_TOTAL, made);
	core_count(c->counters, DRAY_METRIC_STORE_REPLICAS_FAILED_TOTAL, failed);
	return (struct dray_blob){ b->copies, b->n };
}

static void batch_reply(struct wsession *s, struct batch *b, uint32_t code)
{
	struct dray_vec results = store_results_put(s->worker->store_scratch, b->results, b->n);
	union dmsg_body m = { 0 };

	if (s->worker->core.cfg.report_batches)
		batch_report(s, &b->call, b->member, b->results, b->n, b->gets ? b : NULL, code);
	/* the replies of PUT and GET have the same fields */
	if (b->gets)
		m.store_put_reply =
			(struct dmsg_store_put_reply){ .status = code, .results = results };
	else
		m.store_exists_reply.results = results;
	if (b->copies)
		m.store_put_reply.copies = copies_of(&s->worker->core, b);
	store_reply(s, &b->call, &m);
}

void batch_answer(struct wsession *s, struct batch *b, uint32_t code, const struct dray_err *err)
{
	if (!s->dead && err)
		store_answer_error(s, &b->call, err);
	else if (!s->dead)
		batch_reply(s, b, code);
	batch_free(b);
}

void batch_busy(struct core *c, struct dmsg_store_result *r)
{
	r->status = DMSG_STORE_STATUS_BUSY;
	r->wait_ms = store_retry_ms(worker_of(c)->store);
	core_count(c->counters, DRAY_METRIC_STORE_BUSY_TOTAL, 1);
}

void batch_settle(struct core *c, struct batch *b, bool done)
{
	for (uint32_t i = 0; b->gets && i < b->n; i++) {
		struct store_object *o = b->gets[i].object;
		enum dmsg_store_status status;
		uint64_t bytes;

		if (!o)
			continue;
		bytes = b->results[i].length;
		if (b->forwards)
			b->gets[i].object = NULL;
		status = !batch_puts(b)      ? store_get_end(&b->gets[i]) :
			 b->forwards && done ? store_forward_begin(o, &b->gets[i]) :
					       store_put_end(o, done);
		b->results[i].status = done || batch_puts(b) ? status : DMSG_STORE_STATUS_NOT_TRIED;
		if (batch_puts(b) && status == DMSG_STORE_STATUS_BUSY)
			batch_busy(c, &b->results[i]);
		if (b->results[i].status || b->forwards)
			continue;
		if (batch_puts(b)) {
			batch_count_put(c, bytes);
			continue;
		}
		core_count(c->counters, DRAY_METRIC_STORE_READ_BYTES_TOTAL, bytes);
		if (b->gets[i].tier == DMSG_STORE_TIER_DISK)
			core_count(c->counters, DRAY_METRIC_STORE_DISK_READ_BYTES_TOTAL, bytes);
	}
}

/* Its bytes are here, or none are copied. */
static void batch_done(struct wsession *s, struct batch *b, uint32_t code)
{
	if (!code && replicas_begin(s, b))
		return;
	if (!code && b->forwards)
		code = forward_end(&s->worker->core, b, NULL, forward_unasked(s, b));
	b->end(s, b, code, NULL);
}

static void batch_ended(struct core *c, struct xfer *x)
{
	struct wsession *s = wsession_of(x->session);
	struct batch *b = x->ended_arg;

	batch_settle(c, b, !x->code);
	batch_done(s, b, x->code);
}

/* 0, or -EINVAL with reterr: it has none, or they are wrong. */
static int item_bytes_check(const uint8_t *ranges, uint32_t n, uint64_t *ret,
			    struct dray_err *reterr)
{
	*ret = 0;
	for (uint32_t i = 0; i < n; i++) {
		struct dmsg_store_range r;

		dmsg_store_range_get(ranges + (size_t)i * DMSG_STORE_RANGE_SIZE, &r);
		if (!r.length || __builtin_add_overflow(*ret, r.length, ret))
			return dray_err_set(reterr, -EINVAL, DRAY_E_RANGE,
					    "a range of %llu bytes is empty or too long",
					    (unsigned long long)r.length);
	}
	return n ? 0 :
		   dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				"a key has no range for its value");
}

uint32_t item_ops(uint8_t *ops, const uint8_t *ranges, uint64_t at, uint64_t left)
{
	uint32_t n = 0;

	for (; left; n++) {
		struct dmsg_store_range r;
		struct dmsg_op op;

		dmsg_store_range_get(ranges + (size_t)n * DMSG_STORE_RANGE_SIZE, &r);
		op = (struct dmsg_op){ r.offset, at, dray_min(r.length, left) };
		dmsg_op_put(ops + (size_t)n * DMSG_OP_SIZE, &op);
		at += op.length;
		left -= op.length;
	}
	return n;
}

void batch_item_ops(struct batch *b, uint32_t item, const uint8_t *ranges)
{
	b->mixed |= item < b->last_item;
	b->last_item = item;
	b->n_ops += item_ops(b->ops + (size_t)b->n_ops * DMSG_OP_SIZE, ranges,
			     store_object_offset(b->gets[item].object), b->results[item].length);
}

uint64_t item_bytes(const uint8_t *ranges, uint32_t n)
{
	struct dray_err none = DRAY_ERR_NULL;
	uint64_t bytes;

	item_bytes_check(ranges, n, &bytes, &none);
	return bytes;
}

static struct batch *batch_new(const struct batch_request *q, uint32_t n)
{
	size_t ops = (size_t)q->m->ranges.n * DMSG_OP_SIZE;
	bool put = q->call->type == DMSG_STORE_PUT, wanted = put && forward_wanted(q->m);
	bool copies = put && !wanted && store_replicates(q->member, q->m->replicas);
	bool prefers = put && !q->m->agent.n && !copies && store_prefers(q->member);
	size_t each = sizeof(struct dmsg_store_result) + sizeof(struct store_get) + copies;
	int64_t time_ns = q->m->deadline_ms ? q->m->deadline_ms * DRAY_NS_PER_MS :
					      q->worker->core.cfg.deadline_ns;
	struct batch *b = calloc(1, sizeof(*b) + ops + n * each);

	if (!b)
		return NULL;
	b->call = *q->call;
	b->member = q->member;
	b->begin_ns = q->worker->core.now_ns;
	b->n = n;
	b->end = batch_answer;
	b->results = (void *)(b->ops + ops);
	b->gets = (void *)(b->results + n);
	b->forwards = wanted || prefers;
	b->prefers = prefers;
	b->copies = copies ? (uint8_t *)(b->gets + n) : NULL;
	b->end_ns = b->begin_ns + time_ns;
	return b;
}

static void put_one(const struct batch_request *q, struct batch *b, uint32_t i, uint64_t bytes,
		    uint32_t cost_us)
{
	struct store_key key = q->worker->store_scratch->keys[i];
	struct dmsg_store_result *r = &b->results[i];

	r->length = bytes;
	r->status = b->forwards ? store_forward_put(q->member, key, bytes, cost_us, b->prefers,
						    &b->wait.effort, &b->gets[i].object) :
				  store_put_begin(q->member, key, bytes, cost_us, &b->wait.effort,
						  &b->gets[i].object);
	if (r->status == DMSG_STORE_STATUS_BUSY && !b->wait.effort.more)
		batch_busy(&q->worker->core, r);
}

void batch_get_one(struct worker *w, struct batch *b, uint32_t i, struct store_member *member,
		   struct store_key key, uint64_t room)
{
	struct dmsg_store_result *r = &b->results[i];
	struct data_counters *counters = w->core.counters;
	struct store_get *g = &b->gets[i];

	r->status = store_get_begin(member, key, &b->wait, g);
	if (r->status && b->wait.effort.more)
		return;
	r->tier = (uint16_t)g->tier;
	core_count(counters,
		   r->status == DMSG_STORE_STATUS_NOT_FOUND ? DRAY_METRIC_STORE_MISSES_TOTAL :
							      DRAY_METRIC_STORE_HITS_TOTAL,
		   1);
	if (r->status == DMSG_STORE_STATUS_BUSY)
		batch_busy(&w->core, r);
	if (r->status)
		return;
	b->loads |= g->loads;
	core_count(counters, DRAY_METRIC_STORE_DISK_HITS_TOTAL, g->loads);
	r->length = store_object_bytes(g->object);
	if (r->length <= room)
		return;
	r->status = DMSG_STORE_STATUS_TOO_LARGE;
	store_get_end(g);
}

/* 0, or -EINVAL with reterr, before anything is held or written. */
static int items_check(const struct dmsg_store_put *m, uint32_t n_keys, struct dray_err *reterr)
{
	uint32_t at = 0;

	if (m->items.n != n_keys)
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID, "%u keys and %u items", n_keys,
				    m->items.n);
	for (uint32_t i = 0; i < m->items.n; i++) {
		struct dmsg_store_item item;
		uint64_t bytes;

		dmsg_store_item_get(m->items.p + (size_t)i * DMSG_STORE_ITEM_SIZE, &item);
		if (item.ranges > m->ranges.n - at)
			return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
					    "the items have more ranges than the request");
		if (item_bytes_check(m->ranges.p + (size_t)at * DMSG_STORE_RANGE_SIZE, item.ranges,
				     &bytes, reterr) < 0)
			return -EINVAL;
		at += item.ranges;
	}
	if (at != m->ranges.n)
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "the request has ranges that belong to no item");
	return 0;
}

/* Looks at the next key. False: it has to evict more. */
static bool item_begin(struct batch_request *q, struct batch *b)
{
	const uint8_t *ranges = q->m->ranges.p + (size_t)q->range * DMSG_STORE_RANGE_SIZE;
	uint32_t i = q->item;
	struct dmsg_store_item item;
	uint64_t bytes;

	dmsg_store_item_get(q->m->items.p + (size_t)i * DMSG_STORE_ITEM_SIZE, &item);
	bytes = item_bytes(ranges, item.ranges);
	if (batch_puts(b))
		put_one(q, b, i, bytes, item.cost_us);
	else
		batch_get_one(q->worker, b, i, q->member, q->worker->store_scratch->keys[i], bytes);
	if (b->wait.effort.more)
		return false;
	if (b->gets[i].object)
		batch_item_ops(b, i, ranges);
	q->item++;
	q->range += item.ranges;
	return true;
}

bool items_begin(struct wsession *s, struct batch_request *q, struct batch *b)
{
	struct store_effort *e = &b->wait.effort;
	uint32_t end = dray_min(b->n, q->item + KEYS_STEP), n = 0;

	/* a key that has begun to evict goes on */
	*e = (struct store_effort){ .max = EVICTIONS_STEP, .of_key = e->of_key, .vain = e->vain };
	for (; q->item < end && item_begin(q, b); n++)
		e->of_key = e->vain = 0;
	owner_charge(s->xs.owner, (uint64_t)n * KEY_WORK + (uint64_t)e->done * EVICTION_WORK);
	return q->item == b->n;
}

/* Objects that are read from disk come in about the order of their keys, so most are copied while the next ones are read. */
static uint64_t batch_ready(const struct xfer *x)
{
	struct batch *b = x->ended_arg;

	if (__atomic_load_n(&b->wait.ready, __ATOMIC_ACQUIRE))
		return x->bytes;
	for (; !b->mixed && b->n_here < b->n; b->n_here++) {
		const struct store_get *g = &b->gets[b->n_here];

		if (!g->object)
			continue;
		if (!store_get_is_here(g))
			break;
		b->bytes_here += b->results[b->n_here].length;
	}
	return b->bytes_here;
}

uint32_t batch_ms_until(const struct worker *w, int64_t end_ns)
{
	/* 0 would be the default */
	int64_t left = dray_max((end_ns - w->core.now_ns) / DRAY_NS_PER_MS, (int64_t)1);

	return (uint32_t)dray_min(left, (int64_t)UINT32_MAX);
}

int batch_start(struct wsession *s, struct batch *b, dray_handle region, struct dray_err *err)
{
	struct worker *w = s->worker;
	struct xfer_request r = {
		.spec = { .direction = batch_puts(b) ? DMSG_DIRECTION_WRITE : DMSG_DIRECTION_READ,
			  .class = DMSG_CLASS_BULK,
			  .deadline_ms = batch_ms_until(w, b->end_ns),
			  .local = region },
		.request_id = b->call.request_id,
		.ops = b->ops,
		.n_ops = b->n_ops,
		.ops_ours = true,
		.remote = &w->store_remote,
		.target = &w->store_region,
		.ended = batch_ended,
		.ended_arg = b,
	};

	if (b->loads && store_get_waits(w->store, &b->wait))
		r.ready = batch_ready;
	request_start(s, &r, err);
	return err->code ? -EINVAL : 0;
}

/* 0, or -EINVAL with reterr. */
static int replicas_check(uint32_t replicas, struct dray_err *reterr)
{
	return replicas <= 2 ? 0 :
			       dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
					    "replicas is %u; 0 to 2 are allowed", replicas);
}

void batch_begun(struct wsession *s, const struct batch_request *q, struct batch *begun,
		 struct dray_err *err)
{
	struct worker *w = s->worker;
	const struct store_key *keys = w->store_scratch->keys;
	dray_auto(batch_free) struct batch *b = begun;
	bool put = batch_puts(b);

	if (put)
		b->replicas = replicas_ask(s, b, keys, q->m->agent);
	else
		helds_got(s, store_member_space(q->member), keys, b->results, b->n);
	if (!put && fetch_begin(s, q->call, q->m, q->member, keys, b, err))
		(void)dray_take(b); /* it has taken it */
	else if (err->code)
		batch_settle(&w->core, b, false);
	else if (!b->n_ops)
		batch_done(s, dray_take(b), 0);
	else if (batch_start(s, b, q->m->region, err) == 0)
		(void)dray_take(b); /* batch_ended() frees it, and may have done so */
	else
		batch_settle(&w->core, b, false);
}

void batch_request(struct wsession *s, const struct store_call *call, const uint8_t *body,
		   uint32_t length, const union dmsg_body *m, struct dray_err *err)
{
	struct worker *w = s->worker;
	struct batch_request q = {
		call, &m->store_put, store_enter(s, m->store_put.space, err), w, 0, 0
	};
	bool put = call->type == DMSG_STORE_PUT;
	struct batch *b;
	int n = q.member ? store_keys_split(w->store_scratch->keys, DMSG_STORE_KEYS_MAX, q.m->keys,
					    err) :
			   -EINVAL;

	if (n < 0 || store_room_check(call, (uint32_t)n, err) < 0 ||
	    items_check(q.m, (uint32_t)n, err) < 0 ||
	    (put && (replicas_check(q.m->replicas, err) < 0 ||
		     forward_check(q.member, store_lends(w->store), q.m, err) < 0)))
		return;
	if (w->draining) {
		dray_err_set(err, -ESHUTDOWN, DRAY_E_DRAINING,
			     "the agent is draining and takes no new requests to its store");
		return;
	}
	/* before anything is evicted for it */
	if (put &&
	    xfer_check(&w->core, &s->xs, q.m->region, DMSG_ACCESS_READ, q.m->ranges.n, err) < 0)
		return;
	b = batch_new(&q, (uint32_t)n);
	if (!b) {
		dray_err_set(err, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for the request");
		return;
	}
	if (items_begin(s, &q, b))
		batch_begun(s, &q, b, err);
	else
		begin_later(s, &q, body, length, b, err);
}
