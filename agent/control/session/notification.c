/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notifications: from a transfer or a NOTIFY here to the owner of the remote, and from any agent to the sessions of a
 * group. A session holds a bounded number of unread notifications. The group has got a notification if any of its
 * sessions has.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/session/internal.h"
#include "schema/gen/errors.h"

struct dedup_key {
	uint8_t agent_id[16];
	uint64_t incarnation, id;
};

struct dedup_entry {
	struct dray_map_node node;
	struct dedup_key key;
};

/* The origin of a notification, which waits for its result: a NOTIFY request, or a transfer in a worker. */
struct notification_origin {
	struct sessions *sessions;
	bool is_request;
	dray_handle session; /* request */
	uint64_t request_id;
	unsigned worker; /* transfer */
	uint64_t transfer;
};

/* Unlike transfer handles these ids are never reused. They contain the origin, so workers need no common counter. */
static uint64_t next_id(struct sessions *ss, unsigned origin)
{
	return (uint64_t)origin << 56 | (++ss->notify_id & ((1ull << 56) - 1));
}

static bool deliver_to(struct session *s, const uint8_t *message, int length)
{
	_Atomic uint32_t *queued = &s->shared.notifications;
	struct packet *p;

	/* the worker only decreases it */
	if (atomic_load_explicit(queued, memory_order_relaxed) >=
	    s->owner->deps.cfg->limits.notifications_per_session)
		return false;
	if (owner_take(s->uid_owner, RESOURCE_NOTIFICATIONS, 1, NULL) < 0)
		return false;
	p = packet_new((uint32_t)length, 0);
	if (!p) {
		owner_put(s->uid_owner, RESOURCE_NOTIFICATIONS, 1);
		return false;
	}
	memcpy(p->data, message, (size_t)length);
	p->is_notification = true;
	atomic_fetch_add_explicit(queued, 1, memory_order_relaxed);
	session_post(s, 0, p);
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

static struct dedup_key key_of(const struct dmsg_notification *m)
{
	struct dedup_key key = { .incarnation = m->incarnation, .id = m->id };

	memcpy(key.agent_id, m->agent_id, sizeof(key.agent_id));
	return key;
}

/* Without memory the notification is not stored, and may be delivered again. */
static void dedup_add(struct dedup *d, const struct dmsg_notification *m)
{
	struct dedup_entry *oldest;

	if (!d->entries)
		d->entries = calloc(DEDUP_ENTRIES, sizeof(*d->entries));
	if (!d->entries)
		return;
	oldest = &d->entries[d->next];
	d->next = (d->next + 1) % DEDUP_ENTRIES;
	dray_map_del(&d->by_key, &oldest->node);
	oldest->key = key_of(m);
	dray_map_add(&d->by_key, &oldest->node, &oldest->key, sizeof(oldest->key));
}

uint32_t sessions_deliver(struct sessions *ss, const struct dmsg_notification *m)
{
	const struct sessions_deps *d = &ss->deps;
	struct client_group *g =
		dray_handles_get(&ss->groups, region_group(d->regions, m->region, NULL));
	bool ours = !memcmp(m->agent_id, d->agent_id, sizeof(m->agent_id));
	struct dedup_key key = key_of(m);
	uint8_t buf[DMSG_HEADER_SIZE + DMSG_NOTIFICATION_BODY_MAX];
	int n;

	if (!g)
		return DRAY_E_NOT_FOUND;
	/* the receiver may read the bytes at once, with the GPU */
	if (!ours && !region_flush_rdma(d->regions, m->region))
		return DRAY_E_GPU_LOST;
	/* only peers repeat notifications */
	if (!ours && dray_map_find(&ss->dedup.by_key, &key, sizeof(key)))
		return DRAY_OK;
	n = dmsg_notification_encode(buf, sizeof(buf), 0, m);
	if (n < 0)
		return DRAY_E_TOO_LARGE;
	if (!deliver_to_group(g, buf, n)) {
		ss->totals.notify_refused++;
		return DRAY_E_NOTIFY_REFUSED;
	}
	if (!ours)
		dedup_add(&ss->dedup, m);
	ss->totals.notified++;
	return DRAY_OK;
}

static void answer(const struct notification_origin *o, uint32_t code)
{
	struct sessions *ss = o->sessions;
	struct session *s;

	if (!o->is_request) {
		worker_post(ss->deps.pool->workers[o->worker],
			    &(struct command){
				    .type = COMMAND_NOTIFIED, .id = o->transfer, .code = code });
		return;
	}
	s = session_get(ss, o->session);
	if (s && code)
		session_send_error(s, o->request_id, code, dray_error_doc(code));
	else if (s)
		session_send(s, o->request_id, DMSG_NOTIFY_REPLY, NULL);
}

static void handle_notified(void *arg, uint32_t code, const union pmsg_body *reply)
{
	struct notification_origin *o = arg;

	answer(o, code);
	free(o);
}

static int notify_local(const struct notification_origin *o, dray_handle region,
			const struct pmsg_notify *m)
{
	const struct sessions_deps *d = &o->sessions->deps;
	struct dmsg_notification n = { .tag = m->tag,
				       .region = region,
				       .incarnation = d->incarnation,
				       .id = m->id,
				       .payload = m->payload };

	memcpy(n.agent_id, d->agent_id, sizeof(n.agent_id));
	answer(o, sessions_deliver(o->sessions, &n));
	return 0;
}

/* Ends with answer(o, ...), at once or later, unless it fails. */
static int notify(const struct notification_origin *o, const struct remote *r, uint64_t tag,
		  const uint8_t *payload, uint32_t length, struct dray_err *reterr)
{
	struct pmsg_notify m = { .grant = r->view.grant,
				 .id = next_id(o->sessions, o->is_request ? 0 : o->worker + 1),
				 .tag = tag,
				 .payload = { payload, length } };
	struct notification_origin *w;
	int e;

	if (r->view.is_local)
		return notify_local(o, r->view.region, &m);
	if (r->view.mooncake)
		return dray_err_set(reterr, -EOPNOTSUPP, DRAY_E_UNSUPPORTED,
				    "Mooncake's engines take no notifications of this agent");
	w = malloc(sizeof(*w));
	if (!w)
		return -ENOMEM;
	*w = *o;
	e = peer_notify(o->sessions->deps.peers, r->view.peer, &m, handle_notified, w, reterr);
	if (e < 0)
		free(w);
	return e;
}

int request_notify(struct session *s, struct request *rq, struct dray_err *reterr)
{
	const struct notification_origin o = {
		.sessions = s->owner, .is_request = true, .session = s->handle, .request_id = rq->id
	};
	const struct dmsg_notify *m = &rq->m.notify;
	struct remote *r;

	r = remote_get(s, m->remote, reterr);
	return r ? notify(&o, r, m->tag, m->payload.p, m->payload.n, reterr) : -ENOENT;
}

void sessions_handle_notify(struct sessions *ss, unsigned worker, uint64_t transfer,
			    dray_handle remote, uint64_t tag, struct packet *packet)
{
	const struct notification_origin o = { .sessions = ss,
					       .worker = worker,
					       .transfer = transfer };
	struct remote *r = remote_find(ss, remote);
	struct dray_err err = DRAY_ERR_NULL;
	int e = 0;

	/* the bytes are in place, so a remote that is being released or fenced may still be notified */
	if (!r || r->owner_gone)
		dray_err_set(&err, -EPIPE, r && r->lost_code ? (int)r->lost_code : DRAY_E_NOT_FOUND,
			     "the remote has ended");
	else
		e = notify(&o, r, tag, packet->data, packet->length, &err);
	if (e < 0)
		error_fold(&err, e);
	if (err.code)
		answer(&o, (uint32_t)err.code);
	packet_free(packet);
}
