/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A data connection. Its requests are carried out one after the other: the socket is read up to the end of the current one, and the
 * head of the next one at most, so that a peer that does not read its answers is not served. Whatever is wrong with a request closes
 * the connection, and only that.
 */
#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "agent/data/transfer/object.h"
#include "agent/data/transfer/xfer.h"
#include "agent/data/transport/mooncake/mooncake.h"
#include "agent/model/mooncake_message.h"
#include "lib/cleanup.h"

/* A peer whose machine is gone is found by probes, in a minute and a half. */
#define KEEPALIVE_IDLE_S 60
#define KEEPALIVE_INTERVAL_S 10
#define KEEPALIVE_PROBES 3
/* Of mooncake.stall_timeout, so that a connection that is not closed ends by the agent's own clock, which is counted. */
#define USER_TIMEOUTS 2

static void ready(struct loop_source *source, uint32_t events)
{
	struct mooncake_conn *c = dray_container_of(source, struct mooncake_conn, source);

	c->readable |= loop_can_read(events);
	c->writable |= loop_can_write(events);
	c->hup |= loop_hung_up(events);
	if (dray_list_empty(&c->ready_link))
		dray_list_add(&c->m->ready, &c->ready_link);
}

/* Failures are ignored: without these options a connection is slower, or lasts until it is idle for too long. */
static void socket_setup(int fd)
{
	const struct {
		int level, option, value;
	} options[] = {
		{ IPPROTO_TCP, TCP_NODELAY, 1 },
		{ SOL_SOCKET, SO_KEEPALIVE, 1 },
		{ IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S },
		{ IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S },
		{ IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_PROBES },
	};

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(options); i++)
		setsockopt(fd, options[i].level, options[i].option, &options[i].value,
			   sizeof(options[i].value));
}

/* Also of what is unsent when the connection is closed, which would stay for a peer that does not read. */
void mooncake_conn_configure(struct mooncake_conn *c)
{
	int64_t ms = USER_TIMEOUTS * c->m->c->cfg.mooncake_stall_ns / DRAY_NS_PER_MS;
	int value = (int)dray_min(ms, (int64_t)INT_MAX);

	setsockopt(c->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &value, sizeof(value));
}

static void tell_closed(struct mooncake *m, uint64_t id)
{
	m->c->up->event(m->c, &(struct event){ .type = EVENT_TRANSPORT,
					       .message = { .transport = TRANSPORT_MOONCAKE,
							    .type = MOONCAKE_CLOSED,
							    .id = id } });
}

void mooncake_conn_adopt(struct mooncake *m, uint64_t id, int fd)
{
	struct mooncake_conn *c = calloc(1, sizeof(*c));

	if (!c ||
	    loop_add(&m->c->loop, &c->source, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP, ready) < 0) {
		free(c);
		dray_close(fd);
		tell_closed(m, id);
		return;
	}
	socket_setup(fd);
	c->m = m;
	c->id = id;
	c->fd = fd;
	mooncake_conn_configure(c);
	c->since_ns = m->c->now_ns;
	dray_list_init(&c->ready_link);
	dray_list_init(&c->busy_link);
	dray_list_add(&m->conns, &c->link);
	mooncake_marks_adopt(c);
	mooncake_timer(m, c->since_ns + m->c->cfg.mooncake_idle_ns);
}

bool mooncake_conn_is_busy(const struct mooncake_conn *c)
{
	return c->head_n || c->state != MOONCAKE_HEAD || c->status_n;
}

static void count(const struct mooncake_conn *c, enum dray_metric metric, uint64_t n)
{
	core_count(c->m->c->counters, metric, n);
}

static void release(struct mooncake_conn *c)
{
	dray_list_del(&c->busy_link);
	granted_release(c->m->c, &c->held);
}

void mooncake_conn_close(struct mooncake_conn *c, bool reset)
{
	struct linger hard = { .l_onoff = 1 };

	if (c->fd < 0)
		return;
	if (c->head_n || c->state != MOONCAKE_HEAD)
		count(c, DRAY_METRIC_MOONCAKE_REQUESTS_BROKEN_TOTAL, 1);
	loop_del(&c->m->c->loop, &c->source);
	if (reset)
		setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
	c->fd = dray_close(c->fd);
	dray_list_del(&c->ready_link);
	dray_list_del(&c->marked_link);
	dray_list_move(&c->m->closed, &c->link);
	release(c);
	tell_closed(c->m, c->id);
}

/* The request is not one that may be carried out. Closes the connection, at once or after the status. */
static void refuse(struct mooncake_conn *c, bool with_status)
{
	count(c, DRAY_METRIC_MOONCAKE_REQUESTS_REFUSED_TOTAL, 1);
	c->head_n = 0;
	if (!with_status) {
		mooncake_conn_close(c, false);
		return;
	}
	mooncake_status_put(c->status, MOONCAKE_STATUS_REFUSED);
	c->status_n = MOONCAKE_STATUS_BYTES;
	c->closing = true;
}

