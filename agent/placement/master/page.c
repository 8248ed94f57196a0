/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A detail page may be long. jansson needs many times the size of a dense text in memory, so this file walks the outer
 * object and the array, and jansson parses their members one by one.
 */
#include "agent/placement/master/page.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "agent/placement/master/prometheus.h"
#include "lib/addr.h"
#include "lib/array.h"
#include "lib/cleanup.h"
#include "schema/gen/errors.h"

/* longest segment or other member of the page */
#define PIECE_MAX 16384
#define WORD_MAX 31
#define CAPACITY "segment_total_capacity_bytes"
#define ALLOCATED "segment_allocated_bytes"

void master_list_deinit(struct master_list *l)
{
	free(l->v);
	free(l->text);
	*l = MASTER_LIST_NULL;
}

static int no_memory(struct dray_err *reterr)
{
	return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "out of memory");
}

/* n: bytes of the page. A string takes more space there, for its quotes, than here, for its NUL. */
static int list_init(struct master_list *l, size_t n, struct dray_err *reterr)
{
	l->text = malloc(n + 1);
	return l->text ? 0 : no_memory(reterr);
}

static const char *list_text(struct master_list *l, const char *s)
{
	size_t n = strlen(s) + 1;
	char *to = l->text + l->used;

	if (n == 1)
		return "";
	memcpy(to, s, n);
	l->used += n;
	return to;
}

static int list_add(struct master_list *l, const struct master_segment *s, struct dray_err *reterr)
{
	struct master_segment copy;

	if (!dray_endpoint_valid(s->name)) {
		l->left_out++;
		return 0;
	}
	copy = (struct master_segment){ .name = list_text(l, s->name),
					.endpoint = list_text(l, s->endpoint),
					.status = list_text(l, s->status),
					.protocol = list_text(l, s->protocol),
					.capacity = s->capacity,
					.allocated = s->allocated };
	return DRAY_APPEND(l->v, l->n, copy) < 0 ? no_memory(reterr) : 0;
}

/* By name; entries of one name in the order of the page, which is the order of their copies. */
static int compare(const void *a, const void *b)
{
	const struct master_segment *x = a, *y = b;
	int r = strcmp(x->name, y->name);

	return r ? r : (x->name > y->name) - (x->name < y->name);
}

/* Adds a number unless it is unknown. False: overflow. */
static bool add(int64_t *to, int64_t n)
{
	if (n < 0)
		return true;
	if (*to < 0)
		*to = 0;
	return !__builtin_add_overflow(*to, n, to);
}

/* A segment is OK if one of its entries is. */
static bool merge(struct master_segment *to, const struct master_segment *from)
{
	if (!*to->endpoint)
		to->endpoint = from->endpoint;
	if (!*to->protocol)
		to->protocol = from->protocol;
	if (!*to->status || !strcmp(from->status, "OK"))
		to->status = from->status;
	return add(&to->capacity, from->capacity) && add(&to->allocated, from->allocated);
}

static int list_finish(struct master_list *l, struct dray_err *reterr)
{
	size_t n = 0;

	if (l->n)
		qsort(l->v, l->n, sizeof(*l->v), compare);
	for (size_t i = 0; i < l->n; i++) {
		if (!n || strcmp(l->v[n - 1].name, l->v[i].name) != 0)
			l->v[n++] = l->v[i];
		else if (!merge(&l->v[n - 1], &l->v[i]))
			return dray_err_set(reterr, -EPROTO, DRAY_E_PROTOCOL,
					    "the sum of the bytes of %.80s overflows",
					    l->v[i].name);
	}
	l->n = n;
	return 0;
}

struct cursor {
	const char *start, *p, *end;
	struct dray_err *err;
};

static int bad(struct cursor *c, const char *what)
{
	return dray_err_set(c->err, -EPROTO, DRAY_E_PROTOCOL, "byte %zu: %s",
			    (size_t)(c->p - c->start), what);
}

