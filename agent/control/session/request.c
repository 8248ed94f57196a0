/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that a worker passed on. Each is answered exactly once: by its handler, at once or later, or here with its error. */
#include <errno.h>
#include <stdlib.h>

#include "agent/control/session/internal.h"
#include "lib/assert.h"
#include "schema/gen/errors.h"

/* Bytes of requests of a session that wait for regions. */
#define HELD_BYTES_MAX (2u * DMSG_MESSAGE_MAX)

enum { FDS = 1 /* may carry descriptors */, NEW_WORK = 2 /* refused while the agent drains */ };

static const struct handler {
	uint16_t type;
	unsigned flags;
	request_fn *handle;
} handlers[] = {
	{ DMSG_REGION_ADD, FDS, request_region_add },
	{ DMSG_REGION_REMOVE, 0, request_region_remove },
	{ DMSG_REGION_EXPORT, 0, request_region_export },
	{ DMSG_REGION_REVOKE, 0, request_region_revoke },
	{ DMSG_REMOTE_IMPORT, NEW_WORK, request_remote_import },
	{ DMSG_REMOTE_RELEASE, 0, request_remote_release },
	{ DMSG_NOTIFY, NEW_WORK, request_notify },
	{ DMSG_RING_OPEN, NEW_WORK, request_ring_open },
	{ DMSG_HINT_GET, 0, request_hint_get },
	{ DMSG_HINT_PUT, 0, request_hint_put },
	{ DMSG_SEGMENT_GET, 0, request_segment_get },
	{ DMSG_ENV_GET, 0, request_env_get },
	{ DMSG_LEASE, 0, request_lease },
	{ DMSG_LEASE_ACQUIRE, NEW_WORK, request_lease_acquire },
	{ DMSG_LEASE_RENEW, 0, request_lease_renew },
	{ DMSG_LEASE_END, 0, request_lease_end },
	{ DMSG_MAILBOX_OPEN, NEW_WORK, request_mailbox_open },
	{ DMSG_MAILBOX_CLOSE, 0, request_mailbox_close },
	{ DMSG_POST, NEW_WORK, request_post },
};

static const struct handler *find_handler(unsigned type)
{
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(handlers); i++)
		if (handlers[i].type == type)
			return &handlers[i];
	return NULL;
}

/* The region that must be open for the request; 0: none. */
static dray_handle region_of(uint16_t type, const union dmsg_body *m)
{
	switch (type) {
	case DMSG_REGION_EXPORT:
		return m->region_export.region;
	case DMSG_REGION_REVOKE:
		return m->region_revoke.region;
	case DMSG_LEASE:
		return m->lease.region;
	default:
		return 0;
	}
}

static int hold(struct session *s, struct session_region *r, struct packet *p,
		struct dray_err *reterr)
{
	struct held_request *held;

	if (s->held_bytes + p->length > HELD_BYTES_MAX)
		return dray_err_set(
			reterr, -EAGAIN, DRAY_E_BUSY,
			"requests of %u bytes wait for regions that are being opened, the limit is %u; send it again when one has been answered",
			s->held_bytes, HELD_BYTES_MAX);
	held = malloc(sizeof(*held));
	if (!held)
		return -ENOMEM;
	held->session = s;
	held->packet = p;
	s->held_bytes += p->length;
	dray_list_add(&s->held, &held->link);
	dray_list_add(&r->held, &held->region_link);
	return 1;
}

/* Returns its packet. */
static struct packet *let_go(struct held_request *held)
{
	struct packet *p = held->packet;

	held->session->held_bytes -= p->length;
	dray_list_del(&held->link);
	dray_list_del(&held->region_link);
	free(held);
	return p;
}

/* 0: its handler has it; 1: the packet waits for its region; below 0: it is refused. */
static int dispatch(struct session *s, const struct dmsg_header *h, struct packet *p,
		    struct request *rq, struct dray_err *reterr)
{
	const struct handler *handler = find_handler(h->type);
	struct session_region *region;

	if (h->type == DMSG_HELLO)
		return dray_err_set(reterr, -EPROTO, DRAY_E_OUT_OF_ORDER,
				    "HELLO was sent twice; send it as the first message only");
	if (!handler)
		return dray_err_set(
			reterr, -EOPNOTSUPP, DRAY_E_UNKNOWN_TYPE,
			"message type 0x%04x is unknown; use one of the protocol's version",
			h->type);
	if (p->fds_lost)
		return dray_err_set(
			reterr, -EMFILE, DRAY_E_FD_LIMIT,
			"the kernel dropped descriptors of the message; raise the agent's NOFILE limit or pass fewer");
	if (rq->n_fds > DMSG_FDS_MAX)
		return dray_err_set(reterr, -EINVAL, DRAY_E_FD_LIMIT,
				    "the message has %u descriptors, the limit is %d", rq->n_fds,
				    DMSG_FDS_MAX);
	if (rq->n_fds && !(handler->flags & FDS))
		return dray_err_set(reterr, -EINVAL, DRAY_E_FD_COUNT, "%s takes no descriptors",
				    dmsg_type_name(h->type));
	if (dmsg_body_decode(h->type, p->data + DMSG_HEADER_SIZE, h->length, &rq->m, reterr) < 0)
		return -EPROTO;
	if (s->owner->draining && handler->flags & NEW_WORK)
		return dray_err_set(
			reterr, -ESHUTDOWN, DRAY_E_DRAINING,
			"the agent is draining and refuses %s; connect to another agent",
			dmsg_type_name(h->type));
	region = region_early(s->owner->deps.regions, region_of(h->type, &rq->m), s->group->handle);
	return region ? hold(s, region, p, reterr) : handler->handle(s, rq, reterr);
}

static void discard(struct session *s, struct packet *p)
{
	if (p->n_fds)
		owner_close_fds(s->uid_owner, p->fds, p->n_fds);
	packet_free(p);
}

/* Consumes the packet. */
static void handle(struct session *s, struct packet *p)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct request rq = { .fds = p->fds, .n_fds = p->n_fds };
	struct dmsg_header h;
	int r;

	r = dmsg_header_decode(p->data, p->length, &h, &err);
	rq.id = dmsg_header_id(p->data, p->length);
	if (r >= 0)
		r = dmsg_packet_check(&h, p->length, &err);
	if (r >= 0)
		r = dispatch(s, &h, p, &rq, &err);
	if (r < 0)
		session_fail(s, rq.id, r, &err);
	if (r <= 0)
		discard(s, p);
}

void sessions_handle_request(struct sessions *ss, dray_handle session, struct packet *packet)
{
	struct session *s = dray_handles_get(&ss->table, session);

	/* it stays until EVENT_SESSION_GONE, the last event of its worker */
	dray_assert(s);
	if (s->closing)
		discard(s, packet);
	else
		handle(s, packet);
}

void requests_go_on(struct dray_list *list)
{
	struct held_request *held;

	while ((held = dray_list_first(list, struct held_request, region_link))) {
		struct session *s = held->session;
		struct packet *p = let_go(held);

		if (s->closing)
			discard(s, p);
		else
			handle(s, p);
	}
}

void requests_forget(struct session *s)
{
	dray_list_for_each(&s->held, held, struct held_request, link)
		packet_free(let_go(held));
}
