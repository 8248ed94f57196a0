/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies that this agent keeps for PUTs at peers. A worker looks the objects up at the peer that asks and reads them, for the account of
 * their owner (agent/data/worker/store_keep.c).
 *
 * A keep ends by its deadline at the latest, and with its peer, because its lookup and its transfers do. So keeps that wait are bounded
 * only by their number.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/config/tenant.h"
#include "agent/control/exchange/internal.h"
#include "agent/model/budget.h"
#include "agent/model/store_keep.h"
#include "lib/cleanup.h"
#include "lib/time.h"
#include "schema/gen/errors.h"

/* Keeps in progress: of one peer, and of all. */
#define KEEPS_OF_PEER 192
#define KEEPS_MAX 768
#define DEADLINE_MAX_MS 60000u

static void keep_free(struct exchange *x, struct store_keep *k)
{
	if (k->shared.session)
		dray_handles_del(&x->keeps, k->shared.session);
	if (k->shared.account)
		x->deps.release(k->shared.account);
	free(k);
}

static bool is_of(const struct store_keep *k, const struct store_asker *who)
{
	const struct budget_account *a = &k->shared.account->budget;

	return a->uid == who->uid && strlen(a->tenant) == who->tenant.n &&
	       !memcmp(a->tenant, who->tenant.p, who->tenant.n);
}

/* Each peer has half of what the others leave, and each owner half of what others of the peer leave. One is always allowed. */
static bool may_begin(const struct exchange *x, dray_handle peer, const struct store_asker *who)
{
	const struct store_keep *k;
	uint32_t of_peer = 0, own = 0;

	for (uint32_t at = 0; (k = dray_handles_next(&x->keeps, &at, NULL));) {
		of_peer += k->peer == peer;
		own += k->peer == peer && is_of(k, who);
	}
	return x->keeps.count < KEEPS_MAX &&
	       (!of_peer || of_peer < budget_share(KEEPS_MAX, x->keeps.count - of_peer, 0)) &&
	       (!own || own < budget_share(KEEPS_OF_PEER, of_peer - own, 0));
}

static struct store_keep *keep_alloc(const struct store_key *keys, uint32_t n)
{
	struct store_keep *k;
	size_t bytes = 0;
	uint8_t *at;

	for (uint32_t i = 0; i < n; i++)
		bytes += keys[i].n;
	k = calloc(1, sizeof(*k) + n * sizeof(k->v[0]) + bytes);
	if (!k)
		return NULL;
	k->n = n;
	at = (uint8_t *)(k->v + n);
	for (uint32_t i = 0; i < n; i++) {
		k->v[i] = (struct store_keep_key){ .key = at, .n_key = keys[i].n };
		memcpy(at, keys[i].p, keys[i].n);
		at += keys[i].n;
	}
	return k;
}

/* It has what a session has: its transfers, which are one at a time, count against the owner. 0 or -errno. */
static int account(struct exchange *x, struct store_keep *k, const struct pmsg_store_keep *m)
{
	struct session_shared *s = &k->shared;
	char tenant[TENANT_BYTES];

	/* the protocol allows no longer ones */
	if (m->tenant.n >= sizeof(tenant))
		return -EINVAL;
	memcpy(tenant, m->tenant.p, m->tenant.n);
	tenant[m->tenant.n] = '\0';
	s->account = x->deps.account(x->deps.arg, tenant, m->uid);
	if (!s->account)
		return -EBUSY;
	s->group_quota = &k->group;
	s->own.transfers_max = k->group.transfers_max = 1;
	s->ops_max = KEYS_MAX;
	s->requests_max = 1;
	return dray_handles_add(&x->keeps, k, &s->session);
}

