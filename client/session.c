/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOWN -> HELLO -> RING -> RESTORE -> READY, and back to DOWN on every loss; CLOSED is the end.
 * HELLO and RING have one time limit together, and RESTORE one from answer to answer. Where no ring
 * is wanted RING is passed over, and RESTORE where there is no region.
 *
 * An agent of data protocol 1.0 refuses a HELLO that asks for changes of segments: it gets another
 * one without, at once, on a connection of its own. The next session asks again.
 *
 * A loss takes the agent's word for nothing: what was sent ends with the code of the loss. Two
 * things need more, REGION_REMOVE and REGION_REVOKE, whose success is a proof that nobody touches
 * the memory any more. Those are held until the next HELLO. An agent that went without a word and
 * is another incarnation now has died, and so has one that shows its old id (it held the state
 * directory) with another incarnation; and with it every mapping, stream and queue pair it had:
 * proof enough. In all other cases the old session may still be winding down: then they end with
 * the code of the loss.
 */
#include "client/internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "client/shared_memory.h"
#include "lib/backoff.h"
#include "lib/cleanup.h"
#include "lib/memfd.h"
#include "lib/seqpacket.h"

int dc_session_send(struct dray *d, size_t n, const int *fds, unsigned n_fds)
{
	int r = dray_seqpacket_send(d->sock, d->out, n, fds, n_fds);

	if (r == -EAGAIN) {
		d->writing = true;
		dc_engine_watch(d);
	}
	/*
	 * what the agent said before it closed is still to be read; the engine finds the end then
	 */
	return r == -ECONNRESET || r == -ENOTCONN ? -EPIPE : r;
}

void dc_session_break(struct dray *d, int code, const char *text, size_t n)
{
	if (d->broken)
		return;
	d->broken = true;
	d->break_code = -code;
	snprintf(d->break_text, sizeof(d->break_text), "%.*s", (int)n, text);
}

static void break_errno(struct dray *d, int code, const char *what, int error)
{
	char text[DRAY_ERR_MSG_MAX];
	int n = snprintf(text, sizeof(text), "%s %s: %s", what, d->address.sun_path,
			 dray_errno_text(error));

	dc_session_break(d, code, text, (size_t)dray_min(n, (int)sizeof(text) - 1));
}

/* Sends the request that takes the session to `next`. */
static void step(struct dray *d, enum session_state next, uint16_t type)
{
	struct request *r = dc_request_new(d, type, NULL);

	if (!r) {
		dc_session_break(d, DRAY_E_NO_MEMORY, "no memory", 9);
		return;
	}
	r->internal = true;
	d->state = next;
	dc_request_queue(d, r);
	dc_requests_flush(d);
}

static int open_socket(struct dray *d)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.u32 = ENGINE_SOCKET };

	d->sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (d->sock < 0)
		return -errno;
	if (connect(d->sock, (const struct sockaddr *)&d->address, sizeof(d->address)) < 0)
		return -errno;
	if (epoll_ctl(d->epoll_fd, EPOLL_CTL_ADD, d->sock, &ev) < 0)
		return -errno;
	return 0;
}

void dc_session_start(struct dray *d)
{
	int error = open_socket(d);

	d->reading = true;
	d->writing = false;
	d->requests.control_max = REQUESTS_CONTROL_MAX;
	d->state_until = dray_now().ns + d->connect_ns;
	d->state = SESSION_HELLO;
	if (!error) {
		step(d, SESSION_HELLO, DMSG_HELLO);
		return;
	}
	/* EAGAIN: the agent's backlog is full */
	if (error == -ENOENT || error == -ECONNREFUSED || error == -EAGAIN || error == -ENOTDIR)
		break_errno(d, DRAY_E_PEER_UNREACHABLE, "no agent at", error);
	else
		break_errno(d, dc_code_of_errno(error), "connecting to", error);
}

static void restore(struct dray *d)
{
	d->state = SESSION_RESTORE;
	d->state_until = dray_now().ns + d->request_ns;
	dc_regions_restore(d);
	if (!d->restoring)
		dc_session_restored(d);
}

/* See the top of the file. */
static void decide_held(struct dray *d, bool agent_died)
{
	dray_list_for_each(&d->requests.held, r, struct request, link)
		dc_request_end(d, r, agent_died ? 0 : d->lost_code, NULL, 0);
}

static bool has_died(const struct dray *d)
{
	bool same = memcmp(d->agent_id, d->lost_agent_id, sizeof(d->agent_id)) == 0;

	return d->incarnation != d->lost_incarnation &&
	       (same || d->lost_code == -DRAY_E_AGENT_RESTARTED);
}

