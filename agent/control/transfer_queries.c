/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queries that workers answer later: listing transfers, and cancelling one. The caller may be gone when the answer
 * comes.
 */
#include "agent/control/transfer_queries.h"

#include <errno.h>
#include <stdlib.h>

#include "agent/control/agent.h"

/* Most transfers in the answer of one worker. */
#define SNAPSHOT_MAX 4096

struct listing {
	struct dray_list link;
	agent_transfers_fn fn; /* NULL: the caller is gone */
	void *arg;
	uint32_t missing; /* workers without an answer, a bit each */
	unsigned n;
	struct snapshot *snapshots[WORKERS_MAX];
};

struct cancel {
	struct dray_list link;
	uint64_t id;
	agent_cancel_fn fn; /* NULL: the caller is gone */
	void *arg;
};

void transfer_queries_init(struct agent *a)
{
	dray_list_init(&a->listings);
	dray_list_init(&a->cancels);
}

void transfer_queries_free(struct agent *a)
{
	dray_list_for_each(&a->listings, l, struct listing, link) {
		for (unsigned i = 0; i < l->n; i++)
			free(l->snapshots[i]);
		free(l);
	}
	dray_list_for_each(&a->cancels, c, struct cancel, link)
		free(c);
	transfer_queries_init(a);
}

void transfer_queries_handle_snapshot(struct agent *a, unsigned worker, struct snapshot *s)
{
	struct listing *l = s->owner;

	l->missing &= ~(1u << worker);
	if (l->missing)
		return;
	dray_list_del(&l->link);
	if (l->fn)
		l->fn(l->arg, l->snapshots, l->n);
	for (unsigned i = 0; i < l->n; i++)
		free(l->snapshots[i]);
	free(l);
}

int agent_list_transfers(struct agent *a, bool ended, agent_transfers_fn fn, void *arg)
{
	struct listing *l = calloc(1, sizeof(*l));

	if (!l)
		return -ENOMEM;
	l->fn = fn;
	l->arg = arg;
	for (; l->n < a->pool.n; l->n++) {
		struct snapshot *s = snapshot_new(l, ended, ended ? RECORDS_MAX : SNAPSHOT_MAX);

		if (!s) {
			while (l->n)
				free(l->snapshots[--l->n]);
			free(l);
			return -ENOMEM;
		}
		l->snapshots[l->n] = s;
	}
	l->missing = (1u << l->n) - 1;
	dray_list_add(&a->listings, &l->link);
	for (unsigned i = 0; i < l->n; i++)
		worker_post(a->pool.workers[i], &(struct command){ .type = COMMAND_SNAPSHOT,
								   .snapshot = l->snapshots[i] });
	return 0;
}

void agent_forget_listings(struct agent *a, void *arg)
{
	dray_list_for_each(&a->listings, l, struct listing, link)
		if (l->arg == arg)
			l->fn = NULL;
}

uint32_t agent_listing_missing(struct agent *a, const void *arg)
{
	dray_list_for_each(&a->listings, l, struct listing, link)
		if (l->arg == arg)
			return l->missing;
	return 0;
}

int agent_cancel(struct agent *a, dray_handle session, uint64_t request, agent_cancel_fn fn,
		 void *arg)
{
	int worker = session_worker(a->sessions, session);
	struct cancel *c;

	if (worker < 0)
		return -ENOENT;
	c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	c->id = ++a->last_cancel;
	c->fn = fn;
	c->arg = arg;
	dray_list_add(&a->cancels, &c->link);
	worker_post(a->pool.workers[worker], &(struct command){ .type = COMMAND_CANCEL,
								.session = session,
								.handle = c->id,
								.id = request });
	return 0;
}

void agent_forget_cancel(struct agent *a, void *arg)
{
	dray_list_for_each(&a->cancels, c, struct cancel, link)
		if (c->arg == arg)
			c->fn = NULL;
}

void transfer_queries_handle_cancelled(struct agent *a, uint64_t id, bool ended, uint32_t code)
{
	dray_list_for_each(&a->cancels, c, struct cancel, link) {
		if (c->id != id)
			continue;
		dray_list_del(&c->link);
		if (c->fn)
			c->fn(c->arg, ended, code);
		free(c);
		return;
	}
}
