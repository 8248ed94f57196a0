/* SPDX-License-Identifier: Apache-2.0 */
/* Requests to the store: the session's worker looks keys up itself. Those of PUT and GET go on in store_batch.c. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/data/worker/store_batch.h"
#include "agent/data/worker/store_request.h"

struct store_member *store_enter(struct wsession *s, struct dray_str space, struct dray_err *reterr)
{
	struct worker *w = s->worker;

	if (!s->store)
		s->store = store_user_new(w->store, s->xs.shared->account, reterr);
	if (!s->store)
		return NULL;
	if (!w->store_scratch)
		w->store_scratch = malloc(sizeof(*w->store_scratch));
	if (!w->store_scratch) {
		dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for the request");
		return NULL;
	}
	return store_join(s->store, space, reterr);
}

struct dray_vec store_results_put(struct store_scratch *t, const struct dmsg_store_result *results,
				  uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		dmsg_store_result_put(t->wire + (size_t)i * DMSG_STORE_RESULT_SIZE, &results[i]);
	return (struct dray_vec){ t->wire, n };
}

void store_reply(struct wsession *s, const struct store_call *q, const union dmsg_body *m)
{
	struct store_scratch *t = s->worker->store_scratch;

	store_answer(s, q, 0, t->out,
		     dmsg_body_encode(q->type | 0x8000, t->out, sizeof(t->out), q->request_id, m));
}

/*
 * What this agent does not have, the session may hold at others already, or they are asked for it. True: the answer follows, or err is
 * set.
 */
static bool exists_elsewhere(struct wsession *s, const struct store_call *q,
			     const struct dmsg_store_exists *m, struct store_member *member,
			     uint32_t n, struct dray_err *err)
{
	struct store_scratch *t = s->worker->store_scratch;
	uint32_t most = store_lease_ms(s->worker->store);
	uint32_t lease_ms = m->lease_ms ? dray_min(m->lease_ms, most) : most;

	if (!(m->flags & DMSG_STORE_EXISTS_FLAG_AGENTS) || s->worker->draining)
		return false;
	for (uint32_t i = 0; i < n; i++) {
		struct dmsg_store_result *r = &t->results[i];
		/* one that ends soon is renewed by another lookup */
		struct held_key *k = r->status != DMSG_STORE_STATUS_NOT_FOUND ?
					     NULL :
					     held_find(s, store_member_space(member), t->keys[i],
						       lease_ms * DRAY_NS_PER_MS / 2);

		if (k)
			*r = (struct dmsg_store_result){ .length = held_asked(k)->length,
							 .tier = DMSG_STORE_TIER_AGENT };
	}
	return fetch_exists(s, q, lease_ms, member, t->keys, t->results, n, err) || err->code;
}

/* EXISTS, REMOVE, PIN and UNPIN: their requests and replies begin with the same fields. */
static void keys_request(struct wsession *s, const struct store_call *q, const union dmsg_body *m,
			 struct dray_err *err)
{
	struct store_member *member = store_enter(s, m->store_exists.space, err);
	struct store_scratch *t = s->worker->store_scratch;
	int n = member ? store_keys_split(t->keys, DMSG_STORE_KEYS_MAX, m->store_exists.keys, err) :
			 -EINVAL;
	union dmsg_body answer = { 0 };
	uint32_t evicted = 0;

	if (n < 0 || store_room_check(q, (uint32_t)n, err) < 0)
		return;
	owner_charge(s->xs.owner, (uint64_t)n * KEY_WORK);
	switch (q->type) {
	case DMSG_STORE_EXISTS:
		store_exists(member, t->keys, (uint32_t)n, t->results);
		if (exists_elsewhere(s, q, &m->store_exists, member, (uint32_t)n, err))
			return;
		break;
	case DMSG_STORE_REMOVE:
		store_remove(member, t->keys, (uint32_t)n, t->results);
		break;
	case DMSG_STORE_PIN:
		evicted = store_pin(s->store, member, t->keys, (uint32_t)n, t->results);
		break;
	default:
		store_unpin(s->store, member, t->keys, (uint32_t)n, t->results);
		helds_unpin(s, store_member_space(member), t->keys, t->results, (uint32_t)n);
	}
	owner_charge(s->xs.owner, (uint64_t)evicted * EVICTION_WORK);
	if (q->type == DMSG_STORE_EXISTS && s->worker->core.cfg.report_batches)
		batch_report(s, q, member, t->results, (uint32_t)n, NULL, 0);
	answer.store_exists_reply.results = store_results_put(t, t->results, (uint32_t)n);
	store_reply(s, q, &answer);
}