void dc_session_hello_reply(struct dray *d, const struct dmsg_hello_reply *m)
{
	if (m->major != DMSG_MAJOR) {
		dc_session_break(d, DRAY_E_VERSION, "the agent agreed to a version not asked for",
				 43);
		return;
	}
	d->session = m->session;
	d->incarnation = m->incarnation;
	d->minor = m->minor;
	d->segments = d->segments_asked;
	d->ops_inline_max = dray_min(m->ops_inline_max, (uint32_t)DMSG_OPS_INLINE_MAX);
	memcpy(d->agent_id, m->agent_id, sizeof(d->agent_id));
	snprintf(d->segment, sizeof(d->segment), "%.*s", (int)m->segment.n, m->segment.p);
	snprintf(d->version, sizeof(d->version), "%.*s", (int)m->version.n, m->version.p);
	if (d->ever_ready)
		decide_held(d, has_died(d));
	if (d->flags & DRAY_OPTION_NO_RING)
		restore(d);
	else
		step(d, SESSION_RING, DMSG_RING_OPEN);
}

static int map_arena(struct dray *d, int fd, uint64_t bytes)
{
	void *base;
	int error;

	if (bytes > DMSG_ARENA_MAX || !dc_shared_memory_ok(fd, bytes))
		return -EPROTO;
	base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED)
		return -errno;
	d->arena_base = base;
	d->arena_bytes = bytes;
	/* ours to touch first: the pages are charged to whoever does */
	error = dray_populate(base, bytes);
	return error ? error : dc_arena_init(&d->arena, bytes);
}

void dc_session_ring_reply(struct dray *d, const struct dmsg_ring_open_reply *m, int *fds,
			   unsigned n)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct epoll_event ev = { .events = EPOLLIN | EPOLLET, .data.u32 = ENGINE_DOORBELL };
	int error;

	if (d->fds_lost) {
		/* the agent has its side open; we work without */
		restore(d);
		return;
	}
	if (n != (d->ring_entries ? 4 : 1) || (m->sq_entries != 0) != (d->ring_entries != 0)) {
		dc_session_break(d, DRAY_E_PROTOCOL,
				 "RING_OPEN was answered with other descriptors", 45);
		return;
	}
	error = map_arena(d, fds[0], m->arena_bytes);
	if (error) {
		dray_err_set(&err, error,
			     error == -EPROTO ? DRAY_E_PROTOCOL : dc_code_of_errno(error),
			     "mapping the arena: %s", dray_errno_text(error));
	} else if (n == 4) {
		error = dc_ring_open(&d->ring, m, d->ring_entries, fds[1], fds[2], fds[3], &err);
		fds[1] = fds[2] = fds[3] = -1;
		d->armed = false;
		/* limits may have changed since the last session */
		dc_engine_limit(d);
		if (!error && epoll_ctl(d->epoll_fd, EPOLL_CTL_ADD, d->ring.completion_fd, &ev) < 0)
			error = dray_err_set(&err, -errno, DRAY_E_IO, "watching the ring: %s",
					     dray_errno_text(errno));
	}
	if (error)
		dc_session_break(d, err.code, err.msg, strlen(err.msg));
	else
		restore(d);
}

/* The session works without. */
void dc_session_ring_refused(struct dray *d)
{
	restore(d);
}

void dc_session_restored(struct dray *d)
{
	struct dray_event *e;

	d->state = SESSION_READY;
	d->state_until = INT64_MAX;
	d->retry_ns = d->retry_min_ns;
	if (d->ever_ready) {
		e = dc_event_add(d, DRAY_EVENT_RESTORED, NULL, 0, NULL, 0);
		if (e)
			e->restarted = d->incarnation != d->lost_incarnation;
	}
	d->ever_ready = true;
}

static void forget_arena(struct dray *d)
{
	if (d->arena_base)
		munmap(d->arena_base, d->arena_bytes);
	d->arena_base = NULL;
	d->arena_bytes = 0;
	dc_arena_deinit(&d->arena);
}

/*
 * Taken out of epoll before they are closed: a forked child may hold them open, and epoll watches
 * what is behind a descriptor, not the descriptor.
 */
static void forget_sockets(struct dray *d)
{
	if (d->sock >= 0)
		epoll_ctl(d->epoll_fd, EPOLL_CTL_DEL, d->sock, NULL);
	if (d->ring.completion_fd >= 0)
		epoll_ctl(d->epoll_fd, EPOLL_CTL_DEL, d->ring.completion_fd, NULL);
	d->sock = dray_close(d->sock);
	dc_ring_close(&d->ring);
}

