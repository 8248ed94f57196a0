/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/placement/hint/hints.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent/placement/hint/internal.h"
#include "lib/addr.h"
#include "lib/time.h"
#include "schema/gen/check.h"

/* --- order ------------------------------------------------------------------------------------- */

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
	/* before that one: at the end of what leads to it */
	dray_list_add(at, &e->link);
}

static const struct entry *head(const struct scope *s)
{
	return dray_list_first(&s->entries, struct entry, link);
}

static bool is_same(const struct entry *a, const struct entry *b)
{
	if (!a || !b)
		return a == b;
	return a->name == b->name && a->source == b->source && a->score == b->score &&
	       a->owner == b->owner;
}

/* The one that counts, and the one that counts of those that somebody said. */
struct heads {
	const struct entry *first, *given;
};

static struct heads heads_of(const struct scope *s)
{
	struct heads r = { .first = head(s) };

	dray_list_for_each(&s->entries, e, struct entry, link) {
		if (!hint_is_given(e->source))
			continue;
		r.given = e;
		break;
	}
	return r;
}

static void report_change(struct hints *h, const struct scope *s, struct heads before)
{
	struct heads now = heads_of(s);

	if (h->deps.changed && !h->loading &&
	    (!is_same(before.first, now.first) || !is_same(before.given, now.given)))
		h->deps.changed(h->deps.arg, s->text);
}

struct entry *hints_find(const struct scope *s, const struct entry_values *put)
{
	if (!s)
		return NULL;
	dray_list_for_each(&s->entries, e, struct entry, link) {
		if (e->source != put->source)
			continue;
		if (e->owner ? e->owner->uid == put->uid : !strcmp(e->name->text, put->segment))
			return e;
	}
	return NULL;
}

/* --- change ------------------------------------------------------------------------------------- */

void hints_remove(struct hints *h, struct entry *e)
{
	struct heads before = heads_of(e->scope);

	hints_unsave(h, e);
	dray_list_del(&e->link);
	h->n--;
	report_change(h, e->scope, before);
	hints_entry_free(h, e, true);
}

static int no_room(struct dray_err *reterr, const char *limit, int64_t value)
{
	return dray_err_set(reterr, -EDQUOT, DRAY_E_QUOTA,
			    "there are %s = %" PRId64 " hints; forget some, or raise it", limit,
			    value);
}

/* Somebody else's hint goes that matters least; one of a stronger source never goes for a weaker one. */
static int make_room(struct hints *h, const struct entry_values *put, struct dray_err *reterr)
{
	const struct dray_config *cfg = h->deps.cfg;
	const struct owner *o =
		put->source == DMSG_HINT_SOURCE_CLIENT ? hints_owner_find(h, put->uid) : NULL;

	if (o && o->n >= cfg->limits.hints_per_uid)
		return no_room(reterr, "limits.hints_per_uid", cfg->limits.hints_per_uid);
	/* more than one only after limits.hints was lowered */
	while (h->n >= (uint64_t)cfg->limits.hints) {
		struct dray_heap_node *e = NULL;

		for (unsigned i = SOURCE_N; !e && i-- > put->source;)
			e = dray_heap_first(&h->expiry[i]);
		if (!e)
			return no_room(reterr, "limits.hints", cfg->limits.hints);
		hints_remove(h, dray_container_of(e, struct entry, expiry));
	}
	return 0;
}

/* The new one is there before the old one goes, on disk as well: a kill between them loses neither. */
static void replace(struct hints *h, struct entry *e, struct entry *old)
{
	struct heads before = heads_of(e->scope);
	bool fresh = hint_is_given(e->source) && e->name->given == 1;

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
	if (fresh && h->deps.named && !h->loading)
		h->deps.named(h->deps.arg, e->name->text, true);
	report_change(h, e->scope, before);
	if (old)
		hints_entry_free(h, old, true);
}