static void places_count(struct core *c, const struct dmsg_store_place *places, uint32_t n)
{
	uint64_t hits = 0, busy = 0, bytes = 0;

	for (uint32_t i = 0; i < n; i++) {
		hits += places[i].status != DMSG_STORE_STATUS_NOT_FOUND;
		busy += places[i].status == DMSG_STORE_STATUS_BUSY;
		bytes += places[i].status == DMSG_STORE_STATUS_OK ? places[i].length : 0;
	}
	core_count(c->counters, DRAY_METRIC_STORE_HITS_TOTAL, hits);
	core_count(c->counters, DRAY_METRIC_STORE_MISSES_TOTAL, n - hits);
	core_count(c->counters, DRAY_METRIC_STORE_BUSY_TOTAL, busy);
	core_count(c->counters, DRAY_METRIC_STORE_READ_BYTES_TOTAL, bytes);
}

/* What is read in place is in memory. */
static void places_report(struct wsession *s, const struct store_call *q,
			  const struct store_member *member, uint32_t n)
{
	struct store_scratch *t = s->worker->store_scratch;

	for (uint32_t i = 0; i < n; i++)
		t->results[i] = (struct dmsg_store_result){
			.status = t->places[i].status,
			.tier = t->places[i].status ? DMSG_STORE_TIER_NONE : DMSG_STORE_TIER_MEMORY,
			.length = t->places[i].length,
		};
	batch_report(s, q, member, t->results, n, NULL, 0);
}

/* With descriptors. The session ends if there is no memory for them: it counts as having got them. */
static void files_reply(struct wsession *s, const struct store_call *q, const union dmsg_body *m)
{
	struct store_scratch *t = s->worker->store_scratch;
	int n = dmsg_body_encode(DMSG_STORE_READ_REPLY, t->out, sizeof(t->out), q->request_id, m);
	struct packet *p = packet_new((uint32_t)n, t->files.n);

	if (!p) {
		for (unsigned i = 0; i < t->files.n; i++)
			dray_close(t->files.fd[i]);
		wsession_die(s, DRAY_E_NO_MEMORY);
		return;
	}
	memcpy(p->data, t->out, (size_t)n);
	for (unsigned i = 0; i < t->files.n; i++)
		p->fds[i] = t->files.fd[i];
	store_answer_packet(s, q, p);
}

static void read_request(struct wsession *s, const struct store_call *q, const union dmsg_body *m,
			 struct dray_err *err)
{
	struct store_member *member = store_enter(s, m->store_read.space, err);
	struct store_scratch *t = s->worker->store_scratch;
	int n = member ? store_keys_split(t->keys, DMSG_STORE_KEYS_MAX, m->store_read.keys, err) :
			 -EINVAL;
	union dmsg_body answer = { 0 };

	if (n < 0 || store_room_check(q, (uint32_t)n, err) < 0)
		return;
	owner_charge(s->xs.owner, (uint64_t)n * KEY_WORK);
	owner_charge(s->xs.owner,
		     (uint64_t)EVICTION_WORK * store_read(s->store, member, t->keys, (uint32_t)n,
							  t->places, &t->files));
	places_count(&s->worker->core, t->places, (uint32_t)n);
	if (s->worker->core.cfg.report_batches)
		places_report(s, q, member, (uint32_t)n);
	for (int i = 0; i < n; i++)
		dmsg_store_place_put(t->wire + (size_t)i * DMSG_STORE_PLACE_SIZE, &t->places[i]);
	answer.store_read_reply.places = (struct dray_vec){ t->wire, (uint32_t)n };
	if (t->files.n)
		files_reply(s, q, &answer);
	else
		store_reply(s, q, &answer);
}

