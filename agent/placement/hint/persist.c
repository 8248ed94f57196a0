/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of the database. */
#include <inttypes.h>
#include <string.h>

#include "agent/placement/hint/internal.h"
#include "lib/log.h"

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

	if (newer) {
		if (strcmp(newer->name->text, row->segment) != 0)
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
