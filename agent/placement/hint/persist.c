/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of the database. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/placement/hint/internal.h"
#include "lib/log.h"

/* Limit of what is kept of changes while rows are unread. */
#define SUPERSEDED_BYTES (16u << 20)
#define KEY_BYTES (HINT_SCOPE_MAX + HINT_SEGMENT_MAX + TENANT_BYTES + 32)

struct superseded {
	struct dray_map_node node;
	char key[];
};

/* The environment is read at each start, so its former hints are not needed. */
static bool is_kept(enum dmsg_hint_source source)
{
	return source != DMSG_HINT_SOURCE_ENVIRONMENT;
}

void hints_save(struct hints *h, const struct entry *e)
{
	int64_t offset = hints_unix_ms(h) - hints_boot_ms(h);

	if (!is_kept(e->source))
		return;
	/* negative on a machine whose clock begins at 0 */
	state_save_hint(h->deps.state, &(struct state_hint){
					       .scope = e->scope->text,
					       .segment = e->name->text,
					       .source = e->source,
					       .uid = e->uid,
					       .tenant = entry_tenant(e),
					       .score = e->score,
					       .put_ms = dray_max(e->put_boot_ms + offset, 0),
					       .expires_ms = dray_max(e->end_boot_ms + offset, 0),
				       });
}

void hints_unsave(struct hints *h, const struct entry *e)
{
	if (is_kept(e->source))
		state_drop_hint(h->deps.state, &(struct state_hint){ .scope = e->scope->text,
								     .segment = e->name->text,
								     .source = e->source,
								     .uid = e->uid,
								     .tenant = entry_tenant(e) });
}

void hints_refill(struct hints *h)
{
	dray_map_for_each(&h->scopes, scope, struct label, node)
		dray_list_for_each(&scope->entries, e, struct entry, link)
			hints_save(h, e);
}

/* The remaining time in milliseconds; not above 0: it has expired. */
static int64_t left_of(struct hints *h, const struct state_hint *row)
{
	int64_t total = dray_max(row->expires_ms - row->put_ms, 0);

	/* never longer than it was put for, whatever the clock says */
	total = dray_min(total, (int64_t)HINT_TTL_MAX_MS);
	return dray_min(row->expires_ms - hints_unix_ms(h), total);
}

static bool is_in_order(const struct state_hint *row)
{
	return row->source >= DMSG_HINT_SOURCE_EXPLICIT && row->source <= DMSG_HINT_SOURCE_CLIENT &&
	       is_kept((enum dmsg_hint_source)row->source) &&
	       hints_check_texts(row->scope, row->segment, NULL) == 0;
}

void hints_free_superseded(struct hints *h)
{
	dray_map_for_each(&h->superseded, s, struct superseded, node) {
		dray_map_del(&h->superseded, &s->node);
		free(s);
	}
	dray_map_deinit(&h->superseded);
	h->superseded_bytes = 0;
}

/* Neither a scope nor a segment has control characters. */
static size_t key_of(const struct hint_put *rows, char ret[KEY_BYTES])
{
	int n = snprintf(ret, KEY_BYTES, "%s\n%s\n%d\n%s\n%" PRIu32,
			 rows->scope ? rows->scope : "\t", rows->segment ? rows->segment : "\t",
			 (int)rows->source, rows->tenant ? rows->tenant : "", rows->uid);

	return dray_min((size_t)n, (size_t)KEY_BYTES - 1);
}

static void supersede_all(struct hints *h)
{
	hints_free_superseded(h);
	h->all_superseded = true;
}

bool hints_are_unread(const struct hints *h)
{
	return state_has_unread(h->deps.state);
}

void hints_supersede(struct hints *h, const struct hint_put *rows)
{
	struct superseded *s = NULL;
	char key[KEY_BYTES];
	size_t n, bytes;

	if (!hints_are_unread(h)) {
		hints_free_superseded(h);
		return;
	}
	if (!rows->scope && !rows->segment)
		supersede_all(h);
	n = key_of(rows, key);
	bytes = sizeof(*s) + n;
	if (h->all_superseded || dray_map_find(&h->superseded, key, n))
		return;
	if (h->superseded_bytes + bytes <= SUPERSEDED_BYTES)
		s = malloc(bytes);
	if (!s) {
		log_warning("hint",
			    "too many hints were forgotten or replaced while stored ones could "
			    "not be read; no stored hint is restored");
		supersede_all(h);
		return;
	}
	memcpy(s->key, key, n);
	s->node = (struct dray_map_node){ 0 };
	dray_map_add(&h->superseded, &s->node, s->key, n);
	h->superseded_bytes += bytes;
}

static bool is_superseded(const struct hints *h, const struct state_hint *row)
{
	const struct hint_put rows[] = {
		{ .scope = row->scope },
		{ .segment = row->segment },
		{ .scope = row->scope, .segment = row->segment },
		{ .scope = row->scope,
		  .source = (enum dmsg_hint_source)row->source,
		  .uid = row->uid,
		  .tenant = row->tenant },
	};
	char key[KEY_BYTES];

	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(rows); i++)
		if (dray_map_find(&h->superseded, key, key_of(&rows[i], key)))
			return true;
	return h->all_superseded;
}

void hints_load(struct hints *h, const struct state_hint *row)
{
	int64_t now = hints_boot_ms(h), ago = hints_unix_ms(h) - row->put_ms,
		left = left_of(h, row);
	struct hint_put put = { .scope = row->scope,
				.segment = row->segment,
				.source = (enum dmsg_hint_source)row->source,
				.uid = row->uid,
				.tenant = row->tenant,
				.score = row->score };
	struct entry *e, *newer = h->loaded ? hints_find(h, &put) : NULL;

	if (newer || (h->loaded && is_superseded(h, row))) {
		if (!newer || strcmp(newer->name->text, row->segment) != 0)
			state_drop_hint(h->deps.state, row);
		return;
	}
	h->loading = true;
	if (is_in_order(row) && left > 0 &&
	    hints_insert(h, &put, now - dray_max(ago, 0), now + left, &e, NULL) == 0) {
		h->n_loaded++;
		/* with the times of its row it would live as long after every start */
		if (ago < 0) {
			h->n_future++;
			hints_save(h, e);
		}
	} else {
		h->n_expired += left <= 0;
		h->n_refused += left > 0;
		state_drop_hint(h->deps.state, row);
	}
	h->loading = false;
	if (h->loaded)
		hints_arm(h);
}

void hints_loaded(struct hints *h)
{
	h->loaded = true;
	hints_arm(h);
	if (h->n_loaded + h->n_expired + h->n_refused)
		log_info("hint", "%" PRIu64 " hints are restored, %" PRIu64 " have expired", h->n,
			 h->n_expired);
	if (h->n_refused)
		log_warning("hint",
			    "%" PRIu64 " stored hints are dropped: they are malformed, were "
			    "replaced, or exceed limits.hints",
			    h->n_refused);
	if (h->n_future)
		log_warning("hint",
			    "%" PRIu64 " stored hints are from the future: the clock was set "
			    "back; their lifetime begins now",
			    h->n_future);
	dray_map_for_each(&h->namings, n, struct naming, node)
		hints_tell_named(h, n, true);
}
