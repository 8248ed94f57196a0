/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bare socket loop with io_uring. Each stream has one request, for a whole batch, which the kernel carries out
 * completely (MSG_WAITALL). One system call submits and waits for all streams of a thread.
 */
#pragma once

#include "tests/bench/bench.h"
#include "tests/unit/tcp_loop.h"

#define URING_ENTRIES 256u

#if __has_include(<liburing.h>)
#include <liburing.h>

static inline void uring_open(struct io_uring *ring)
{
	int ret = io_uring_queue_init(URING_ENTRIES, ring,
				      IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);

	if (ret == -EINVAL) /* before Linux 6.1 */
		ret = io_uring_queue_init(URING_ENTRIES, ring, 0);
	if (ret < 0)
		bench_die("--uring: the kernel or a system call filter denies io_uring: %s",
			  strerror(-ret));
}

/* Submits the stream's next request. False: the stream has finished the round. */
static inline bool uring_begin(struct io_uring *ring, struct ceiling_tcp *t,
			       const struct ceiling_tcp_plan *p, bool zerocopy, unsigned stream)
{
	int sock;
	struct msghdr *m = ceiling_tcp_next(t, stream, &sock);
	struct io_uring_sqe *sqe = m ? io_uring_get_sqe(ring) : NULL;

	if (!m)
		return false;
	if (!sqe)
		bench_die("--uring: the ring is full");
	if (!p->sending)
		io_uring_prep_recvmsg(sqe, sock, m, MSG_WAITALL);
	else if (zerocopy)
		io_uring_prep_sendmsg_zc(sqe, sock, m, MSG_WAITALL | MSG_NOSIGNAL);
	else
		io_uring_prep_sendmsg(sqe, sock, m, MSG_WAITALL | MSG_NOSIGNAL);
	io_uring_sqe_set_data64(sqe, stream);
	return true;
}

/* Handles the result of a request, and submits the stream's next one. */
static inline unsigned uring_end(struct io_uring *ring, struct ceiling_tcp *t,
				 const struct ceiling_tcp_plan *p, bool zerocopy,
				 const struct io_uring_cqe *cqe)
{
	unsigned stream = (unsigned)cqe->user_data;

	if (cqe->flags & IORING_CQE_F_NOTIF)
		return 0;
	if (cqe->res == -EINVAL && zerocopy)
		bench_die("--uring --zerocopy: this kernel lacks IORING_OP_SENDMSG_ZC; "
			  "it needs Linux 6.1");
	if (ceiling_tcp_moved(t, stream, cqe->res))
		bench_die("--uring: %s",
			  cqe->res ? strerror(-cqe->res) : "the other side has closed");
	return uring_begin(ring, t, p, zerocopy, stream);
}

/* Runs this round of the streams first, first + step, ... */
static inline void uring_pump(struct ceiling_tcp *t, const struct ceiling_tcp_plan *p,
			      bool zerocopy, unsigned first, unsigned step)
{
	struct io_uring ring;
	unsigned open = 0;

	uring_open(&ring);
	for (unsigned i = first; i < p->streams; i += step)
		open += uring_begin(&ring, t, p, zerocopy, i);
	while (open) {
		struct io_uring_cqe *cqe;
		unsigned head, seen = 0;

		io_uring_submit_and_wait(&ring, 1);
		io_uring_for_each_cqe(&ring, head, cqe)
		{
			seen++;
			/* with zerocopy a request completes twice: sent, and memory released */
			open -= !(cqe->flags & IORING_CQE_F_MORE);
			open += uring_end(&ring, t, p, zerocopy, cqe);
		}
		io_uring_cq_advance(&ring, seen);
	}
	io_uring_queue_exit(&ring);
}

#else

static inline void uring_pump(struct ceiling_tcp *t, const struct ceiling_tcp_plan *p,
			      bool zerocopy, unsigned first, unsigned step)
{
	bench_die("--uring: built without liburing; install liburing-dev and build again");
}

#endif
