/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "client/internal.h"

/*
 * The program takes events in the order in which they came. If it takes too few, the library stops
 * reading the socket (dc_receive_all()), so that the agent holds back what else there is; unless an
 * answer is awaited, which comes behind events. So that the queue cannot grow without limit then, the
 * oldest event of the type that has the most is dropped: types that are rare, and say what has ended,
 * are not lost for those that nobody takes.
 */

/* Of the limit for reading, for what comes before an answer: more than an agent holds for a session. */
#define TIMES_MAX 2

void dc_events_init(struct events *q)
{
	*q = (struct events){ 0 };
	for (unsigned i = 0; i < EVENT_TYPES; i++)
		dray_list_init(&q->of[i]);
}

uint32_t dc_events_count(const struct dray *d)
{
	return d->events.n + d->events.dropped_types;
}

bool dc_events_full(const struct dray *d)
{
	return d->events.n >= d->events_max;
}

static void take(struct events *q, struct event *e)
{
	dray_list_del(&e->link);
	q->n_of[e->e.type]--;
	q->n--;
}

static void drop_one(struct events *q)
{
	struct event *e;
	unsigned most = 0;

	for (unsigned i = 1; i < EVENT_TYPES; i++)
		if (q->n_of[i] > q->n_of[most])
			most = i;
	e = dray_list_first(&q->of[most], struct event, link);
	if (!e)
		return;
	take(q, e);
	free(e);
	if (!q->dropped[most]++)
		q->dropped_types++;
}

/* Events are delivered at most once, and not at all without memory. */
static struct dray_event *add(struct dray *d, enum dray_event_type type, const void *payload,
			      size_t length, struct dray_str text)
{
	struct event *e = malloc(sizeof(*e) + length + text.n + 1);

	if (!e)
		return NULL;
	e->e = (struct dray_event){
		.type = type,
		.payload = e->data,
		.length = length,
		.message = (const char *)e->data + length,
		.segment = (const char *)e->data + length + text.n, /* empty */
	};
	if (length)
		memcpy(e->data, payload, length);
	if (text.n)
		memcpy(e->data + length, text.p, text.n);
	e->data[length + text.n] = '\0';
	if (d->events.n >= TIMES_MAX * (uint64_t)d->events_max)
		drop_one(&d->events);
	e->order = ++d->events.last;
	dray_list_add(&d->events.of[type], &e->link);
	d->events.n_of[type]++;
	d->events.n++;
	d->threads.changed = true;
	return &e->e;
}

struct dray_event *dc_event_add(struct dray *d, enum dray_event_type type, int code,
				struct dray_str text)
{
	struct dray_event *e = add(d, type, NULL, 0, text);

	if (e)
		e->code = code;
	return e;
}

void dc_event_notification(struct dray *d, const struct dmsg_notification *m)
{
	struct dray_event *e = add(d, DRAY_EVENT_NOTIFICATION, m->payload.p, m->payload.n, NO_TEXT);
	const struct region *g = dc_region_find_agent(d, m->region);

	if (!e)
		return;
	if (g)
		e->region = g->handle;
	e->agent_region = m->region;
	e->tag = m->tag;
	memcpy(e->agent_id, m->agent_id, sizeof(e->agent_id));
	e->incarnation = m->incarnation;
	e->id = m->id;
}

void dc_event_letter(struct dray *d, const struct dmsg_letter *m)
{
	struct dray_event *e = add(d, DRAY_EVENT_LETTER, m->payload.p, m->payload.n, NO_TEXT);
	const struct mailbox *box = dc_mailbox_find_agent(d, m->mailbox);

	if (!e)
		return;
	if (box)
		e->mailbox = box->handle;
	memcpy(e->agent_id, m->agent_id, sizeof(e->agent_id));
	e->incarnation = m->incarnation;
	e->uid = m->uid;
	e->gid = m->gid;
}

void dc_event_segment(struct dray *d, const struct dmsg_segment_changed *m)
{
	char segment[257]; /* the schema's maximum, and the terminator */
	struct dray_event *e;

	memcpy(segment, m->segment.p, m->segment.n);
	segment[m->segment.n] = '\0';
	e = add(d, DRAY_EVENT_SEGMENT, segment, m->segment.n + 1, m->reason);
	if (!e)
		return;
	e->segment = e->payload;
	e->length = 0;
	e->segment_old = m->old;
	e->segment_state = m->new;
	e->segment_flags = m->flags;
}

void dc_events_free(struct dray *d)
{
	for (unsigned i = 0; i < EVENT_TYPES; i++)
		dray_list_for_each(&d->events.of[i], e, struct event, link)
			free(e);
}

static struct event *oldest(const struct events *q)
{
	struct event *first = NULL;

	for (unsigned i = 1; q->n && i < EVENT_TYPES; i++) {
		struct event *e = dray_list_first(&q->of[i], struct event, link);

		if (e && (!first || e->order < first->order))
			first = e;
	}
	return first;
}

static void report_dropped(struct events *q, struct dray_event *ret)
{
	unsigned type = 1;

	while (!q->dropped[type])
		type++;
	*ret = (struct dray_event){
		.type = DRAY_EVENT_DROPPED,
		.tag = type,
		.id = q->dropped[type],
		.payload = "",
		.message = "",
		.segment = "",
	};
	q->dropped[type] = 0;
	q->dropped_types--;
}

int dray_next_event(struct dray *d, struct dray_event *ret)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	struct event *e;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	if (d->events.dropped_types) {
		report_dropped(&d->events, ret);
		return 1;
	}
	e = oldest(&d->events);
	if (!e)
		return 0;
	take(&d->events, e);
	dc_results_keep(&dc_results()->event, e);
	*ret = e->e;
	if (d->events.n <= d->events_max / 2)
		dc_engine_read(d);
	return 1;
}
