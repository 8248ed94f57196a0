/* SPDX-License-Identifier: Apache-2.0 */
/* Mooncake masters: which pages are read, and what their lists say about segments. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/placement/net/lack.h"
#include "agent/placement/segment/internal.h"
#include "lib/log.h"
#include "schema/gen/errors.h"

static void list_segment(struct master_entry *e, const struct master_segment *m)
{
	struct segments *ss = e->ss;
	struct segment *s = segment_ensure(ss, m->name, SEGMENT_MASTER);
	uint32_t bit = 1u << e->index;
	bool ok = !*m->status || !strcmp(m->status, "OK");

	if (!s)
		return;
	s->list_round = ss->round;
	s->listed_by |= bit;
	s->ok_by = ok ? s->ok_by | bit : s->ok_by & ~bit;
	s->was_listed = true;
	s->capacity = m->capacity < 0 ? 0 : (uint64_t)m->capacity;
	s->allocated = m->allocated < 0 ? 0 : (uint64_t)m->allocated;
	segment_text(&s->te_endpoint, dray_endpoint_valid(m->endpoint) ? m->endpoint : NULL);
	if (!ok)
		segment_text(&s->master_status, m->status);
	else if (!(s->listed_by & ~s->ok_by))
		segment_text(&s->master_status, NULL);
	segment_mention(s, SEGMENT_MASTER, true);
	segment_recheck(s);
}

/* No master that answers lists it any more. */
static void clear_master_data(struct segment *s)
{
	s->capacity = s->allocated = 0;
	segment_text(&s->master_status, NULL);
	segment_mention(s, SEGMENT_MASTER, false);
}

uint32_t masters_answering(const struct segments *ss, uint32_t of)
{
	for (unsigned i = 0; i < MASTER_SLOTS; i++)
		if (ss->masters[i].down)
			of &= ~(1u << i);
	return of;
}

static void unlist(struct master_entry *e, bool all)
{
	struct segments *ss = e->ss;
	uint32_t bit = 1u << e->index;

	dray_list_for_each(&ss->all, s, struct segment, link) {
		if (!(s->listed_by & bit) || (!all && s->list_round == ss->round))
			continue;
		s->listed_by &= ~bit;
		s->ok_by &= ~bit;
		if (!(s->listed_by & ~s->ok_by))
			segment_text(&s->master_status, NULL);
		if (!masters_answering(ss, s->listed_by))
			clear_master_data(s);
		segment_recheck(s);
	}
}

bool masters_pending(const struct segments *ss)
{
	for (unsigned i = 0; i < MASTER_SLOTS; i++)
		if (ss->masters[i].url && !ss->masters[i].settled)
			return true;
	return false;
}

/* Nothing waits for the master any more. Returns whether anything did. */
static bool master_settle(struct master_entry *e)
{
	struct segments *ss = e->ss;

	if (e->settled)
		return false;
	e->settled = true;
	dray_list_for_each(&ss->all, s, struct segment, link)
		if (s->check == SEGMENT_CHECK_MASTER)
			segment_recheck(s);
	return true;
}

static void on_failure(struct master_entry *e, const struct dray_err *why)
{
	struct segments *ss = e->ss;

	/* the agent could not ask, which says nothing of the master */
	if (net_is_lack(why->code)) {
		log_limited(DRAY_LOG_WARNING, AREA, "%s", why->msg);
		return;
	}
	if (!e->failures || strcmp(e->why, why->msg) != 0)
		log_warning(AREA, "%s%s", why->msg,
			    e->settled && !e->down ? "; its last list stays valid" : "");
	e->failures++;
	snprintf(e->why, sizeof(e->why), "%s", why->msg);
	if (e->failures < (unsigned)ss->deps.cfg->probe.fall || e->down)
		return;
	e->down = true;
	dray_list_for_each(&ss->all, s, struct segment, link) {
		if (!(s->listed_by & 1u << e->index))
			continue;
		if (!masters_answering(ss, s->listed_by))
			clear_master_data(s);
		segment_recheck(s);
	}
	if (master_settle(e))
		listeners_apply(ss);
}

static void on_read(void *arg, const struct master_list *list, const struct dray_err *why)
{
	struct master_entry *e = arg;

	e->ss->totals.master_reads++;
	if (why) {
		e->ss->totals.master_failures++;
		on_failure(e, why);
		return;
	}
	if (e->failures)
		log_notice(AREA, "%s answers again", e->url);
	e->failures = 0;
	e->down = false;
	e->ss->round++;
	for (size_t i = 0; i < list->n; i++)
		list_segment(e, &list->v[i]);
	unlist(e, false);
	if (list->left_out && list->left_out != e->left_out)
		log_warning(AREA, "%s: %zu names are not HOST:PORT and are left out", e->url,
			    list->left_out);
	e->left_out = list->left_out;
	master_settle(e);
	/* a segment whose address is this node's may be a listening socket here */
	listeners_apply(e->ss);
}

static void entry_free(struct master_entry *e)
{
	e->master = master_free(e->master);
	free(e->url);
	*e = (struct master_entry){ .ss = e->ss, .index = e->index };
}

static void entry_close(struct master_entry *e)
{
	unlist(e, true);
	entry_free(e);
}

static int entry_open(struct segments *ss, const char *url, struct dray_err *reterr)
{
	struct master_entry *e = NULL;
	int r;

	for (unsigned i = 0; i < MASTER_SLOTS; i++) {
		struct master_entry *other = &ss->masters[i];

		if (other->url && !strcmp(other->url, url)) {
			master_reconfigured(other->master);
			return 0;
		}
		e = !e && !other->url ? other : e;
	}
	if (!e)
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID, "at most %d masters",
				    MASTERS_MAX);
	e->url = strdup(url);
	if (!e->url)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "out of memory");
	r = master_new(&e->master,
		       &(struct master_deps){ .event = ss->deps.event,
					      .resolver = ss->resolver,
					      .url = url,
					      .cfg = ss->deps.cfg,
					      .up = on_read,
					      .arg = e },
		       reterr);
	if (r < 0)
		entry_free(e);
	return r;
}

int masters_set(struct segments *ss, struct dray_err *reterr)
{
	const struct dray_strv *keys = &ss->deps.cfg->mooncake.masters;
	char *from_environment = (char *)(uintptr_t)ss->deps.environment_master;
	struct dray_strv one = { .v = &from_environment, .n = 1 };
	struct dray_strv none = DRAY_STRV_NULL;
	const struct dray_strv *urls = keys;
	int r = 0;

	if (!keys->n)
		urls = from_environment ? &one : &none;
	else if (list_is_none(keys))
		urls = &none;
	/* new masters first: until they are read, segments that only a former master listed keep their state */
	for (size_t i = 0; i < urls->n; i++) {
		int opened = entry_open(ss, urls->v[i], reterr);

		r = opened < 0 ? opened : r;
	}
	for (unsigned i = 0; i < MASTER_SLOTS; i++)
		if (ss->masters[i].url && !dray_strv_has(urls, ss->masters[i].url))
			entry_close(&ss->masters[i]);
	/* a master that segments waited for may be gone */
	dray_list_for_each(&ss->all, s, struct segment, link)
		if (s->check == SEGMENT_CHECK_MASTER)
			segment_recheck(s);
	return r;
}

void masters_free(struct segments *ss)
{
	/* without updates of segments, which are freed next */
	for (unsigned i = 0; i < MASTER_SLOTS; i++)
		entry_free(&ss->masters[i]);
}
