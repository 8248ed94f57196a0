/* SPDX-License-Identifier: Apache-2.0 */
/* The ceilings that dray is compared with do the work that they claim to do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ctl/ceiling/echo.h"
#include "ctl/ceiling/loop.h"
#include "lib/cleanup.h"
#include "tests/unit/tcp_loop.h"

#define BYTES 65536u

static uint8_t *memory(uint8_t value)
{
	uint8_t *p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	assert_true(p != MAP_FAILED);
	memset(p, value, BYTES);
	return p;
}

/* --- copies ------------------------------------------------------------------------------------- */

static void copies_repeat_the_list(void **state)
{
	static const struct dray_op ops[] = { { 0, 100, 10 }, { 50, 0, 5 }, { 60, 200, 1 } };
	uint8_t near[256], far[256];
	struct ceiling_work w = { ops, 3, (uintptr_t)near, (uintptr_t)far };
	size_t at = 0;

	memset(near, 1, sizeof(near));
	memset(far, 2, sizeof(far));
	assert_int_equal(ceiling_copy(&w, DRAY_DIRECTION_READ, &at, 2), 15);
	assert_int_equal(at, 2);
	assert_int_equal(near[9], 2);
	assert_int_equal(near[10], 1);
	assert_int_equal(near[54], 2);
	assert_int_equal(near[60], 1);
	/* the third entry, then the first again, in the other direction */
	memset(near, 3, sizeof(near));
	assert_int_equal(ceiling_copy(&w, DRAY_DIRECTION_WRITE, &at, 2), 11);
	assert_int_equal(at, 1);
	assert_int_equal(far[200], 3);
	assert_int_equal(far[109], 3);
	assert_int_equal(far[0], 2);
}

static void offsets_can_be_addresses(void **state)
{
	uint8_t from[8] = "abcdefg", to[8] = "";
	struct dray_op op = { (uintptr_t)to, (uintptr_t)from, 8 };
	struct ceiling_work w = { &op, 1, 0, 0 };
	size_t at = 0;

	assert_int_equal(ceiling_copy(&w, DRAY_DIRECTION_READ, &at, 3), 24);
	assert_string_equal(to, "abcdefg");
}

/* --- round trips -------------------------------------------------------------------------------- */

static void echoes_return_the_message(void **state)
{
	for (int way = 0; way < CEILING_ECHO_N; way++) {
		struct ceiling_echo e;

		assert_int_equal(ceiling_echo_open(&e, (enum ceiling_echo_way)way, 1000), 0);
		assert_true(ceiling_echo_group(&e) >= 1);
		for (int i = 0; i < 3; i++) {
			ceiling_echo_resume(&e);
			assert_int_equal(ceiling_echo_trips(&e, 3), 0);
			ceiling_echo_pause(&e);
		}
		ceiling_echo_close(&e);
		ceiling_echo_close(&e);
	}
}

static void messages_can_be_large(void **state)
{
	struct ceiling_echo e;

	assert_int_equal(ceiling_echo_open(&e, CEILING_ECHO_TCP, 8u << 20), 0);
	assert_int_equal(ceiling_echo_trips(&e, 2), 0);
	ceiling_echo_close(&e);
}

static void a_dead_echo_is_reported(void **state)
{
	struct ceiling_echo e;

	assert_int_equal(ceiling_echo_open(&e, CEILING_ECHO_TCP, 64), 0);
	assert_int_equal(ceiling_echo_trips(&e, 1), 0);
	assert_int_equal(kill(e.child, SIGKILL), 0);
	assert_int_equal(waitpid(e.child, NULL, 0), e.child);
	e.child = 0;
	assert_int_equal(ceiling_echo_trips(&e, 1), -EPIPE);
	ceiling_echo_close(&e);
}

/* A spinning child polls only during its rounds. */
static void a_paused_child_is_stopped(void **state)
{
	struct ceiling_echo e;
	int status;

	assert_int_equal(ceiling_echo_open(&e, CEILING_ECHO_MEMORY, 1), 0);
	assert_int_equal(waitpid(e.child, &status, WUNTRACED), e.child);
	assert_true(WIFSTOPPED(status));
	ceiling_echo_resume(&e);
	assert_int_equal(ceiling_echo_trips(&e, 100), 0);
	ceiling_echo_pause(&e);
	assert_int_equal(waitpid(e.child, &status, WUNTRACED), e.child);
	assert_true(WIFSTOPPED(status));
	ceiling_echo_close(&e);
}

