/* SPDX-License-Identifier: Apache-2.0 */
/* Mailboxes of this client, which are opened again with each session, and letters to those of others. */
#include <stdlib.h>
#include <string.h>

#include "client/internal.h"

/* Bytes of a segment in a message. */
#define SEGMENT_MAX 256

struct mailbox *dc_mailbox_find(struct dray *d, uint64_t id)
{
	return dray_handles_get(&d->mailboxes, id);
}

struct mailbox *dc_mailbox_find_agent(struct dray *d, uint64_t agent)
{
	uint32_t cursor = 0;
	struct mailbox *m;

	while ((m = dray_handles_next(&d->mailboxes, &cursor, NULL)))
		if (m->agent == agent)
			return m;
	return NULL;
}

static void mailbox_free(struct dray *d, struct mailbox *m)
{
	dray_handles_del(&d->mailboxes, m->handle.id);
	free(m);
}

void dc_mailboxes_free(struct dray *d)
{
	uint32_t cursor = 0;
	struct mailbox *m;

	while ((m = dray_handles_next(&d->mailboxes, &cursor, NULL)))
		mailbox_free(d, m);
	dray_handles_deinit(&d->mailboxes);
}

int dc_mailbox_opened(struct dray *d, struct request *r,
		      const struct dmsg_mailbox_open_reply *reply)
{
	struct mailbox *m = dc_mailbox_find(d, r->number);

	if (!m || !reply->mailbox)
		return dc_session_defect(d, "the agent opened a mailbox without a handle");
	m->agent = reply->mailbox;
	return 0;
}

/* It was opened again in a new session, or could not be. */
static void reopened(struct dray *d, struct mailbox *m, int status, struct dray_str text)
{
	struct dray_event *e;

	/* this session is lost too; the next one opens it again */
	if (d->loss.code)
		return;
	if (status && m->state == MAILBOX_OPEN) {
		m->state = MAILBOX_BROKEN;
		e = dc_event_add(d, DRAY_EVENT_MAILBOX_LOST, status, text);
		if (e)
			e->mailbox = m->handle;
	}
	dc_session_object_restored(d);
}

void dc_mailbox_ended(struct dray *d, struct request *r, struct dray_str text)
{
	struct mailbox *m = dc_mailbox_find(d, r->number);

	if (!m)
		return;
	if (r->type == DMSG_MAILBOX_CLOSE) {
		mailbox_free(d, m);
	} else if (r->internal) {
		reopened(d, m, r->status, text);
	} else if (!r->status && !r->abandoned) {
		m->state = MAILBOX_OPEN;
	} else {
		r->number = 0;
		m->state = MAILBOX_CLOSING;
		/* without memory for the request, the session's end closes it */
		if (m->agent && !d->loss.code)
			dc_request_internal(d, DMSG_MAILBOX_CLOSE, NO_REGION, NO_REMOTE,
					    m->handle.id);
		else
			mailbox_free(d, m);
	}
}

void dc_mailboxes_lost(struct dray *d)
{
	uint32_t cursor = 0;
	struct mailbox *m;

	while ((m = dray_handles_next(&d->mailboxes, &cursor, NULL)))
		m->agent = 0;
}

void dc_mailboxes_restore(struct dray *d)
{
	uint32_t cursor = 0;
	struct mailbox *m;

	while ((m = dray_handles_next(&d->mailboxes, &cursor, NULL))) {
		if (m->state != MAILBOX_OPEN)
			continue;
		if (!dc_request_internal(d, DMSG_MAILBOX_OPEN, NO_REGION, NO_REMOTE,
					 m->handle.id)) {
			dc_session_break(d, DRAY_E_NO_MEMORY, "no memory");
			return;
		}
		d->restoring++;
	}
}

/* 0, or a negated code. */
static int take_name(struct dray *d, const char *name, struct dray_str *ret)
{
	size_t n = name ? strlen(name) : 0;

	if (!n)
		return dc_fail(d, DRAY_E_INVALID,
			       "the mailbox has no name; give it one of 1 to %d bytes",
			       DRAY_MAILBOX_NAME_MAX);
	if (n > DRAY_MAILBOX_NAME_MAX)
		return dc_fail(d, DRAY_E_TOO_LARGE,
			       "the name of the mailbox has %zu bytes, the limit is %d", n,
			       DRAY_MAILBOX_NAME_MAX);
	*ret = (struct dray_str){ name, (uint32_t)n };
	return 0;
}

