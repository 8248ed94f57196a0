/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOWN -> HELLO -> RING -> RESTORE -> READY, and back to DOWN after each loss; CLOSED is final.
 * HELLO and RING share one timeout; RESTORE has one from reply to reply. RING is skipped if no ring
 * is wanted, and RESTORE if there are no regions and mailboxes.
 *
 * An agent refuses a HELLO with flags of a later minor version of the data protocol. A second HELLO
 * without them follows at once, on a new connection. The next session asks again.
 *
 * After a loss, requests that were sent end with the code of the loss. Requests to the store that the
 * agent has not taken from the ring wait for the next session. Transfers, other PUTs and GETs of the
 * store, REGION_REMOVE and REGION_REVOKE wait for proof that nothing accesses the memory any more
 * (see proof.h).
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "client/internal.h"
#include "lib/backoff.h"
#include "lib/cleanup.h"
#include "lib/memfd.h"

int dc_session_send(struct dray *d, size_t n, const int *fds, unsigned n_fds)
{
	int r = dray_seqpacket_send(d->sock, d->out, n, fds, n_fds);

	if (r == -EAGAIN) {
		d->writing = d->reading = true;
		dc_engine_watch(d);
	}
	/* the agent's last messages are still to be read; the end of the stream follows them */
	return r == -ECONNRESET || r == -ENOTCONN ? -EPIPE : r;
}

/* Sends the request that takes the session to `next`. */
static void advance(struct dray *d, enum session_state next, uint16_t type)
{
	if (!dc_request_internal(d, type, NO_REGION, NO_REMOTE, 0)) {
		dc_session_break(d, DRAY_E_NO_MEMORY, "no memory");
		return;
	}
	d->state = next;
	dc_requests_flush(d);
}

static int open_socket(struct dray *d)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.u32 = ENGINE_SOCKET };

	d->sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (d->sock < 0 ||
	    connect(d->sock, (const struct sockaddr *)&d->address, sizeof(d->address)) < 0 ||
	    epoll_ctl(d->epoll_fd, EPOLL_CTL_ADD, d->sock, &ev) < 0)
		return -errno;
	return 0;
}

static void start(struct dray *d)
{
	int error = open_socket(d);
	/* EAGAIN: the agent's backlog is full */
	bool absent = error == -ENOENT || error == -ECONNREFUSED || error == -EAGAIN ||
		      error == -ENOTDIR;

	d->reading = true;
	d->writing = false;
	d->requests.control_max = REQUESTS_CONTROL_MAX;
	d->state_until = dray_now().ns + d->connect_ns;
	d->state = SESSION_HELLO;
	if (error)
		dc_session_break(d, absent ? DRAY_E_PEER_UNREACHABLE : dc_code_of_errno(error),
				 "%s %s: %s%s", absent ? "no agent at" : "connecting to",
				 d->address.sun_path, dray_errno_text(error),
				 absent ? "; start drayd, or name its socket by DRAY_SOCKET" :
				 error == -EPROTOTYPE ?
					  "; this is not an agent's data socket (data.socket)" :
				 error == -EACCES ? "; the socket's owner and mode (data.group, "
						    "data.mode) decide who may connect" :
						    "");
	else
		advance(d, SESSION_HELLO, DMSG_HELLO);
}

static void restored(struct dray *d);

void dc_session_restore(struct dray *d)
{
	d->state = SESSION_RESTORE;
	d->state_until = dray_now().ns + d->request_ns;
	d->restoring = 0;
	dc_regions_restore(d);
	dc_mailboxes_restore(d);
	if (!d->restoring)
		restored(d);
}

void dc_session_object_restored(struct dray *d)
{
	d->restoring--;
	d->state_until = dray_now().ns + d->request_ns;
	if (!d->restoring)
		restored(d);
}

