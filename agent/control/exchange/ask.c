/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The asking side: looks keys up at the agents of store.peers, at all of them at once, or for each key at those that the directory names.
 * The first that has an object lends it; what another one has lent in vain is given back at once. An agent that has not answered in time
 * is not waited for until it answers again.
 *
 * Each other agent allows this one a number of lookups with their leases. The owners of clients here share it: each has half of what
 * the others leave. Beyond that its questions wait. They do not wait for lookups whose answers nobody needs any more: an agent that
 * is behind with those is not asked, and counts as busy.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/config/tenant.h"
#include "agent/control/exchange/internal.h"
#include "agent/model/budget.h"
#include "agent/model/keys.h"
#include "agent/model/store_ask.h"
#include "lib/cleanup.h"

/* Keys of one message, and their bytes. */
#define KEYS_MAX 512
#define KEYS_BYTES 60000
#define LEASE_MS 10000
/* Lookups of EXISTS with their leases, of all owners: half of all, so that they never keep GETs waiting. */
#define KEEPING_MAX (LOOKUPS_MAX / 2)
/* Lookups at one agent, with those whose leases last; as many as it allows. */
#define LOOKUPS_MAX 64
/* Questions of an owner that wait. */
#define WAITING_MAX 64
/* How long an agent is not waited for, which has not answered in time. */
#define PAUSE_MIN_NS (500 * DRAY_NS_PER_MS)
#define PAUSE_MAX_NS (10 * DRAY_NS_PER_SEC)
#define ACCURACY_US 1000
/* A lease that ends sooner is not shared. */
#define SHARED_LEAST_NS (20 * DRAY_NS_PER_MS)
/* Agents that the directory names for a key. */
#define NAMED_MAX 4

/* Who is asked for a key, when the directory has said who has it: indexes of lenders. */
struct named {
	uint16_t lenders[NAMED_MAX];
	uint8_t n;
	bool all; /* it has not */
};

/* An owner whose clients ask. */
struct asker {
	struct dray_map_node by_owner;
	struct exchange *x;
	struct {
		char tenant[TENANT_BYTES];
		uint32_t uid;
	} owner;
	struct dray_list link;    /* on x->waiting, while questions wait */
	struct dray_list waiting; /* struct question, the oldest first */
	uint32_t n_waiting;
	uint32_t uses;    /* asks that have not ended, and lookups */
	uint32_t lookups; /* of those that do not wait, at each agent */
	uint32_t keeping; /* of EXISTS, also those that wait */
	uint32_t held[];  /* at each lender, as lender.held */
};

/* What a lookup has leased: for its ask, and for GETs of other sessions that read it, too. */
struct lease {
	struct lender *lender;
	struct asker *asker;
	uint32_t uses;
};

struct question {
	struct dray_list link; /* in x->questions, or asker->waiting */
	struct dray_heap_node limit;
	struct exchange *x;
	struct store_ask *ask;
	struct dray_list lookups;
	struct directory_find *find; /* the directory is asked; NULL: it is not */
	struct named *named;         /* by key; NULL: all are asked for all */
	uint32_t messages;           /* to each agent, at most */
	uint32_t missing;            /* keys that nobody has so far */
	bool waits;
};

/* One message to one peer. */
struct lookup {
	struct dray_list
		link; /* in question->lookups, or x->vain: its answer is not needed any more */
	struct exchange *x;
	struct question *question; /* NULL: likewise */
	struct lender *lender;
	struct asker *asker;
	dray_handle peer;
	uint32_t first, end, n; /* n of these keys: those that this agent is asked for */
	int64_t sent_ns;
	bool test; /* of an agent that was late */
};

static uint32_t lease_ms(const struct store_ask *a)
{
	return a->lease_ms ? a->lease_ms : LEASE_MS;
}

static void release(struct exchange *x, dray_handle peer, uint64_t grant)
{
	peers_send(x->deps.peers, peer, PMSG_STORE_RELEASE, 0,
		   &(union pmsg_body){ .store_release = { .grant = grant } });
}

/* --- owners ---------------------------------------------------------------------------------------- */

/* NULL: no memory. */
static struct asker *asker_get(struct exchange *x, const struct store_ask *a)
{
	struct asker *o = calloc(1, sizeof(*o) + lenders_max(x) * sizeof(o->held[0]));
	struct dray_map_node *known;

