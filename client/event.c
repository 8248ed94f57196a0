/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "client/internal.h"

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
	dray_list_add(&d->events, &e->link);
	d->events_n++;
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
	dray_list_for_each(&d->events, e, struct event, link)
		free(e);
}

int dray_next_event(struct dray *d, struct dray_event *ret)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	struct event *e;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	e = dray_list_pop(&d->events, struct event, link);
	if (!e)
		return 0;
	d->events_n--;
	dc_results_keep(&dc_results()->event, e);
	*ret = e->e;
	if (!d->reading && d->events_n <= d->events_max / 2) {
		d->reading = true;
		dc_engine_watch(d);
	}
	return 1;
}