void dc_session_hello_reply(struct dray *d, const struct dmsg_hello_reply *m, struct dray_fds *fds)
{
	int pidfd = -1;

	if (m->major != DMSG_MAJOR) {
		dc_session_break(d, DRAY_E_VERSION,
				 "the agent chose protocol version %u, which was not offered",
				 m->major);
		return;
	}
	d->session = m->session;
	d->incarnation = m->incarnation;
	d->minor = m->minor;
	d->segments = (d->flags & DRAY_OPTION_SEGMENTS) && d->hello_minor >= SEGMENTS_MINOR;
	d->store_ring = m->features & DMSG_FEATURE_STORE_RING;
	d->store_at = m->features & DMSG_FEATURE_STORE_AT;
	d->region_early = m->features & DMSG_FEATURE_REGION_EARLY;
	d->ops_inline_max = dray_min(m->ops_inline_max, (uint32_t)DMSG_OPS_INLINE_MAX);
	memcpy(d->agent_id, m->agent_id, sizeof(d->agent_id));
	d->no_ring[0] = '\0';
	d->arena_alone = false;
	snprintf(d->segment, sizeof(d->segment), "%.*s", (int)m->segment.n, m->segment.p);
	snprintf(d->version, sizeof(d->version), "%.*s", (int)m->version.n, m->version.p);
	if (m->flags & DMSG_HELLO_REPLY_FLAG_PIDFD && fds->n == 1)
		pidfd = dray_take_fd(fds->fd[0]);
	if (dc_proof_agent(d, m, pidfd) < 0)
		dc_session_break(d, DRAY_E_NO_MEMORY, "no memory");
	else if (d->flags & DRAY_OPTION_NO_RING)
		dc_session_restore(d);
	else
		advance(d, SESSION_RING, DMSG_RING_OPEN);
}

/* Breaks the session on failure, as open_ring() does. */
static void map_arena(struct dray *d, int fd, uint64_t bytes)
{
	int error = 0;
	void *base;

	if (bytes > DMSG_ARENA_MAX || !dc_shared_memory_ok(fd, bytes)) {
		dc_session_defect(d, "the agent's arena is too large, or not a sealed memfd");
		return;
	}
	base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED) {
		error = -errno;
	} else {
		d->arena_base = base;
		d->arena_bytes = bytes;
		/* touched here first, so that the pages are charged to this process */
		error = dray_populate(base, bytes, true);
	}
	if (!error)
		error = dc_arena_init(&d->arena, bytes);
	if (error)
		dc_session_break(d, dc_code_of_errno(error), "mapping the arena: %s",
				 dray_errno_text(error));
}

static void open_ring(struct dray *d, const struct dmsg_ring_open_reply *m, int *fds)
{
	struct epoll_event ev = { .events = EPOLLIN | EPOLLET, .data.u32 = ENGINE_DOORBELL };
	int error = dc_ring_open(&d->ring, m, d->ring_entries, fds[1], fds[2], fds[3], &d->loss);

	fds[1] = fds[2] = fds[3] = -1;
	d->armed = false;
	/* the thread that sleeps has announced that to the last ring only */
	if (d->threads.poller)
		dc_engine_wake_poller(d);
	/* CPU limits may have changed since the last session */
	dc_engine_limit(d);
	if (!error && epoll_ctl(d->epoll_fd, EPOLL_CTL_ADD, d->ring.completion_fd, &ev) < 0)
		dc_session_break(d, DRAY_E_IO, "watching the ring: %s", dray_errno_text(errno));
}

static void note_no_ring(struct dray *d, struct dray_str why)
{
	snprintf(d->no_ring, sizeof(d->no_ring), "%.*s", (int)why.n, why.p);
}

/* The session works without a ring, and without an arena if that alone is refused as well. */
void dc_session_ring_refused(struct dray *d, struct dray_str why)
{
	if (d->arena_alone) {
		dc_session_restore(d);
		return;
	}
	note_no_ring(d, why);
	d->arena_alone = true;
	advance(d, SESSION_RING, DMSG_RING_OPEN);
}

