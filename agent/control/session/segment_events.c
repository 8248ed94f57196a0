/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SEGMENT_CHANGED events for the sessions that subscribed. The changes are stored once for all sessions: the last
 * change of each segment, in the order of these changes. A session stores the number of the last change that it was
 * sent. A few are in flight to a client at a time; when its worker reports that they are out, the next follow. So a
 * client that does not read delays no other client, uses no memory of its own, and finally gets the current state. A
 * change is freed after every session was sent it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/session/internal.h"
#include "agent/placement/hint/hints.h"
#include "lib/assert.h"
#include "lib/log.h"
#include "schema/gen/errors.h"

/* Changes in flight to one client. */
#define BATCH 16
/* As in the schema. */
#define REASON_MAX 256

struct change {
	struct dray_map_node node; /* by the segment's name, which follows the message */
	struct dray_list link;
	uint64_t number;
	bool of_clients; /* only for sessions whose owner's hints name the segment */
	uint32_t length;
	uint8_t message[]; /* and the name, which ends in NUL */
};

static void change_free(struct segment_changes *x, struct change *c)
{
	dray_map_del(&x->by_name, &c->node);
	dray_list_del(&c->link);
	free(c);
}

void segment_changes_deinit(struct segment_changes *x)
{
	dray_list_for_each(&x->list, c, struct change, link)
		change_free(x, c);
	dray_map_deinit(&x->by_name);
}

/* Replaces the former change of this segment. */
static int change_add(struct segment_changes *x, const struct dmsg_segment_changed *m,
		      bool of_clients)
{
	const size_t cap = DMSG_HEADER_SIZE + DMSG_SEGMENT_CHANGED_BODY_MAX;
	struct change *c = malloc(sizeof(*c) + cap + m->segment.n + 1);
	struct dmsg_segment_changed fit = *m;
	struct change *before;
	int n;

	if (!c)
		return -ENOMEM;
	fit.reason = text_fit(m->reason, REASON_MAX);
	n = dmsg_segment_changed_encode(c->message, cap, 0, &fit);
	/* every segment fits into the message */
	dray_assert(n > 0);
	if (m->segment.n)
		memcpy(c->message + n, m->segment.p, m->segment.n);
	c->message[(uint32_t)n + m->segment.n] = '\0';
	before = dray_map_entry(dray_map_find(&x->by_name, c->message + n, m->segment.n),
				struct change, node);
	if (before)
		change_free(x, before);
	c->node = (struct dray_map_node){ .key = NULL };
	c->number = ++x->last;
	c->of_clients = of_clients;
	c->length = (uint32_t)n;
	dray_map_add(&x->by_name, &c->node, c->message + n, m->segment.n);
	dray_list_add(&x->list, &c->link);
	return 0;
}

static struct change *next_of(const struct segment_changes *x, const struct change *c)
{
	return c->link.next == &x->list ? NULL : dray_list_entry(c->link.next, struct change, link);
}

/* The oldest change after this number. Searched from the end: most sessions have seen all but the last. */
static struct change *first_after(const struct segment_changes *x, uint64_t number)
{
	struct change *found = NULL;

	for (struct dray_list *at = x->list.prev; at != &x->list; at = at->prev) {
		struct change *c = dray_list_entry(at, struct change, link);

		if (c->number <= number)
			break;
		found = c;
	}
	return found;
}

void segment_changes_trim(struct sessions *ss)
{
	struct segment_changes *x = &ss->segment_changes;
	uint64_t seen = x->last;
	struct session *s;
	struct change *c;

	if (dray_list_empty(&x->list))
		return;
	for (uint32_t at = 0; (s = session_next(ss, &at));)
		if (s->segments)
			seen = dray_min(seen, s->segments_seen);
	/* a client that does not read lets the list grow, so the walk ends at the first change that it has not seen */
	while ((c = dray_list_first(&x->list, struct change, link)) && c->number <= seen)
		change_free(x, c);
}

static bool may_see(const struct session *s, const struct change *c)
{
	const struct hint_owner owner = { s->uid_owner->tenant, s->who.uid };

	return !c->of_clients ||
	       hints_names_for(s->owner->deps.hints, (const char *)c->message + c->length, &owner);
}

/* The first change from c on that is for the session. */
static struct change *first_for(const struct session *s, struct change *c)
{
	while (c && !may_see(s, c))
		c = next_of(&s->owner->segment_changes, c);
	return c;
}

static void send_batch(struct session *s)
{
	struct segment_changes *x = &s->owner->segment_changes;
	struct change *c, *next;

	if (!s->segments || s->closing || s->segments_sent)
		return;
	c = first_for(s, first_after(x, s->segments_seen));
	if (!c)
		s->segments_seen = x->last;
	for (unsigned i = 0; c && i < BATCH; i++, c = next) {
		struct packet *p = packet_new(c->length, 0);

		if (!p) {
			/* without this change the client would not learn the current state */
			session_close(s, DRAY_E_NO_MEMORY, NULL, "no memory for an event");
			return;
		}
		next = first_for(s, next_of(x, c));
		memcpy(p->data, c->message, c->length);
		if (!next || i + 1 == BATCH)
			p->report = PACKET_REPORT_SEGMENTS;
		s->segments_seen = c->number;
		s->segments_sent = true;
		session_post(s, 0, p);
	}
}

void sessions_segment_changed(struct sessions *ss, const struct dmsg_segment_changed *m,
			      bool of_clients)
{
	struct segment_changes *x = &ss->segment_changes;
	struct change *oldest;
	struct session *s;

	if (change_add(x, m, of_clients) < 0) {
		log_limited(
			DRAY_LOG_WARNING, "session",
			"no memory for a change of a segment: clients do not get the event segment=%.*s",
			(int)m->segment.n, m->segment.p);
		return;
	}
	oldest = dray_list_first(&x->list, struct change, link);
	if (oldest && x->by_name.n > (uint64_t)ss->deps.cfg->limits.segments) {
		log_limited(
			DRAY_LOG_WARNING, "session",
			"a client does not read its events: dropping the oldest of %zu segment changes",
			x->by_name.n);
		change_free(x, oldest);
	}
	for (uint32_t at = 0; (s = session_next(ss, &at));)
		send_batch(s);
	segment_changes_trim(ss);
}

void segment_changes_sent(struct session *s)
{
	s->segments_sent = false;
	send_batch(s);
	segment_changes_trim(s->owner);
}