/* --- the bare socket loop of the benchmarks ----------------------------------------------------- */

struct loop {
	struct ceiling_tcp_plan plan; /* of the sending side */
	struct ceiling_tcp *sender;
	pid_t child;
};

static void loop_open(struct loop *l, const struct ceiling_tcp_plan *plan)
{
	struct ceiling_tcp_plan receiving = *plan;
	struct ceiling_tcp *t;
	uint16_t port;

	receiving.sending = false;
	receiving.local = !plan->local;
	assert_int_equal(ceiling_tcp_new(&receiving, &t), 0);
	assert_int_equal(ceiling_tcp_listen(t, "127.0.0.1", &port), 0);
	l->child = fork();
	assert_true(l->child >= 0);
	if (!l->child)
		_exit(ceiling_tcp_accept(t) || ceiling_tcp_receive(t));
	ceiling_tcp_free(t);
	assert_int_equal(ceiling_tcp_new(plan, &l->sender), 0);
	assert_int_equal(ceiling_tcp_connect(l->sender, "127.0.0.1", port), 0);
}

/* 100 operations of different lengths; their order is reversed on the other side. */
static struct dray_op *list_make(void)
{
	struct dray_op *ops = calloc(100, sizeof(*ops));
	uint64_t at = 0;

	assert_non_null(ops);
	for (unsigned i = 0; i < 100; i++) {
		ops[i] = (struct dray_op){ at, BYTES - at - (i + 1), i + 1 };
		at += i + 1;
	}
	return ops;
}

static void all_bytes_arrive(const struct ceiling_tcp_plan *shape)
{
	uint8_t *near = memory(0), *far = memory(0);
	dray_auto_free struct dray_op *ops = list_make();
	struct ceiling_tcp_plan plan = *shape;
	uint64_t moved, bytes, sum = 100 * 101 / 2;
	struct loop l;
	int status;

	plan.work = (struct ceiling_work){ ops, 100, (uintptr_t)near, (uintptr_t)far };
	plan.sending = true;
	for (unsigned i = 0; i < BYTES; i++)
		(plan.local ? near : far)[i] = (uint8_t)(i * 7 + 1);
	loop_open(&l, &plan);
	for (int round = 0; round < 3; round++) {
		assert_int_equal(ceiling_tcp_send(l.sender, 100, &moved, &bytes), 0);
		assert_true(moved >= 100 && moved < 100 + plan.batch * plan.streams);
		assert_true(bytes >= sum);
		/* when the call returns, all bytes are in place */
		for (unsigned i = 0; i < 100; i++)
			assert_memory_equal(near + ops[i].local, far + ops[i].remote,
					    ops[i].length);
		memset(plan.local ? far : near, 0, BYTES);
	}
	ceiling_tcp_free(l.sender);
	assert_int_equal(waitpid(l.child, &status, 0), l.child);
	assert_true(WIFEXITED(status) && !WEXITSTATUS(status));
	munmap(near, BYTES);
	munmap(far, BYTES);
}

static void every_plan_moves_all_bytes(void **state)
{
	static const struct ceiling_tcp_plan shapes[] = {
		{ .streams = 1, .batch = 1 },
		{ .streams = 1, .batch = 10, .local = true },
		{ .streams = 2, .batch = 5 },
		{ .streams = 4, .batch = 25, .threads = 2, .local = true },
		{ .streams = 5, .batch = 4, .threads = 1, .buffer = 65536 },
		{ .streams = 1, .batch = 200 }, /* more than the list has */
	};

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(shapes); i++)
		all_bytes_arrive(&shapes[i]);
}

/* --- hooks of the loop -------------------------------------------------------------------------- */

/* Each side has its own; the receiving child has a copy. */
struct hooked {
	unsigned tuned, moves, settled, pumps;
	int refuse; /* result of tune */
	pid_t sender;
};

static int count_tune(void *arg, int sock)
{
	struct hooked *h = arg;
	int type;

	assert_int_equal(getsockopt(sock, SOL_SOCKET, SO_TYPE, &type, &(socklen_t){ sizeof(type) }),
			 0);
	h->tuned++;
	return h->refuse;
}

/* Moves at most one piece, and every third time nothing. */
static ssize_t count_move(void *arg, unsigned stream, int sock, struct msghdr *m, int flags)
{
	struct hooked *h = arg;

	assert_true(stream < 2);
	if (!(++h->moves % 3)) {
		errno = EINTR;
		return -1;
	}
	m->msg_iovlen = 1;
	return flags & MSG_NOSIGNAL ? sendmsg(sock, m, flags) : recvmsg(sock, m, flags);
}