void dc_session_ring_reply(struct dray *d, const struct dmsg_ring_open_reply *m,
			   struct dray_fds *fds)
{
	if (d->fds_lost) {
		/* the ring stays open in the agent */
		note_no_ring(d, dc_text("this process has no descriptors left for the ring"));
		dc_session_restore(d);
		return;
	}
	if (fds->n != (d->arena_alone ? 1 : 4) || (m->sq_entries != 0) == d->arena_alone) {
		dc_session_defect(d, "RING_OPEN was answered with %u descriptors", fds->n);
		return;
	}
	map_arena(d, fds->fd[0], m->arena_bytes);
	if (!d->loss.code && fds->n == 4)
		open_ring(d, m, fds->fd);
	if (!d->loss.code)
		dc_session_restore(d);
}

static void restored(struct dray *d)
{
	struct dray_event *e;

	d->state = SESSION_READY;
	d->threads.changed = true;
	d->state_until = INT64_MAX;
	d->retry_ns = d->retry_min_ns;
	if (d->ever_ready) {
		e = dc_event_add(d, DRAY_EVENT_RESTORED, 0, NO_TEXT);
		if (e)
			e->restarted = d->incarnation != d->lost_incarnation;
	} else if (d->in_background) {
		dc_event_add(d, DRAY_EVENT_CONNECTED, 0, NO_TEXT);
	}
	d->ever_ready = true;
}

static void unmap_arena(struct dray *d)
{
	if (d->arena_base)
		munmap(d->arena_base, d->arena_bytes);
	d->arena_base = NULL;
	d->arena_bytes = 0;
	dc_arena_deinit(&d->arena);
}

/*
 * Removes the descriptors from epoll before they are closed: epoll would go on watching the open
 * file if a forked child still holds it.
 */
static void close_sockets(struct dray *d)
{
	if (d->sock >= 0)
		epoll_ctl(d->epoll_fd, EPOLL_CTL_DEL, d->sock, NULL);
	if (d->ring.completion_fd >= 0)
		epoll_ctl(d->epoll_fd, EPOLL_CTL_DEL, d->ring.completion_fd, NULL);
	d->sock = dray_close(d->sock);
	dc_ring_close(&d->ring);
}

static bool asks_for_proof(const struct request *r)
{
	return r->type == DMSG_REGION_REMOVE || r->type == DMSG_REGION_REVOKE ||
	       r->type == DMSG_LEASE_END;
}

/* The end of the session carries the request out. */
static bool ends_with_session(const struct request *r)
{
	return r->type == DMSG_REMOTE_RELEASE || r->type == DMSG_MAILBOX_CLOSE ||
	       r->type == DMSG_STORE_RELEASE;
}

/* Requests that were sent end or are held; queued ones wait, apart from those of this session. */
static void end_requests(struct dray *d, int code)
{
	struct requests *q = &d->requests;

	dray_list_for_each(&q->sent, r, struct request, link) {
		if (asks_for_proof(r) || dc_proof_lends(r))
			dc_proof_hold(d, r);
		else
			dc_request_end(d, r, ends_with_session(r) ? 0 : code, dc_text(d->loss.msg));
	}
	dc_splits_lost(d, code);
	dray_list_for_each(&q->queued, r, struct request, link) {
		if (asks_for_proof(r))
			dc_proof_hold(d, r);
		else if (r->type == DMSG_STORE_RELEASE)
			dc_request_end(d, r, 0, NO_TEXT);
		else if (r->internal)
			dc_request_end(d, r, code, NO_TEXT);
	}
}

/* Plans the next attempt, with jitter so that the clients of one agent do not come all at once. */
static void retry_later(struct dray *d)
{
	int64_t now = dray_now().ns;
	int64_t patient_until = d->lost_at + d->patience_ns;

	d->retry_at = now + backoff_spread(d->retry_ns);
	/* the attempt that ends the requests which wait then */
	if (d->patience_ns && now < patient_until)
		d->retry_at = dray_min(d->retry_at, patient_until);
	d->retry_ns = dray_min(d->retry_ns * 2, d->retry_max_ns);
}

/* An attempt failed: requests that have no more patience end. */
static void end_impatient(struct dray *d, int code)
{
	if (!d->patience_ns || dray_now().ns - d->lost_at < d->patience_ns)
		return;
	dray_list_for_each(&d->requests.queued, r, struct request, link)
		if (!r->internal)
			dc_request_end(d, r, code, dc_text(d->loss.msg));
}

