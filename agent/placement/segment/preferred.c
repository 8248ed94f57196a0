/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/placement/segment/preferred.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/config/segment_rules.h"
#include "lib/cleanup.h"

struct ranking {
	const struct preferred_facts *f;
	struct candidate *v;
	size_t n;
	const char *chosen; /* NULL: none yet */
	bool barred; /* this node's own segment is wanted and there is none: no other counts */
};

static struct candidate *add(struct ranking *r, const char *name,
			     const struct preferred_segment *known, enum dmsg_preference preference)
{
	struct candidate *c = &r->v[r->n++];

	*c = (struct candidate){ .name = name, .known = known, .preference = preference };
	return c;
}

static void __attribute__((format(printf, 2, 3)))
set_reason(struct candidate *c, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(c->reason, sizeof(c->reason), fmt, ap);
	va_end(ap);
}

static int by_name(const void *name, const void *segment)
{
	return strcmp(name, ((const struct preferred_segment *)segment)->name);
}

static const struct preferred_segment *find(const struct preferred_facts *f, const char *name)
{
	return f->n_segments ?
		       bsearch(name, f->segments, f->n_segments, sizeof(*f->segments), by_name) :
		       NULL;
}

static const char *state_text(const struct preferred_segment *s)
{
	if (!s)
		return "the segment is unknown";
	return *s->reason ? s->reason : dmsg_segment_state_name(s->state);
}

static bool free_to_choose(const struct ranking *r)
{
	return !r->chosen && !r->barred;
}

static void choose(struct ranking *r, struct candidate *c)
{
	c->chosen = true;
	r->chosen = c->name;
}

/* Order of two segments of this node; below 0: a comes first. */
static int compare_own(const struct preferred_facts *f, const struct preferred_segment *a,
		       const struct preferred_segment *b)
{
	const struct {
		bool a, b;
	} rules[] = {
		{ !a->agent, !b->agent },
		{ a->answers, b->answers },
		{ a->state == DMSG_SEGMENT_STATE_READY, b->state == DMSG_SEGMENT_STATE_READY },
		{ a->configured, b->configured },
		{ !a->loopback, !b->loopback },
		{ !strcmp(a->name, f->last), !strcmp(b->name, f->last) },
		{ a->listed, b->listed },
		{ a->capacity > b->capacity, b->capacity > a->capacity },
	};

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(rules); i++)
		if (rules[i].a != rules[i].b)
			return rules[i].a ? -1 : 1;
	return strcmp(a->name, b->name);
}

/* Only a master names it, by a loopback address: it may be on the master's node. */
static bool is_masters_loopback(const struct preferred_segment *s)
{
	return s->loopback && s->listed && !s->configured && !s->listens;
}

static bool is_own(const struct preferred_segment *s)
{
	return s->local && !s->agent && s->mentioned && !is_masters_loopback(s);
}

/* The best segment of this node, even if it does not answer; never a dray agent. */
static const struct preferred_segment *own(const struct preferred_facts *f)
{
	const struct preferred_segment *best = NULL;

	for (size_t i = 0; i < f->n_segments; i++) {
		const struct preferred_segment *s = &f->segments[i];

		if (is_own(s) && (!best || compare_own(f, s, best) < 0))
			best = s;
	}
	return best;
}

static void add_word(struct ranking *r, const char *word, enum dmsg_preference preference,
		     const char *origin)
{
	const struct preferred_segment *s;
	bool is_own;
	struct candidate *c;

	if (!word)
		return;
	is_own = preferred_is_own(word);
	s = is_own ? own(r->f) : find(r->f, word);
	c = add(r, is_own ? (s ? s->name : "") : word, s, preference);
	if (!free_to_choose(r)) {
		set_reason(c, "%s names it, but %s takes precedence", origin, r->f->explicit_by);
	} else if (is_own && !s) {
		set_reason(c, "%s is %s, and no segment of this node is known yet", origin, word);
		r->barred = true;
	} else {
		set_reason(c, "%s is %s; %s", origin, word, state_text(s));
		choose(r, c);
	}
}