	if (!o)
		return NULL;
	snprintf(o->owner.tenant, sizeof(o->owner.tenant), "%s", a->tenant);
	o->owner.uid = a->uid;
	known = dray_map_find(&x->askers, &o->owner, sizeof(o->owner));
	if (known) {
		free(o);
		return dray_map_entry(known, struct asker, by_owner);
	}
	o->x = x;
	dray_list_init(&o->link);
	dray_list_init(&o->waiting);
	dray_map_add(&x->askers, &o->by_owner, &o->owner, sizeof(o->owner));
	return o;
}

static void asker_put(struct exchange *x, struct asker *o)
{
	if (--o->uses)
		return;
	dray_map_del(&x->askers, &o->by_owner);
	free(o);
}

static void lease_free(struct exchange *x, struct lease *l)
{
	asker_put(x, l->asker);
	free(l);
}

static void ask_free(struct exchange *x, struct store_ask *a)
{
	for (uint32_t i = 0; i < a->n; i++)
		dray_map_del(&x->kept, &a->v[i].by_key);
	if (a->asker) {
		x->lookups -= a->lookups;
		a->asker->lookups -= a->lookups;
		a->asker->keeping -= a->keeping;
		x->keeping -= a->keeping;
		asker_put(x, a->asker);
		timers_set(&x->leases, &a->over, INT64_MAX);
		x->n_keeping -= a->lease_ms != 0;
	}
	dray_list_del(&a->link);
	store_ask_free(a);
}

/* The owner has `own` of all lookups. One ask is always allowed, however large it is. */
static bool may_have(uint32_t own, uint32_t all, uint32_t more)
{
	return !own || own + more <= budget_share(LOOKUPS_MAX, all - own, 0);
}

static bool may_ask(const struct exchange *x, const struct question *q)
{
	return may_have(q->ask->asker->lookups, x->lookups, q->messages);
}

/* It would leave the owner enough lookups for its GETs. One EXISTS is always allowed, however large it is. */
static bool may_keep(const struct question *q)
{
	uint32_t own = q->ask->asker->keeping;

	return !q->ask->lease_ms || !own ||
	       own + q->messages <= budget_share(KEEPING_MAX, q->x->keeping - own, 0);
}

/* This agent, which may not have answered yet what it was asked for questions that have ended. */
static bool may_ask_at(const struct exchange *x, const struct question *q, const struct lender *d)
{
	return may_have(q->ask->asker->held[d - x->lenders], d->held, q->messages);
}

static void hold(struct exchange *x, struct lender *d, struct asker *o)
{
	d->held++;
	o->held[d - x->lenders]++;
}

static void unhold(struct exchange *x, struct lender *d, struct asker *o)
{
	d->held--;
	o->held[d - x->lenders]--;
}

/* --- answers --------------------------------------------------------------------------------------- */

/* GETs of other sessions of the owner find what an EXISTS has found. */
static void keep(struct exchange *x, struct store_ask *a)
{
	for (uint32_t i = 0; a->lease_ms && i < a->n; i++) {
		struct store_asked *k = &a->v[i];

		if (k->status)
			continue;
		k->of = a;
		dray_map_add(&x->kept, &k->by_key, k->key, k->n_key);
	}
}

/* An EXISTS keeps what was found until then. */
static void lease_watch(struct exchange *x, struct store_ask *a)
{
	int64_t end_ns = 0;

	if (!a->lease_ms || !a->n_sources)
		return;
	for (uint32_t i = 0; i < a->n_sources; i++)
		end_ns = dray_max(end_ns, a->sources[i].end_ns);
	timers_set(&x->leases, &a->over, end_ns);
}

static void lapsed(struct dray_heap_node *node, int64_t now)
{
	struct store_ask *a = dray_container_of(node, struct store_ask, over);

	worker_post(
		a->asker->x->deps.pool->workers[a->worker],
		&(struct command){ .type = COMMAND_STORE_LAPSED, .session = a->session, .ask = a });
}

/* The worker gets the answer. */
static void give(struct exchange *x, struct store_ask *a)
{
	dray_list_add(&x->asks, &a->link);
	keep(x, a);
	lease_watch(x, a);
	worker_post(
		x->deps.pool->workers[a->worker],
		&(struct command){ .type = COMMAND_STORE_ASKED, .session = a->session, .ask = a });
}

