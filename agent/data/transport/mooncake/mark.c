/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many bytes of a data connection wake the worker (SO_RCVLOWAT). Where an engine and the worker share a processor, each wake-up
 * takes it from the engine, which would then send the next bytes.
 *
 * Within a large payload, of a request or of an engine's answer, the mark is the rest of the payload, up to a limit.
 *
 * Between requests, the mark depends on the last requests. Mooncake sends the head of a write and its payload by two system calls. The
 * head alone would wake the worker, which would then sleep again until the payload comes. After many small writes, each soon after the
 * one before, the mark is therefore a head and the first byte of its payload. If no write comes soon, a timer ends the mark, and the
 * connection needs as many writes again for the next one. If the timer finds the head of a read, that read had to wait for the timer,
 * because a head comes alone; from then on the connection needs twice as many writes.
 *
 * The timer is a timerfd, which is set once for many sleeps of the worker. A timeout for each sleep sets the processor's timer each
 * time. In a virtual machine that is a trap into the hypervisor, which costs more than the wake-up that the mark saves.
 */
#include <sys/socket.h>
#include <sys/timerfd.h>

#include "agent/data/transport/mooncake/mooncake.h"
#include "lib/cleanup.h"

/* Within a payload. The kernel enlarges the receive buffer for them. */
#define WAKE_BYTES (512 << 10)
/* For fewer bytes than this, such as a small request, the option costs more than it saves. */
#define WAKE_LEAST (64 << 10)
/* Small writes in a row. */
#define WRITES_MIN 16
#define WRITES_MAX 4096
/* Within this time the next write comes soon. It is also how long the head of a read may wait, at most. */
#define SOON_NS DRAY_NS_PER_MS

static void expired(struct loop_source *source, uint32_t events)
{
	dray_container_of(source, struct mooncake, heads)->heads_timed = false;
}

static void timer_init(struct mooncake *m)
{
	int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);

	if (fd >= 0 && loop_add(&m->c->loop, &m->heads, fd, EPOLLIN, expired) < 0)
		dray_close(fd);
}

void mooncake_marks_adopt(struct mooncake_conn *c)
{
	c->wake = 1;
	c->writes_needed = WRITES_MIN;
	dray_list_init(&c->marked_link);
	if (c->m->heads.fd < 0)
		timer_init(c->m);
}

void mooncake_marks_deinit(struct mooncake *m)
{
	int fd = m->heads.fd;

	loop_del(&m->c->loop, &m->heads);
	dray_close(fd);
}

/* wake: the mark that the socket has. A failure is ignored: then it comes earlier. */
static void set_mark(int fd, int *wake, int bytes)
{
	if (bytes != *wake && setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof(bytes)) == 0)
		*wake = bytes;
}

static void wake_at(struct mooncake_conn *c, int bytes)
{
	set_mark(c->fd, &c->wake, bytes);
}

static int mark_within(uint64_t left)
{
	return left < WAKE_LEAST ? 1 : (int)dray_min(left, (uint64_t)WAKE_BYTES);
}

void mooncake_mark_payload(struct mooncake_conn *c)
{
	/* the mark of a head wakes for a small payload as well, if that is not smaller */
	if (c->left >= WAKE_LEAST || (uint64_t)c->wake > c->left)
		wake_at(c, mark_within(c->left));
}

void mooncake_mark_answer(struct mooncake_stream *s)
{
	const struct mooncake_calls *q = &s->calls;
	uint64_t left = 0;

	/* not before its status has come, behind which a refused call has nothing */
	if (q->head != q->sent && q->received_of > MOONCAKE_STATUS_BYTES)
		left = mooncake_calls_answer(q, &q->v[q->head % MOONCAKE_CALLS]) - q->received_of;
	set_mark(s->fd, &s->wake, mark_within(left));
}

void mooncake_mark_head(struct mooncake_conn *c)
{
	c->written_ns = c->m->c->now_ns;
	if (c->writes < c->writes_needed || c->head_n || c->m->heads.fd < 0) {
		wake_at(c, 1);
		return;
	}
	wake_at(c, MOONCAKE_REQUEST_BYTES + 1);
	dray_list_move(&c->m->marked, &c->marked_link);
}

void mooncake_mark_request(struct mooncake_conn *c)
{
	const struct mooncake_request *rq = &c->request;

	dray_list_del(&c->marked_link);
	if (!rq->write || rq->length >= WAKE_LEAST)
		c->writes = 0;
	else if (c->m->c->now_ns - c->written_ns >= SOON_NS)
		c->writes = 1;
	else
		c->writes = (uint16_t)dray_min(c->writes + 1, WRITES_MAX);
	if (rq->write || c->wake == 1)
		return;
	c->writes_needed = (uint16_t)dray_min(c->writes_needed * 2, WRITES_MAX);
	wake_at(c, 1);
}

/* Receives what is there. Only as many complete writes as are needed mark it again. */
static void unmark(struct mooncake_conn *c)
{
	dray_list_del(&c->marked_link);
	if (!mooncake_conn_look(c))
		c->writes = 0;
	if (c->fd >= 0 && c->state == MOONCAKE_HEAD && dray_list_empty(&c->marked_link))
		wake_at(c, 1);
}

void mooncake_marks_tick(struct mooncake *m)
{
	struct itimerspec when = { 0 };
	struct mooncake_conn *c;

	if (m->heads_timed)
		return;
	while ((c = dray_list_first(&m->marked, struct mooncake_conn, marked_link)) &&
	       m->c->now_ns - c->written_ns >= SOON_NS)
		unmark(c);
	if (!c)
		return;
	when.it_value.tv_nsec = c->written_ns + SOON_NS - m->c->now_ns;
	m->heads_timed = timerfd_settime(m->heads.fd, 0, &when, NULL) == 0;
}
