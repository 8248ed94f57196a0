/* SPDX-License-Identifier: Apache-2.0 */
/* Hints from the disk and to it. */
#include <inttypes.h>
#include <string.h>

#include "agent/placement/hint/internal.h"
#include "lib/log.h"

/* The environment is read anew at each start: what it said before is of no interest. */
static bool is_kept(enum dmsg_hint_source source)
{
	return source != DMSG_HINT_SOURCE_ENVIRONMENT;
}

void hints_save(struct hints *h, const struct entry *e)
{
	int64_t offset = hints_unix_ms(h) - hints_boot_ms(h);

	if (!is_kept(e->source))
		return;
	/* a machine whose clock begins at 0 has put some before that */
	state_save_hint(h->deps.state, &(struct state_hint){
					       .scope = e->scope->text,
					       .segment = e->name->text,
					       .source = e->source,
					       .uid = entry_uid(e),
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
								     .uid = entry_uid(e) });
}

void hints_refill(struct hints *h)
{
	dray_map_for_each(&h->scopes, s, struct scope, node)
		dray_list_for_each(&s->entries, e, struct entry, link)
			hints_save(h, e);
}

/* What is left of it, in milliseconds; none where it has expired. */
static int64_t left_of(struct hints *h, const struct state_hint *row, int64_t *ret_age)
{
	int64_t now = hints_unix_ms(h), total = dray_max(row->expires_ms - row->put_ms, 0);

	/* never longer than it was put for, whatever the clock says */
	total = dray_min(total, (int64_t)HINT_TTL_MAX_MS);
	*ret_age = dray_max(now - row->put_ms, 0);
	return dray_min(row->expires_ms - now, total);
}

/* Its times on disk are no use: it would live that long after every start. */
static void load_future(struct hints *h, const struct entry_values *put)
{
	h->n_future++;
	hints_save(h, hints_find(hints_scope_find(h, put->scope), put));
}

static bool is_in_order(const struct state_hint *row)
{
	return row->source >= DMSG_HINT_SOURCE_EXPLICIT && row->source <= DMSG_HINT_SOURCE_CLIENT &&
	       is_kept((enum dmsg_hint_source)row->source) &&
	       hints_check_texts(row->scope, row->segment, NULL) == 0;
}

void hints_load(void *arg, const struct state_hint *row)
{
	struct hints *h = arg;
	int64_t now = hints_boot_ms(h), age, left = left_of(h, row, &age);
	struct entry_values put = { .scope = row->scope,
				    .segment = row->segment,
				    .source = (enum dmsg_hint_source)row->source,
				    .uid = row->uid,
				    .score = row->score,
				    .put_boot_ms = now - age,
				    .end_boot_ms = now + left };
	bool good = is_in_order(row);

	h->loading = true;
	if (good && left > 0 && hints_insert(h, &put, NULL) == 0) {
		h->n_loaded++;
		if (row->put_ms > hints_unix_ms(h))
			load_future(h, &put);
	} else {
		h->n_expired += left <= 0;
		h->n_refused += left > 0;
		state_drop_hint(h->deps.state, row);
	}
	h->loading = false;
}

void hints_loaded(struct hints *h)
{
	hints_arm(h);
	if (h->n_loaded + h->n_expired + h->n_refused)
		log_info("hint",
			 "%" PRIu64 " hints are known from before, %" PRIu64 " more have expired",
			 h->n, h->n_expired);
	if (h->n_refused)
		log_warning("hint",
			    "%" PRIu64
			    " hints from before are left out: they are not in order, were "
			    "replaced, or are over limits.hints",
			    h->n_refused);
	if (h->n_future)
		log_warning("hint",
			    "%" PRIu64
			    " hints were put in the future: the clock was set back; they "
			    "live for as long as they were put for, from now",
			    h->n_future);
}
