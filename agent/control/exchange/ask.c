/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The asking side: looks keys up at the agents of store.peers, at all of them at once, or for each key at those that the directory names.
 *
 * Beyond its owner's share (asker.h) a question waits. It does not wait for lookups whose answers nobody needs any more: an agent that
 * is behind with those is not asked, and counts as busy.
 */
#include "agent/control/exchange/answered.h"
#include "agent/control/exchange/asker.h"
#include "agent/control/exchange/lookup.h"
#include "agent/control/exchange/named.h"
#include "agent/control/exchange/source.h"
#include "agent/model/store_ask.h"

/* Questions of an owner that wait. */
#define WAITING_MAX 64

static bool may_start(struct exchange *x, const struct question *q)
{
	return asker_may_ask(x, q->ask->asker, q->messages);
}

static void start(struct exchange *x, struct question *q)
{
	struct store_ask *a = q->ask;

	a->lookups = q->messages;
	a->asker->lookups += a->lookups;
	*asker_lookups(x, a->asker) += a->lookups;
	question_leave(q);
	dray_list_add(&x->questions, &q->link);
	if (a->from || !named_ask(x, q))
		lookups_send(x, q);
}

/* What has ended has made room. */
static void questions_go_on(struct exchange *x)
{
	dray_list_for_each(&x->waiting, o, struct asker, link) {
		struct question *q;

		while ((q = dray_list_first(&o->waiting, struct question, link)) && may_start(x, q))
			start(x, q);
	}
}

static bool may_keep(const struct exchange *x, const struct question *q)
{
	return !q->ask->lease_ms || asker_may_keep(x, q->ask->asker, q->messages);
}

void exchange_ask(struct exchange *x, struct store_ask *a)
{
	struct question *q = a->replicates ? NULL : question_new(x, a, lookups_needed(a));
	bool starts;

	dray_list_init(&a->link);
	if (a->replicates) {
		replicate(x, a);
		return;
	}
	if (!q) {
		answered_add(x, a);
		return;
	}
	if (!a->from && answered_share(x, a)) {
		question_end(x, q);
		return;
	}
	starts = !a->asker->n_waiting && may_start(x, q);
	if (!may_keep(x, q) || (!starts && a->asker->n_waiting >= WAITING_MAX)) {
		for (uint32_t i = 0; i < a->n_asked; i++)
			a->v[i].status = DMSG_STORE_STATUS_BUSY;
		question_end(x, q);
		return;
	}
	a->keeping = a->lease_ms ? q->messages : 0;
	a->asker->keeping += a->keeping;
	x->keeping += a->keeping;
	if (starts)
		start(x, q);
	else
		question_wait(q);
}

void exchange_ask_end(struct exchange *x, struct store_ask *a)
{
	for (uint32_t i = 0; i < a->n_sources; i++)
		exchange_source_end(x, a, i);
	answered_free(x, a);
	questions_go_on(x);
}

void exchange_ask_stop(struct exchange *x, struct store_ask *a)
{
	if (a->question)
		question_end(x, a->question);
	else if (a->placing)
		replicate_stop(a);
}

int ask_init(struct exchange *x)
{
	/* all of them, because ask_deinit() follows in any case */
	int lenders = lenders_init(x), answered = answered_init(x), questions = questions_init(x);

	dray_list_init(&x->vain);
	dray_map_init(&x->askers);
	dray_map_init(&x->borrowed);
	return lenders < 0 ? lenders : answered < 0 ? answered : questions;
}

void ask_deinit(struct exchange *x)
{
	dray_list_for_each(&x->waiting, o, struct asker, link)
		dray_list_splice(&x->questions, &o->waiting);
	dray_list_for_each(&x->questions, q, struct question, link) {
		struct store_ask *a = q->ask;

		lookups_free(&q->lookups);
		question_free(q);
		sources_drop(x, a);
		answered_free(x, a);
	}
	lookups_free(&x->vain);
	answered_deinit(x);
	sources_deinit(x);
	dray_map_deinit(&x->askers);
	timers_deinit(&x->limits);
	lenders_deinit(x);
}
