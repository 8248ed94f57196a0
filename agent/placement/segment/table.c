/* SPDX-License-Identifier: Apache-2.0 */
/* The table of segments. */
#include <stdlib.h>
#include <string.h>

#include "agent/placement/segment/internal.h"
#include "lib/log.h"

struct segment *segment_find(const struct segments *ss, const char *name)
{
	return dray_map_entry(dray_map_find(&ss->by_name, name, strlen(name)), struct segment,
			      by_name);
}

static struct segment *segment_free(struct segment *s)
{
	free(s->name);
	free(s->configured);
	free(s->listener);
	free(s->restored);
	free(s->te_endpoint);
	free(s->master_status);
	free(s->where);
	free(s->reason);
	free(s);
	return NULL;
}

static struct segment *segment_new(struct segments *ss, const char *name)
{
	struct segment *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->ss = ss;
	s->name = strdup(name);
	s->since_ns = s->mentioned_ns = dray_now().ns;
	dray_list_init(&s->link);
	dray_list_init(&s->foreground);
	dray_list_init(&s->own);
	dray_list_init(&s->unsaved);
	dray_list_init(&s->of_host);
	dray_list_init(&s->spare);
	if (!s->name)
		return segment_free(s);
	dray_map_add(&ss->by_name, &s->by_name, s->name, strlen(s->name));
	return s;
}

void segment_spare(struct segment *s)
{
	if (dray_list_empty(&s->spare) && segment_may_go(s))
		dray_list_add(&s->ss->spare, &s->spare);
}

/* Removes the segment that may go since the longest time, if there is one. */
static void make_room(struct segments *ss)
{
	struct segment *s;

	while ((s = dray_list_pop(&ss->spare, struct segment, spare)))
		if (segment_may_go(s))
			break;
	if (!s)
		return;
	state_drop_segment(ss->deps.state, s->name);
	segment_remove(s);
}

void segment_count(struct segment *s)
{
	struct hint_owner owner;
	bool counts;

	s->was_hinted |= s->sources & SEGMENT_HINT;
	counts = s->was_hinted && !(s->sources & ~(unsigned)SEGMENT_HINT);
	segment_spare(s);
	if (counts == s->of_hints)
		return;
	s->of_hints = counts;
	s->ss->n_of_hints = counts ? s->ss->n_of_hints + 1 : s->ss->n_of_hints - 1;
	share_charge(s, counts && hints_names(s->ss->deps.hints, s->name, &owner) ?
				share_ensure(s->ss, &owner) :
				NULL);
}

static bool is_full(const struct segments *ss)
{
	return ss->n >= (size_t)ss->deps.cfg->limits.segments;
}

/* Another segment may be known. Logs once if not. */
static bool has_room(struct segments *ss)
{
	if (!is_full(ss))
		return true;
	if (!ss->left_out)
		log_warning(AREA,
			    "limits.segments = %lld is reached: further segments are left out",
			    (long long)ss->deps.cfg->limits.segments);
	ss->left_out = true;
	return false;
}

struct segment *segment_ensure(struct segments *ss, const char *name, enum segment_source source)
{
	bool needed = source == SEGMENT_CONFIG || source == SEGMENT_LISTENER;
	struct segment *s = segment_find(ss, name);

	if (s)
		return s;
	if (!needed && !has_room(ss))
		return NULL;
	/* segments of this node may exceed the limit if no other can make room */
	if (needed && is_full(ss))
		make_room(ss);
	s = segment_new(ss, name);
	if (!s)
		return NULL;
	dray_list_add(&ss->all, &s->link);
	segment_spare(s);
	ss->n++;
	ss->totals.by_state[s->state]++;
	if (hints_names(ss->deps.hints, name, NULL))
		segment_mention(s, SEGMENT_HINT, true);
	segment_locate(s);
	return s;
}

void segment_remove(struct segment *s)
{
	struct segments *ss = s->ss;

	dray_map_del(&ss->by_name, &s->by_name);
	ss->totals.by_state[s->state]--;
	ss->n--;
	ss->n_of_hints -= s->of_hints;
	share_charge(s, NULL);
	dray_list_del(&s->link);
	dray_list_del(&s->foreground);
	dray_list_del(&s->own);
	dray_list_del(&s->unsaved);
	dray_list_del(&s->spare);
	segment_leave_host(s);
	watch_free(s->watch);
	segment_free(s);
}

void segment_text(char **member, const char *text)
{
	if (text && *member && !strcmp(*member, text))
		return;
	free(*member);
	*member = text ? strdup(text) : NULL;
}

void segment_target(struct probe_target **member, const struct probe_target *target)
{
	if (target && !*member)
		*member = malloc(sizeof(**member));
	if (target && *member)
		**member = *target;
	if (!target) {
		free(*member);
		*member = NULL;
	}
}
