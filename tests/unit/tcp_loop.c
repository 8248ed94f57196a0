/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/tcp_loop.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "lib/cleanup.h"
#include "lib/congestion.h"

struct stream {
	struct ceiling_tcp *t;
	unsigned number;
	int sock;
	int error;         /* of the thread whose first stream this is */
	size_t op;         /* first operation of the next batch */
	uint64_t batches;  /* of this round that have not begun */
	struct msghdr msg; /* the rest of the iov */
	unsigned iov_at, iov_n;
	struct iovec iov[CEILING_TCP_BATCH_MAX];
};

struct ceiling_tcp {
	struct ceiling_tcp_plan plan;
	struct ceiling_tcp_hooks hooks;
	int listener;
	struct stream streams[CEILING_TCP_STREAMS_MAX];
};

static size_t op_after(const struct ceiling_tcp *t, size_t op)
{
	return (op + (size_t)t->plan.batch * t->plan.streams) % t->plan.work.n;
}

static void batch_begin(struct stream *s)
{
	const struct ceiling_tcp_plan *p = &s->t->plan;

	s->iov_at = s->iov_n = 0;
	for (unsigned i = 0; i < p->batch; i++) {
		const struct dray_op *op = &p->work.ops[(s->op + i) % p->work.n];
		void *at = p->local ? ceiling_local(&p->work, op) : ceiling_remote(&p->work, op);

		s->iov[s->iov_n++] = (struct iovec){ at, op->length };
	}
	s->op = op_after(s->t, s->op);
	s->batches--;
}

struct msghdr *ceiling_tcp_next(struct ceiling_tcp *t, unsigned stream, int *ret_sock)
{
	struct stream *s = &t->streams[stream];

	if (s->iov_at == s->iov_n) {
		if (!s->batches)
			return NULL;
		batch_begin(s);
	}
	s->msg.msg_iov = s->iov + s->iov_at;
	s->msg.msg_iovlen = s->iov_n - s->iov_at;
	*ret_sock = s->sock;
	return &s->msg;
}

int ceiling_tcp_moved(struct ceiling_tcp *t, unsigned stream, ssize_t got)
{
	struct stream *s = &t->streams[stream];
	size_t n = (size_t)got;

	if (got == -EAGAIN || got == -EINTR)
		return 0;
	if (got <= 0)
		return got == -EFAULT ? -EFAULT : -EPIPE;
	while (n) {
		struct iovec *v = &s->iov[s->iov_at];
		size_t take = dray_min(n, v->iov_len);

		v->iov_base = (uint8_t *)v->iov_base + take;
		v->iov_len -= take;
		n -= take;
		s->iov_at += !v->iov_len;
	}
	return 0;
}

static ssize_t move(struct stream *s, struct msghdr *m, int flags)
{
	const struct ceiling_tcp *t = s->t;

	if (t->plan.sending)
		flags |= MSG_NOSIGNAL;
	if (t->hooks.move)
		return t->hooks.move(t->plan.hooks_arg, s->number, s->sock, m, flags);
	return t->plan.sending ? sendmsg(s->sock, m, flags) : recvmsg(s->sock, m, flags);
}

/* Makes one system call. 1: the round is not over on this stream. *ret_moved: it moved bytes. */
static int pump(struct stream *s, int flags, bool *ret_moved)
{
	int sock, ret;
	struct msghdr *m = ceiling_tcp_next(s->t, s->number, &sock);
	ssize_t n;

	*ret_moved = false;
	if (!m)
		return 0;
	n = move(s, m, flags);
	*ret_moved = n > 0;
	ret = ceiling_tcp_moved(s->t, s->number, n < 0 ? -errno : n);
	return ret ? ret : s->batches || s->iov_at < s->iov_n;
}

