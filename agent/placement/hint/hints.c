/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/placement/hint/hints.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent/model/budget.h"
#include "agent/placement/hint/internal.h"
#include "lib/addr.h"
#include "lib/time.h"
#include "schema/gen/check.h"

/* The entries of a scope are searched one by one. */
#define SCOPE_HINTS_MAX 1024

/* --- labels -------------------------------------------------------------------------------------- */

static struct label *label_find(const struct dray_map *m, const void *key, size_t n)
{
	return dray_map_entry(dray_map_find(m, key, n), struct label, node);
}

static struct label *text_find(const struct dray_map *m, const char *text)
{
	return label_find(m, text, strlen(text));
}

/* The label with this key, which is made if there is none. NULL without memory. */
static struct label *label_ref(struct dray_map *m, const void *key, size_t n)
{
	struct label *l = label_find(m, key, n);

	if (!l) {
		l = calloc(1, sizeof(*l) + n + 1);
		if (!l)
			return NULL;
		dray_list_init(&l->entries);
		dray_list_init(&l->namings);
		memcpy(l->text, key, n);
		dray_map_add(m, &l->node, l->text, n);
	}
	l->n++;
	return l;
}

static struct owner_key owner_key(const char *tenant, uint32_t uid)
{
	struct owner_key key = { .uid = uid };

	memcpy(key.tenant, tenant, strnlen(tenant, TENANT_BYTES - 1));
	return key;
}

static void label_unref(struct dray_map *m, struct label *l)
{
	if (!l || --l->n)
		return;
	dray_map_del(m, &l->node);
	free(l);
}

static bool makes_upcalls(const struct hints *h)
{
	return h->loaded || !h->loading;
}

void hints_tell_named(const struct hints *h, const struct naming *n, bool named)
{
	const struct owner_key *o = &n->key.owner;

	if (h->deps.named)
		h->deps.named(h->deps.arg, n->key.name->text,
			      &(struct hint_owner){ o->tenant, o->uid }, named);
}

static struct naming *naming_find(const struct hints *h, const struct label *name,
				  struct owner_key owner)
{
	const struct naming key = { .key = { .name = name, .owner = owner } };

	return dray_map_entry(dray_map_find(&h->namings, &key.key, sizeof(key.key)), struct naming,
			      node);
}

static struct naming *naming_ref(struct hints *h, struct label *name, struct owner_key owner)
{
	struct naming *n = naming_find(h, name, owner);

	if (!n) {
		n = calloc(1, sizeof(*n));
		if (!n)
			return NULL;
		n->key.name = name;
		n->key.owner = owner;
		dray_list_add(&name->namings, &n->link);
		dray_map_add(&h->namings, &n->node, &n->key, sizeof(n->key));
	}
	n->n++;
	return n;
}

static void naming_unref(struct hints *h, struct naming *n, bool tell)
{
	if (!n || --n->n)
		return;
	dray_map_del(&h->namings, &n->node);
	dray_list_del(&n->link);
	if (tell)
		hints_tell_named(h, n, false);
	free(n);
}

/* The entry is in no list. tell: makes the upcall if no other hint of its owner names its segment. */
static void entry_free(struct hints *h, struct entry *e, bool tell)
{
	dray_heap_del(&h->expiry[e->source], &e->expiry);
	naming_unref(h, e->naming, tell && makes_upcalls(h));
	label_unref(&h->owners, e->owner);
	label_unref(&h->names, e->name);
	label_unref(&h->scopes, e->scope);
	free(e);
}

