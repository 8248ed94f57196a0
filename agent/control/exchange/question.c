/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/exchange/question.h"

#include <stdlib.h>

#include "agent/control/exchange/answered.h"
#include "agent/control/exchange/asker.h"
#include "agent/model/store_ask.h"

#define ACCURACY_US 1000
/* Of what a GET finds. */
#define LEASE_MS 10000

void question_leave(struct question *q)
{
	struct asker *o = q->ask->asker;

	dray_list_del(&q->link);
	if (q->waits && !--o->n_waiting)
		dray_list_del(&o->link);
	q->waits = false;
}

void question_free(struct question *q)
{
	question_leave(q);
	directory_find_cancel(q->find);
	timers_set(&q->x->limits, &q->limit, INT64_MAX);
	q->x->n_questions--;
	free(q->named);
	free(q->maybe);
	free(q);
}

void question_end(struct exchange *x, struct question *q)
{
	struct store_ask *a = q->ask;

	dray_list_for_each(&q->lookups, l, struct lookup, link) {
		l->question = NULL;
		dray_list_move(&x->vain, &l->link);
	}
	question_free(q);
	a->question = NULL;
	answered_add(x, a);
}

/* The deadline of its GET. */
static void overdue(struct dray_heap_node *node, int64_t now)
{
	struct question *q = dray_container_of(node, struct question, limit);

	q->ask->late = true;
	question_end(q->x, q);
}

bool question_asks(const struct question *q, uint32_t key, const struct lender *d)
{
	const struct named *named = q->named ? &q->named[key] : NULL;
	uint16_t index = (uint16_t)(d - q->x->lenders);

	if (q->maybe && !(q->maybe[key] >> index & 1))
		return false;
	if (!named || named->all)
		return true;
	for (unsigned i = 0; i < named->n; i++)
		if (named->lenders[i] == index)
			return true;
	return false;
}

uint32_t question_lease_ms(const struct question *q)
{
	return q->ask->lease_ms ? q->ask->lease_ms : LEASE_MS;
}

void question_refuse(const struct question *q, const struct lender *d, dray_handle silent,
		     uint32_t first, uint32_t end)
{
	struct store_asked *v = q->ask->v;

	for (uint32_t i = first; i < end; i++)
		if (v[i].status == DMSG_STORE_STATUS_NOT_FOUND && question_asks(q, i, d) &&
		    !(silent && v[i].silent == silent))
			v[i].status = DMSG_STORE_STATUS_BUSY;
}

struct question *question_new(struct exchange *x, struct store_ask *a, uint32_t messages)
{
	struct question *q = calloc(1, sizeof(*q));

	a->asker = q ? asker_get(x, a) : NULL;
	if (!a->asker || timers_reserve(&x->limits, x->n_questions + 1) < 0 ||
	    timers_reserve(&x->leases, x->n_keeping + 1) < 0) {
		if (a->asker)
			asker_check(x, a->asker);
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
	q->messages = messages;
	dray_list_init(&q->link);
	dray_list_init(&q->lookups);
	timers_set(&x->limits, &q->limit, a->end_ns);
	return q;
}

void question_wait(struct question *q)
{
	struct asker *o = q->ask->asker;

	q->waits = true;
	if (!o->n_waiting++)
		dray_list_add(&o->x->waiting, &o->link);
	dray_list_add(&o->waiting, &q->link);
}

int questions_init(struct exchange *x)
{
	dray_list_init(&x->questions);
	dray_list_init(&x->waiting);
	return timers_init(&x->limits, x->deps.event, ACCURACY_US, SD_EVENT_PRIORITY_NORMAL,
			   overdue);
}
