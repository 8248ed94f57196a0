/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests other than transfers into messages, at the moment they are sent: a request that waited
 * for a new session then carries the handles of that session.
 */
#include "client/internal.h"

#include <errno.h>
#include <string.h>
#include <sys/syscall.h>

#include "lib/cleanup.h"

/* Since which minor version agents know them. */
#define PLACEMENT_MINOR 1
#define GPU_MINOR 2

struct message {
	int n;      /* bytes in d->out, or negative: does not fit */
	int status; /* without a message: how the request ends, and why, or NULL */
	const char *text;
	const int *fds;
	unsigned fds_n;
	int own_fd; /* in place of fds; closed after sending */
};

static struct message message_of(int n)
{
	return (struct message){ .n = n, .own_fd = -1 };
}

static struct message ends_with(int status)
{
	return (struct message){ .n = 0, .status = status, .own_fd = -1 };
}

static struct message encode_hello(struct dray *d, struct request *r)
{
	struct message msg;
	/* lets the agent see our death even where a forked child keeps the socket open */
	int fd = (int)syscall(SYS_pidfd_open, getpid(), 0);
	struct dmsg_hello m;

	d->segments_asked = (d->flags & DRAY_OPTION_SEGMENTS) && !d->segments_refused;
	m = (struct dmsg_hello){
		.major_min = DMSG_MAJOR,
		.major_max = DMSG_MAJOR,
		.flags = (uint16_t)((fd >= 0 ? DMSG_HELLO_FLAG_PIDFD : 0) |
				    (d->flags & DRAY_OPTION_NOTIFICATIONS ?
					     DMSG_HELLO_FLAG_NOTIFICATIONS :
					     0) |
				    (d->segments_asked ? DMSG_HELLO_FLAG_SEGMENTS : 0)),
		.group = { d->group, (uint32_t)strlen(d->group) },
		.name = { d->name, (uint32_t)strlen(d->name) },
	};

	msg = message_of(dmsg_hello_encode(d->out, DMSG_MESSAGE_MAX, r->id, &m));
	msg.own_fd = fd;
	return msg;
}

static struct message encode_region(struct dray *d, struct request *r)
{
	struct region *g = dc_region_find(d, r->region);
	struct message msg;

	if (!g)
		return ends_with(-DRAY_E_NOT_FOUND);
	if (r->type == DMSG_REGION_ADD && g->needs_gpu && d->minor < GPU_MINOR) {
		msg = ends_with(-DRAY_E_UNSUPPORTED);
		msg.text = "the agent is too old for GPU memory (data protocol before 1.2); "
			   "upgrade it";
		return msg;
	}
	if (r->type == DMSG_REGION_ADD) {
		msg = message_of(dc_region_encode_add(d, g, r->id));
		msg.fds = g->fds;
		msg.fds_n = g->fds_n;
		return msg;
	}
	if (r->type == DMSG_REGION_REMOVE) {
		/* not registered: there is nothing that could touch it */
		if (!g->agent || g->borrowed)
			return ends_with(0);
		return message_of(dmsg_region_remove_encode(
			d->out, DMSG_MESSAGE_MAX, r->id, &(struct dmsg_region_remove){ g->agent }));
	}
	if (!g->agent)
		return ends_with(g->code ? g->code : -DRAY_E_NOT_FOUND);
	if (r->type == DMSG_REGION_REVOKE)
		return message_of(dmsg_region_revoke_encode(
			d->out, DMSG_MESSAGE_MAX, r->id,
			&(struct dmsg_region_revoke){ g->agent, r->number }));
	r->what.region = g->agent;
	return message_of(dmsg_region_export_encode(d->out, DMSG_MESSAGE_MAX, r->id, &r->what));
}

static struct message encode_remote(struct dray *d, struct request *r)
{
	struct remote *m = dc_remote_find(d, r->remote);