static void question_leave(struct question *q)
{
	struct asker *o = q->ask->asker;

	dray_list_del(&q->link);
	if (q->waits && !--o->n_waiting)
		dray_list_del(&o->link);
	q->waits = false;
}

static void question_free(struct question *q)
{
	question_leave(q);
	directory_find_cancel(q->find);
	timers_set(&q->x->limits, &q->limit, INT64_MAX);
	q->x->n_questions--;
	free(q->named);
	free(q);
}

static void question_end(struct exchange *x, struct question *q)
{
	struct store_ask *a = q->ask;

	dray_list_for_each(&q->lookups, l, struct lookup, link) {
		l->question = NULL;
		dray_list_move(&x->vain, &l->link);
	}
	question_free(q);
	a->question = NULL;
	give(x, a);
}

/* The deadline of its GET. */
static void overdue(struct dray_heap_node *node, int64_t now)
{
	struct question *q = dray_container_of(node, struct question, limit);

	q->ask->late = true;
	question_end(q->x, q);
}

/* Is this agent asked for the key? */
static bool is_asked(const struct question *q, uint32_t key, const struct lender *d)
{
	const struct named *named = q->named ? &q->named[key] : NULL;
	uint16_t index = (uint16_t)(d - q->x->lenders);

	if (!named || named->all)
		return true;
	for (unsigned i = 0; i < named->n; i++)
		if (named->lenders[i] == index)
			return true;
	return false;
}

/* The agent does not have what the directory says that it has. */
static void correct(const struct question *q, const struct store_asked *k, const struct lender *d)
{
	if (q->named && !q->named[k - q->ask->v].all)
		directory_forget(q->x->deps.directory, q->ask->space,
				 (struct store_key){ k->key, k->n_key }, d->segment);
}

static enum dmsg_store_status status_of(uint32_t answer)
{
	switch (answer) {
	case PMSG_STORE_ANSWER_FOUND:
		return DMSG_STORE_STATUS_OK;
	case PMSG_STORE_ANSWER_BUSY:
		return DMSG_STORE_STATUS_BUSY;
	case PMSG_STORE_ANSWER_CORRUPT:
		return DMSG_STORE_STATUS_CORRUPT;
	case PMSG_STORE_ANSWER_LOST:
		return DMSG_STORE_STATUS_LOST;
	default:
		return DMSG_STORE_STATUS_NOT_FOUND;
	}
}

/*
 * Takes the answer of the peer to one key. True: it is the first that has the object. An agent that has it, but was too slow, makes it
 * busy unless another one has it, too.
 */
static bool take(struct store_asked *k, const struct pmsg_store_found *f, dray_handle peer,
		 uint32_t source)
{
	enum dmsg_store_status s = status_of(f->answer);
	uint64_t end;

	if (!k->status || s == DMSG_STORE_STATUS_NOT_FOUND)
		return false;
	if (!s && peer == k->avoid) {
		if (k->slow && k->status == DMSG_STORE_STATUS_NOT_FOUND)
			k->status = DMSG_STORE_STATUS_BUSY;
		return false;
	}
	if (!s && (!f->length || __builtin_add_overflow(f->offset, f->length, &end)))
		return false;
	k->status = s;
	k->source = source;
	k->offset = f->offset;
	k->length = f->length;
	k->crc = f->crc;
	k->cost_us = f->cost_us;
	return !s;
}

/* --- sources with keys, which their owner may fence ------------------------------------------------- */

struct borrowed {
	struct dray_map_node by_grant;
	struct {
		dray_handle peer;
		uint64_t grant;
	} key;
	struct store_ask *ask; /* that has the source */
	bool fenced;
};

static struct borrowed *borrowed_find(const struct exchange *x, dray_handle peer, uint64_t grant)
{
	struct borrowed b = { .key = { peer, grant } };

	return dray_map_entry(dray_map_find(&x->borrowed, &b.key, sizeof(b.key)), struct borrowed,
			      by_grant);
}

/* False: no memory, or the peer has given the same grant twice. */
static bool borrow(struct exchange *x, struct store_source *s, struct store_ask *a)
{
	struct borrowed *b = borrowed_find(x, s->view.peer, s->view.grant) ? NULL :
									     malloc(sizeof(*b));

	if (!b)
		return false;
	*b = (struct borrowed){ .key = { s->view.peer, s->view.grant }, .ask = a };
	dray_map_add(&x->borrowed, &b->by_grant, &b->key, sizeof(b->key));
	s->borrowed = b;
	return true;
}