static int count_settle(void *arg, unsigned stream, int sock)
{
	struct hooked *h = arg;

	assert_true(sock >= 0);
	/* in order, and once for each round */
	assert_int_equal(h->settled++ % 2, stream);
	return 0;
}

static int count_pump(void *arg, struct ceiling_tcp *t, unsigned first, unsigned step)
{
	struct hooked *h = arg;
	bool sending = getpid() == h->sender;
	struct msghdr *m;
	int sock, ret = 0;

	h->pumps++;
	for (unsigned i = first; !ret && i < 2; i += step) {
		while (!ret && (m = ceiling_tcp_next(t, i, &sock))) {
			ssize_t n = sending ? sendmsg(sock, m, MSG_NOSIGNAL) : recvmsg(sock, m, 0);

			/* harmless errors, then the same batch again */
			assert_int_equal(ceiling_tcp_moved(t, i, -EAGAIN), 0);
			assert_int_equal(ceiling_tcp_moved(t, i, -EINTR), 0);
			assert_ptr_equal(ceiling_tcp_next(t, i, &sock), m);
			ret = ceiling_tcp_moved(t, i, n < 0 ? -errno : n);
		}
	}
	return ret;
}

static void hooks_replace_calls(void **state)
{
	static const struct ceiling_tcp_hooks hooks = { .tune = count_tune,
							.move = count_move,
							.settle = count_settle };
	struct hooked h = { 0 };
	struct ceiling_tcp_plan plan = {
		.streams = 2, .batch = 10, .threads = 1, .hooks = &hooks, .hooks_arg = &h
	};

	all_bytes_arrive(&plan);
	/*
	 * three rounds of 100 operations, one piece each; the listening socket was tuned here too
	 */
	assert_int_equal(h.settled, 3 * 2);
	assert_true(h.moves - h.moves / 3 >= 3 * 100);
	assert_int_equal(h.tuned, 1 + 2);
}

static void a_hook_replaces_the_inner_loop(void **state)
{
	static const struct ceiling_tcp_hooks hooks = { .pump = count_pump };
	struct hooked h = { .sender = getpid() };
	struct ceiling_tcp_plan plan = {
		.streams = 2, .batch = 10, .threads = 1, .hooks = &hooks, .hooks_arg = &h
	};

	all_bytes_arrive(&plan);
	assert_int_equal(h.pumps, 3);
}

static void a_failed_tune_is_reported(void **state)
{
	static const struct ceiling_tcp_hooks hooks = { .tune = count_tune };
	struct hooked h = { .refuse = -EOPNOTSUPP };
	struct dray_op op = { 0, 0, 1 };
	struct ceiling_tcp_plan plain = { .work = { &op, 1, 0, 0 }, .streams = 1, .batch = 1 };
	struct ceiling_tcp_plan plan = plain;
	struct ceiling_tcp *t, *other;
	uint16_t port;

	plan.hooks = &hooks;
	plan.hooks_arg = &h;
	assert_int_equal(ceiling_tcp_new(&plan, &t), 0);
	assert_int_equal(ceiling_tcp_new(&plain, &other), 0);
	assert_int_equal(ceiling_tcp_listen(t, "127.0.0.1", &port), -EOPNOTSUPP);
	h.refuse = 0;
	assert_int_equal(ceiling_tcp_listen(t, "127.0.0.1", &port), 0);
	assert_int_equal(ceiling_tcp_connect(other, "127.0.0.1", port), 0);
	h.refuse = -EOPNOTSUPP;
	assert_int_equal(ceiling_tcp_accept(t), -EOPNOTSUPP);
	assert_int_equal(h.tuned, 3);
	ceiling_tcp_free(other);
	ceiling_tcp_free(t);
}

static void a_dead_receiver_is_reported(void **state)
{
	uint8_t *near = memory(1);
	struct dray_op op = { 0, 0, BYTES };
	struct ceiling_tcp_plan plan = { .work = { &op, 1, (uintptr_t)near, (uintptr_t)near },
					 .sending = true,
					 .streams = 2,
					 .batch = 1 };
	uint64_t ops, bytes;
	struct loop l;

	loop_open(&l, &plan);
	assert_int_equal(ceiling_tcp_send(l.sender, 4, &ops, &bytes), 0);
	assert_int_equal(kill(l.child, SIGKILL), 0);
	assert_int_equal(waitpid(l.child, NULL, 0), l.child);
	assert_int_equal(ceiling_tcp_send(l.sender, 4, &ops, &bytes), -EPIPE);
	ceiling_tcp_free(l.sender);
	munmap(near, BYTES);
}

