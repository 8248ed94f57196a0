/* SPDX-License-Identifier: Apache-2.0 */
/* A PUT or GET whose keys are looked at in several turns: other owners have theirs meanwhile. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/data/worker/store_batch.h"
#include "agent/data/worker/store_request.h"
#include "lib/assert.h"

/* The session takes no other request meanwhile. */
struct store_begin {
	struct dray_list link; /* on worker->begins */
	struct wsession *session;
	struct batch_request q;
	struct store_call call;
	union dmsg_body m; /* decoded from the copy */
	struct batch *batch;
	uint8_t body[];
};

void begin_later(struct wsession *s, const struct batch_request *q, const uint8_t *body,
		 uint32_t length, struct batch *b, struct dray_err *err)
{
	struct store_begin *g = malloc(sizeof(*g) + length);

	if (!g) {
		batch_settle(&s->worker->core, b, false);
		batch_free(b);
		dray_err_set(err, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for the request");
		return;
	}
	*g = (struct store_begin){ .session = s, .q = *q, .call = *q->call, .batch = b };
	memcpy(g->body, body, length);
	dray_assert(dmsg_body_decode(g->call.type, g->body, length, &g->m, err) == 0);
	g->q.call = &g->call;
	g->q.m = &g->m.store_put;
	s->begins = g;
	dray_list_add(&s->worker->begins, &g->link);
	wsession_go_on(s);
}

/* The session goes on with its other requests. */
static void begin_end(struct wsession *s, struct store_begin *g)
{
	if (s->n_cancels)
		cancels_taken(s, g->call.request_id);
	free(g);
}

static void begin_stop(struct store_begin *g, uint32_t code)
{
	struct wsession *s = g->session;
	struct batch *b = g->batch;

	s->begins = NULL;
	dray_list_del(&g->link);
	batch_settle(&s->worker->core, b, false);
	for (uint32_t i = g->q.item; i < b->n; i++)
		b->results[i].status = DMSG_STORE_STATUS_NOT_TRIED;
	b->end(s, b, code, NULL);
	begin_end(s, g);
}

void store_begin_on(struct wsession *s)
{
	struct store_begin *g = s->begins;
	struct dray_err err = DRAY_ERR_NULL;

	if (batch_is_late(s->worker, g->batch)) {
		begin_stop(g, DRAY_E_DEADLINE);
		return;
	}
	store_keys_split(s->worker->store_scratch->keys, DMSG_STORE_KEYS_MAX, g->q.m->keys, &err);
	if (!items_begin(s, &g->q, g->batch))
		return;
	s->begins = NULL;
	dray_list_del(&g->link);
	batch_begun(s, &g->q, g->batch, &err);
	if (err.code)
		store_answer_error(s, &g->call, &err);
	begin_end(s, g);
}

void store_begins_stop(struct worker *w, uint32_t code)
{
	struct store_begin *g;

	while ((g = dray_list_first(&w->begins, struct store_begin, link)))
		begin_stop(g, code);
}

void store_begin_drop(struct wsession *s)
{
	struct store_begin *g = dray_take(s->begins);

	if (!g)
		return;
	dray_list_del(&g->link);
	batch_settle(&s->worker->core, g->batch, false);
	batch_free(g->batch);
	free(g);
}
