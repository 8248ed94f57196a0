/* SPDX-License-Identifier: Apache-2.0 */
/* Entries and what they share: scopes, names of segments, owners, each of them there while an entry needs it. */
#include <stdlib.h>
#include <string.h>

#include "agent/placement/hint/internal.h"
#include "lib/time.h"

struct scope *hints_scope_find(const struct hints *h, const char *text)
{
	return dray_map_entry(dray_map_find(&h->scopes, text, strlen(text)), struct scope, node);
}

static struct scope *scope_new(struct hints *h, const char *text)
{
	size_t n = strlen(text);
	struct scope *s = malloc(sizeof(*s) + n + 1);

	if (!s)
		return NULL;
	dray_list_init(&s->entries);
	s->n = 0;
	memcpy(s->text, text, n + 1);
	dray_map_add(&h->scopes, &s->node, s->text, n);
	return s;
}

static void scope_unref(struct hints *h, struct scope *s)
{
	if (!s || !dray_list_empty(&s->entries))
		return;
	dray_map_del(&h->scopes, &s->node);
	free(s);
}

struct name *hints_name_find(const struct hints *h, const char *text)
{
	return dray_map_entry(dray_map_find(&h->names, text, strlen(text)), struct name, node);
}

static struct name *name_ref(struct hints *h, const char *text, bool given)
{
	struct name *s = hints_name_find(h, text);
	size_t n = strlen(text);

	if (s) {
		s->n++;
		s->given += given;
		return s;
	}
	s = malloc(sizeof(*s) + n + 1);
	if (!s)
		return NULL;
	s->n = 1;
	s->given = given;
	memcpy(s->text, text, n + 1);
	dray_map_add(&h->names, &s->node, s->text, n);
	return s;
}

/* The last one is told of while its text is there. */
static void name_unref(struct hints *h, struct name *s, bool given, bool tell)
{
	bool last;

	if (!s)
		return;
	s->given -= given;
	last = !--s->n;
	if (last)
		dray_map_del(&h->names, &s->node);
	if (given && !s->given && tell && h->deps.named && !h->loading)
		h->deps.named(h->deps.arg, s->text, false);
	if (last)
		free(s);
}

struct owner *hints_owner_find(const struct hints *h, uint32_t uid)
{
	return dray_map_entry(dray_map_find(&h->owners, &uid, sizeof(uid)), struct owner, node);
}

static struct owner *owner_ref(struct hints *h, uint32_t uid)
{
	struct owner *o = hints_owner_find(h, uid);

	if (o) {
		o->n++;
		return o;
	}
	o = malloc(sizeof(*o));
	if (!o)
		return NULL;
	o->uid = uid;
	o->n = 1;
	dray_map_add(&h->owners, &o->node, &o->uid, sizeof(o->uid));
	return o;
}

static void owner_unref(struct hints *h, struct owner *o)
{
	if (!o || --o->n)
		return;
	dray_map_del(&h->owners, &o->node);
	free(o);
}

void hints_entry_free(struct hints *h, struct entry *e, bool tell)
{
	dray_heap_del(&h->expiry[e->source], &e->expiry);
	owner_unref(h, e->owner);
	name_unref(h, e->name, hint_is_given(e->source), tell);
	if (e->scope)
		e->scope->n--;
	scope_unref(h, e->scope);
	free(e);
}

struct entry *hints_entry_new(struct hints *h, const struct entry_values *put, struct scope *scope)
{
	struct entry *e = calloc(1, sizeof(*e));
	bool client = put->source == DMSG_HINT_SOURCE_CLIENT;

	if (!e)
		return NULL;
	dray_list_init(&e->link);
	e->source = put->source;
	e->score = put->score;
	e->put_boot_ms = put->put_boot_ms;
	e->end_boot_ms = put->end_boot_ms;
	e->scope = scope ? scope : scope_new(h, put->scope);
	if (e->scope)
		e->scope->n++;
	e->name = name_ref(h, put->segment, hint_is_given(put->source));
	e->owner = client ? owner_ref(h, put->uid) : NULL;
	if (!e->scope || !e->name || (client && !e->owner) ||
	    dray_heap_set(&h->expiry[e->source], &e->expiry, put->end_boot_ms * DRAY_NS_PER_MS) <
		    0) {
		hints_entry_free(h, e, false);
		return NULL;
	}
	return e;
}