int hints_insert(struct hints *h, const struct entry_values *put, struct dray_err *reterr)
{
	struct scope *s = hints_scope_find(h, put->scope);
	struct entry *old = hints_find(s, put), *e;
	uint64_t n = h->n;
	int r = old ? 0 : make_room(h, put, reterr);

	if (r < 0)
		return r;
	/* a client's hint that was replaced when the agent was killed may still be on disk */
	if (h->loading && old && old->put_boot_ms > put->put_boot_ms)
		return -EEXIST;
	/* what made room may have been the last of this scope */
	if (h->n != n)
		s = hints_scope_find(h, put->scope);
	if (s && !old && s->n >= SCOPE_HINTS_MAX)
		return dray_err_set(reterr, -EDQUOT, DRAY_E_QUOTA,
				    "there are %d hints for this scope; forget some",
				    SCOPE_HINTS_MAX);
	e = hints_entry_new(h, put, s);
	if (!e)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a hint");
	replace(h, e, old);
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

int hints_put(struct hints *h, const struct hint_put *put, struct dray_err *reterr)
{
	int64_t now = hints_boot_ms(h);
	int64_t ttl = put->ttl_ms ? (int64_t)put->ttl_ms : h->deps.cfg->hint.ttl / DRAY_NS_PER_MS;
	int r = check_put(put, reterr);

	if (r < 0)
		return r;
	r = hints_insert(h,
			 &(struct entry_values){ .scope = put->scope,
						 .segment = put->segment,
						 .source = put->source,
						 .uid = put->uid,
						 .score = put->score,
						 .put_boot_ms = now,
						 .end_boot_ms = now + ttl },
			 reterr);
	if (r == 0)
		hints_arm(h);
	return r;
}

static uint32_t forget_in(struct hints *h, struct scope *s, const char *segment)
{
	uint32_t n = 0, left = 0;

	dray_list_for_each(&s->entries, e, struct entry, link)
		left += !segment || !strcmp(e->name->text, segment);
	/* the scope goes with its last hint, and the segment's text may be its name's */
	dray_list_for_each(&s->entries, e, struct entry, link) {
		if (segment && strcmp(e->name->text, segment) != 0)
			continue;
		hints_remove(h, e);
		if (++n == left)
			break;
	}
	return n;
}

uint32_t hints_forget(struct hints *h, const char *scope, const char *segment, bool all)
{
	struct scope *s = all ? NULL : hints_scope_find(h, scope);
	uint32_t n = s ? forget_in(h, s, segment) : 0;

	if (all)
		dray_map_for_each(&h->scopes, each, struct scope, node)
			n += forget_in(h, each, segment);
	if (n)
		hints_arm(h);
	return n;
}

void hints_forget_found(struct hints *h, const char *segment)
{
	struct scope *s = hints_scope_find(h, "");
	struct entry *last = NULL;

	if (!s)
		return;
	/* the scope goes with its last hint: one at a time */
	do {
		last = NULL;
		dray_list_for_each(&s->entries, e, struct entry, link) {
			if (!hint_is_given(e->source) && strcmp(e->name->text, segment) != 0)
				last = e;
		}
		if (last) {
			hints_remove(h, last);
			s = hints_scope_find(h, "");
		}
	} while (last && s);
	hints_arm(h);
}

bool hints_forget_client(struct hints *h, const char *scope, uint32_t uid)
{
	struct entry *e = hints_find(hints_scope_find(h, scope),
				     &(struct entry_values){ .segment = "",
							     .source = DMSG_HINT_SOURCE_CLIENT,
							     .uid = uid });

	if (!e)
		return false;
	hints_remove(h, e);
	hints_arm(h);
	return true;
}

/* --- questions ----------------------------------------------------------------------------------- */

static void show(const struct hints *h, const struct entry *e, bool counts, struct hint *ret)
{
	int64_t now = hints_boot_ms(h), offset = hints_unix_ms(h) - now;

	*ret = (struct hint){ .scope = e->scope->text,
			      .segment = e->name->text,
			      .source = e->source,
			      .uid = entry_uid(e),
			      .score = e->score,
			      .put_ms = e->put_boot_ms + offset,
			      .expires_ms = e->end_boot_ms + offset,
			      .age_ms = now - e->put_boot_ms,
			      .left_ms = e->end_boot_ms - now,
			      .counts = counts };
}

bool hints_best(struct hints *h, const char *scope, struct hint *ret)
{
	const struct scope *s = hints_scope_find(h, scope);
	int64_t now = hints_boot_ms(h);

	if (!s)
		return false;
	/* the timer may be late */
	dray_list_for_each(&s->entries, e, struct entry, link) {
		if (e->end_boot_ms <= now)
			continue;
		show(h, e, true, ret);
		return true;
	}
	return false;
}

static void scope_each(const struct hints *h, const struct scope *s, int64_t now,
		       void (*fn)(void *arg, const struct hint *hint), void *arg)
{
	bool counts = true;

	dray_list_for_each(&s->entries, e, struct entry, link) {
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
	int64_t now = hints_boot_ms(h);

	dray_map_for_each(&h->scopes, s, struct scope, node)
		scope_each(h, s, now, fn, arg);
}

void hints_each_of(struct hints *h, const char *scope,
		   void (*fn)(void *arg, const struct hint *hint), void *arg)
{
	const struct scope *s = hints_scope_find(h, scope);

	if (s)
		scope_each(h, s, hints_boot_ms(h), fn, arg);
}

bool hints_names(struct hints *h, const char *segment)
{
	const struct name *s = hints_name_find(h, segment);

	return s && s->given;
}

void hints_each_name(struct hints *h, void (*fn)(void *arg, const char *segment), void *arg)
{
	dray_map_for_each(&h->names, s, struct name, node)
		if (s->given)
			fn(arg, s->text);
}

uint64_t hints_count(const struct hints *h)
{
	return h->n;
}

/* --- start and end --------------------------------------------------------------------------------- */

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
	dray_map_for_each(&h->scopes, s, struct scope, node) {
		dray_list_for_each(&s->entries, e, struct entry, link)
			free(e);
		free(s);
	}
	dray_map_for_each(&h->names, s, struct name, node)
		free(s);
	dray_map_for_each(&h->owners, o, struct owner, node)
		free(o);
	for (unsigned i = 0; i < SOURCE_N; i++)
		dray_heap_deinit(&h->expiry[i]);
	dray_map_deinit(&h->scopes);
	dray_map_deinit(&h->names);
	dray_map_deinit(&h->owners);
	free(h);
	return NULL;
}
