/* SPDX-License-Identifier: Apache-2.0 */
/* Mailboxes of clients, and letters that clients post. */
#include <errno.h>
#include <string.h>

#include "agent/control/session/internal.h"

int request_mailbox_open(struct session *s, struct request *rq, struct dray_err *reterr)
{
	const struct dmsg_mailbox_open *m = &rq->m.mailbox_open;
	union dmsg_body reply = { 0 };
	int r = mailbox_open(s->owner->deps.mailboxes, &s->mailboxes, m->name, m->capacity,
			     &reply.mailbox_open_reply.mailbox, &reply.mailbox_open_reply.capacity,
			     reterr);

	if (r >= 0)
		session_send(s, rq->id, DMSG_MAILBOX_OPEN_REPLY, &reply);
	return r;
}

int request_mailbox_close(struct session *s, struct request *rq, struct dray_err *reterr)
{
	return mailbox_close(s->owner->deps.mailboxes, &s->mailboxes, rq->m.mailbox_close.mailbox,
			     rq->id, reterr);
}

void sessions_send_letter(struct sessions *ss, dray_handle session, struct packet *packet)
{
	struct session *s = session_get(ss, session);

	if (s)
		session_post(s, 0, packet);
	else
		packet_free(packet);
}

void sessions_mailbox_closed(struct sessions *ss, dray_handle session, uint64_t request_id)
{
	struct session *s = session_get(ss, session);

	if (s)
		session_send(s, request_id, DMSG_MAILBOX_CLOSE_REPLY, NULL);
}

/* To a mailbox of this agent. */
static int post_here(struct session *s, uint64_t request_id, const struct pmsg_post *m,
		     struct dray_err *reterr)
{
	const struct sessions_deps *d = &s->owner->deps;
	struct mailbox_sender from = {
		.incarnation = d->incarnation, .tenant = m->tenant, .uid = m->uid, .gid = m->gid
	};
	int r;

	memcpy(from.agent_id, d->agent_id, sizeof(from.agent_id));
	r = mailbox_deliver(d->mailboxes, &from, m->name, m->payload, reterr);
	if (r >= 0)
		session_send(s, request_id, DMSG_POST_REPLY, NULL);
	return r;
}

/* The session may have ended meanwhile. */
static void handle_posted(void *arg, dray_handle session, uint64_t request_id,
			  const struct dray_err *err, const struct pmsg_post *own)
{
	struct session *s = session_get(arg, session);
	struct dray_err why = *err;

	if (!s)
		return;
	if (own && post_here(s, request_id, own, &why) >= 0)
		return;
	if (why.code)
		session_fail(s, request_id, -EIO, &why);
	else
		session_send(s, request_id, DMSG_POST_REPLY, NULL);
}

int request_post(struct session *s, struct request *rq, struct dray_err *reterr)
{
	const struct dmsg_post *m = &rq->m.post;
	const struct sessions_deps *d = &s->owner->deps;
	const char *own = peers_segment(d->peers);
	struct peer_post post = {
		.m = { .uid = s->who.uid,
		       .gid = s->who.gid,
		       .tenant = { s->uid_owner->tenant, (uint32_t)strlen(s->uid_owner->tenant) },
		       .name = m->name,
		       .payload = m->payload },
		.timeout_ns = m->timeout_ms * DRAY_NS_PER_MS,
		.done = handle_posted,
		.arg = s->owner,
		.session = s->handle,
		.request_id = rq->id,
	};

	text_copy(post.segment, sizeof(post.segment), m->segment);
	if (!*post.segment || !strcmp(post.segment, own))
		return post_here(s, rq->id, &post.m, reterr);
	return peer_post(d->peers, &post, reterr);
}