/* Nothing reads from the source any more: its owner learns that. */
static void give_back(struct exchange *x, struct store_source *s)
{
	struct borrowed *b = dray_take(s->borrowed);

	if (b && b->fenced)
		peers_fence_ack(x->deps.peers, s->view.peer, s->view.grant);
	else
		release(x, s->view.peer, s->view.grant);
	if (b)
		dray_map_del(&x->borrowed, &b->by_grant);
	free(b);
}

bool exchange_has(struct exchange *x, dray_handle peer, uint64_t grant)
{
	return x && borrowed_find(x, peer, grant);
}

/* What was found there is not there any more. It may be looked up again, as after the end of a lease. */
static void forget(struct store_ask *a, dray_handle peer, uint64_t grant)
{
	for (uint32_t i = 0; i < a->n_sources; i++)
		if (a->sources[i].view.peer == peer && a->sources[i].view.grant == grant)
			a->sources[i].end_ns = 0;
}

void exchange_fence(struct exchange *x, dray_handle peer, uint64_t grant)
{
	struct borrowed *b = borrowed_find(x, peer, grant);

	b->fenced = true;
	if (b->ask->question)
		forget(b->ask, peer, grant);
	else
		worker_post(x->deps.pool->workers[b->ask->worker],
			    &(struct command){ .type = COMMAND_STORE_FENCED,
					       .session = b->ask->session,
					       .handle = peer,
					       .id = grant });
}

/* The keys of the source for what it has. Without them it is read by frames. */
static void take_keys(const struct lookup *l, struct store_source *s, const struct dray_vec *rails)
{
	const struct store_ask *a = l->question->ask;
	struct rail_keys *k = rail_keys_read_parts(rails);

	for (uint32_t i = l->first; k && i < l->end; i++)
		if (!a->v[i].status && a->v[i].source == a->n_sources)
			rail_keys_need(k, a->v[i].offset, a->v[i].length);
	s->keys = k && k->rails ? k : rail_keys_unref(k);
}

/* Takes the answers to all keys of the lookup. False: nothing of what is leased is needed. */
static bool take_all(struct lookup *l, const struct pmsg_store_lookup_reply *m)
{
	struct store_ask *a = l->question->ask;
	struct store_source *s =
		realloc(a->sources, (a->n_sources + 1) * sizeof(struct store_source));
	dray_auto_free struct lease *lease = s ? malloc(sizeof(*lease)) : NULL;
	uint64_t end = 0;

	if (s)
		a->sources = s;
	if (!lease)
		return false;
	for (uint32_t i = l->first, at = 0; i < l->end; i++) {
		struct store_asked *k = &a->v[i];
		struct pmsg_store_found f;

		if (!is_asked(l->question, i, l->lender))
			continue;
		pmsg_store_found_get(m->found.p + (size_t)at++ * PMSG_STORE_FOUND_SIZE, &f);
		if (f.answer == PMSG_STORE_ANSWER_NOT_FOUND)
			correct(l->question, k, l->lender);
		if (!take(k, &f, l->peer, a->n_sources))
			continue;
		l->question->missing--;
		end = dray_max(end, k->offset + k->length);
	}
	if (!end)
		return false;
	*lease = (struct lease){ .lender = l->lender, .asker = l->asker, .uses = 1 };
	l->asker->uses++;
	s += a->n_sources;
	*s = (struct store_source){
		.view = { .o = { .kind = OBJECT_REMOTE, .length = end, .access = DMSG_ACCESS_READ },
			  .peer = l->peer,
			  .grant = m->grant },
		.lease = dray_take(lease),
		.end_ns = l->sent_ns + dray_min(m->lease_ms, lease_ms(a)) * DRAY_NS_PER_MS,
	};
	if (m->rails.n && borrow(l->x, s, a))
		take_keys(l, s, &m->rails);
	a->n_sources++;
	return true;
}

/* The peer cannot look them up now. */
static void refuse(const struct question *q, const struct lender *d, uint32_t first, uint32_t end)
{
	struct store_asked *v = q->ask->v;

	for (uint32_t i = first; i < end; i++)
		if (v[i].status == DMSG_STORE_STATUS_NOT_FOUND && is_asked(q, i, d))
			v[i].status = DMSG_STORE_STATUS_BUSY;
}