int dray_mailbox_open_start(struct dray *d, const char *name, unsigned int capacity, void *arg,
			    uint64_t *ret_id)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	struct dray_str text;
	struct mailbox *m;
	struct request *r;
	int error;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	error = take_name(d, name, &text);
	if (error)
		return error;
	r = dc_request_start(d, DMSG_MAILBOX_OPEN, arg);
	if (!r)
		return dc_failed();
	m = calloc(1, sizeof(*m));
	if (!m || dray_handles_add(&d->mailboxes, m, &m->handle.id) < 0) {
		free(m);
		return dc_request_refuse(d, r, DRAY_E_NO_MEMORY,
					 "no memory for another mailbox, or over %u of them",
					 MAILBOXES_MAX);
	}
	m->capacity = capacity;
	m->name_n = text.n;
	memcpy(m->name, text.p, text.n);
	r->number = m->handle.id;
	return dc_request_go(d, r, ret_id);
}

int dray_mailbox_open(struct dray *d, const char *name, unsigned int capacity, dray_mailbox *ret)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	struct dray_completion c;
	uint64_t id;
	int error;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	error = dray_mailbox_open_start(d, name, capacity, NULL, &id);
	error = dc_request_wait(d, error, &id, 0, &c);
	if (!error)
		*ret = c.mailbox;
	return error;
}

int dray_mailbox_close_start(struct dray *d, dray_mailbox mailbox, void *arg, uint64_t *ret_id)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	struct mailbox *m;
	struct request *r;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	m = dc_mailbox_find(d, mailbox.id);
	if (!m || m->state == MAILBOX_OPENING || m->state == MAILBOX_CLOSING)
		return dc_no_such(d, mailbox.id, DMSG_HANDLE_KIND_MAILBOX);
	r = dc_request_start(d, DMSG_MAILBOX_CLOSE, arg);
	if (!r)
		return dc_failed();
	r->number = mailbox.id;
	m->state = MAILBOX_CLOSING;
	if (m->agent)
		return dc_request_go(d, r, ret_id);
	dc_request_end(d, r, 0, NO_TEXT);
	return dc_request_started(r, ret_id);
}

int dray_mailbox_close(struct dray *d, dray_mailbox mailbox)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	uint64_t id;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	return dc_request_wait(d, dray_mailbox_close_start(d, mailbox, NULL, &id), &id, 0, NULL);
}

int dray_post_start(struct dray *d, const char *segment, const char *mailbox, const void *payload,
		    size_t length, unsigned int timeout_ms, void *arg, uint64_t *ret_id)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	union dmsg_body m = { .post = { .timeout_ms = timeout_ms } };
	size_t segment_n = segment ? strlen(segment) : 0;
	struct request *r;
	int n, error;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	error = take_name(d, mailbox, &m.post.name);
	if (error)
		return error;
	if (segment_n > SEGMENT_MAX)
		return dc_fail(d, DRAY_E_TOO_LARGE, "the segment has %zu bytes, the limit is %d",
			       segment_n, SEGMENT_MAX);
	if (length > DRAY_NOTIFY_MAX)
		return dc_fail(d, DRAY_E_TOO_LARGE, "%zu bytes of payload, the limit is %d", length,
			       DRAY_NOTIFY_MAX);
	r = dc_request_start(d, DMSG_POST, arg);
	if (!r)
		return dc_failed();
	m.post.segment = (struct dray_str){ segment, (uint32_t)segment_n };
	m.post.payload = (struct dray_blob){ payload, (uint32_t)length };
	n = dmsg_body_encode(DMSG_POST, d->out, DMSG_MESSAGE_MAX, r->id, &m);
	if (n < 0)
		return dc_request_refuse(
			d, r, DRAY_E_INVALID,
			"the name or the segment is not UTF-8 without control characters");
	return dc_request_go_with(d, r, d->out, (size_t)n, ret_id);
}

int dray_post(struct dray *d, const char *segment, const char *mailbox, const void *payload,
	      size_t length, unsigned int timeout_ms)
{
	struct dray *in dray_auto(dc_leave) = dc_enter(d);
	uint64_t id;
	int error;

	if (!in)
		return -DRAY_E_OUT_OF_ORDER;
	error = dray_post_start(d, segment, mailbox, payload, length, timeout_ms, NULL, &id);
	return dc_request_wait(d, error, &id, timeout_ms, NULL);
}
