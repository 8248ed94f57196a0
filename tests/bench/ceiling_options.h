/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options that ceiling_tcp uses instead of plain calls, as hooks of tests/unit/tcp_loop.h. If the kernel refuses an
 * option, the program ends with an error that names it.
 */
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>

#include <linux/errqueue.h> /* needs time.h before it */

#include "tests/bench/bench.h"
#include "tests/bench/ceiling_uring.h"
#include "tests/unit/tcp_loop.h"

/* State of one stream, used only by its thread; in a cache line of its own. */
struct option_lent {
	_Alignas(64) uint32_t lent; /* calls whose memory the kernel still holds */
	uint64_t zerocopies, copied;
};

struct ceiling_options {
	bool zerocopy, uring;
	unsigned unsent, busy_poll; /* 0: not set */
	const struct ceiling_tcp_plan *plan;
	struct ceiling_tcp_hooks hooks;
	struct option_lent streams[CEILING_TCP_STREAMS_MAX];
};

static inline void option_set(int sock, int level, int name, unsigned value, const char *what)
{
	if (setsockopt(sock, level, name, &value, sizeof(value)))
		bench_die_errno(what);
}

static inline int option_tune(void *arg, int sock)
{
	const struct ceiling_options *o = arg;

	if (o->plan->sending && o->zerocopy)
		option_set(sock, SOL_SOCKET, SO_ZEROCOPY, 1, "SO_ZEROCOPY");
	if (o->unsent)
		option_set(sock, IPPROTO_TCP, TCP_NOTSENT_LOWAT, o->unsent, "TCP_NOTSENT_LOWAT");
	if (o->busy_poll)
		option_set(sock, SOL_SOCKET, SO_BUSY_POLL, o->busy_poll, "SO_BUSY_POLL");
	return 0;
}

/* --- MSG_ZEROCOPY ------------------------------------------------------------------------------- */

/* Reads the kernel's notifications about released memory; waits until at most `most` calls hold memory. */
static inline void option_take_back(struct option_lent *l, int sock, uint32_t most)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(struct sock_extended_err) +
				      sizeof(struct sockaddr_in6))];
	} control;

	while (l->lent) {
		struct msghdr m = { .msg_control = &control, .msg_controllen = sizeof(control) };
		struct sock_extended_err e;

		if (recvmsg(sock, &m, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) {
			if (l->lent <= most)
				return;
			poll(&(struct pollfd){ sock, 0, 0 }, 1, -1);
			continue;
		}
		memcpy(&e, CMSG_DATA(&control.align), sizeof(e));
		l->lent -= e.ee_data - e.ee_info + 1;
		if (e.ee_code & SO_EE_CODE_ZEROCOPY_COPIED)
			l->copied += e.ee_data - e.ee_info + 1;
	}
}

static inline ssize_t option_send_lent(void *arg, unsigned stream, int sock, struct msghdr *m,
				       int flags)
{
	struct option_lent *l = &((struct ceiling_options *)arg)->streams[stream];
	ssize_t n = sendmsg(sock, m, flags | MSG_ZEROCOPY);

	if (n < 0 && errno == ENOBUFS) {
		if (!l->lent)
			bench_die("MSG_ZEROCOPY: the kernel accepts no call; raise "
				  "net.core.optmem_max, or the limit on locked memory");
		option_take_back(l, sock, l->lent - 1);
		errno = EINTR;
		return -1;
	}
	if (n <= 0)
		return n;
	l->zerocopies++;
	l->lent++;
	option_take_back(l, sock, UINT32_MAX);
	return n;
}

static inline int option_settle(void *arg, unsigned stream, int sock)
{
	option_take_back(&((struct ceiling_options *)arg)->streams[stream], sock, 0);
	return 0;
}

/* --- io_uring ----------------------------------------------------------------------------------- */

static inline int option_pump(void *arg, struct ceiling_tcp *t, unsigned first, unsigned step)
{
	const struct ceiling_options *o = arg;

	uring_pump(t, o->plan, o->zerocopy, first, step);
	return 0;
}

/* --- all of them -------------------------------------------------------------------------------- */

/* Puts the options into the plan. Both structs must stay valid. */
static inline void options_apply(struct ceiling_options *o, struct ceiling_tcp_plan *plan)
{
	o->plan = plan;
	if (o->uring) {
		o->hooks.pump = option_pump;
	} else if (o->zerocopy && plan->sending) {
		o->hooks.move = option_send_lent;
		o->hooks.settle = option_settle;
	}
	if (o->zerocopy || o->unsent || o->busy_poll)
		o->hooks.tune = option_tune;
	plan->hooks = &o->hooks;
	plan->hooks_arg = o;
}

/* Calls with MSG_ZEROCOPY since the last count, and those whose memory the kernel copied anyway. */
static inline void options_count(struct ceiling_options *o, uint64_t *ret_lent,
				 uint64_t *ret_copied)
{
	*ret_lent = *ret_copied = 0;
	for (unsigned i = 0; i < CEILING_TCP_STREAMS_MAX; i++) {
		*ret_lent += o->streams[i].zerocopies;
		*ret_copied += o->streams[i].copied;
		o->streams[i].zerocopies = o->streams[i].copied = 0;
	}
}
