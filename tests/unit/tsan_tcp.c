/* SPDX-License-Identifier: Apache-2.0 */
/* Two data planes on threads of their own, which share only sockets and counters. */
#include <pthread.h>
#include <string.h>

#include "agent/data/transport/tcp/tcp.h"
#include "tests/unit/cm.h"
#include "tests/unit/tcp_lab.h"

#define MIB (1u << 20)
#define ROUNDS 40
#define N 32

static struct lab lab;
static _Atomic unsigned running;

static void turn(struct lab_side *s)
{
	struct core *c = &s->core;

	c->now_ns = dray_now().ns;
	transport_tcp.progress(c, s->tcp);
	xfers_tick(c);
	transport_tcp.tick(c, s->tcp);
	loop_turn(&c->loop, 100000);
}

/*
 * Each side starts transfers in its own half of both regions, and serves the other side
 * meanwhile.
 */
static void *run_side(void *arg)
{
	struct lab_side *s = arg;
	uint64_t base = s->index * MIB;

	for (unsigned r = 0; r < ROUNDS; r++) {
		s->n_ended = 0;
		for (unsigned i = 0; i < N; i++) {
			uint64_t at = base + i * 32768;

			lab_transfer1(s, i + 1, i % 2 ? DMSG_DIRECTION_WRITE : DMSG_DIRECTION_READ,
				      at, 2 * MIB + at, i % 3 ? 100 : 32768);
		}
		while (s->n_ended < N)
			turn(s);
		for (unsigned i = 0; i < N; i++)
			lab_check(s->ended[i].code == 0);
	}
	atomic_fetch_sub(&running, 1);
	while (atomic_load(&running))
		turn(s);
	return NULL;
}

static void test_two_threads(void **state)
{
	pthread_t threads[2];
	uint64_t sum = 0;

	lab_init(&lab, 4 * MIB, 4);
	/* connects while one thread still plays the control plane for both */
	for (unsigned i = 0; i < 2; i++) {
		lab_transfer1(&lab.side[i], 1, DMSG_DIRECTION_WRITE, 0, 0, MIB);
		lab_until(&lab, lab_end(&lab.side[i], 1));
	}
	lab_until(&lab, atomic_load(&lab.side[0].link.streams) == 4 &&
				atomic_load(&lab.side[1].link.streams) == 4);
	atomic_store(&running, 2);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, run_side, &lab.side[i]), 0);
	while (atomic_load(&running))
		for (unsigned i = 0; i < 2; i++)
			sum += atomic_load(&lab.side[i].link.bytes_sent) +
			       lab_counter(&lab.side[i], DRAY_METRIC_TCP_SENT_BYTES_TOTAL);
	for (unsigned i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	assert_true(sum > 0);
	lab_deinit(&lab);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_two_threads) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