/* In its heap, and in no list yet. NULL without memory. */
static struct entry *entry_new(struct hints *h, const struct hint_put *put, int64_t put_ms,
			       int64_t end_ms)
{
	struct entry *e = calloc(1, sizeof(*e));
	bool client = put->source == DMSG_HINT_SOURCE_CLIENT;
	struct owner_key key = owner_key(client ? put->tenant : "", put->uid);

	if (!e)
		return NULL;
	dray_list_init(&e->link);
	e->source = put->source;
	e->uid = client ? put->uid : 0;
	e->score = put->score;
	e->put_boot_ms = put_ms;
	e->end_boot_ms = end_ms;
	e->scope = label_ref(&h->scopes, put->scope, strlen(put->scope));
	e->name = label_ref(&h->names, put->segment, strlen(put->segment));
	e->owner = client ? label_ref(&h->owners, &key, sizeof(key)) : NULL;
	if (e->name && hint_is_given(e->source))
		e->naming = naming_ref(h, e->name, client ? key : (struct owner_key){ .uid = 0 });
	if (!e->scope || !e->name || (client && !e->owner) ||
	    (hint_is_given(e->source) && !e->naming) ||
	    dray_heap_set(&h->expiry[e->source], &e->expiry, end_ms * DRAY_NS_PER_MS) < 0) {
		entry_free(h, e, false);
		return NULL;
	}
	return e;
}

/* --- order --------------------------------------------------------------------------------------- */

static bool is_stronger(const struct entry *a, const struct entry *b)
{
	if (a->source != b->source)
		return a->source < b->source;
	if (a->score != b->score)
		return a->score > b->score;
	return a->put_boot_ms >= b->put_boot_ms;
}

static void insert_in_order(struct entry *e)
{
	struct dray_list *at = e->scope->entries.next;

	while (at != &e->scope->entries && !is_stronger(e, dray_list_entry(at, struct entry, link)))
		at = at->next;
	/* adds before `at` */
	dray_list_add(at, &e->link);
}

static bool is_same(const struct entry *a, const struct entry *b)
{
	if (!a || !b)
		return a == b;
	return a->name == b->name && a->source == b->source && a->score == b->score &&
	       a->owner == b->owner;
}

/* The effective entry of a scope, and the strongest one that was given. */
struct heads {
	const struct entry *first, *given;
};

static struct heads heads_of(const struct label *scope)
{
	struct heads r = { .first = dray_list_first(&scope->entries, struct entry, link) };

	dray_list_for_each(&scope->entries, e, struct entry, link) {
		if (!hint_is_given(e->source))
			continue;
		r.given = e;
		break;
	}
	return r;
}

static void report_change(struct hints *h, const struct label *scope, struct heads before)
{
	struct heads now = heads_of(scope);

	if (h->deps.changed && makes_upcalls(h) &&
	    (!is_same(before.first, now.first) || !is_same(before.given, now.given)))
		h->deps.changed(h->deps.arg, scope->text);
}

/* The entry of the scope (NULL: it has none) that a hint of this source, owner and segment replaces; NULL: none. */
static struct entry *entry_find(const struct label *scope, enum dmsg_hint_source source,
				const char *tenant, uint32_t uid, const char *segment)
{
	if (!scope)
		return NULL;
	dray_list_for_each(&scope->entries, e, struct entry, link) {
		if (e->source == source &&
		    (e->owner ? e->uid == uid && !strcmp(entry_tenant(e), tenant) :
				!strcmp(e->name->text, segment)))
			return e;
	}
	return NULL;
}

struct entry *hints_find(const struct hints *h, const struct hint_put *put)
{
	return entry_find(text_find(&h->scopes, put->scope), put->source, put->tenant, put->uid,
			  put->segment);
}

/* --- changes ------------------------------------------------------------------------------------- */

void hints_remove(struct hints *h, struct entry *e)
{
	struct heads before = heads_of(e->scope);

	hints_unsave(h, e);
	dray_list_del(&e->link);
	h->n--;
	report_change(h, e->scope, before);
	entry_free(h, e, true);
}