/*
 * No answer came, and none will. What nobody is known to have is not found then; what somebody had a moment ago may still be there.
 */
static void unanswered(const struct question *q, const struct lender *d, uint32_t first,
		       uint32_t end)
{
	if (q->ask->again)
		refuse(q, d, first, end);
}

/* What the answer, or its lack, says of the agent. */
static void lender_judge(const struct lookup *l, uint32_t code)
{
	struct lender *d = l->lender;
	int64_t now = dray_now().ns;

	if (code == DRAY_E_PEER_LOST)
		return;
	if (code != DRAY_E_TIMEOUT) {
		d->away = false;
		/* the answer to a test says nothing of its store */
		if (!l->test)
			d->pause_ns = 0;
		return;
	}
	/* one pause for all lookups that were on their way together */
	if (l->sent_ns < d->late_ns)
		return;
	d->away = true;
	d->late_ns = now;
	/* at first the next question tests it, because it may be that these objects took long */
	d->next_ns = now + d->pause_ns;
	d->pause_ns = dray_max(2 * d->pause_ns, PAUSE_MIN_NS);
	d->pause_ns = dray_min(d->pause_ns, PAUSE_MAX_NS);
}

static void lookup_free(struct lookup *l)
{
	dray_list_del(&l->link);
	asker_put(l->x, l->asker);
	free(l);
}

static void answered(void *arg, uint32_t code, const union pmsg_body *reply)
{
	const struct pmsg_store_lookup_reply *m = reply ? &reply->store_lookup_reply : NULL;
	struct lookup *l = arg;
	struct question *q = l->question;
	struct exchange *x = l->x;
	bool answers = !code && m && m->found.n == l->n;

	lender_judge(l, code);
	if (q && (code == DRAY_E_BUSY || code == DRAY_E_NO_MEMORY))
		refuse(q, l->lender, l->first, l->end);
	if (q && code == DRAY_E_TIMEOUT)
		unanswered(q, l->lender, l->first, l->end);
	if (!(q && answers && take_all(l, m))) {
		unhold(x, l->lender, l->asker);
		if (m && m->grant)
			release(x, l->peer, m->grant);
	}
	lookup_free(l);
	if (q && (!q->missing || dray_list_empty(&q->lookups)))
		question_end(x, q);
}

/* --- questions ------------------------------------------------------------------------------------- */

/* How many keys from `first` fit into one message. */
static uint32_t keys_that_fit(const struct store_ask *a, uint32_t first)
{
	uint32_t n = 0, bytes = 0;

	for (; first + n < a->n_asked && n < KEYS_MAX; n++) {
		bytes += 1 + a->v[first + n].n_key;
		if (bytes > KEYS_BYTES)
			break;
	}
	return n;
}

static uint32_t lookups_of(const struct store_ask *a)
{
	uint32_t n = 0;

	for (uint32_t first = 0; first < a->n_asked; first += keys_that_fit(a, first))
		n++;
	return n;
}

/* Returns the bytes behind the key. */
static uint32_t key_put(const struct store_asked *k, uint8_t *buf, uint32_t at)
{
	buf[at++] = (uint8_t)k->n_key;
	memcpy(buf + at, k->key, k->n_key);
	return at + k->n_key;
}

/* NULL: it was not sent. q NULL: nobody waits for the answer. */
static struct lookup *lookup_send(struct exchange *x, struct lender *d, dray_handle peer,
				  struct asker *o, struct question *q,
				  const struct pmsg_store_lookup *m)
{
	struct lookup *l = malloc(sizeof(*l));

	if (!l)
		return NULL;
	*l = (struct lookup){ .x = x,
			      .question = q,
			      .lender = d,
			      .asker = o,
			      .peer = peer,
			      .sent_ns = dray_now().ns,
			      .test = !q };
	o->uses++;
	dray_list_add(q ? &q->lookups : &x->vain, &l->link);
	if (peers_request(x->deps.peers, peer, PMSG_STORE_LOOKUP,
			  &(union pmsg_body){ .store_lookup = *m }, answered, l) < 0) {
		lookup_free(l);
		return NULL;
	}
	hold(x, d, o);
	return l;
}