/* Moves all bytes of this round on streams first, first + step, .... */
static int pump_all(struct ceiling_tcp *t, unsigned first, unsigned step)
{
	struct pollfd fds[CEILING_TCP_STREAMS_MAX];
	bool some;
	int ret = 1;

	if (t->hooks.pump)
		return t->hooks.pump(t->plan.hooks_arg, t, first, step);
	if (first + step >= t->plan.streams) { /* blocking calls suffice for one stream */
		while (ret > 0)
			ret = pump(&t->streams[first], 0, &some);
		return ret;
	}
	for (;;) {
		bool any = false;
		unsigned n = 0;

		for (unsigned i = first; i < t->plan.streams; i += step) {
			ret = pump(&t->streams[i], MSG_DONTWAIT, &some);
			if (ret < 0)
				return ret;
			any |= some;
			if (ret)
				fds[n++] = (struct pollfd){ t->streams[i].sock,
							    t->plan.sending ? POLLOUT : POLLIN, 0 };
		}
		if (!n)
			return 0;
		if (!any)
			poll(fds, n, -1);
	}
}

static int exchange(int sock, void *p, size_t n, bool out)
{
	ssize_t got = out ? send(sock, p, n, MSG_NOSIGNAL) : recv(sock, p, n, MSG_WAITALL);

	return got == (ssize_t)n ? 0 : -EPIPE;
}

static int each(struct ceiling_tcp *t, unsigned first, bool count, bool out)
{
	uint8_t byte = 1;
	int ret = 0;

	for (unsigned i = first; !ret && i < t->plan.streams; i += t->plan.threads) {
		struct stream *s = &t->streams[i];

		ret = count ? exchange(s->sock, &s->batches, sizeof(s->batches), out) :
			      exchange(s->sock, &byte, 1, out);
	}
	return ret;
}

static int settle(struct ceiling_tcp *t, unsigned first)
{
	int ret = 0;

	for (unsigned i = first; t->hooks.settle && !ret && i < t->plan.streams;
	     i += t->plan.threads)
		ret = t->hooks.settle(t->plan.hooks_arg, i, t->streams[i].sock);
	return ret;
}

static void *send_round(void *arg)
{
	struct stream *s = arg;
	struct ceiling_tcp *t = s->t;

	s->error = each(t, s->number, true, true);
	if (!s->error)
		s->error = pump_all(t, s->number, t->plan.threads);
	if (!s->error)
		s->error = each(t, s->number, false, false);
	if (!s->error)
		s->error = settle(t, s->number);
	return NULL;
}

static void *receive_rounds(void *arg)
{
	struct stream *s = arg;
	struct ceiling_tcp *t = s->t;

	s->error = 0;
	while (!s->error) {
		/* Between two rounds, the other side may close the connection. */
		if (each(t, s->number, true, false))
			break;
		s->error = pump_all(t, s->number, t->plan.threads);
		if (!s->error)
			s->error = each(t, s->number, false, true);
	}
	return NULL;
}

static int on_threads(struct ceiling_tcp *t, void *(*fn)(void *))
{
	pthread_t threads[CEILING_TCP_STREAMS_MAX];
	unsigned n = 1;
	int ret = 0;

	for (; n < t->plan.threads; n++) {
		ret = -pthread_create(&threads[n], NULL, fn, &t->streams[n]);
		if (ret)
			break;
	}
	/* The round needs all threads. Closing the sockets ends those that run. */
	for (unsigned i = 0; ret && i < t->plan.streams; i++)
		shutdown(t->streams[i].sock, SHUT_RDWR);
	if (!ret)
		fn(&t->streams[0]);
	for (unsigned i = 1; i < n; i++)
		pthread_join(threads[i], NULL);
	for (unsigned i = 0; !ret && i < t->plan.threads; i++)
		ret = t->streams[i].error;
	return ret;
}

int ceiling_tcp_receive(struct ceiling_tcp *t)
{
	return on_threads(t, receive_rounds);
}

int ceiling_tcp_send(struct ceiling_tcp *t, uint64_t operations, uint64_t *ret_operations,
		     uint64_t *ret_bytes)
{
	uint64_t lap = (uint64_t)t->plan.batch * t->plan.streams;
	uint64_t batches = (operations + lap - 1) / lap, bytes = 0;

	for (unsigned i = 0; i < t->plan.streams; i++) {
		size_t op = t->streams[i].op;

		t->streams[i].batches = batches;
		for (uint64_t b = 0; b < batches; b++) {
			for (unsigned k = 0; k < t->plan.batch; k++)
				bytes += t->plan.work.ops[(op + k) % t->plan.work.n].length;
			op = op_after(t, op);
		}
	}
	*ret_operations = batches * lap;
	*ret_bytes = bytes;
	return on_threads(t, send_round);
}