/* Removes the least important hint. A hint of a stronger source never goes for one of a weaker source. */
static int make_room(struct hints *h, const struct hint_put *put, struct dray_err *reterr)
{
	const struct dray_config *cfg = h->deps.cfg;
	const struct label *owner = NULL;

	if (put->source == DMSG_HINT_SOURCE_CLIENT) {
		struct owner_key key = owner_key(put->tenant, put->uid);

		owner = label_find(&h->owners, &key, sizeof(key));
	}

	if (owner && owner->n >= budget_share((uint64_t)cfg->limits.hints, h->n - owner->n,
					      (uint64_t)cfg->limits.hints_per_owner))
		return put->account ? budget_refuse(put->account, RESOURCE_HINTS, owner->n, h->n, 1,
						    reterr) :
				      -EDQUOT;
	/* more than one goes only after limits.hints was lowered */
	while (h->n >= (uint64_t)cfg->limits.hints) {
		struct dray_heap_node *e = NULL;

		for (unsigned i = SOURCE_N; !e && i-- > put->source;)
			e = dray_heap_first(&h->expiry[i]);
		if (!e)
			return dray_err_set(reterr, -EDQUOT, DRAY_E_QUOTA,
					    "there are limits.hints = %" PRId64
					    " hints; forget some, or raise it",
					    cfg->limits.hints);
		hints_remove(h, dray_container_of(e, struct entry, expiry));
	}
	return 0;
}

/* The new entry is added before the old one goes, also on disk: a kill between them loses neither. */
static void replace(struct hints *h, struct entry *e, struct entry *old)
{
	struct heads before = heads_of(e->scope);
	bool first = e->naming && e->naming->n == 1;

	insert_in_order(e);
	h->n++;
	if (!h->loading)
		hints_save(h, e);
	if (old) {
		dray_list_del(&old->link);
		h->n--;
		if (old->name != e->name)
			hints_unsave(h, old);
	}
	if (first && makes_upcalls(h))
		hints_tell_named(h, e->naming, true);
	report_change(h, e->scope, before);
	if (old)
		entry_free(h, old, true);
}

int hints_insert(struct hints *h, const struct hint_put *put, int64_t put_ms, int64_t end_ms,
		 struct entry **ret_entry, struct dray_err *reterr)
{
	struct label *scope = text_find(&h->scopes, put->scope);
	struct entry *old = entry_find(scope, put->source, put->tenant, put->uid, put->segment), *e;
	int r = old ? 0 : make_room(h, put, reterr);

	if (r < 0)
		return r;
	/* a client's hint that was replaced when the agent was killed may still be on disk */
	if (h->loading && old && old->put_boot_ms > put_ms)
		return -EEXIST;
	/* a hint that made room may have been the last of its scope */
	scope = text_find(&h->scopes, put->scope);
	if (scope && !old && scope->n >= SCOPE_HINTS_MAX)
		return dray_err_set(reterr, -EDQUOT, DRAY_E_QUOTA,
				    "there are %d hints for this scope; forget some",
				    SCOPE_HINTS_MAX);
	e = entry_new(h, put, put_ms, end_ms);
	if (!e)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a hint");
	replace(h, e, old);
	if (ret_entry)
		*ret_entry = e;
	return 0;
}

int hints_check_texts(const char *scope, const char *segment, struct dray_err *reterr)
{
	size_t n = strnlen(scope, HINT_SCOPE_MAX + 1);

	if (n > HINT_SCOPE_MAX)
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "the scope is longer than %d bytes", HINT_SCOPE_MAX);
	if (!text_ok((struct dray_str){ scope, (uint32_t)n }))
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "the scope is not UTF-8 text without control characters");
	if (strnlen(segment, HINT_SEGMENT_MAX + 1) > HINT_SEGMENT_MAX ||
	    !dray_endpoint_valid(segment))
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "the segment is not HOST:PORT (or [ADDRESS]:PORT) that others "
				    "can reach");
	return 0;
}

static int check_put(const struct hint_put *put, struct dray_err *reterr)
{
	if (put->source < DMSG_HINT_SOURCE_EXPLICIT || put->source > DMSG_HINT_SOURCE_CLIENT)
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID, "there is no hint source %d",
				    (int)put->source);
	if (put->ttl_ms > HINT_TTL_MAX_MS)
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "a hint is good for a year (%lld ms) at most", HINT_TTL_MAX_MS);
	return hints_check_texts(put->scope, put->segment, reterr);
}