static void release_request(struct wsession *s, const struct store_call *q,
			    const union dmsg_body *m, struct dray_err *err)
{
	uint8_t buf[DMSG_HEADER_SIZE + DMSG_STORE_RELEASE_REPLY_BODY_MAX];
	struct dmsg_store_release_reply answer = { 0 };

	if (store_room_check(q, m->store_release.leases.n, err) < 0)
		return;
	owner_charge(s->xs.owner, (uint64_t)m->store_release.leases.n * KEY_WORK);
	if (s->store)
		answer.count =
			store_release(s->store, &m->store_release.leases,
				      m->store_release.flags & DMSG_STORE_RELEASE_FLAG_FILES);
	store_answer(s, q, 0, buf,
		     dmsg_store_release_reply_encode(buf, sizeof(buf), q->request_id, &answer));
}

void store_carry_out(struct wsession *s, const struct store_call *q, const union dmsg_body *m,
		     struct dray_err *err)
{
	switch (q->type) {
	case DMSG_STORE_READ:
		read_request(s, q, m, err);
		break;
	case DMSG_STORE_RELEASE:
		release_request(s, q, m, err);
		break;
	default:
		keys_request(s, q, m, err);
	}
}

bool loads_begin(struct wsession *s, struct loads *l, uint32_t n)
{
	bool all;

	/* a key that has begun to evict goes on */
	l->effort = (struct store_effort){ .max = EVICTIONS_STEP, .of_key = l->effort.of_key };
	all = store_load(s->store, l->member, s->worker->store_scratch->keys, n, &l->at, &l->share,
			 &l->effort);
	owner_charge(s->xs.owner, (uint64_t)l->effort.done * EVICTION_WORK);
	return all;
}

/* True: the request is a PIN or READ, and is carried out when there is room for its objects. */
static bool loads_first(struct wsession *s, const struct store_call *q, const uint8_t *body,
			uint32_t length, const union dmsg_body *m)
{
	/* carrying it out says what is wrong with it */
	struct dray_err err = DRAY_ERR_NULL;
	struct core *c = &s->worker->core;
	struct loads l = { .at = 0 };
	int n;

	/* a drain waits for those that have begun */
	if (!store_has_disk(s->worker->store) || s->worker->draining ||
	    (q->type != DMSG_STORE_PIN && q->type != DMSG_STORE_READ))
		return false;
	/* both begin with the same fields */
	l.member = store_enter(s, m->store_read.space, &err);
	l.end_ns = c->now_ns + (m->store_read.deadline_ms ?
					m->store_read.deadline_ms * DRAY_NS_PER_MS :
					c->cfg.deadline_ns);
	n = l.member ? store_keys_split(s->worker->store_scratch->keys, DMSG_STORE_KEYS_MAX,
					m->store_read.keys, &err) :
		       -EINVAL;
	return n >= 0 && store_room_check(q, (uint32_t)n, &err) == 0 &&
	       !loads_begin(s, &l, (uint32_t)n) && loads_go_on_later(s, q, body, length, &l);
}

void store_request(struct wsession *s, const struct store_call *q, const uint8_t *body,
		   uint32_t length, struct dray_err *err)
{
	union dmsg_body m;

	if (dmsg_body_decode(q->type, body, length, &m, err) < 0)
		return;
	if (idset_has(&s->ids, q->request_id)) {
		dray_err_set(err, -EEXIST, DRAY_E_DUPLICATE_ID, "request id %llu is in use",
			     (unsigned long long)q->request_id);
		return;
	}
	core_count(s->worker->core.counters, DRAY_METRIC_STORE_REQUESTS_TOTAL, 1);
	if (q->type == DMSG_STORE_PUT || q->type == DMSG_STORE_GET)
		batch_request(s, q, body, length, &m, err);
	else if (!loads_first(s, q, body, length, &m))
		store_carry_out(s, q, &m, err);
}
