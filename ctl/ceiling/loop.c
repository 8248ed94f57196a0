/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/ceiling/loop.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ctl/ceiling/echo.h"
#include "lib/cleanup.h"

static size_t op_after(const struct ceiling_loop *l, size_t op)
{
	return (op + (size_t)l->batch * l->streams) % l->work.n;
}

/* Moves all bytes of this round on the stream. */
static int batches_move(struct ceiling_loop_stream *s, bool sending)
{
	const struct ceiling_loop *l = s->loop;
	struct iovec iov[CEILING_LOOP_BATCH_MAX];

	for (; s->batches; s->batches--, s->op = op_after(l, s->op)) {
		struct msghdr m = { .msg_iov = iov, .msg_iovlen = l->batch };

		for (unsigned i = 0; i < l->batch; i++) {
			const struct dray_op *op = &l->work.ops[(s->op + i) % l->work.n];

			iov[i].iov_base = l->local == sending ? ceiling_local(&l->work, op) :
								ceiling_remote(&l->work, op);
			iov[i].iov_len = op->length;
		}
		while (m.msg_iovlen) {
			ssize_t n = sending ? sendmsg(s->sock, &m, MSG_NOSIGNAL) :
					      recvmsg(s->sock, &m, 0);

			if (n < 0 && errno == EINTR)
				continue;
			if (n <= 0)
				return n < 0 && errno == EFAULT ? -EFAULT : -EPIPE;
			for (; m.msg_iovlen && (size_t)n >= m.msg_iov->iov_len; m.msg_iovlen--)
				n -= (ssize_t)m.msg_iov++->iov_len;
			if (n) {
				m.msg_iov->iov_base = (uint8_t *)m.msg_iov->iov_base + n;
				m.msg_iov->iov_len -= (size_t)n;
			}
		}
	}
	return 0;
}

static int exchange(int sock, void *p, size_t n, bool out)
{
	ssize_t got = out ? send(sock, p, n, MSG_NOSIGNAL) : recv(sock, p, n, MSG_WAITALL);

	return got == (ssize_t)n ? 0 : -EPIPE;
}

static void *send_round(void *arg)
{
	struct ceiling_loop_stream *s = arg;
	uint8_t byte;

	s->error = exchange(s->sock, &s->batches, sizeof(s->batches), true);
	if (!s->error)
		s->error = batches_move(s, true);
	if (!s->error)
		s->error = exchange(s->sock, &byte, 1, false);
	return NULL;
}

static void *receive_rounds(void *arg)
{
	struct ceiling_loop_stream *s = arg;
	uint8_t byte = 1;

	/* Between two rounds, the other side may close the connection. */
	while (!exchange(s->sock, &s->batches, sizeof(s->batches), false))
		if (batches_move(s, false) || exchange(s->sock, &byte, 1, true))
			break;
	return NULL;
}

static int on_threads(struct ceiling_loop *l, void *(*fn)(void *))
{
	pthread_t threads[CEILING_LOOP_STREAMS_MAX];
	unsigned n = 1;
	int ret = 0;

	for (; n < l->streams && !ret; n += !ret)
		ret = -pthread_create(&threads[n], NULL, fn, &l->v[n]);
	/* The round needs all threads. Closing the sockets ends those that run. */
	for (unsigned i = 0; ret && i < l->streams; i++)
		shutdown(l->v[i].sock, SHUT_RDWR);
	if (!ret)
		fn(&l->v[0]);
	for (unsigned i = 1; i < n; i++)
		pthread_join(threads[i], NULL);
	for (unsigned i = 0; !ret && i < l->streams; i++)
		ret = l->v[i].error;
	return ret;
}

int ceiling_loop_send(struct ceiling_loop *l, uint64_t operations, uint64_t *ret_bytes)
{
	uint64_t lap = (uint64_t)l->batch * l->streams, batches = (operations + lap - 1) / lap;

	*ret_bytes = 0;
	for (unsigned i = 0; i < l->streams; i++) {
		size_t op = l->v[i].op;

		l->v[i].batches = batches;
		for (uint64_t b = 0; b < batches; b++, op = op_after(l, op))
			for (unsigned k = 0; k < l->batch; k++)
				*ret_bytes += l->work.ops[(op + k) % l->work.n].length;
	}
	return on_threads(l, send_round);
}

int ceiling_loop_open(struct ceiling_loop *l)
{
	int far[CEILING_LOOP_STREAMS_MAX], ret = 0;
	unsigned n = 0;

	for (; n < l->streams && !ret; n++) {
		int ends[2] = { -1, -1 };

		ret = ceiling_tcp_pair(ends);
		l->v[n] = (struct ceiling_loop_stream){ .loop = l, .sock = ends[0] };
		l->v[n].op = (size_t)n * l->batch % l->work.n;
		far[n] = ends[1];
	}
	if (!ret)
		l->child = ceiling_fork();
	if (!ret && !l->child) {
		for (unsigned i = 0; i < n; i++) {
			dray_close(l->v[i].sock);
			l->v[i].sock = far[i];
		}
		on_threads(l, receive_rounds);
		_exit(0);
	}
	if (l->child < 0) {
		ret = l->child;
		l->child = 0;
	}
	for (unsigned i = 0; i < n; i++)
		dray_close(far[i]);
	return ret;
}

void ceiling_loop_close(struct ceiling_loop *l)
{
	for (unsigned i = 0; i < l->streams && l->v[i].loop; i++)
		dray_close(l->v[i].sock);
	if (l->child) {
		kill(l->child, SIGKILL);
		waitpid(l->child, NULL, 0);
	}
	*l = (struct ceiling_loop){ .streams = 0 };
}