/* The buffer of the request, and whether its owner allows it. An error code, REVOKED if there is none, or 0. */
static uint32_t look_up(struct mooncake_conn *c, struct granted *ret)
{
	const struct mooncake_request *rq = &c->request;
	const struct mooncake_export *x;
	uint32_t code;

	if (!rq->length)
		return DRAY_E_RANGE;
	x = mooncake_exports_find(&c->m->exports, rq->address, rq->length);
	if (!x)
		return DRAY_E_REVOKED;
	c->seg = (struct pmsg_seg){ rq->address - x->address, rq->length };
	code = grant_check(c->m->c, MOONCAKE_PEER, x->grant,
			   rq->write ? DMSG_ACCESS_WRITE : DMSG_ACCESS_READ, &c->seg, 1, ret);
	/* the control thread exports host memory alone */
	if (!code && object_region(ret->region)->memory != REGION_HOST)
		code = DRAY_E_UNSUPPORTED;
	return code;
}

/* All bytes of the head are there. */
static void take_request(struct mooncake_conn *c)
{
	struct granted granted = { 0 };
	uint32_t code;

	if (mooncake_request_get(c->head, &c->request) < 0) {
		refuse(c, false);
		return;
	}
	code = look_up(c, &granted);
	if (code == DRAY_E_REVOKED && grant_may_come(c->m->c, &c->waits)) {
		c->parked = true;
		dray_list_move(&c->m->parked, &c->ready_link);
		return;
	}
	c->waits = 0;
	mooncake_mark_request(c);
	if (code) {
		refuse(c, c->request.with_status);
		return;
	}
	c->head_n = 0;
	c->held = granted;
	granted_hold(&granted);
	dray_list_add(&c->m->busy, &c->busy_link);
	grant_walk_init(&c->at, &c->seg, 1);
	c->left = c->request.length;
	c->since_ns = c->m->c->now_ns;
	c->state = c->request.write ? MOONCAKE_RECEIVE : MOONCAKE_SEND;
	if (!c->request.write && c->request.with_status) {
		mooncake_status_put(c->status, MOONCAKE_STATUS_OK);
		c->status_n = MOONCAKE_STATUS_BYTES;
	}
}

/* n more bytes of the payload are moved. */
static void moved(struct mooncake_conn *c, uint64_t n)
{
	c->left -= n;
	grant_walk_advance(&c->at, n);
	count(c,
	      c->request.write ? DRAY_METRIC_MOONCAKE_RECEIVED_BYTES_TOTAL :
				 DRAY_METRIC_MOONCAKE_SENT_BYTES_TOTAL,
	      n);
	if (c->left)
		return;
	release(c);
	c->state = MOONCAKE_HEAD;
	mooncake_timer(c->m, c->since_ns + c->m->c->cfg.mooncake_idle_ns);
	count(c, DRAY_METRIC_MOONCAKE_REQUESTS_TOTAL, 1);
	if (c->request.write && c->request.with_status) {
		mooncake_status_put(c->status, MOONCAKE_STATUS_OK);
		c->status_n = MOONCAKE_STATUS_BYTES;
	}
}

/* The places of the next bytes of the payload, behind the first k ranges, as many as the budget allows. Returns the number of all. */
static unsigned places(struct mooncake_conn *c, struct iovec *iov, unsigned k, int64_t budget)
{
	uint64_t room = (uint64_t)dray_max(budget, (int64_t)MOONCAKE_CALL_COST), bytes;
	unsigned n = grant_walk_ranges(&c->at, &c->held, iov + k, MOONCAKE_IOV, &bytes);

	for (unsigned i = 0; i < n; i++) {
		iov[k + i].iov_len = dray_min((uint64_t)iov[k + i].iov_len, room);
		room -= iov[k + i].iov_len;
		if (!room)
			return k + i + 1;
	}
	return k + n;
}

/* A system call has failed, or the peer has closed. Returns true if it is worth another try. */
static bool failed(struct mooncake_conn *c, ssize_t n, int error, bool *readiness)
{
	if (n < 0 && error == EINTR)
		return true;
	if (n < 0 && error == EAGAIN) {
		*readiness = false;
		return false;
	}
	if (n < 0 && error == EFAULT && c->held.region)
		xfer_memory_fault(c->m->c, c->held.region->view->session);
	mooncake_conn_close(c, n < 0);
	return false;
}