/* Fills one message with the keys from l->first on for which the agent is asked. */
static void message_fill(const struct question *q, struct lookup *l, const struct lender *d,
			 uint8_t *keys, uint32_t *ret_bytes)
{
	const struct store_ask *a = q->ask;
	uint32_t bytes = 0;

	for (l->n = 0, l->end = l->first; l->end < a->n_asked && l->n < KEYS_MAX; l->end++) {
		const struct store_asked *k = &a->v[l->end];

		if (!is_asked(q, l->end, d))
			continue;
		if (bytes + 1 + k->n_key > KEYS_BYTES)
			break;
		bytes = key_put(k, keys, bytes);
		l->n++;
	}
	*ret_bytes = bytes;
}

static void ask_peer(struct exchange *x, struct question *q, struct lender *d, dray_handle peer)
{
	struct store_ask *a = q->ask;
	const char *tenant = a->asker->owner.tenant;
	uint8_t keys[KEYS_BYTES];
	struct pmsg_store_lookup m = { .uid = a->uid,
				       .lease_ms = lease_ms(a),
				       .space = { a->space, (uint32_t)strlen(a->space) },
				       .tenant = { tenant, (uint32_t)strlen(tenant) },
				       .keys = { keys, 0 },
				       .flags = a->lease_ms ? PMSG_STORE_LOOKUP_FLAG_HOLD : 0 };

	for (struct lookup part = { .end = 0 }; part.end < a->n_asked;) {
		struct lookup *l;

		part.first = part.end;
		message_fill(q, &part, d, keys, &m.keys.n);
		if (!part.n)
			return;
		l = lookup_send(x, d, peer, a->asker, q, &m);
		/* its connection is clogged, or there is no memory */
		if (!l) {
			refuse(q, d, part.first, a->n_asked);
			return;
		}
		l->first = part.first;
		l->end = part.end;
		l->n = part.n;
	}
}

/* Is the agent in time again? It refuses a name space without a name at once, whatever its store does. */
static void test_peer(struct exchange *x, struct question *q, struct lender *d, dray_handle peer)
{
	uint8_t keys[1 + UINT8_MAX];
	struct pmsg_store_lookup m = { .uid = q->ask->uid,
				       .keys = { keys, key_put(q->ask->v, keys, 0) } };

	lookup_send(x, d, peer, q->ask->asker, NULL, &m);
}

static bool is_asked_any(const struct question *q, const struct lender *d)
{
	for (uint32_t i = 0; i < q->ask->n_asked; i++)
		if (is_asked(q, i, d))
			return true;
	return false;
}

static void ask_peers(struct exchange *x, struct question *q)
{
	struct store_ask *a = q->ask;
	int64_t now = dray_now().ns;

	for (uint32_t i = 0; i < x->n_lenders; i++) {
		struct lender *d = &x->lenders[i];
		dray_handle peer = d->at ? peers_at(x->deps.peers, d->at, PMSG_FEATURE_STORE) : 0;

		if (!peer || !is_asked_any(q, d))
			continue;
		if (d->away) {
			unanswered(q, d, 0, a->n_asked);
			if (now < d->next_ns)
				continue;
			d->next_ns = now + d->pause_ns;
			test_peer(x, q, d, peer);
		} else if (may_ask_at(x, q, d)) {
			ask_peer(x, q, d, peer);
		} else {
			refuse(q, d, 0, a->n_asked);
		}
	}
	if (dray_list_empty(&q->lookups))
		question_end(x, q);
}

/* --- the directory ----------------------------------------------------------------------------------- */

static void on_named(void *arg, uint32_t i, const char *segment)
{
	struct question *q = arg;
	const struct lender *d = lender_at(q->x, segment);
	struct named *named = &q->named[i];

	if (d && named->n < NAMED_MAX)
		named->lenders[named->n++] = (uint16_t)(d - q->x->lenders);
}

static void on_unknown(void *arg, uint32_t i)
{
	struct question *q = arg;

	q->named[i].all = true;
}

static void on_found(void *arg)
{
	struct question *q = arg;

	q->find = NULL;
	ask_peers(q->x, q);
}

