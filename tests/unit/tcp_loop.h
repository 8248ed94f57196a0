/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The least that a copy over TCP takes: one side sends pieces of its memory, and the other one receives them in place.
 * There are no requests, answers, checks or frames, except for a count before each round and a byte after it. On both
 * sides, batch k of the list uses stream k modulo their number. The two sides may be processes on different hosts, or a
 * process and its child.
 *
 * One thread owns a side; each round starts further threads and joins them.
 */
#pragma once

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "ctl/ceiling/copy.h"

#define CEILING_TCP_STREAMS_MAX 64u
#define CEILING_TCP_BATCH_MAX 1024u /* IOV_MAX */

struct ceiling_tcp;

/*
 * Replacements for the plain system calls, for comparison with them; each may be NULL. They return 0 or a negated errno,
 * which ends the round, except for move. Hooks of a stream are called on its thread.
 */
struct ceiling_tcp_hooks {
	/* For a socket before it listens or connects, or after it was accepted. */
	int (*tune)(void *arg, int sock);
	/* Replaces sendmsg() or recvmsg(), with their flags, results and errno. */
	ssize_t (*move)(void *arg, unsigned stream, int sock, struct msghdr *m, int flags);
	/* Replaces all these calls in a round: moves streams first, first + step, ... by the functions below. */
	int (*pump)(void *arg, struct ceiling_tcp *t, unsigned first, unsigned step);
	/* On the sending side: all bytes of the stream in this round have arrived. */
	int (*settle)(void *arg, unsigned stream, int sock);
};

struct ceiling_tcp_plan {
	struct ceiling_work work;
	bool sending;
	bool local; /* this side's memory is the local one of the operations, else the remote one */
	unsigned streams; /* 1 to CEILING_TCP_STREAMS_MAX */
	unsigned threads; /* 0: one for each stream */
	unsigned batch;   /* operations for each call, 1 to CEILING_TCP_BATCH_MAX */
	int buffer;       /* bytes of socket buffers; 0: the default of the kernel */
	const struct ceiling_tcp_hooks *hooks; /* or NULL */
	void *hooks_arg;
};

/* Copies the plan and its hooks, but not the list of operations. */
int ceiling_tcp_new(const struct ceiling_tcp_plan *plan, struct ceiling_tcp **ret);
/* Closes the connections, which ends ceiling_tcp_receive() of the other side. NULL is allowed. */
void ceiling_tcp_free(struct ceiling_tcp *t);

/* On the receiving side: listens on a numeric address and a port of the kernel's choice. */
int ceiling_tcp_listen(struct ceiling_tcp *t, const char *address, uint16_t *ret_port);
/* On the sending side: connects all streams. */
int ceiling_tcp_connect(struct ceiling_tcp *t, const char *address, uint16_t port);
/* On the receiving side: accepts all streams, and stops listening. */
int ceiling_tcp_accept(struct ceiling_tcp *t);

/* Receives rounds until the other side closes the connections: 0. */
int ceiling_tcp_receive(struct ceiling_tcp *t);

/*
 * Sends a round of at least this many operations, with the same number of batches on each stream, and returns when all
 * have arrived. -EPIPE: the other side has ended.
 */
int ceiling_tcp_send(struct ceiling_tcp *t, uint64_t operations, uint64_t *ret_operations,
		     uint64_t *ret_bytes);

/*
 * For the pump hook: the next message of a stream with its socket, or NULL when the round is over on it. It belongs to
 * t, and is valid until ceiling_tcp_moved().
 */
struct msghdr *ceiling_tcp_next(struct ceiling_tcp *t, unsigned stream, int *ret_sock);
/*
 * For the pump hook: n bytes of the message were moved, in the order of its pieces, or a negated errno, of which -EAGAIN
 * and -EINTR are harmless. A result other than 0 is the error of the round.
 */
int ceiling_tcp_moved(struct ceiling_tcp *t, unsigned stream, ssize_t n);