/* 0, or -errno with reterr. */
static int keep_new(struct exchange *x, dray_handle peer, uint64_t request_id,
		    const struct pmsg_store_keep *m, struct dray_err *reterr)
{
	struct store_asker who = { m->space, m->tenant, m->uid };
	struct store_key keys[KEYS_MAX];
	int n = store_keys_split(keys, KEYS_MAX, m->keys, reterr), r;
	struct store_keep *k;

	if (n < 0)
		return n;
	/* before there is an account: nobody makes accounts of owners that have nothing here */
	r = store_may_use(x->deps.store, &who, reterr);
	if (r < 0)
		return r;
	if (!may_begin(x, peer, &who))
		return dray_err_set(reterr, -EBUSY, DRAY_E_BUSY,
				    "%u requests to keep copies are in progress", x->keeps.count);
	k = keep_alloc(keys, (uint32_t)n);
	if (!k || account(x, k, m) < 0) {
		if (k)
			keep_free(x, k);
		return dray_err_set(
			reterr, -EBUSY, DRAY_E_BUSY,
			"it has no memory for copies, or too many owners have something "
			"here");
	}
	k->peer = peer;
	k->request_id = request_id;
	/* its answer has to be there in time, too */
	k->end_ns = dray_now().ns +
		    dray_min(m->deadline_ms, DEADLINE_MAX_MS) * (DRAY_NS_PER_MS / 8 * 7);
	memcpy(k->space, m->space.p, m->space.n);
	worker_post(x->deps.pool->workers[pool_pick(x->deps.pool)],
		    &(struct command){ .type = COMMAND_STORE_KEEP, .keep = k });
	return 0;
}

void exchange_keep(struct exchange *x, dray_handle peer, uint64_t request_id,
		   const struct pmsg_store_keep *m)
{
	struct dray_err err = DRAY_ERR_NULL;

	/* nobody could read the copies */
	if (!x->deps.cfg->store.lend)
		dray_err_set(&err, -EPERM, DRAY_E_DENIED,
			     "its store is not lent: set store.lend there");
	else
		keep_new(x, peer, request_id, m, &err);
	if (err.code)
		peers_refuse(x->deps.peers, peer, request_id, (uint32_t)err.code, err.msg);
}

static enum pmsg_store_kept kept_of(enum dmsg_store_status s)
{
	static const enum pmsg_store_kept answers[] = {
		[DMSG_STORE_STATUS_OK] = PMSG_STORE_KEPT_KEPT,
		[DMSG_STORE_STATUS_EXISTS] = PMSG_STORE_KEPT_EXISTS,
		[DMSG_STORE_STATUS_NOT_FOUND] = PMSG_STORE_KEPT_NOT_FOUND,
		[DMSG_STORE_STATUS_TOO_LARGE] = PMSG_STORE_KEPT_TOO_LARGE,
		[DMSG_STORE_STATUS_CORRUPT] = PMSG_STORE_KEPT_CORRUPT,
		[DMSG_STORE_STATUS_LOST] = PMSG_STORE_KEPT_LOST,
	};

	return s < DRAY_ARRAY_SIZE(answers) && answers[s] ? answers[s] : PMSG_STORE_KEPT_BUSY;
}

void exchange_kept(struct exchange *x, struct store_keep *k)
{
	uint8_t answers[KEYS_MAX * PMSG_STORE_KEEP_ANSWER_SIZE];
	union pmsg_body m = { .store_keep_reply = { .answers = { answers, k->n } } };
	dray_handle peer = k->peer;
	uint64_t id = k->request_id;

	for (uint32_t i = 0; i < k->n; i++)
		pmsg_store_keep_answer_put(
			answers + (size_t)i * PMSG_STORE_KEEP_ANSWER_SIZE,
			&(struct pmsg_store_keep_answer){ .answer = kept_of(k->v[i].status) });
	keep_free(x, k);
	peers_send(x->deps.peers, peer, PMSG_STORE_KEEP_REPLY, id, &m);
}

void keeps_init(struct exchange *x)
{
	dray_handles_init(&x->keeps, KEEPS_MAX, STORE_KEEP_HANDLES);
}

void keeps_deinit(struct exchange *x)
{
	struct store_keep *k;

	for (uint32_t at = 0; (k = dray_handles_next(&x->keeps, &at, NULL));)
		keep_free(x, k);
	dray_handles_deinit(&x->keeps);
}
