/* SPDX-License-Identifier: Apache-2.0 */
/* Requests whose keys are looked at in several turns: other owners have theirs meanwhile. */
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
	struct store_call call;
	union dmsg_body m;   /* decoded from the copy */
	struct batch *batch; /* NULL: of a PIN or READ */
	union {
		struct batch_request q;
		struct loads loads;
	};
	uint8_t body[];
};

/* NULL: no memory. */
static struct store_begin *begin_new(struct wsession *s, const struct store_call *call,
				     const uint8_t *body, uint32_t length)
{
	struct store_begin *g = malloc(sizeof(*g) + length);
	struct dray_err err = DRAY_ERR_NULL;

	if (!g)
		return NULL;
	*g = (struct store_begin){ .session = s, .call = *call };
	memcpy(g->body, body, length);
	dray_assert(dmsg_body_decode(g->call.type, g->body, length, &g->m, &err) == 0);
	s->begins = g;
	dray_list_add(&s->worker->begins, &g->link);
	wsession_go_on(s);
	return g;
}

void begin_later(struct wsession *s, const struct batch_request *q, const uint8_t *body,
		 uint32_t length, struct batch *b, struct dray_err *err)
{
	struct store_begin *g = begin_new(s, q->call, body, length);

	if (!g) {
		batch_settle(&s->worker->core, b, false);
		batch_free(b);
		dray_err_set(err, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for the request");
		return;
	}
	g->batch = b;
	g->q = *q;
	g->q.call = &g->call;
	g->q.m = &g->m.store_put;
}

bool loads_go_on_later(struct wsession *s, const struct store_call *call, const uint8_t *body,
		       uint32_t length, const struct loads *l)
{
	struct store_begin *g = begin_new(s, call, body, length);

	if (g)
		g->loads = *l;
	return g;
}

/* The session goes on with its other requests. */
static void begin_end(struct store_begin *g, const struct dray_err *err)
{
	struct wsession *s = g->session;

	if (err->code)
		store_answer_error(s, &g->call, err);
	if (s->n_cancels)
		cancels_taken(s, g->call.request_id);
	free(g);
}

static void begin_leave(struct store_begin *g)
{
	g->session->begins = NULL;
	dray_list_del(&g->link);
}

static bool begin_is_late(const struct store_begin *g)
{
	const struct worker *w = g->session->worker;

	return g->batch ? batch_is_late(w, g->batch) : w->core.now_ns >= g->loads.end_ns;
}

static void begin_stop(struct store_begin *g, uint32_t code)
{
	struct wsession *s = g->session;
	struct batch *b = g->batch;
	struct dray_err err = DRAY_ERR_NULL;

	begin_leave(g);
	if (b) {
		batch_settle(&s->worker->core, b, false);
		for (uint32_t i = g->q.item; i < b->n; i++)
			b->results[i].status = DMSG_STORE_STATUS_NOT_TRIED;
		b->end(s, b, code, NULL);
	} else {
		store_carry_out(s, &g->call, &g->m, &err);
	}
	begin_end(g, &err);
}

/* Looks at the next keys. False: there are more. */
static bool go_on(struct store_begin *g)
{
	struct wsession *s = g->session;
	struct dray_err err = DRAY_ERR_NULL;
	int n = store_keys_split(s->worker->store_scratch->keys, DMSG_STORE_KEYS_MAX,
				 g->batch ? g->q.m->keys : g->m.store_read.keys, &err);

	return g->batch ? items_begin(s, &g->q, g->batch) : loads_begin(s, &g->loads, (uint32_t)n);
}

void store_begin_on(struct wsession *s)
{
	struct store_begin *g = s->begins;
	struct dray_err err = DRAY_ERR_NULL;

	if (begin_is_late(g)) {
		begin_stop(g, DRAY_E_DEADLINE);
		return;
	}
	if (!go_on(g))
		return;
	begin_leave(g);
	if (g->batch)
		batch_begun(s, &g->q, g->batch, &err);
	else
		store_carry_out(s, &g->call, &g->m, &err);
	begin_end(g, &err);
}

void store_begins_stop(struct worker *w, uint32_t code)
{
	struct store_begin *g;

	while ((g = dray_list_first(&w->begins, struct store_begin, link)))
		begin_stop(g, code);
}

void store_begin_drop(struct wsession *s)
{
	struct store_begin *g = s->begins;

	if (!g)
		return;
	begin_leave(g);
	if (g->batch)
		batch_settle(&s->worker->core, g->batch, false);
	batch_free(g->batch);
	free(g);
}
