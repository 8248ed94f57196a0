/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/model/keys.h"

#include <stdlib.h>
#include <string.h>

#include "lib/cleanup.h"

struct rail_keys *rail_keys_new(uint32_t n)
{
	struct rail_keys *k = calloc(1, sizeof(*k) + n * sizeof(k->v[0]));

	if (!k)
		return NULL;
	atomic_init(&k->refs, 1);
	k->n = n;
	return k;
}

static int by_offset(const void *a, const void *b)
{
	const struct rail_key *x = a, *y = b;

	return dray_compare(x->rail, y->rail) ?: dray_compare(x->offset, y->offset);
}

static int by_base(const void *a, const void *b)
{
	const struct rail_key *x = a, *y = b;

	return dray_compare(x->rail, y->rail) ?: dray_compare(x->base, y->base);
}

void rail_keys_seal(struct rail_keys *k, uint64_t length, bool base)
{
	qsort(k->v, k->n, sizeof(k->v[0]), by_offset);
	for (uint32_t i = 0, next; i < k->n; i = next) {
		uint32_t rail = k->v[i].rail;
		uint64_t end = 0;
		bool whole = true;

		for (next = i; next < k->n && k->v[next].rail == rail; next++) {
			const struct rail_key *p = &k->v[next];

			whole &= p->offset == end && p->length;
			whole &= !__builtin_add_overflow(p->offset, p->length, &end);
			whole &= p->length - 1 <= UINT64_MAX - p->base;
		}
		if (whole && end == length && rail < RAILS_MAX)
			k->rails |= 1ull << rail;
	}
	k->by_base = base;
	if (base)
		qsort(k->v, k->n, sizeof(k->v[0]), by_base);
}

bool rail_keys_same(const struct rail_keys *a, const struct rail_keys *b)
{
	bool same = a->n == b->n && a->rails == b->rails && a->by_base == b->by_base;

	for (uint32_t i = 0; same && i < a->n; i++) {
		const struct rail_key *x = &a->v[i], *y = &b->v[i];

		same = x->rail == y->rail && x->key == y->key && x->rkey == y->rkey &&
		       x->base == y->base && x->offset == y->offset && x->length == y->length;
	}
	return same;
}

/* Not sealed. NULL: there are none, or no memory. */
static struct rail_keys *read_all(const struct dray_vec *rails)
{
	struct rail_keys *k = rails->n ? rail_keys_new(rails->n) : NULL;

	for (uint32_t i = 0; k && i < rails->n; i++) {
		struct pmsg_rail w;

		pmsg_rail_get(rails->p + (size_t)i * PMSG_RAIL_SIZE, &w);
		k->v[i] = (struct rail_key){ w.rail, w.rkey, w.base, w.offset, w.length, 0 };
	}
	return k;
}

struct rail_keys *rail_keys_read(const struct dray_vec *rails, uint64_t length)
{
	struct rail_keys *k = read_all(rails);

	if (k)
		rail_keys_seal(k, length, false);
	return k;
}

struct rail_keys *rail_keys_read_parts(const struct dray_vec *rails)
{
	struct rail_keys *k = read_all(rails);

	if (!k)
		return NULL;
	qsort(k->v, k->n, sizeof(k->v[0]), by_offset);
	for (uint32_t i = 0, next; i < k->n; i = next) {
		uint32_t rail = k->v[i].rail;
		uint64_t end = 0;
		bool apart = rail < RAILS_MAX;

		/* of pieces that overlap, rail_keys_find() would not find each byte */
		for (next = i; next < k->n && k->v[next].rail == rail; next++) {
			const struct rail_key *p = &k->v[next];

			apart &= p->offset >= end;
			apart &= !__builtin_add_overflow(p->offset, p->length, &end);
		}
		if (apart)
			k->rails |= 1ull << rail;
	}
	return k;
}

/* The pieces of the rail cover the range, which is not empty. */
static bool covers(const struct rail_keys *k, uint32_t rail, uint64_t offset, uint64_t length)
{
	uint64_t end;

	if (__builtin_add_overflow(offset, length, &end))
		return false;
	while (offset < end) {
		const struct rail_key *p = rail_keys_find(k, rail, offset);

		if (!p || __builtin_add_overflow(p->offset, p->length, &offset) ||
		    p->length - 1 > UINT64_MAX - p->base)
			return false;
	}
	return true;
}

void rail_keys_need(struct rail_keys *k, uint64_t offset, uint64_t length)
{
	for (uint64_t left = k->rails; left; left &= left - 1) {
		uint32_t rail = (uint32_t)__builtin_ctzll(left);

		if (!covers(k, rail, offset, length))
			k->rails &= ~(1ull << rail);
	}
}

struct joined {
	uint32_t n;
	struct rail_keys *of[];
};

static void joined_free(void *arg)
{
	struct joined *j = arg;

	for (uint32_t i = 0; i < j->n; i++)
		rail_keys_unref(j->of[i]);
	free(j);
}

struct rail_keys *rail_keys_join(struct rail_keys *const *of, uint32_t n)
{
	struct joined *j;
	struct rail_keys *k;
	uint32_t sum = 0, at = 0;

	if (n == 1)
		return rail_keys_ref(of[0]);
	for (uint32_t i = 0; i < n; i++)
		sum += of[i]->n;
	j = malloc(sizeof(*j) + n * sizeof(j->of[0]));
	k = j ? rail_keys_new(sum) : NULL;
	if (!k) {
		free(j);
		return NULL;
	}
	*j = (struct joined){ .n = n };
	k->rails = UINT64_MAX;
	for (uint32_t i = 0; i < n; i++) {
		j->of[i] = rail_keys_ref(of[i]);
		memcpy(k->v + at, of[i]->v, of[i]->n * sizeof(k->v[0]));
		at += of[i]->n;
		k->rails &= of[i]->rails;
	}
	k->by_base = true;
	qsort(k->v, k->n, sizeof(k->v[0]), by_base);
	k->gone = joined_free;
	k->arg = j;
	return k;
}

struct rail_keys *rail_keys_ref(struct rail_keys *k)
{
	atomic_fetch_add_explicit(&k->refs, 1, memory_order_relaxed);
	return k;
}

struct rail_keys *rail_keys_unref(struct rail_keys *k)
{
	void (*gone)(void *arg);
	void *arg;

	/* release: our uses come before gone(); acquire: gone() comes after all uses */
	if (!k || atomic_fetch_sub_explicit(&k->refs, 1, memory_order_acq_rel) != 1)
		return NULL;
	gone = k->gone;
	arg = k->arg;
	free(k);
	if (gone)
		gone(arg);
	return NULL;
}

const struct rail_key *rail_keys_find(const struct rail_keys *k, uint32_t rail, uint64_t at)
{
	uint32_t lo = 0, hi = k->n;

	/* the last piece of the rail that begins at `at` or before */
	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;
		const struct rail_key *p = &k->v[mid];
		uint64_t start = k->by_base ? p->base : p->offset;

		if (p->rail < rail || (p->rail == rail && start <= at))
			lo = mid + 1;
		else
			hi = mid;
	}
	if (lo) {
		const struct rail_key *p = &k->v[lo - 1];
		uint64_t start = k->by_base ? p->base : p->offset;

		if (p->rail == rail && at - start < p->length)
			return p;
	}
	return NULL;
}