static void supersede_client(struct hints *h, const char *scope, const struct hint_owner *owner)
{
	hints_supersede(h, &(struct hint_put){ .scope = scope,
					       .source = DMSG_HINT_SOURCE_CLIENT,
					       .uid = owner->uid,
					       .tenant = owner->tenant });
}

int hints_put(struct hints *h, const struct hint_put *put, struct dray_err *reterr)
{
	int64_t now = hints_boot_ms(h);
	int64_t ttl = put->ttl_ms ? (int64_t)put->ttl_ms : h->deps.cfg->hint.ttl / DRAY_NS_PER_MS;
	int r = check_put(put, reterr);

	if (r >= 0)
		r = hints_insert(h, put, now, now + ttl, NULL, reterr);
	if (r < 0)
		return r;
	/* the state knows that a row with the same segment is older */
	if (put->source == DMSG_HINT_SOURCE_CLIENT)
		supersede_client(h, put->scope, &(struct hint_owner){ put->tenant, put->uid });
	hints_arm(h);
	return r;
}

/* Removes the entries of the scope that match. Returns how many. */
static uint32_t forget_in(struct hints *h, struct label *scope,
			  bool (*matches)(const struct entry *e, const char *segment),
			  const char *segment)
{
	uint32_t n = 0;

	if (!scope)
		return 0;
	/* a scope is freed with its last entry */
	scope->n++;
	dray_list_for_each(&scope->entries, e, struct entry, link) {
		if (!matches(e, segment))
			continue;
		hints_remove(h, e);
		n++;
	}
	label_unref(&h->scopes, scope);
	return n;
}

static bool is_for(const struct entry *e, const char *segment)
{
	return !segment || !strcmp(e->name->text, segment);
}

uint32_t hints_forget(struct hints *h, const char *scope, const char *segment, bool all)
{
	uint32_t n = 0;

	hints_supersede(h, &(struct hint_put){ .scope = all ? NULL : scope, .segment = segment });
	if (!all)
		n = forget_in(h, text_find(&h->scopes, scope), is_for, segment);
	else
		dray_map_for_each(&h->scopes, each, struct label, node)
			n += forget_in(h, each, is_for, segment);
	hints_arm(h);
	return n;
}

static bool is_found_elsewhere(const struct entry *e, const char *segment)
{
	return !hint_is_given(e->source) && strcmp(e->name->text, segment) != 0;
}

void hints_forget_found(struct hints *h, const char *segment)
{
	hints_supersede(h, &(struct hint_put){ .scope = "", .source = DMSG_HINT_SOURCE_DETECTED });
	forget_in(h, text_find(&h->scopes, ""), is_found_elsewhere, segment);
	hints_arm(h);
}

bool hints_forget_client(struct hints *h, const char *scope, const struct hint_owner *owner)
{
	struct entry *e = entry_find(text_find(&h->scopes, scope), DMSG_HINT_SOURCE_CLIENT,
				     owner->tenant, owner->uid, "");

	supersede_client(h, scope, owner);
	if (!e)
		return hints_are_unread(h);
	hints_remove(h, e);
	hints_arm(h);
	return true;
}

/* --- questions ----------------------------------------------------------------------------------- */

static void show(const struct hints *h, const struct entry *e, bool counts, struct hint *ret)
{
	int64_t now = hints_boot_ms(h);

	*ret = (struct hint){ .scope = e->scope->text,
			      .segment = e->name->text,
			      .source = e->source,
			      .uid = e->uid,
			      .tenant = entry_tenant(e),
			      .score = e->score,
			      .age_ms = now - e->put_boot_ms,
			      .left_ms = e->end_boot_ms - now,
			      .counts = counts };
}

bool hint_is_visible(const struct hint *hint, const struct hint_owner *viewer)
{
	return !viewer || hint->source != DMSG_HINT_SOURCE_CLIENT ||
	       (hint->uid == viewer->uid && !strcmp(hint->tenant, viewer->tenant));
}

bool hints_best(struct hints *h, const char *scope, const struct hint_owner *viewer,
		struct hint *ret)
{
	const struct label *l = text_find(&h->scopes, scope);
	int64_t now = hints_boot_ms(h);