static void skip_space(struct cursor *c)
{
	while (c->p < c->end && memchr(" \t\r\n", *c->p, 4))
		c->p++;
}

/* Skips blanks and that character. False: another character follows. */
static bool take(struct cursor *c, char what)
{
	skip_space(c);
	if (c->p == c->end || *c->p != what)
		return false;
	c->p++;
	return true;
}

/* Called after an item of a list. 1: the list ends. 0: another item follows. */
static int take_next(struct cursor *c, char end, const char *missing)
{
	if (take(c, end))
		return 1;
	if (take(c, ','))
		return 0;
	return bad(c, c->p == c->end ? "the page was cut off" : missing);
}

/* Parses one value, which the caller owns. */
static int take_value(struct cursor *c, json_t **ret)
{
	size_t left, n;
	json_error_t e;
	json_t *v;

	skip_space(c);
	left = (size_t)(c->end - c->p);
	n = dray_min(left, (size_t)PIECE_MAX);
	v = json_loadb(c->p, n, JSON_DECODE_ANY | JSON_DISABLE_EOF_CHECK | JSON_REJECT_DUPLICATES,
		       &e);
	if (!v && json_error_code(&e) == json_error_out_of_memory)
		return no_memory(c->err);
	if (!v && json_error_code(&e) == json_error_premature_end_of_input)
		return bad(c, n < left ? "the value that begins here is too long" :
					 "the page was cut off");
	if (!v && json_error_code(&e) == json_error_duplicate_key)
		return bad(c, "the object that begins here has a member twice");
	if (!v)
		return bad(c, "the text that begins here is not JSON");
	c->p += e.position;
	*ret = v;
	return 0;
}

static int wrong(const struct cursor *c, size_t i, const char *member, const char *what)
{
	return dray_err_set(c->err, -EPROTO, DRAY_E_PROTOCOL, "segments[%zu].%s is %s", i, member,
			    what);
}

static const struct {
	const char *name;
	size_t offset;
	bool number, needed;
} members[] = {
	{ "segment_name", offsetof(struct master_segment, name), .needed = true },
	{ "te_endpoint", offsetof(struct master_segment, endpoint), .needed = false },
	{ "status", offsetof(struct master_segment, status), .needed = false },
	{ "protocol", offsetof(struct master_segment, protocol), .needed = false },
	{ "size_bytes", offsetof(struct master_segment, capacity), .number = true, .needed = true },
	{ "allocator_used_bytes", offsetof(struct master_segment, allocated), .number = true },
};

/* Reads member k of segment i. One that is not needed may be missing or null. */
static int read_known(const struct cursor *c, size_t i, const json_t *object, size_t k,
		      struct master_segment *ret)
{
	const json_t *v = json_object_get(object, members[k].name);
	void *to = (char *)ret + members[k].offset;

	if (!v && members[k].needed)
		return wrong(c, i, members[k].name, "missing");
	if (json_is_null(v) && !members[k].needed)
		v = NULL;
	if (members[k].number) {
		if (v && !json_is_integer(v))
			return wrong(c, i, members[k].name, "not a whole number");
		if (v && json_integer_value(v) < 0)
			return wrong(c, i, members[k].name, "below zero");
		*(int64_t *)to = v ? json_integer_value(v) : -1;
		return 0;
	}
	if (v && !json_is_string(v))
		return wrong(c, i, members[k].name, "not a string");
	*(const char **)to = v ? json_string_value(v) : "";
	return 0;
}

/* Words go into lists and logs. Any other text is treated as unknown. */
static const char *word(const char *s)
{
	static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
				      "0123456789_-,.";

	return strspn(s, allowed) == strlen(s) && strlen(s) <= WORD_MAX ? s : "";
}

