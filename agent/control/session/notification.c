/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notifications: from a transfer or a NOTIFY here to the owner of the remote, and from anywhere
 * to the sessions of a group. A session takes so many that it has not read yet; the group has got
 * one if any of its members has.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/session/internal.h"
#include "schema/gen/errors.h"

/* Who waits for the peer's word: a NOTIFY request, or a transfer in a worker. */
struct notifying {
	struct sessions *sessions;
	bool is_request;
	dray_handle session; /* request */
	uint64_t request_id;
	unsigned worker; /* transfer */
	uint64_t transfer;
};

/* Transfer handles come again; this number does not, and still tells which worker it came from. */
static uint64_t next_id(struct sessions *ss, unsigned origin)
{
	return (uint64_t)origin << 56 | (++ss->notify_id & ((1ull << 56) - 1));
}

static bool deliver_to(struct session *s, const uint8_t *message, int length)
{
	_Atomic uint32_t *queued = &s->shared.notifications;
	struct packet *p;

	/* the worker only takes away from it */
	if (atomic_load_explicit(queued, memory_order_relaxed) >=
	    s->owner->cfg->limits.notifications_per_session)
		return false;
	p = packet_new((uint32_t)length, 0);
	if (!p)
		return false;
	memcpy(p->data, message, (size_t)length);
	p->is_notification = true;
	atomic_fetch_add_explicit(queued, 1, memory_order_relaxed);
	worker_post(s->owner->pool->workers[s->worker],
		    &(struct command){ .type = COMMAND_SEND, .session = s->handle, .packet = p });
	return true;
}

static bool deliver_to_group(struct client_group *g, const uint8_t *message, int length)
{
	bool any = false;

	dray_list_for_each(&g->members, s, struct session, group_link)
		if (s->notifications && !s->closing && deliver_to(s, message, length))
			any = true;
	return any;
}

uint32_t sessions_deliver(struct sessions *ss, dray_handle region, const uint8_t agent_id[16],
			  uint64_t incarnation, uint64_t id, uint64_t tag, const uint8_t *payload,
			  uint32_t length)
{
	struct client_group *g =
		dray_handles_get(&ss->groups, region_group(ss->regions, region, NULL));
	bool ours = !memcmp(agent_id, ss->agent_id, sizeof(ss->agent_id));
	uint8_t buf[DMSG_HEADER_SIZE + DMSG_NOTIFICATION_BODY_MAX];
	struct dmsg_notification m = {
		.tag = tag,
		.region = region,
		.incarnation = incarnation,
		.id = id,
		.payload = { payload, length },
	};
	int n;

	if (!g)
		return DRAY_E_NOT_FOUND;
	/* what comes from here comes once */
	if (!ours && dedup_has(&ss->dedup, agent_id, incarnation, id))
		return DRAY_OK;
	memcpy(m.agent_id, agent_id, sizeof(m.agent_id));
	n = dmsg_notification_encode(buf, sizeof(buf), 0, &m);
	if (n < 0)
		return DRAY_E_TOO_LARGE;
	if (!deliver_to_group(g, buf, n)) {
		ss->notify_refused++;
		return DRAY_E_NOTIFY_REFUSED;
	}
	if (!ours)
		dedup_add(&ss->dedup, agent_id, incarnation, id);
	ss->notified++;
	return DRAY_OK;
}

static void reply_request(struct session *s, uint64_t request_id, uint32_t code)
{
	uint8_t buf[DMSG_HEADER_SIZE + 1];
	struct dmsg_notify_reply m;

	if (code)
		session_send_error(s, request_id, code, dray_error_doc(code));
	else
		session_send(s, request_id, buf,
			     dmsg_notify_reply_encode(buf, sizeof(buf), request_id, &m), NULL, 0);
}

static void answer(const struct notifying *w, uint32_t code)
{
	struct sessions *ss = w->sessions;
	struct session *s;

	if (!w->is_request) {
		worker_post(ss->pool->workers[w->worker],
			    &(struct command){
				    .type = COMMAND_NOTIFIED, .id = w->transfer, .code = code });
		return;
	}
	s = session_get(ss, w->session);
	if (s)
		reply_request(s, w->request_id, code);
}

static void handle_notified(void *arg, uint32_t code)
{
	struct notifying *w = arg;

	answer(w, code);
	free(w);
}

/* Ends with answer(who, ...), at once or later, unless it fails. */
static int notify(const struct notifying *who, const struct remote *r, uint64_t tag,
		  const uint8_t *payload, uint32_t length, struct dray_err *reterr)
{
	struct sessions *ss = who->sessions;
	uint64_t id = next_id(ss, who->is_request ? 0 : who->worker + 1);
	struct notifying *w;
	int e;

	if (r->view.is_local) {
		answer(who, sessions_deliver(ss, r->view.region, ss->agent_id, ss->incarnation, id,
					     tag, payload, length));
		return 0;
	}
	w = malloc(sizeof(*w));
	if (!w)
		return -ENOMEM;
	*w = *who;
	e = peer_notify(ss->peers, r->view.peer, r->view.grant, id, tag, payload, length,
			handle_notified, w, reterr);
	if (e < 0)
		free(w);
	return e;
}

int request_notify(struct session *s, struct request *rq, struct dray_err *reterr)
{
	struct notifying who = {
		.sessions = s->owner, .is_request = true, .session = s->handle, .request_id = rq->id
	};
	struct dmsg_notify m;
	struct remote *r;
	int e;

	e = dmsg_notify_decode(rq->body, rq->length, &m, reterr);
	if (e < 0)
		return e;
	if (s->owner->draining)
		return dray_err_set(reterr, -ESHUTDOWN, DRAY_E_DRAINING,
				    "the agent is draining and sends no new notifications");
	r = remote_get(s, m.remote, reterr);
	if (!r)
		return -ENOENT;
	return notify(&who, r, m.tag, m.payload.p, m.payload.n, reterr);
}

void sessions_handle_notify(struct sessions *ss, unsigned worker, uint64_t transfer,
			    dray_handle remote, uint64_t tag, struct packet *packet)
{
	struct notifying who = { .sessions = ss, .worker = worker, .transfer = transfer };
	struct remote *r = remote_find(ss, remote);
	struct dray_err err = DRAY_ERR_NULL;
	int e = 0;

	/* the bytes are in place, so one that is being released or fenced may still speak */
	if (!r || r->owner_gone)
		dray_err_set(&err, -EPIPE, r && r->lost_code ? (int)r->lost_code : DRAY_E_NOT_FOUND,
			     "the remote is gone");
	else
		e = notify(&who, r, tag, packet->data, packet->length, &err);
	if (e < 0)
		error_fold(&err, e);
	if (err.code)
		answer(&who, (uint32_t)err.code);
	packet_free(packet);
}