/* False: the directory cannot be asked. */
static bool ask_directory(struct exchange *x, struct question *q)
{
	static const struct directory_found found = { .named = on_named,
						      .unknown = on_unknown,
						      .done = on_found };
	const struct store_ask *a = q->ask;
	dray_auto_free struct store_key *keys = NULL;

	if (!x->deps.directory)
		return false;
	keys = malloc(a->n_asked * sizeof(*keys));
	q->named = calloc(a->n_asked, sizeof(*q->named));
	if (keys && q->named) {
		for (uint32_t i = 0; i < a->n_asked; i++)
			keys[i] = (struct store_key){ a->v[i].key, a->v[i].n_key };
		q->find = directory_find(x->deps.directory, a->space, keys, a->n_asked, &found, q);
	}
	if (q->find)
		return true;
	free(dray_take(q->named));
	return false;
}

static void question_start(struct exchange *x, struct question *q)
{
	struct store_ask *a = q->ask;

	a->lookups = q->messages;
	a->asker->lookups += a->lookups;
	x->lookups += a->lookups;
	question_leave(q);
	dray_list_add(&x->questions, &q->link);
	if (!ask_directory(x, q))
		ask_peers(x, q);
}

/* What has ended has made room. */
static void questions_go_on(struct exchange *x)
{
	dray_list_for_each(&x->waiting, o, struct asker, link) {
		struct question *q;

		while ((q = dray_list_first(&o->waiting, struct question, link)) && may_ask(x, q))
			question_start(x, q);
	}
}

/* NULL: no memory, or too many of the owner wait. */
static struct question *question_new(struct exchange *x, struct store_ask *a)
{
	struct question *q = calloc(1, sizeof(*q));

	a->asker = q ? asker_get(x, a) : NULL;
	if (!a->asker || timers_reserve(&x->limits, x->n_questions + 1) < 0 ||
	    timers_reserve(&x->leases, x->n_keeping + 1) < 0) {
		/* the owner has it from here on */
		if (a->asker && !a->asker->uses) {
			dray_map_del(&x->askers, &a->asker->by_owner);
			free(a->asker);
		}
		a->asker = NULL;
		free(q);
		return NULL;
	}
	a->asker->uses++;
	x->n_keeping += a->lease_ms != 0;
	x->n_questions++;
	q->x = x;
	q->ask = a;
	a->question = q;
	q->missing = a->n_asked;
	q->messages = lookups_of(a);
	dray_list_init(&q->link);
	dray_list_init(&q->lookups);
	timers_set(&x->limits, &q->limit, a->end_ns);
	return q;
}

static void question_wait(struct exchange *x, struct question *q)
{
	struct asker *o = q->ask->asker;

	q->waits = true;
	if (!o->n_waiting++)
		dray_list_add(&x->waiting, &o->link);
	dray_list_add(&o->waiting, &q->link);
}

/*
 * What an EXISTS of another session of the owner has found, and leases long enough. NULL: none has. A source with keys is for one ask,
 * which its owner can fence.
 */
static const struct store_asked *kept_find(struct exchange *x, const struct store_ask *a,
					   const struct store_asked *k, int64_t now)
{
	dray_map_for_each_of(&x->kept, k->key, k->n_key, v, struct store_asked, by_key) {
		const struct store_source *s = &v->of->sources[v->source];

		if (s->lease && !s->borrowed && v->of->asker == a->asker &&
		    !strcmp(v->of->space, a->space) && s->end_ns - now > SHARED_LEAST_NS)
			return v;
	}
	return NULL;
}

/* The source of the ask with this lease; a new one if it has none. */
static uint32_t source_share(struct store_ask *a, const struct store_source *from)
{
	uint32_t i = 0;

	while (i < a->n_sources && a->sources[i].lease != from->lease)
		i++;
	if (i < a->n_sources)
		return i;
	a->sources[a->n_sources++] = (struct store_source){ .view = from->view,
							    .lease = from->lease,
							    .end_ns = from->end_ns };
	from->lease->uses++;
	return i;
}

/*
 * A GET of what other sessions hold reads it there: so the worker process of an engine finds what its scheduler has leased, and
 * nobody is asked. False: they do not hold all of it.
 */
