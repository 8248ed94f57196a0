/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests other than transfers are encoded when they are sent: a request that waited for a new
 * session then carries the agent's handles in that session.
 */
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>

#include "client/internal.h"
#include "lib/cleanup.h"

/* What goes with the bytes in d->out. The functions below return their number, or the status of r. */
struct message {
	const char *why; /* for a status; NULL: the text of the code */
	const int *fds;
	unsigned fds_n;
	int own_fd; /* closed after it was sent */
};

static int encode(struct dray *d, const struct request *r, const union dmsg_body *m)
{
	int n = dmsg_body_encode(r->type, d->out, DMSG_MESSAGE_MAX, r->id, m);

	return n < 0 ? -DRAY_E_INVALID : n;
}

static int encode_hello(struct dray *d, const struct request *r, struct message *msg)
{
	union dmsg_body m = { .hello = {
				      .major_min = DMSG_MAJOR,
				      .major_max = DMSG_MAJOR,
				      .features = DMSG_FEATURE_ALL,
				      .group = dc_text(d->group),
				      .name = dc_text(d->name),
				      .device = dc_text(d->gpu),
			      } };

	if (d->flags & DRAY_OPTION_NOTIFICATIONS)
		m.hello.flags |= DMSG_HELLO_FLAG_NOTIFICATIONS;
	if ((d->flags & DRAY_OPTION_SEGMENTS) && d->hello_minor >= SEGMENTS_MINOR)
		m.hello.flags |= DMSG_HELLO_FLAG_SEGMENTS;
	if (d->hello_minor >= AGENT_PIDFD_MINOR)
		m.hello.flags |= DMSG_HELLO_FLAG_AGENT_PIDFD;
	/* the agent sees our death by it, even if a forked child keeps the socket open */
	msg->own_fd = (int)syscall(SYS_pidfd_open, getpid(), 0);
	if (msg->own_fd >= 0) {
		m.hello.flags |= DMSG_HELLO_FLAG_PIDFD;
		msg->fds = &msg->own_fd;
		msg->fds_n = 1;
	}
	return encode(d, r, &m);
}

static int encode_add(struct dray *d, const struct request *r, const struct region *g,
		      struct message *msg)
{
	union dmsg_body m = { .region_add = {
				      .access = g->access,
				      .flags = g->flags,
				      .name = { g->name, g->name_n },
				      .extents = { g->extents, g->extents_n },
				      .device = { g->device, g->device_n },
				      .handles = { g->handles, g->handles_n * DRAY_CUDA_IPC_BYTES },
				      .allocations = { g->allocations,
						       g->has_sizes ? g->fds_n : 0 },
			      } };

	if (g->needs_gpu && g->waits && d->region_early)
		m.region_add.flags |= DMSG_REGION_FLAG_WAIT;
	if (g->needs_gpu && d->minor < GPU_MINOR) {
		msg->why =
			"the agent is too old for GPU memory (data protocol before 1.2); upgrade it";
		return -DRAY_E_UNSUPPORTED;
	}
	msg->fds = g->fds;
	msg->fds_n = g->fds_n;
	return encode(d, r, &m);
}

static int too_old_for_leases(struct message *msg)
{
	msg->why = "the agent is too old for leases (data protocol before 1.4); upgrade it";
	return -DRAY_E_UNSUPPORTED;
}

static int encode_region(struct dray *d, const struct request *r, struct message *msg)
{
	const struct region *g = dc_region_find(d, r->region);
	union dmsg_body m;

	if (!g)
		return -DRAY_E_NOT_FOUND;
	if (r->type == DMSG_REGION_ADD)
		return encode_add(d, r, g, msg);
	/* a region that is not registered cannot be accessed */
	if (r->type == DMSG_REGION_REMOVE && (!g->agent || g->borrowed))
		return 0;
	if (!g->agent)
		return g->code ? g->code : -DRAY_E_NOT_FOUND;
	if (r->type == DMSG_LEASE)
		return d->minor < LEASE_MINOR ? too_old_for_leases(msg) : dc_lease_encode(d, r, g);
	if (r->type == DMSG_REGION_EXPORT && r->what.mooncake && d->minor < MOONCAKE_MINOR) {
		msg->why =
			"the agent is too old for exports to Mooncake's engines (data protocol before 1.4); upgrade it";
		return -DRAY_E_UNSUPPORTED;
	}
	if (r->type == DMSG_REGION_REMOVE) {
		m.region_remove = (struct dmsg_region_remove){ g->agent };
	} else if (r->type == DMSG_REGION_REVOKE) {
		m.region_revoke = (struct dmsg_region_revoke){ g->agent, r->number };
	} else {
		m.region_export = r->what;
		m.region_export.region = g->agent;
	}
	return encode(d, r, &m);
}

static int encode_remote(struct dray *d, const struct request *r, struct message *msg)
{
	const struct remote *remote = dc_remote_find(d, r->remote);
	union dmsg_body m;

	if (r->type == DMSG_REMOTE_RELEASE) {
		if (!remote || !remote->agent || remote->borrowed)
			return 0;
		m.remote_release = (struct dmsg_remote_release){ remote->agent };
	} else {
		if (!remote || !remote->agent)
			return remote && remote->lost ? remote->lost : -DRAY_E_NOT_FOUND;
		if (r->type == DMSG_LEASE_RENEW && d->minor < LEASE_MINOR)
			return too_old_for_leases(msg);
		if (r->type == DMSG_LEASE_RENEW)
			m.lease_renew = (struct dmsg_lease_renew){ .remote = remote->agent,
								   .expiry_ms = r->expiry_ms };
		else
			m.notify = (struct dmsg_notify){ remote->agent,
							 r->number,
							 { r->data, r->length } };
	}
	return encode(d, r, &m);
}