static void a_missing_listener_is_reported(void **state)
{
	struct dray_op op = { 0, 0, 1 };
	struct ceiling_tcp_plan plan = { .work = { &op, 1, 0, 0 }, .streams = 1, .batch = 1 };
	struct ceiling_tcp *t, *other;
	uint16_t port;

	assert_int_equal(ceiling_tcp_new(&plan, &t), 0);
	assert_int_equal(ceiling_tcp_listen(t, "127.0.0.1", &port), 0);
	ceiling_tcp_free(t);
	assert_int_equal(ceiling_tcp_new(&plan, &other), 0);
	assert_int_equal(ceiling_tcp_connect(other, "127.0.0.1", port), -ECONNREFUSED);
	assert_int_equal(ceiling_tcp_connect(other, "a name", port), -EADDRNOTAVAIL);
	ceiling_tcp_free(other);
	ceiling_tcp_free(NULL);
}

/* --- the bare socket loop of drayctl bench ------------------------------------------------------ */

static void the_loop_moves_all_bytes(void **state)
{
	static const struct ceiling_loop shapes[] = {
		{ .streams = 1, .batch = 1 },   { .streams = 1, .batch = 10, .local = true },
		{ .streams = 2, .batch = 5 },   { .streams = 5, .batch = 25, .local = true },
		{ .streams = 1, .batch = 200 }, /* more than the list has */
	};
	uint8_t *near = memory(0), *far = memory(0);
	dray_auto_free struct dray_op *ops = list_make();

	for (size_t n = 0; n < DRAY_ARRAY_SIZE(shapes); n++) {
		struct ceiling_loop l = shapes[n];
		uint64_t bytes;

		l.work = (struct ceiling_work){ ops, 100, (uintptr_t)near, (uintptr_t)far };
		for (unsigned i = 0; i < BYTES; i++)
			(l.local ? near : far)[i] = (uint8_t)(i * 7 + n);
		assert_int_equal(ceiling_loop_open(&l), 0);
		for (int round = 0; round < 3; round++) {
			memset(l.local ? far : near, 0, BYTES);
			assert_int_equal(ceiling_loop_send(&l, 100, &bytes), 0);
			assert_true(bytes >= 100 * 101 / 2);
			for (unsigned i = 0; i < 100; i++)
				assert_memory_equal(near + ops[i].local, far + ops[i].remote,
						    ops[i].length);
		}
		ceiling_loop_close(&l);
		ceiling_loop_close(&l);
	}
	munmap(near, BYTES);
	munmap(far, BYTES);
}

static void a_dead_child_of_the_loop_is_reported(void **state)
{
	uint8_t *near = memory(1);
	struct dray_op op = { 0, 0, BYTES };
	struct ceiling_loop l = { .work = { &op, 1, (uintptr_t)near, (uintptr_t)near },
				  .streams = 2,
				  .batch = 1 };
	uint64_t bytes;

	assert_int_equal(ceiling_loop_open(&l), 0);
	assert_int_equal(ceiling_loop_send(&l, 4, &bytes), 0);
	assert_int_equal(bytes, 4 * BYTES);
	assert_int_equal(kill(l.child, SIGKILL), 0);
	assert_int_equal(waitid(P_PID, (id_t)l.child, NULL, WEXITED | WNOWAIT), 0);
	assert_int_equal(ceiling_loop_send(&l, 4, &bytes), -EPIPE);
	ceiling_loop_close(&l);
	munmap(near, BYTES);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(copies_repeat_the_list),
		cmocka_unit_test(offsets_can_be_addresses),
		cmocka_unit_test(echoes_return_the_message),
		cmocka_unit_test(messages_can_be_large),
		cmocka_unit_test(a_dead_echo_is_reported),
		cmocka_unit_test(a_paused_child_is_stopped),
		cmocka_unit_test(every_plan_moves_all_bytes),
		cmocka_unit_test(hooks_replace_calls),
		cmocka_unit_test(a_hook_replaces_the_inner_loop),
		cmocka_unit_test(a_failed_tune_is_reported),
		cmocka_unit_test(a_dead_receiver_is_reported),
		cmocka_unit_test(a_missing_listener_is_reported),
		cmocka_unit_test(the_loop_moves_all_bytes),
		cmocka_unit_test(a_dead_child_of_the_loop_is_reported),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
