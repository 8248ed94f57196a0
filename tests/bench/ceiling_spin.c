/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a machine takes from bare loops: two threads work in turn, half of a trip each, and the one that does not work
 * spins until the other one hands over, as a client and an agent that poll. There is no system call, and no memory
 * but one word. The work is an amount, not a time: what interrupts a processor makes the trip longer.
 *
 *   ceiling_spin
 *
 * Answers
 *   length NS    from now on a trip takes NS in the median
 *   trip COUNT   makes COUNT trips, and says how long they took
 */
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "lib/cpu.h"
#include "tests/bench/bench.h"

#define TRIES 4
#define TRIPS 100

enum { HERE, THERE, PAUSED };

static _Alignas(64) _Atomic int turn = PAUSED;
static _Atomic uint64_t work = 1000; /* of one thread in a trip */
static sem_t resumed;
static struct bench_samples samples;

static void spin(void)
{
	for (uint64_t i = atomic_load_explicit(&work, memory_order_relaxed); i; i--)
		__asm__ volatile("" : "+r"(i));
}

static int until_not(int value)
{
	int now;

	while ((now = atomic_load_explicit(&turn, memory_order_acquire)) == value)
		dray_cpu_relax();
	return now;
}

static void *there(void *arg)
{
	for (;;) {
		while (sem_wait(&resumed))
			;
		while (until_not(HERE) != PAUSED) {
			spin();
			atomic_store_explicit(&turn, HERE, memory_order_release);
		}
	}
	return arg;
}

static void trips(uint64_t count)
{
	int64_t began, ended;

	atomic_store_explicit(&turn, HERE, memory_order_relaxed);
	sem_post(&resumed);
	began = bench_ns();
	for (uint64_t i = 0; i < count; i++) {
		spin();
		atomic_store_explicit(&turn, THERE, memory_order_release);
		until_not(THERE);
		ended = bench_ns();
		bench_sample(&samples, (double)(ended - began));
		began = ended;
	}
	atomic_store_explicit(&turn, PAUSED, memory_order_release);
}

/* Changes the work until the median of a trip is `ns`. */
static void length(uint64_t ns)
{
	double median = 0;

	for (unsigned i = 0; i < TRIES; i++) {
		trips(TRIPS);
		qsort(samples.v, samples.n, sizeof(*samples.v), bench_compare);
		median = samples.v[samples.n / 2];
		samples.n = 0;
		work = (uint64_t)((double)work * (double)ns / median) + 1;
	}
	bench_say("{\"ns\": %.1f}", median);
}

int main(void)
{
	pthread_t thread;
	uint64_t number;
	char word[16];

	bench_samples_init(&samples);
	if (sem_init(&resumed, 0, 0) || pthread_create(&thread, NULL, there, NULL))
		bench_die("a second thread cannot start");
	while (bench_command(word, &number)) {
		if (!strcmp(word, "length") && number) {
			length(number);
		} else if (!strcmp(word, "trip")) {
			trips(number);
			bench_samples_say(&samples);
		} else {
			bench_die("no command %s %" PRIu64, word, number);
		}
	}
	return 0;
}