static int too_old_for_mailboxes(struct message *msg)
{
	msg->why = "the agent is too old for mailboxes (data protocol before 1.4); upgrade it";
	return -DRAY_E_UNSUPPORTED;
}

static int encode_mailbox(struct dray *d, const struct request *r, struct message *msg)
{
	const struct mailbox *box = dc_mailbox_find(d, r->number);
	union dmsg_body m;

	if (!box)
		return -DRAY_E_NOT_FOUND;
	if (r->type == DMSG_MAILBOX_CLOSE) {
		/* it ended with its session */
		if (!box->agent)
			return 0;
		m.mailbox_close = (struct dmsg_mailbox_close){ box->agent };
	} else {
		if (d->minor < MAILBOX_MINOR)
			return too_old_for_mailboxes(msg);
		m.mailbox_open = (struct dmsg_mailbox_open){ .capacity = box->capacity,
							     .name = { box->name, box->name_n } };
	}
	return encode(d, r, &m);
}

/* Messages without a handle of the session are encoded when the request is started. */
static int encoded(struct dray *d, const struct request *r, struct message *msg)
{
	if (r->type == DMSG_LEASE_ACQUIRE && d->minor < LEASE_MINOR)
		return too_old_for_leases(msg);
	if (r->type == DMSG_POST && d->minor < MAILBOX_MINOR)
		return too_old_for_mailboxes(msg);
	if (r->type != DMSG_REMOTE_IMPORT && d->minor < PLACEMENT_MINOR) {
		msg->why = "the agent is too old for hints, segments and environment (data "
			   "protocol 1.0); upgrade it";
		return -DRAY_E_UNSUPPORTED;
	}
	memcpy(d->out, r->data, r->length);
	return (int)r->length;
}

static int message_make(struct dray *d, const struct request *r, struct message *msg)
{
	union dmsg_body m;

	switch (r->type) {
	case DMSG_HELLO:
		return encode_hello(d, r, msg);
	case DMSG_RING_OPEN:
		m.ring_open = (struct dmsg_ring_open){ d->arena_alone ? 0 : d->ring_entries,
						       d->arena_wanted };
		return encode(d, r, &m);
	case DMSG_TRANSFER_CANCEL:
		m.transfer_cancel = (struct dmsg_transfer_cancel){ r->number };
		return encode(d, r, &m);
	case DMSG_REMOTE_RELEASE:
	case DMSG_NOTIFY:
	case DMSG_LEASE_RENEW:
		return encode_remote(d, r, msg);
	case DMSG_LEASE_END:
		return dc_lease_encode_end(d, r);
	case DMSG_MAILBOX_OPEN:
	case DMSG_MAILBOX_CLOSE:
		return encode_mailbox(d, r, msg);
	case DMSG_STORE_PUT:
	case DMSG_STORE_GET:
	case DMSG_STORE_EXISTS:
	case DMSG_STORE_REMOVE:
	case DMSG_STORE_PIN:
	case DMSG_STORE_UNPIN:
	case DMSG_STORE_READ:
	case DMSG_STORE_RELEASE:
		if (d->minor >= STORE_MINOR)
			return dc_store_encode(d, r, &msg->why);
		msg->why =
			"the agent is too old for a store (data protocol before 1.4); upgrade it";
		return -DRAY_E_UNSUPPORTED;
	case DMSG_LEASE_ACQUIRE:
	case DMSG_REMOTE_IMPORT:
	case DMSG_POST:
	case DMSG_HINT_GET:
	case DMSG_HINT_PUT:
	case DMSG_SEGMENT_GET:
	case DMSG_ENV_GET:
		return encoded(d, r, msg);
	default:
		return encode_region(d, r, msg);
	}
}

/* During the set-up of a session only its own requests are sent. */
static bool may_be_sent(const struct dray *d, const struct request *r)
{
	switch (d->state) {
	case SESSION_HELLO:
		return r->type == DMSG_HELLO;
	case SESSION_RING:
		return r->type == DMSG_RING_OPEN;
	case SESSION_RESTORE:
		return r->internal && (r->type == DMSG_REGION_ADD || r->type == DMSG_MAILBOX_OPEN);
	case SESSION_READY:
		return true;
	case SESSION_DOWN:
	case SESSION_CLOSED:
		return false;
	}
	return false;
}

/* False if the socket takes no more. */
static bool request_send(struct dray *d, struct request *r)
{
	struct message msg = { .own_fd = -1 };
	int n = message_make(d, r, &msg);
	bool in_ring = n > 0 && dc_store_submit(d, r, (size_t)n);
	int error = n > 0 && !in_ring ? dc_session_send(d, (size_t)n, msg.fds, msg.fds_n) : 0;

	dray_close(msg.own_fd);
	if (error == -EAGAIN || error == -EPIPE)
		return false;
	if (n <= 0)
		dc_request_end(d, r, n, msg.why ? dc_text(msg.why) : NO_TEXT);
	else if (error)
		dc_request_end(d, r, -dc_code_of_errno(error), NO_TEXT);
	else
		dc_request_sent(d, r);
	return true;
}

void dc_requests_flush(struct dray *d)
{
	if (dray_list_empty(&d->requests.queued) || d->loss.code || d->sock < 0)
		return;
	dray_list_for_each(&d->requests.queued, r, struct request, link) {
		if (d->requests.control_n >= d->requests.control_max)
			break;
		if (may_be_sent(d, r) && !request_send(d, r))
			break;
	}
	if (d->ring.base)
		dc_ring_submit(&d->ring);
}
