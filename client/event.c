/* SPDX-License-Identifier: Apache-2.0 */
#include "client/internal.h"

#include <stdlib.h>
#include <string.h>

struct dray_event *dc_event_add(struct dray *d, enum dray_event_type type, const void *payload,
				size_t length, const char *text, size_t text_n)
{
	struct event *e = malloc(sizeof(*e) + length + text_n + 1);

	/* events are told at most once, and without memory not at all */
	if (!e)
		return NULL;
	e->e = (struct dray_event){
		.type = type,
		.payload = e->data,
		.length = length,
		.message = (const char *)e->data + length,
		.segment = (const char *)e->data + length + text_n, /* empty */
	};
	if (length)
		memcpy(e->data, payload, length);
	if (text_n)
		memcpy(e->data + length, text, text_n);
	e->data[length + text_n] = '\0';
	dray_list_add(&d->events, &e->link);
	d->events_n++;
	return &e->e;
}

void dc_event_notification(struct dray *d, const struct dmsg_notification *m)
{
	struct dray_event *e =
		dc_event_add(d, DRAY_EVENT_NOTIFICATION, m->payload.p, m->payload.n, NULL, 0);
	const struct region *g = dc_region_find_agent(d, m->region);

	if (!e)
		return;
	e->region = g ? g->handle : 0;
	e->agent_region = m->region;
	e->tag = m->tag;
	memcpy(e->agent_id, m->agent_id, sizeof(e->agent_id));
	e->incarnation = m->incarnation;
	e->id = m->id;
}

void dc_event_segment(struct dray *d, const struct dmsg_segment_changed *m)
{
	char segment[257]; /* over the longest there is */
	struct dray_event *e;

	memcpy(segment, m->segment.p, m->segment.n);
	segment[m->segment.n] = '\0';
	e = dc_event_add(d, DRAY_EVENT_SEGMENT, segment, m->segment.n + 1, m->reason.p,
			 m->reason.n);
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
	dray_list_for_each(&d->events, e, struct event, link) {
		dray_list_del(&e->link);
		free(e);
	}
	free(d->event_taken);
	d->event_taken = NULL;
}

int dray_next_event(struct dray *d, struct dray_event *ret)
{
	struct event *e;
	int error = dc_enter(d);

	if (error)
		return error;
	e = dray_list_first(&d->events, struct event, link);
	if (!e)
		return 0;
	dray_list_del(&e->link);
	d->events_n--;
	free(d->event_taken);
	d->event_taken = e;
	*ret = e->e;
	if (!d->reading && d->events_n <= d->events_max / 2) {
		d->reading = true;
		dc_engine_watch(d);
	}
	return 1;
}