int ceiling_tcp_new(const struct ceiling_tcp_plan *plan, struct ceiling_tcp **ret)
{
	struct ceiling_tcp *t = calloc(1, sizeof(*t));

	if (!t)
		return -ENOMEM;
	t->plan = *plan;
	if (plan->hooks)
		t->hooks = *plan->hooks;
	if (!plan->threads || plan->threads > plan->streams)
		t->plan.threads = plan->streams;
	t->listener = -1;
	for (unsigned i = 0; i < plan->streams; i++) {
		t->streams[i].t = t;
		t->streams[i].number = i;
		t->streams[i].sock = -1;
		t->streams[i].op = (size_t)i * plan->batch % plan->work.n;
	}
	*ret = t;
	return 0;
}

void ceiling_tcp_free(struct ceiling_tcp *t)
{
	if (!t)
		return;
	dray_close(t->listener);
	for (unsigned i = 0; i < t->plan.streams; i++)
		dray_close(t->streams[i].sock);
	free(t);
}

static int tune(const struct ceiling_tcp *t, int sock)
{
	int one = 1;

	if (setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)))
		return -errno;
	return t->hooks.tune ? t->hooks.tune(t->plan.hooks_arg, sock) : 0;
}

static int resolved(const struct ceiling_tcp *t, const char *address, uint16_t port, bool listening)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM,
				  .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV };
	int buffer = t->plan.buffer, ret = 0;
	struct dray_addr addr = { .len = 0 };
	dray_auto_close int sock = -1;
	struct addrinfo *found;
	char service[8];

	snprintf(service, sizeof(service), "%u", port);
	if (getaddrinfo(address, service, &hints, &found))
		return -EADDRNOTAVAIL;
	sock = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	/* The buffer must be set before the connection, because it sets the window scale. */
	if (sock < 0 ||
	    (buffer && (setsockopt(sock, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof(buffer)) ||
			setsockopt(sock, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof(buffer)))))
		ret = -errno;
	else
		ret = tune(t, sock);
	/* as the agents do */
	memcpy(&addr.ss, found->ai_addr, found->ai_addrlen);
	if (!ret)
		dray_congestion_at(sock, &addr);
	if (!ret && (listening ? bind(sock, found->ai_addr, found->ai_addrlen) ||
					 listen(sock, (int)CEILING_TCP_STREAMS_MAX) :
				 connect(sock, found->ai_addr, found->ai_addrlen)))
		ret = -errno;
	freeaddrinfo(found);
	return ret ? ret : dray_take_fd(sock);
}

int ceiling_tcp_listen(struct ceiling_tcp *t, const char *address, uint16_t *ret_port)
{
	struct sockaddr_storage name = { 0 };
	socklen_t length = sizeof(name);
	int sock = resolved(t, address, 0, true);

	if (sock < 0)
		return sock;
	t->listener = sock;
	if (getsockname(sock, (struct sockaddr *)&name, &length))
		return -errno;
	/* The port has the same offset in both families. */
	*ret_port = ntohs(((struct sockaddr_in *)&name)->sin_port);
	return 0;
}

int ceiling_tcp_connect(struct ceiling_tcp *t, const char *address, uint16_t port)
{
	for (unsigned i = 0; i < t->plan.streams; i++) {
		uint8_t mine = (uint8_t)i;
		int ret = resolved(t, address, port, false);

		if (ret < 0)
			return ret;
		t->streams[i].sock = ret;
		ret = exchange(t->streams[i].sock, &mine, 1, true);
		if (ret)
			return ret;
	}
	return 0;
}

int ceiling_tcp_accept(struct ceiling_tcp *t)
{
	for (unsigned i = 0; i < t->plan.streams; i++) {
		dray_auto_close int sock = accept4(t->listener, NULL, NULL, SOCK_CLOEXEC);
		uint8_t number = 0;
		int ret = sock < 0 ? -errno : tune(t, sock);

		if (!ret)
			ret = exchange(sock, &number, 1, false);
		if (ret)
			return ret;
		if (number >= t->plan.streams || t->streams[number].sock >= 0)
			return -EPROTO;
		t->streams[number].sock = dray_take_fd(sock);
	}
	t->listener = dray_close(t->listener);
	return 0;
}
