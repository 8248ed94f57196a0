/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queries that workers answer later: listing transfers, and cancelling one. There is one listing of each kind at a time.
 * The next one answers all queries that come meanwhile, so it sees every transfer that was accepted before they came.
 */
#include <errno.h>
#include <stdlib.h>

#include "agent/control/agent.h"

/* Most transfers in the answer of one worker. */
#define SNAPSHOT_MAX 4096

void transfer_queries_init(struct agent *a)
{
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(a->listings); i++) {
		dray_list_init(&a->listings[i].asked);
		dray_list_init(&a->listings[i].waiting);
	}
	dray_list_init(&a->cancels);
}

static void snapshots_free(struct listing *l)
{
	while (l->n)
		free(l->snapshots[--l->n]);
}

void transfer_queries_free(struct agent *a)
{
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(a->listings); i++)
		snapshots_free(&a->listings[i]);
}

/* fn may start or cancel other queries. */
static void answer(struct listing *l, struct snapshot *const *snapshots, unsigned n)
{
	struct dray_list asked = DRAY_LIST_INIT(asked);
	struct transfers_query *q;

	dray_list_splice(&asked, &l->asked);
	while ((q = dray_list_pop(&asked, struct transfers_query, link)))
		q->fn(q, snapshots, n);
}

static void start(struct agent *a, struct listing *l)
{
	static const uint32_t most[LISTING_N] = {
		[LISTING_IN_FLIGHT] = SNAPSHOT_MAX, [LISTING_ENDED] = RECORDS_MAX
	};
	enum listing_kind kind = (enum listing_kind)(l - a->listings);

	if (l->n || dray_list_empty(&l->waiting))
		return;
	dray_list_splice(&l->asked, &l->waiting);
	for (; l->n < a->pool.n; l->n++) {
		l->snapshots[l->n] = snapshot_new(l, kind == LISTING_ENDED, most[kind]);
		if (!l->snapshots[l->n]) {
			snapshots_free(l);
			answer(l, NULL, 0);
			return;
		}
	}
	l->missing = (1u << l->n) - 1;
	for (unsigned i = 0; i < a->pool.n; i++)
		worker_post(a->pool.workers[i], &(struct command){ .type = COMMAND_SNAPSHOT,
								   .snapshot = l->snapshots[i] });
}

void transfer_queries_handle_snapshot(struct agent *a, unsigned worker, struct snapshot *s)
{
	struct listing *l = s->owner;

	l->missing &= ~(1u << worker);
	if (l->missing)
		return;
	answer(l, l->snapshots, l->n);
	snapshots_free(l);
	start(a, l);
}

void agent_list_transfers(struct agent *a, enum listing_kind kind, struct transfers_query *q)
{
	dray_list_add(&a->listings[kind].waiting, &q->link);
	start(a, &a->listings[kind]);
}

int agent_cancel(struct agent *a, dray_handle session, uint64_t request, struct transfer_cancel *c)
{
	int worker = session_worker(a->sessions, session);

	if (worker < 0)
		return -ENOENT;
	c->id = ++a->last_cancel;
	dray_list_add(&a->cancels, &c->link);
	worker_post(a->pool.workers[worker], &(struct command){ .type = COMMAND_CANCEL,
								.session = session,
								.handle = c->id,
								.id = request });
	return 0;
}

void transfer_queries_handle_cancelled(struct agent *a, uint64_t id, bool ended, uint32_t code)
{
	dray_list_for_each(&a->cancels, c, struct transfer_cancel, link) {
		if (c->id != id)
			continue;
		dray_list_del(&c->link);
		c->fn(c, ended, code);
		return;
	}
}