static void add_hints(struct ranking *r)
{
	for (size_t i = 0; i < r->f->n_hints; i++) {
		const struct preferred_hint *h = &r->f->hints[i];
		const struct preferred_segment *s = find(r->f, h->segment);
		struct candidate *c = add(r, h->segment, s, DMSG_PREFERENCE_HINT);

		if (!free_to_choose(r))
			/* hints for PUTs may be of several owners */
			set_reason(c,
				   r->f->stores ?
					   "hint (%s), where no candidate above decides" :
					   "hint (%s), but a candidate above takes precedence",
				   h->about);
		else if (!s && r->f->stores)
			set_reason(c, "hint (%s), but it is none of store.peers", h->about);
		else if (s && !s->answers)
			set_reason(c, "hint (%s), but it %s: %s", h->about,
				   r->f->stores ? "takes no objects" : "does not answer",
				   state_text(s));
		else {
			set_reason(c, "hint (%s); %s", h->about, state_text(s));
			choose(r, c);
		}
	}
}

static const char *own_fault(const struct preferred_segment *s)
{
	if (!s->local)
		return s->where;
	if (s->agent)
		return "a dray agent moves bytes and owns none";
	if (is_masters_loopback(s))
		return "a master calls it loopback, and nothing listens for it here";
	if (s->state != DMSG_SEGMENT_STATE_READY || !s->answers)
		return state_text(s);
	if (s->mentioned)
		return NULL;
	return s->hinted ? "it answers, but only hints name it" :
			   "it answers, but no source mentions it any more";
}

static void explain_detected(struct ranking *r, struct candidate *c, const struct candidate *best)
{
	const struct preferred_segment *s = c->known;
	const char *fault = own_fault(s);

	if (fault)
		set_reason(c, "%s", fault);
	else if (!r->barred && r->chosen && strcmp(r->chosen, s->name) == 0)
		set_reason(c, "ready on this node, and chosen above");
	else if (!r->barred && r->chosen && best)
		set_reason(c, "ready on this node, but %s takes precedence: %s", best->name,
			   s->loopback && !best->known->loopback ? "this one is loopback" :
			   best->known->configured && !s->configured ?
								   "the configuration names it" :
								   "one is enough");
	else if (!free_to_choose(r))
		set_reason(c, "ready on this node, %s",
			   r->f->stores ? "where no candidate above decides" :
					  "but a candidate above takes precedence");
	else {
		set_reason(c, "ready on this node%s: %s; %s", s->verified ? "" : ", unverified",
			   s->where, state_text(s));
		choose(r, c);
	}
}

/* No segment is ready: the one that was detected before counts until it turns out to be dead. */
static void consider_remembered(struct ranking *r, struct candidate *c)
{
	const struct preferred_segment *s = c->known;

	if (strcmp(c->name, r->f->remembered) != 0 || !s->answers || s->agent ||
	    (s->located && !s->local))
		return;
	set_reason(c, "found on this node before, not confirmed yet; %s", state_text(s));
	choose(r, c);
}

/* For qsort_r: segments of this node in their order, then the others by name. */
static int by_rank(const void *pa, const void *pb, void *arg)
{
	const struct candidate *a = pa, *b = pb;

	if (a->known->local != b->known->local)
		return a->known->local ? -1 : 1;
	return a->known->local ? compare_own(arg, a->known, b->known) : strcmp(a->name, b->name);
}

static void add_detected(struct ranking *r)
{
	const struct candidate *best = NULL;
	size_t from = r->n;
	struct preferred_facts facts = *r->f;

	for (size_t i = 0; i < r->f->n_segments; i++)
		add(r, r->f->segments[i].name, &r->f->segments[i], DMSG_PREFERENCE_DETECTED);
	qsort_r(r->v + from, r->n - from, sizeof(*r->v), by_rank, &facts);
	for (size_t i = from; i < r->n; i++) {
		explain_detected(r, &r->v[i], best);
		if (r->v[i].chosen)
			best = &r->v[i];
	}
	for (size_t i = from; i < r->n && free_to_choose(r); i++)
		consider_remembered(r, &r->v[i]);
}

int preferred_rank(const struct preferred_facts *f, struct candidate **ret, size_t *ret_n)
{
	struct ranking r = { .f = f };

	r.v = calloc(2 + f->n_hints + f->n_segments, sizeof(*r.v));
	if (!r.v)
		return -ENOMEM;
	add_word(&r, f->explicit_name, DMSG_PREFERENCE_EXPLICIT, f->explicit_by);
	add_word(&r, f->environment, DMSG_PREFERENCE_ENVIRONMENT, "MOONCAKE_PREFERRED_SEGMENT");
	add_hints(&r);
	add_detected(&r);
	*ret = r.v;
	*ret_n = r.n;
	return 0;
}