static bool share(struct exchange *x, struct store_ask *a)
{
	const struct store_asked *found[DMSG_STORE_KEYS_MAX];
	int64_t now = dray_now().ns;
	struct store_source *s;

	if (a->lease_ms || a->again || !x->kept.n)
		return false;
	for (uint32_t i = 0; i < a->n_asked; i++) {
		found[i] = kept_find(x, a, &a->v[i], now);
		if (!found[i])
			return false;
	}
	s = realloc(a->sources, (a->n_sources + a->n_asked) * sizeof(struct store_source));
	if (!s)
		return false;
	a->sources = s;
	for (uint32_t i = 0; i < a->n_asked; i++) {
		const struct store_asked *f = found[i];
		struct store_asked *k = &a->v[i];

		k->source = source_share(a, &f->of->sources[f->source]);
		k->status = DMSG_STORE_STATUS_OK;
		k->offset = f->offset;
		k->length = f->length;
		k->crc = f->crc;
		k->cost_us = f->cost_us;
	}
	return true;
}

void exchange_ask(struct exchange *x, struct store_ask *a)
{
	struct question *q = question_new(x, a);
	bool may_start;

	dray_list_init(&a->link);
	if (!q) {
		give(x, a);
		return;
	}
	if (share(x, a)) {
		question_end(x, q);
		return;
	}
	may_start = !a->asker->n_waiting && may_ask(x, q);
	if (!may_keep(q) || (!may_start && a->asker->n_waiting >= WAITING_MAX)) {
		for (uint32_t i = 0; i < a->n_asked; i++)
			a->v[i].status = DMSG_STORE_STATUS_BUSY;
		question_end(x, q);
		return;
	}
	a->keeping = a->lease_ms ? q->messages : 0;
	a->asker->keeping += a->keeping;
	x->keeping += a->keeping;
	if (may_start)
		question_start(x, q);
	else
		question_wait(x, q);
}

static void source_end(struct exchange *x, struct store_ask *a, uint32_t i)
{
	struct store_source *s = &a->sources[i];
	struct lease *l = dray_take(s->lease);

	if (!l || --l->uses)
		return;
	give_back(x, s);
	unhold(x, l->lender, l->asker);
	lease_free(x, l);
}

void exchange_ask_end(struct exchange *x, struct store_ask *a)
{
	for (uint32_t i = 0; i < a->n_sources; i++)
		source_end(x, a, i);
	ask_free(x, a);
	questions_go_on(x);
}

void exchange_ask_stop(struct exchange *x, struct store_ask *a)
{
	if (a->question)
		question_end(x, a->question);
}

void exchange_source_end(struct exchange *x, struct store_ask *a, uint32_t source)
{
	source_end(x, a, source);
}

int ask_init(struct exchange *x)
{
	dray_list_init(&x->questions);
	dray_list_init(&x->waiting);
	dray_list_init(&x->vain);
	dray_list_init(&x->asks);
	dray_map_init(&x->askers);
	dray_map_init(&x->borrowed);
	dray_map_init(&x->kept);
	if (lenders_init(x) < 0)
		return -ENOMEM;
	if (timers_init(&x->leases, x->deps.event, ACCURACY_US, SD_EVENT_PRIORITY_NORMAL, lapsed) <
	    0)
		return -ENOMEM;
	return timers_init(&x->limits, x->deps.event, ACCURACY_US, SD_EVENT_PRIORITY_NORMAL,
			   overdue);
}

static void lookups_free(struct dray_list *lookups)
{
	dray_list_for_each(lookups, l, struct lookup, link)
		lookup_free(l);
}

/* Without telling the lenders. */
static void ask_drop(struct exchange *x, struct store_ask *a)
{
	for (uint32_t i = 0; i < a->n_sources; i++) {
		struct lease *l = a->sources[i].lease;

		if (l && !--l->uses)
			lease_free(x, l);
	}
	ask_free(x, a);
}

void ask_deinit(struct exchange *x)
{
	dray_list_for_each(&x->waiting, o, struct asker, link)
		dray_list_splice(&x->questions, &o->waiting);
	dray_list_for_each(&x->questions, q, struct question, link) {
		struct store_ask *a = q->ask;

		lookups_free(&q->lookups);
		question_free(q);
		ask_drop(x, a);
	}
	lookups_free(&x->vain);
	dray_list_for_each(&x->asks, a, struct store_ask, link)
		ask_drop(x, a);
	dray_map_deinit(&x->askers);
	dray_map_for_each(&x->borrowed, b, struct borrowed, by_grant) {
		dray_map_del(&x->borrowed, &b->by_grant);
		free(b);
	}
	dray_map_deinit(&x->borrowed);
	dray_map_deinit(&x->kept);
	timers_deinit(&x->limits);
	timers_deinit(&x->leases);
	lenders_deinit(x);
}