static int read_segment(struct cursor *c, size_t i, const json_t *v, struct master_list *ret)
{
	struct master_segment s;

	if (!json_is_object(v))
		return dray_err_set(c->err, -EPROTO, DRAY_E_PROTOCOL,
				    "segments[%zu] is not an object", i);
	for (size_t k = 0; k < DRAY_ARRAY_SIZE(members); k++)
		if (read_known(c, i, v, k, &s) < 0)
			return -EPROTO;
	s.endpoint = dray_endpoint_valid(s.endpoint) ? s.endpoint : "";
	s.status = word(s.status);
	s.protocol = word(s.protocol);
	return list_add(ret, &s, c->err);
}

static int read_segments(struct cursor *c, struct master_list *ret)
{
	if (!take(c, '['))
		return bad(c, "\"segments\" is not an array");
	if (take(c, ']'))
		return 0;
	for (size_t i = 0;; i++) {
		dray_auto(json_decref) json_t *v = NULL;
		int r = take_value(c, &v);

		if (r == 0)
			r = read_segment(c, i, v, ret);
		if (r == 0)
			r = take_next(c, ']', "a comma is missing between segments");
		if (r)
			return dray_min(r, 0);
	}
}

static int take_key(struct cursor *c, bool *ret_segments)
{
	dray_auto(json_decref) json_t *key = NULL;
	int r = take_value(c, &key);

	if (r < 0)
		return r;
	if (!json_is_string(key))
		return bad(c, "the name of a member is not a string");
	*ret_segments = !strcmp(json_string_value(key), "segments");
	return take(c, ':') ? 0 : bad(c, "a colon is missing after the name of a member");
}

static int read_member(struct cursor *c, bool *seen, struct master_list *ret)
{
	dray_auto(json_decref) json_t *v = NULL;
	bool segments = false;
	int r = take_key(c, &segments);

	if (r < 0)
		return r;
	if (!segments)
		return take_value(c, &v);
	if (*seen)
		return bad(c, "\"segments\" is there twice");
	*seen = true;
	return read_segments(c, ret);
}

int master_page_detail(const char *body, size_t n, struct master_list *ret, struct dray_err *reterr)
{
	struct cursor c = { body, body, body + n, reterr };
	bool seen = false;
	int r = list_init(ret, n, reterr);

	if (r < 0)
		return r;
	if (!take(&c, '{'))
		return bad(&c, "the page is not a JSON object");
	for (r = take(&c, '}'); r == 0;) {
		r = read_member(&c, &seen, ret);
		if (r == 0)
			r = take_next(&c, '}', "a comma is missing between members");
	}
	if (r < 0)
		return r;
	skip_space(&c);
	if (c.p != c.end)
		return bad(&c, "something follows the page");
	if (!seen)
		return bad(&c, "the page has no \"segments\"");
	return list_finish(ret, reterr);
}

struct gauges {
	struct master_list *list;
	struct dray_err *err;
};

static int on_sample(void *arg, const struct prometheus_sample *p)
{
	struct gauges *g = arg;
	struct master_segment s = { "", "", "", "", -1, -1 };
	bool capacity = !strcmp(p->name, CAPACITY);

	if (!capacity && strcmp(p->name, ALLOCATED) != 0)
		return 0;
	s.name = prometheus_label(p, "segment");
	if (!s.name)
		s.name = "";
	if (!p->whole)
		return dray_err_set(g->err, -EPROTO, DRAY_E_PROTOCOL,
				    "a value of %s is not a number of bytes", p->name);
	*(capacity ? &s.capacity : &s.allocated) = dray_max(p->integer, (int64_t)-1);
	return list_add(g->list, &s, g->err);
}

int master_page_metrics(const char *body, size_t n, struct master_list *ret,
			struct dray_err *reterr)
{
	struct gauges g = { ret, reterr };
	int r = list_init(ret, n, reterr);

	if (r == 0)
		r = prometheus_parse(body, n, on_sample, &g, reterr);
	return r < 0 ? r : list_finish(ret, reterr);
}