void dc_session_hurry(struct dray *d)
{
	if (d->state != SESSION_DOWN || !d->patience_ns)
		return;
	d->retry_at = dray_now().ns;
	dc_engine_wake_poller(d);
}

static bool may_retry(const struct dray *d)
{
	if (!d->ever_ready &&
	    (!(d->flags & DRAY_OPTION_WAIT) ||
	     (d->loss.code != DRAY_E_PEER_UNREACHABLE && d->loss.code != DRAY_E_DRAINING)))
		return false;
	if (d->ever_ready && (d->flags & DRAY_OPTION_NO_RECONNECT))
		return false;
	return !d->retry_for_ns || dray_now().ns - d->lost_at < d->retry_for_ns;
}

static void close_for_good(struct dray *d)
{
	d->state = SESSION_CLOSED;
	dc_proof_closed(d);
	dray_list_for_each(&d->requests.queued, r, struct request, link)
		dc_request_end(d, r, -DRAY_E_SESSION_CLOSED, NO_TEXT);
	if (d->ever_ready || d->in_background)
		dc_event_add(d, DRAY_EVENT_CLOSED, d->ever_ready ? d->lost_code : -d->loss.code,
			     dc_text(d->loss.msg));
}

bool dc_session_settle(struct dray *d)
{
	bool hello_again = d->hello_again;
	bool was_ready = d->state == SESSION_READY;
	int code = -d->loss.code;

	if (!code)
		return false;
	if (was_ready)
		dc_transfer_take_ring(d); /* transfers that ended before the loss */
	if (!hello_again) {
		d->last_loss = d->loss;
		__atomic_fetch_add(&d->losses, 1, __ATOMIC_RELAXED);
	}
	d->hello_again = false;
	if (!hello_again)
		d->hello_minor = DMSG_MINOR;
	if (d->closed_by_agent)
		dc_store_take_back(d);
	close_sockets(d);
	d->threads.changed = true;
	d->epoch++;
	d->restoring = 0;
	if (was_ready) {
		d->lost_code = code;
		d->lost_incarnation = d->incarnation;
		d->lost_at = dray_now().ns;
	}
	dc_leases_lost(d);
	dc_proof_lost(d, &d->loss, d->closed_by_agent);
	d->closed_by_agent = false;
	end_requests(d, code);
	unmap_arena(d);
	dc_remotes_lost(d, code);
	dc_regions_lost(d);
	dc_mailboxes_lost(d);
	dc_store_lost(d);
	if (was_ready)
		dc_event_add(d, DRAY_EVENT_LOST, code, dc_text(d->loss.msg));
	d->state = SESSION_DOWN;
	if (hello_again)
		d->retry_at = dray_now().ns;
	else if (may_retry(d))
		retry_later(d);
	else
		close_for_good(d);
	if (!was_ready && !hello_again)
		end_impatient(d, code);
	d->loss.code = 0;
	return true;
}

void dc_session_tick(struct dray *d, int64_t now)
{
	if (d->state == SESSION_DOWN) {
		if (now >= d->retry_at)
			start(d);
	} else if (d->state != SESSION_CLOSED && now >= d->state_until) {
		dc_session_break(d, DRAY_E_TIMEOUT, "the agent did not answer %s in time",
				 d->state == SESSION_HELLO ? "HELLO" :
				 d->state == SESSION_RING  ? "RING_OPEN" :
							     "REGION_ADD or MAILBOX_OPEN");
	}
}

int64_t dc_session_next_tick(const struct dray *d)
{
	if (d->state == SESSION_CLOSED)
		return INT64_MAX;
	return d->state == SESSION_DOWN ? d->retry_at : d->state_until;
}

bool dc_session_up_or_closed(struct dray *d, const void *arg)
{
	return dc_session_is_up(d) || d->state == SESSION_CLOSED;
}

void dc_session_free(struct dray *d)
{
	dray_close(d->sock);
	dc_ring_close(&d->ring);
	unmap_arena(d);
}