	if (!l)
		return false;
	/* the timer that removes expired entries may be late */
	dray_list_for_each(&l->entries, e, struct entry, link) {
		if (e->end_boot_ms <= now)
			continue;
		show(h, e, true, ret);
		if (hint_is_visible(ret, viewer))
			return true;
	}
	return false;
}

static void scope_each(const struct hints *h, const struct label *scope,
		       void (*fn)(void *arg, const struct hint *hint), void *arg)
{
	int64_t now = hints_boot_ms(h);
	bool counts = true;

	dray_list_for_each(&scope->entries, e, struct entry, link) {
		struct hint hint;

		if (e->end_boot_ms <= now)
			continue;
		show(h, e, counts, &hint);
		counts = false;
		fn(arg, &hint);
	}
}

void hints_each(struct hints *h, void (*fn)(void *arg, const struct hint *hint), void *arg)
{
	dray_map_for_each(&h->scopes, scope, struct label, node)
		scope_each(h, scope, fn, arg);
}

void hints_each_scope(struct hints *h, void (*fn)(void *arg, const char *scope), void *arg)
{
	dray_map_for_each(&h->scopes, scope, struct label, node)
		fn(arg, scope->text);
}

void hints_each_of(struct hints *h, const char *scope,
		   void (*fn)(void *arg, const struct hint *hint), void *arg)
{
	const struct label *l = text_find(&h->scopes, scope);

	if (l)
		scope_each(h, l, fn, arg);
}

bool hints_names(struct hints *h, const char *segment, struct hint_owner *ret)
{
	const struct label *name = text_find(&h->names, segment);
	const struct naming *n = name ? dray_list_first(&name->namings, struct naming, link) : NULL;

	if (n && ret)
		*ret = (struct hint_owner){ n->key.owner.tenant, n->key.owner.uid };
	return n;
}

bool hints_names_for(const struct hints *h, const char *segment, const struct hint_owner *owner)
{
	const struct label *name = text_find(&h->names, segment);

	return name && naming_find(h, name, owner_key(owner->tenant, owner->uid));
}

uint32_t hints_count_of(const struct hints *h, const struct hint_owner *owner)
{
	struct owner_key key = owner_key(owner->tenant, owner->uid);
	const struct label *l = label_find(&h->owners, &key, sizeof(key));

	return l ? l->n : 0;
}

uint64_t hints_count(const struct hints *h)
{
	return h->n;
}

/* --- start and end ------------------------------------------------------------------------------- */

int hints_new(struct hints **ret, const struct hints_deps *deps, struct dray_err *reterr)
{
	struct hints *h = calloc(1, sizeof(*h));
	int r = h ? 0 : -ENOMEM;

	if (h) {
		h->deps = *deps;
		h->clock_fd = -1;
		dray_map_init(&h->scopes);
		dray_map_init(&h->names);
		dray_map_init(&h->owners);
		dray_map_init(&h->namings);
		dray_map_init(&h->superseded);
		r = hints_init_clocks(h);
	}
	if (r < 0) {
		hints_free(h);
		return dray_err_set(reterr, r, DRAY_E_NO_MEMORY, "hints: %s", dray_errno_text(r));
	}
	*ret = h;
	return 0;
}

struct hints *hints_free(struct hints *h)
{
	if (!h)
		return NULL;
	hints_deinit_clocks(h);
	dray_map_for_each(&h->scopes, scope, struct label, node) {
		scope->n++;
		dray_list_for_each(&scope->entries, e, struct entry, link)
			entry_free(h, e, false);
		label_unref(&h->scopes, scope);
	}
	for (unsigned i = 0; i < SOURCE_N; i++)
		dray_heap_deinit(&h->expiry[i]);
	hints_free_superseded(h);
	dray_map_deinit(&h->scopes);
	dray_map_deinit(&h->names);
	dray_map_deinit(&h->owners);
	dray_map_deinit(&h->namings);
	free(h);
	return NULL;
}
