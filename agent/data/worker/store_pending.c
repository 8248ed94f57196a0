/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/data/worker/store_pending.h"

#include <stdlib.h>
#include <string.h>

#include "agent/data/worker/store_reading.h"
#include "agent/data/worker/store_wanted.h"
#include "agent/model/store_ask.h"
#include "lib/cleanup.h"

struct fetch *fetch_alloc(struct wsession *s, struct batch *b, struct store_member *member,
			  size_t more)
{
	struct fetch *f = calloc(1, sizeof(*f) + more);

	if (!f)
		return NULL;
	f->session = s;
	f->number = ++s->worker->fetches;
	f->request = b->call.request_id;
	f->batch = b;
	f->member = member;
	dray_list_init(&f->link);
	dray_list_init(&f->asking);
	dray_list_init(&f->step);
	silence_init(&f->silence);
	return f;
}

void fetch_enter(struct fetch *f)
{
	struct wsession *s = f->session;

	dray_list_add(&s->fetches, &f->link);
	dray_map_add(&s->fetches_of, &f->of, &f->request, sizeof(f->request));
	dray_map_add(&s->fetches_numbered, &f->numbered, &f->number, sizeof(f->number));
}

struct fetch *fetch_new(struct wsession *s, const struct dmsg_store_put *m,
			struct store_member *member, struct batch *b)
{
	size_t items = (size_t)m->items.n * DMSG_STORE_ITEM_SIZE,
	       ranges = (size_t)m->ranges.n * DMSG_STORE_RANGE_SIZE;
	struct fetch *f = fetch_alloc(s, b, member, items + ranges);

	if (!f)
		return NULL;
	f->arrivals = store_arrivals_new(s->worker->store, b->n);
	if (!f->arrivals) {
		free(f);
		return NULL;
	}
	f->region = m->region;
	f->n_items = m->items.n;
	f->n_ranges = m->ranges.n;
	f->items = memcpy(f->data, m->items.p, items);
	f->ranges = memcpy(f->data + items, m->ranges.p, ranges);
	return f;
}

void fetch_wait(struct fetch *f, struct store_ask *k)
{
	k->number = f->number;
	k->end_ns = f->batch->end_ns;
	f->session->requests++;
	dray_list_del(&f->asking);
	dray_list_add(&worker_of_fetch(f)->asking, &f->asking);
}

void fetch_send(struct fetch *f, struct store_ask *k)
{
	fetch_wait(f, k);
	k->sent = true;
	f->asked = k;
	worker_event(worker_of_fetch(f), &(struct event){ .type = EVENT_STORE_ASK, .ask = k });
}

/* What it has taken over from an EXISTS. The control thread may have the ask, and leaves these keys alone. */
static void ask_end_held(struct store_ask *k)
{
	for (uint32_t i = k->n_asked; i < k->n; i++)
		if (k->v[i].held)
			held_end(dray_take(k->v[i].held));
}

void fetch_drop_ask(struct wsession *s, struct store_ask *k)
{
	ask_end_held(k);
	ask_end(s->worker, k);
}

void fetch_place_end(struct fetch *f, uint32_t i)
{
	struct store_object *o = dray_take(f->landings[i].object);

	f->landings[i].wanted = false;
	if (!o)
		return;
	if (f->lingering && f->ask->v[i].source == f->source)
		reading_keep(f->lingering, o);
	else
		store_put_end(o, false);
}

void fetch_free(struct fetch *f)
{
	struct worker *w = worker_of_fetch(f);

	for (uint32_t i = 0; f->ask && f->landings && i < f->ask->n; i++)
		fetch_place_end(f, i);
	if (f->ask || f->asked)
		ask_end_held(f->ask ? f->ask : f->asked);
	if (f->asked)
		worker_event(w, &(struct event){ .type = EVENT_STORE_ASK_STOP, .ask = f->asked });
	if (f->holder)
		f->holder->stop(f->holder);
	ask_end(w, f->ask);
	store_arrivals_drop(f->arrivals);
	free(f->landings);
	free(f->ops);
	silence_end(&f->silence);
	dray_list_del(&f->asking);
	dray_list_del(&f->step);
	dray_list_del(&f->link);
	dray_map_del(&f->session->fetches_of, &f->of);
	dray_map_del(&f->session->fetches_numbered, &f->numbered);
	free(f);
}

void fetch_fail(struct fetch *f, uint32_t code, const struct dray_err *err)
{
	struct wsession *s = f->session;
	struct batch *b = f->batch;

	if (b->call.type == DMSG_STORE_PUT) {
		replicas_told(f, NULL, code);
		return;
	}
	idset_del(&s->ids, b->call.request_id);
	/* their ranges have wrong bytes, some of which may be zeroed */
	for (uint32_t i = 0; f->n_items && i < b->n; i++)
		if (b->results[i].status == DMSG_STORE_STATUS_CORRUPT)
			b->results[i].status = DMSG_STORE_STATUS_NOT_TRIED;
	batch_settle(&s->worker->core, b, false);
	for (uint32_t i = 0; !b->gets && i < b->n; i++)
		if (wanted_key(&b->results[i]))
			b->results[i].status = DMSG_STORE_STATUS_NOT_TRIED;
	b->end(s, b, code, err);
	fetch_free(f);
}

bool fetch_is_late(const struct fetch *f)
{
	return batch_is_late(worker_of_fetch(f), f->batch);
}

static struct fetch *fetch_asking(struct wsession *s, uint64_t request)
{
	struct fetch *f = dray_map_entry(dray_map_find(&s->fetches_of, &request, sizeof(request)),
					 struct fetch, of);

	return f && !dray_list_empty(&f->asking) ? f : NULL;
}

bool fetch_asks(struct wsession *s, uint64_t request)
{
	return fetch_asking(s, request);
}

void fetch_cancel(struct wsession *s, uint64_t request)
{
	fetch_fail(fetch_asking(s, request), DRAY_E_CANCELLED, NULL);
}

void fetches_stop(struct worker *w, uint32_t code)
{
	struct fetch *f;

	while ((f = dray_list_first(&w->asking, struct fetch, asking)))
		fetch_fail(f, code, NULL);
}

void fetches_close(struct wsession *s)
{
	dray_list_for_each(&s->fetches, f, struct fetch, link)
		fetch_fail(f, DRAY_E_SESSION_CLOSED, NULL);
}
