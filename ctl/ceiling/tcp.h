/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The least that moving memory over TCP takes: one side sends pieces of its memory, the other receives them in
 * place. Nothing is asked, answered, checked or framed but for a count before each round and a byte after it. Batch
 * k of the list travels on stream k modulo their number, on both sides. The two sides may be processes on
 * different hosts, or a process and its child.
 *
 * Thread: one, which owns the side; rounds start more and end them.
 */
#ifndef DRAY_CTL_CEILING_TCP_H
#define DRAY_CTL_CEILING_TCP_H

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "ctl/ceiling/copy.h"

#define CEILING_TCP_STREAMS_MAX 64u
#define CEILING_TCP_BATCH_MAX 1024u /* IOV_MAX */

struct ceiling_tcp;

/*
 * What may stand in place of the plain calls, to measure beside them. Any of these may be NULL. They return 0 or a
 * negated errno, which ends what is being done, but for move. What is for a stream is called on its thread.
 */
struct ceiling_tcp_hooks {
	/* A socket that is about to listen or to connect, or was accepted. */
	int (*tune)(void *arg, int sock);
	/* In place of sendmsg() or recvmsg(), with their flags, results and errno. */
	ssize_t (*move)(void *arg, unsigned stream, int sock, struct msghdr *m, int flags);
	/* In place of all these calls in a round: streams first, first + step, ..., by the functions below. */
	int (*pump)(void *arg, struct ceiling_tcp *t, unsigned first, unsigned step);
	/* On the side that sends: what the stream had to move in a round is in place. */
	int (*settle)(void *arg, unsigned stream, int sock);
};

struct ceiling_tcp_plan {
	struct ceiling_work work;
	bool sending;
	bool local;       /* our memory is the local one of the operations, else the remote one */
	unsigned streams; /* 1 to CEILING_TCP_STREAMS_MAX */
	unsigned threads; /* 0: one a stream */
	unsigned batch;   /* operations a call, 1 to CEILING_TCP_BATCH_MAX */
	int buffer;       /* bytes of sockets' buffers; 0: the kernel's choice */
	const struct ceiling_tcp_hooks *hooks; /* or NULL */
	void *hooks_arg;
};

/* Copies the plan and its hooks, but not what its work points to. */
int ceiling_tcp_new(const struct ceiling_tcp_plan *plan, struct ceiling_tcp **ret);
/* Closes what is open, which ends the other side's ceiling_tcp_receive(). NULL is allowed. */
void ceiling_tcp_free(struct ceiling_tcp *t);

/* On the side that receives: a socket on a numeric address and a port of the kernel's choice. */
int ceiling_tcp_listen(struct ceiling_tcp *t, const char *address, uint16_t *ret_port);
/* On the side that sends: all streams. */
int ceiling_tcp_connect(struct ceiling_tcp *t, const char *address, uint16_t port);
/* All streams of the other side. Nobody else is listened to any more. */
int ceiling_tcp_accept(struct ceiling_tcp *t);

/* Rounds, until the other side has had enough: 0. */
int ceiling_tcp_receive(struct ceiling_tcp *t);

/*
 * A round: as many batches on each stream, at least so many operations; returns when all are in place. -EPIPE: the
 * other side is gone.
 */
int ceiling_tcp_send(struct ceiling_tcp *t, uint64_t operations, uint64_t *ret_operations,
		     uint64_t *ret_bytes);

/* --- for a pump --------------------------------------------------------------------------------- */

/*
 * What is next on a stream, its socket in *ret_sock, or NULL when the round is over there. It belongs to t and stays
 * as it is until ceiling_tcp_moved().
 */
struct msghdr *ceiling_tcp_next(struct ceiling_tcp *t, unsigned stream, int *ret_sock);
/*
 * So many bytes of it were moved, in the order of its pieces; or a negated errno, of which -EAGAIN and -EINTR do no
 * harm. Anything but 0: the round has failed, with this.
 */
int ceiling_tcp_moved(struct ceiling_tcp *t, unsigned stream, ssize_t n);

#endif