/* One system call. False: the connection is closed, or the socket is not ready. */
static bool send_some(struct mooncake_conn *c, int64_t *budget)
{
	struct iovec *iov = c->m->iov;
	struct msghdr msg = { .msg_iov = iov };
	uint64_t status;
	ssize_t n;

	if (c->status_n)
		iov[msg.msg_iovlen++] =
			(struct iovec){ c->status + MOONCAKE_STATUS_BYTES - c->status_n,
					c->status_n };
	if (c->state == MOONCAKE_SEND)
		msg.msg_iovlen = places(c, iov, (unsigned)msg.msg_iovlen, *budget);
	n = sendmsg(c->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
	*budget -= MOONCAKE_CALL_COST;
	if (n <= 0)
		return failed(c, n, errno, &c->writable);
	*budget -= n;
	c->since_ns = c->m->c->now_ns;
	status = dray_min((uint64_t)n, (uint64_t)c->status_n);
	c->status_n -= (uint8_t)status;
	if ((uint64_t)n > status)
		moved(c, (uint64_t)n - status);
	if (c->closing && !c->status_n)
		mooncake_conn_close(c, false);
	return c->fd >= 0;
}

static void head_received(struct mooncake_conn *c, uint64_t n)
{
	if (n && !c->head_n) {
		/* from its first byte on, the head has as much time as a stall */
		c->since_ns = c->m->c->now_ns;
		mooncake_timer(c->m, c->since_ns + c->m->c->cfg.mooncake_stall_ns);
	}
	c->head_n += (uint8_t)n;
}

static bool receive_head(struct mooncake_conn *c, int64_t *budget)
{
	ssize_t n =
		recv(c->fd, c->head + c->head_n, MOONCAKE_REQUEST_BYTES - c->head_n, MSG_DONTWAIT);

	*budget -= MOONCAKE_CALL_COST;
	if (n <= 0)
		return failed(c, n, errno, &c->readable);
	head_received(c, (uint64_t)n);
	return true;
}

static uint64_t asked_of(const struct msghdr *msg)
{
	uint64_t n = 0;

	for (size_t i = 0; i < msg->msg_iovlen; i++)
		n += msg->msg_iov[i].iov_len;
	return n;
}

static bool receive_payload(struct mooncake_conn *c, int64_t *budget)
{
	struct iovec *iov = c->m->iov;
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = places(c, iov, 0, *budget) };
	uint64_t room = asked_of(&msg), asked = room;
	bool more = true;
	ssize_t n;

	/* with the next head, although it seldom follows at once: getting less than was asked for shows that nothing is left */
	if (asked == c->left) {
		iov[msg.msg_iovlen++] = (struct iovec){ c->head, MOONCAKE_REQUEST_BYTES };
		asked += MOONCAKE_REQUEST_BYTES;
	}
	n = recvmsg(c->fd, &msg, MSG_DONTWAIT);
	*budget -= MOONCAKE_CALL_COST;
	if (n <= 0) {
		more = failed(c, n, errno, &c->readable);
	} else {
		uint64_t payload = dray_min((uint64_t)n, c->left);

		*budget -= n;
		c->since_ns = c->m->c->now_ns;
		c->m->c->moved_ns = c->m->c->now_ns;
		/*
		 * Unless the end of the stream is there as well, or it ended inside the payload, perhaps at a missing page, which
		 * only the next call reports.
		 */
		c->readable = c->hup || (uint64_t)n == asked || (uint64_t)n < room;
		moved(c, payload);
		head_received(c, (uint64_t)n - payload);
	}
	if (c->fd >= 0 && !c->left)
		mooncake_mark_head(c);
	else if (c->fd >= 0 && !c->readable)
		mooncake_mark_payload(c);
	return more;
}

static bool is_sending(const struct mooncake_conn *c)
{
	return c->status_n || c->state == MOONCAKE_SEND;
}

bool mooncake_conn_wants(const struct mooncake_conn *c)
{
	if (is_sending(c))
		return c->writable;
	return c->readable || c->head_n == MOONCAKE_REQUEST_BYTES;
}

void mooncake_conn_step(struct mooncake_conn *c, int64_t *budget)
{
	bool more = true;

	while (more && *budget > 0 && c->fd >= 0 && !c->parked && mooncake_conn_wants(c)) {
		if (is_sending(c))
			more = send_some(c, budget);
		else if (c->head_n == MOONCAKE_REQUEST_BYTES)
			take_request(c);
		else if (c->state == MOONCAKE_HEAD)
			more = receive_head(c, budget);
		else
			more = receive_payload(c, budget);
	}
}

bool mooncake_conn_look(struct mooncake_conn *c)
{
	int64_t budget = MOONCAKE_STEP_BYTES, since_ns = c->since_ns;

	if (c->wake == 1)
		return false;
	c->readable = true;
	mooncake_conn_step(c, &budget);
	if (c->fd >= 0 && mooncake_conn_wants(c) && dray_list_empty(&c->ready_link))
		dray_list_add(&c->m->ready, &c->ready_link);
	return c->since_ns != since_ns;
}