/*
 * Both lists may hold REMOVEs and REVOKEs: the one that was sent, and the one that came too late to
 * be.
 */
static void end_requests(struct dray *d, int code)
{
	struct requests *q = &d->requests;

	dray_list_for_each(&q->sent, r, struct request, link) {
		if (r->type == DMSG_REGION_REMOVE || r->type == DMSG_REGION_REVOKE)
			dc_request_hold(d, r);
		else
			dc_request_end(d, r, r->type == DMSG_REMOTE_RELEASE ? 0 : code,
				       d->break_text, strlen(d->break_text));
	}
	dray_list_for_each(&q->queued, r, struct request, link) {
		if (r->type == DMSG_REGION_REMOVE || r->type == DMSG_REGION_REVOKE)
			dc_request_hold(d, r);
		else if (r->internal)
			dc_request_end(d, r, code, NULL, 0);
	}
}

/* The next attempt, with jitter so that the clients of one agent do not come all at once. */
static void retry_later(struct dray *d)
{
	d->state = SESSION_DOWN;
	d->retry_at = dray_now().ns + backoff_spread(d->retry_ns);
	d->retry_ns = dray_min(d->retry_ns * 2, d->retry_max_ns);
}

static void retry_now(struct dray *d)
{
	d->state = SESSION_DOWN;
	d->retry_at = dray_now().ns;
}

static bool may_retry(const struct dray *d)
{
	if (!d->ever_ready)
		return (d->flags & DRAY_OPTION_WAIT) &&
		       (d->break_code == -DRAY_E_PEER_UNREACHABLE ||
			d->break_code == -DRAY_E_DRAINING);
	if (d->flags & DRAY_OPTION_NO_RECONNECT)
		return false;
	return !d->retry_for_ns || dray_now().ns - d->lost_at < d->retry_for_ns;
}

static void close_for_good(struct dray *d)
{
	int code = d->ever_ready ? d->lost_code : d->break_code;
	struct dray_event *e;

	d->state = SESSION_CLOSED;
	decide_held(d, false);
	dray_list_for_each(&d->requests.queued, r, struct request, link)
		dc_request_end(d, r, -DRAY_E_SESSION_CLOSED, NULL, 0);
	if (!d->ever_ready)
		return;
	e = dc_event_add(d, DRAY_EVENT_CLOSED, NULL, 0, d->break_text, strlen(d->break_text));
	if (e)
		e->code = code;
}

bool dc_session_settle(struct dray *d)
{
	bool ask_again = d->segments_asked && d->segments_refused;
	bool was_ready = d->state == SESSION_READY;
	struct dray_event *e;

	if (!d->broken)
		return false;
	if (was_ready)
		dc_transfer_take_ring(d); /* what had ended before */
	if (!ask_again) {
		d->error.code = -d->break_code;
		memcpy(d->error.msg, d->break_text, sizeof(d->error.msg));
	}
	d->segments_refused = ask_again;
	d->segments_asked = false;
	forget_sockets(d);
	d->epoch++;
	d->restoring = 0;
	if (was_ready) {
		d->lost_code = d->break_code;
		d->lost_incarnation = d->incarnation;
		memcpy(d->lost_agent_id, d->agent_id, sizeof(d->agent_id));
		d->lost_at = dray_now().ns;
	}
	end_requests(d, d->break_code);
	forget_arena(d);
	dc_remotes_lost(d, d->break_code);
	dc_regions_lost(d);
	if (was_ready) {
		e = dc_event_add(d, DRAY_EVENT_LOST, NULL, 0, d->break_text, strlen(d->break_text));
		if (e)
			e->code = d->break_code;
	}
	if (ask_again)
		retry_now(d);
	else if (may_retry(d))
		retry_later(d);
	else
		close_for_good(d);
	d->broken = false;
	return true;
}

void dc_session_tick(struct dray *d, int64_t now)
{
	if (d->state == SESSION_DOWN) {
		if (now >= d->retry_at)
			dc_session_start(d);
	} else if (d->state != SESSION_CLOSED && now >= d->state_until) {
		dc_session_break(d, DRAY_E_TIMEOUT, "the agent does not answer HELLO in time", 39);
	}
}

int64_t dc_session_next_tick(const struct dray *d)
{
	if (d->state == SESSION_CLOSED)
		return INT64_MAX;
	return d->state == SESSION_DOWN ? d->retry_at : d->state_until;
}

void dc_session_free(struct dray *d)
{
	dray_close(d->sock);
	dc_ring_close(&d->ring);
	forget_arena(d);
}