	if (r->type == DMSG_REMOTE_RELEASE) {
		if (!m || !m->agent || m->borrowed)
			return ends_with(0);
		return message_of(
			dmsg_remote_release_encode(d->out, DMSG_MESSAGE_MAX, r->id,
						   &(struct dmsg_remote_release){ m->agent }));
	}
	if (!m || !m->agent)
		return ends_with(m && m->lost ? m->lost : -DRAY_E_NOT_FOUND);
	return message_of(dmsg_notify_encode(
		d->out, DMSG_MESSAGE_MAX, r->id,
		&(struct dmsg_notify){ m->agent, r->number, { r->data, r->length } }));
}

static struct message encode_placement(struct dray *d, struct request *r)
{
	struct message msg;

	if (d->minor < PLACEMENT_MINOR) {
		msg = ends_with(-DRAY_E_UNSUPPORTED);
		msg.text = "the agent is too old for hints, segments and environment (data "
			   "protocol 1.0); upgrade it";
		return msg;
	}
	return message_of(dc_placement_encode(d, r));
}

static struct message encode(struct dray *d, struct request *r)
{
	switch (r->type) {
	case DMSG_HELLO:
		return encode_hello(d, r);
	case DMSG_RING_OPEN:
		return message_of(dmsg_ring_open_encode(
			d->out, DMSG_MESSAGE_MAX, r->id,
			&(struct dmsg_ring_open){ d->ring_entries, d->arena_wanted }));
	case DMSG_REMOTE_IMPORT:
		return message_of(dmsg_remote_import_encode(
			d->out, DMSG_MESSAGE_MAX, r->id,
			&(struct dmsg_remote_import){ { r->data, r->length }, r->timeout_ms }));
	case DMSG_TRANSFER_CANCEL:
		return message_of(
			dmsg_transfer_cancel_encode(d->out, DMSG_MESSAGE_MAX, r->id,
						    &(struct dmsg_transfer_cancel){ r->number }));
	case DMSG_REMOTE_RELEASE:
	case DMSG_NOTIFY:
		return encode_remote(d, r);
	case DMSG_HINT_GET:
	case DMSG_HINT_PUT:
	case DMSG_SEGMENT_GET:
	case DMSG_ENV_GET:
		return encode_placement(d, r);
	default:
		return encode_region(d, r);
	}
}

/* While a session is being set up, only what belongs to that. */
static bool is_due(const struct dray *d, const struct request *r)
{
	switch (d->state) {
	case SESSION_HELLO:
		return r->type == DMSG_HELLO;
	case SESSION_RING:
		return r->type == DMSG_RING_OPEN;
	case SESSION_RESTORE:
		return r->internal && r->type == DMSG_REGION_ADD;
	case SESSION_READY:
		return true;
	case SESSION_DOWN:
	case SESSION_CLOSED:
		return false;
	}
	return false;
}

/* False when no more can be sent now. */
static bool request_send(struct dray *d, struct request *r)
{
	struct message msg = encode(d, r);
	int error;

	if (msg.n <= 0) {
		dray_close(msg.own_fd);
		dc_request_end(d, r, msg.n < 0 ? -DRAY_E_INVALID : msg.status, msg.text,
			       msg.text ? strlen(msg.text) : 0);
		return true;
	}
	if (msg.own_fd >= 0)
		error = dc_session_send(d, (size_t)msg.n, &msg.own_fd, 1);
	else
		error = dc_session_send(d, (size_t)msg.n, msg.fds, msg.fds_n);
	dray_close(msg.own_fd);
	if (error == -EAGAIN || error == -EPIPE)
		return false;
	if (error)
		dc_request_end(d, r, -dc_code_of_errno(error), NULL, 0);
	else
		dc_request_sent(d, r);
	return true;
}

void dc_requests_flush(struct dray *d)
{
	if (dray_list_empty(&d->requests.queued) || d->broken || d->sock < 0)
		return;
	dray_list_for_each(&d->requests.queued, r, struct request, link) {
		if (d->requests.control_n >= d->requests.control_max)
			return;
		if (is_due(d, r) && !request_send(d, r))
			return;
	}
}
