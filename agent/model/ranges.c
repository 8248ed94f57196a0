/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/model/ranges.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "lib/cleanup.h"
#include "schema/gen/errors.h"
#include "schema/gen/peer.h"

_Static_assert(DMSG_RANGE_SIZE == PMSG_RANGE_SIZE, "both protocols have the same record");

/* A range by its class and its place in the stride. */
struct sorted {
	uint64_t stride, base, count;
	struct range_interval in;
};

/* 0, or the code of the error. */
static uint32_t check(const struct dmsg_range *w, uint64_t length)
{
	uint64_t last;

	if (!w->length || !w->count || (w->count > 1 && w->stride < w->length))
		return DRAY_E_INVALID;
	if (w->offset > length || w->length > length - w->offset)
		return DRAY_E_RANGE;
	if (w->count > 1 && (__builtin_mul_overflow(w->count - 1, w->stride, &last) ||
			     last > length - w->offset - w->length))
		return DRAY_E_RANGE;
	return 0;
}

static struct sorted sorted_of(const struct dmsg_range *w)
{
	struct sorted s = { .count = 1, .in = { w->offset, w->offset + w->length } };
	uint64_t in_stride;

	if (w->count == 1)
		return s;
	if (w->stride == w->length) { /* its pieces join */
		s.in.end = w->offset + w->length * w->count;
		return s;
	}
	in_stride = w->offset % w->stride;
	return (struct sorted){ .stride = w->stride,
				.base = w->offset - in_stride,
				.count = w->count,
				.in = { in_stride, in_stride + w->length } };
}

static int compare_class(const struct sorted *a, const struct sorted *b)
{
	if (a->stride != b->stride)
		return a->stride < b->stride ? -1 : 1;
	if (a->base != b->base)
		return a->base < b->base ? -1 : 1;
	if (a->count != b->count)
		return a->count < b->count ? -1 : 1;
	return 0;
}

static int compare(const void *pa, const void *pb)
{
	const struct sorted *a = pa, *b = pb;
	int c = compare_class(a, b);

	return c ? c : (a->in.start > b->in.start) - (a->in.start < b->in.start);
}

/* Most lists are sorted already, since an agent sends them so. */
static void sort(struct sorted *v, uint32_t n)
{
	for (uint32_t i = 1; i < n; i++)
		if (compare(&v[i - 1], &v[i]) > 0) {
			qsort(v, n, sizeof(*v), compare);
			return;
		}
}

/* Merges neighbours of a class that overlap or join. Returns how many are left. */
static uint32_t merge(struct sorted *v, uint32_t n)
{
	uint32_t k = 0;

	for (uint32_t i = 1; i < n; i++) {
		if (compare_class(&v[k], &v[i]) == 0 && v[i].in.start <= v[k].in.end)
			v[k].in.end = dray_max(v[k].in.end, v[i].in.end);
		else
			v[++k] = v[i];
	}
	return k + 1;
}

/* Turns intervals that fill their stride into single ranges, so that no run of pieces is longer than a stride. */
static bool join(struct sorted *v, uint32_t n)
{
	bool any = false;

	for (uint32_t i = 0; i < n; i++) {
		struct sorted *s = &v[i];

		if (!s->stride || s->in.end - s->in.start < s->stride)
			continue;
		s->in.end += s->base + (s->count - 1) * s->stride;
		s->in.start += s->base;
		s->base = s->stride = 0;
		s->count = 1;
		any = true;
	}
	return any;
}

/* Adds the intervals to r, which has room for them. */
static int fill(struct ranges *r, const struct sorted *v, uint32_t n, struct dray_err *reterr)
{
	struct range_class *c = NULL;

	for (uint32_t i = 0; i < n; i++) {
		if (!i || compare_class(&v[i - 1], &v[i])) {
			if (r->n_classes == RANGE_CLASSES_MAX)
				return dray_err_set(
					reterr, -EINVAL, DRAY_E_INVALID,
					"the ranges have more than %d different combinations of stride, "
					"count and first stride; lease them in parts",
					RANGE_CLASSES_MAX);
			c = &r->classes[r->n_classes++];
			*c = (struct range_class){ .stride = v[i].stride,
						   .base = v[i].base,
						   .count = v[i].count,
						   .first = i };
		}
		c->n++;
		r->intervals[i] = v[i].in;
		r->pieces += c->count;
		r->bytes += c->count * (v[i].in.end - v[i].in.start);
	}
	r->n = n;
	return 0;
}

