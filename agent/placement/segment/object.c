/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/placement/segment/object.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/placement/segment/internal.h"
#include "lib/array.h"
#include "schema/gen/errors.h"

struct asked {
	struct object_search *search;
	char *url;
	struct master_query *query; /* NULL: not asked, or over */
};

struct object_search {
	object_search_fn fn;
	void *arg;
	unsigned pending;
	struct object_place *places;
	size_t n;
	struct dray_err why; /* the gravest one so far */
	struct asked asked[MASTER_SLOTS];
};

static void places_free(struct object_place *v, size_t n)
{
	for (size_t i = 0; i < n; i++)
		free(v[i].master);
	free(v);
}

struct object_search *object_search_free(struct object_search *s)
{
	if (!s)
		return NULL;
	for (unsigned i = 0; i < MASTER_SLOTS; i++) {
		master_query_free(s->asked[i].query);
		free(s->asked[i].url);
	}
	places_free(s->places, s->n);
	free(s);
	return NULL;
}

/*
 * How much an answer says. A master that is not the leader does not know, and its leader does. One that cannot tell may have the object;
 * one to which it is being written has it.
 */
static int weight(int code)
{
	switch (code) {
	case 0:
		return 0;
	case DRAY_E_OUT_OF_ORDER:
		return 1;
	case DRAY_E_NOT_FOUND:
		return 2;
	case DRAY_E_BUSY:
		return 4;
	default:
		return 3;
	}
}

static void note(struct object_search *s, const struct dray_err *why)
{
	if (weight(why->code) > weight(s->why.code))
		s->why = *why;
}

static int add(struct object_search *s, const char *url, const struct master_replica *r)
{
	struct object_place p = { .master = strdup(url), .replica = *r };

	if (p.master && DRAY_APPEND(s->places, s->n, p) >= 0)
		return 0;
	free(p.master);
	return -ENOMEM;
}

static void end(struct object_search *s)
{
	struct object_place *v = dray_take(s->places);
	object_search_fn fn = s->fn;
	struct dray_err why = s->why;
	void *arg = s->arg;
	size_t n = s->n;

	s->n = 0;
	object_search_free(s);
	fn(arg, v, n, n ? NULL : &why);
	places_free(v, n);
}

static void answered(void *arg, const struct master_object *o, const struct dray_err *why)
{
	struct asked *a = arg;
	struct object_search *s = a->search;

	a->query = NULL;
	if (why)
		note(s, why);
	for (size_t i = 0; !why && i < o->n; i++)
		if (add(s, a->url, &o->v[i]) < 0)
			note(s, &(struct dray_err){ DRAY_E_NO_MEMORY, "out of memory" });
	if (!--s->pending)
		end(s);
}

int object_search_new(struct object_search **ret, struct segments *ss, const char *key,
		      object_search_fn fn, void *arg, struct dray_err *reterr)
{
	struct object_search *s = calloc(1, sizeof(*s));
	int r = 0;

	if (!s)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "out of memory");
	s->fn = fn;
	s->arg = arg;
	for (unsigned i = 0; i < MASTER_SLOTS && r == 0; i++) {
		const struct master_entry *e = &ss->masters[i];
		struct asked *a = &s->asked[i];

		if (!e->url)
			continue;
		a->search = s;
		a->url = strdup(e->url);
		r = a->url ? master_query_new(&a->query, e->master, key, answered, a, reterr) :
			     dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "out of memory");
		s->pending += r == 0;
	}
	if (r == 0 && !s->pending)
		r = dray_err_set(reterr, -EOPNOTSUPP, DRAY_E_UNSUPPORTED,
				 "no Mooncake masters are known: set mooncake.masters");
	if (r < 0)
		object_search_free(s);
	else
		*ret = s;
	return r;
}
