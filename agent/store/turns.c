/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/store/turns.h"

#include "lib/cleanup.h"

void turns_init(struct turns *t)
{
	*t = (struct turns){ .now = 0 };
	for (unsigned i = 0; i < TURNS_MAX; i++)
		dray_list_init(&t->lists[i]);
}

static bool is_over(const struct turns *t, const struct turns_share *s, uint64_t bytes,
		    uint64_t budget)
{
	return !s->n || s->turn < t->now || (s->bytes && s->bytes + bytes > budget);
}

bool turns_add(struct turns *t, struct turns_share *s, struct dray_list *link, uint64_t bytes,
	       uint64_t budget)
{
	bool over = is_over(t, s, bytes, budget);

	if (over) {
		uint64_t first = t->now + (t->taken >= budget);
		uint64_t turn = s->n ? dray_max(s->turn + 1, first) : first;

		s->turn = dray_min(turn, t->now + TURNS_MAX - 1);
		s->bytes = 0;
		s->n++;
	}
	s->bytes += bytes;
	dray_list_add(&t->lists[s->turn % TURNS_MAX], link);
	t->n++;
	return over;
}

struct dray_list *turns_first(struct turns *t)
{
	if (!t->n)
		return NULL;
	while (dray_list_empty(&t->lists[t->now % TURNS_MAX])) {
		t->now++;
		t->taken = 0;
	}
	return t->lists[t->now % TURNS_MAX].next;
}

void turns_take(struct turns *t, struct dray_list *link, uint64_t bytes)
{
	dray_list_del(link);
	t->taken = --t->n ? t->taken + bytes : 0;
}