DRAY_DEFINE_CLEANUP(struct ranges *, ranges_unref);

int ranges_new(struct ranges **ret, const void *wire, uint32_t n, uint64_t length,
	       struct dray_err *reterr)
{
	struct sorted *v dray_auto_free = malloc((n + 1) * sizeof(*v));
	dray_auto(ranges_unref) struct ranges *r = NULL;
	uint32_t code;

	if (!n)
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID, "a lease needs a range");
	for (uint32_t i = 0; v && i < n; i++) {
		struct dmsg_range w;

		dmsg_range_get((const uint8_t *)wire + (size_t)i * DMSG_RANGE_SIZE, &w);
		code = check(&w, length);
		if (code)
			return dray_err_set(
				reterr, -EINVAL, (int)code,
				"range %" PRIu32 " {%" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64
				"} %s",
				i, w.offset, w.length, w.stride, w.count,
				code == DRAY_E_RANGE ?
					"passes the end of the region" :
					"is empty, or its stride is less than its length");
		v[i] = sorted_of(&w);
	}
	if (v) {
		sort(v, n);
		n = merge(v, n);
		if (join(v, n)) {
			sort(v, n);
			n = merge(v, n);
		}
		r = calloc(1, sizeof(*r) + n * sizeof(r->intervals[0]));
	}
	if (!r)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY,
				    "no memory for the ranges of a lease");
	r->refs = 1;
	if (fill(r, v, n, reterr) < 0)
		return -EINVAL;
	*ret = dray_take(r);
	return 0;
}

struct ranges *ranges_ref(struct ranges *r)
{
	r->refs++;
	return r;
}

struct ranges *ranges_unref(struct ranges *r)
{
	if (r && --r->refs == 0)
		free(r);
	return NULL;
}

struct dmsg_range ranges_get(const struct ranges *r, uint32_t i)
{
	const struct range_class *c = r->classes;

	while (i >= c->first + c->n)
		c++;
	return (struct dmsg_range){ .offset = c->base + r->intervals[i].start,
				    .length = r->intervals[i].end - r->intervals[i].start,
				    .stride = c->stride,
				    .count = c->count };
}

/* The interval of the class that holds an offset in a stride, or NULL. */
static const struct range_interval *search(const struct ranges *r, const struct range_class *c,
					   uint64_t at)
{
	const struct range_interval *v = &r->intervals[c->first];

	for (uint32_t n = c->n; n > 1;) {
		uint32_t half = n / 2;

		if (v[half].start <= at)
			v += half;
		n -= half;
	}
	return v->start <= at && at < v->end ? v : NULL;
}

/* End of the piece of the class that holds the offset; 0: none does. */
static uint64_t class_end(const struct ranges *r, const struct range_class *c, uint64_t offset)
{
	const struct range_interval *in;
	uint64_t at, stride;

	if (!c->stride) {
		in = search(r, c, offset);
		return in ? in->end : 0;
	}
	if (offset < c->base)
		return 0;
	stride = (offset - c->base) / c->stride;
	at = (offset - c->base) % c->stride;
	in = stride < c->count ? search(r, c, at) : NULL;
	if (in)
		return offset - at + in->end;
	/* the last interval of a stride may reach into the next one */
	in = stride && stride <= c->count ? search(r, c, at + c->stride) : NULL;
	return in ? offset - at - c->stride + in->end : 0;
}

bool ranges_cover(const struct ranges *r, uint64_t offset, uint64_t length, uint32_t *steps)
{
	const uint64_t end = offset + length;

	while (offset < end) {
		uint64_t reached = 0;

		for (uint32_t i = 0; i < r->n_classes && reached <= offset; i++)
			reached = class_end(r, &r->classes[i], offset);
		if (reached <= offset || !*steps)
			return false;
		--*steps;
		offset = reached;
	}
	return true;
}
