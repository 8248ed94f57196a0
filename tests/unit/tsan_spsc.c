/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two threads on lib/spsc.h: each element is received once, complete and in order, for sizes that
 * fit into one load and sizes that do not, on a ring so small that it is full and empty all the
 * time. ThreadSanitizer proves that every access is ordered.
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "lib/spsc.h"

#define ELEMENTS 60000U
#define WORDS_MAX 8

struct shared {
	struct dray_spsc ring;
	unsigned words;
};

static void element_fill(uint64_t *e, unsigned words, uint64_t i)
{
	for (unsigned w = 0; w < words; w++)
		e[w] = i * 0x9e3779b97f4a7c15ULL + w;
}

static void *produce(void *arg)
{
	struct shared *s = arg;
	uint64_t e[WORDS_MAX];

	for (uint64_t i = 0; i < ELEMENTS;) {
		uint32_t room = dray_spsc_room(&s->ring);

		if (!room)
			sched_yield();
		/* as many as the ring has room for */
		for (; room && i < ELEMENTS; room--, i++) {
			element_fill(e, s->words, i);
			if (!dray_spsc_push(&s->ring, e)) {
				fprintf(stderr, "no room for %llu\n", (unsigned long long)i);
				return s;
			}
		}
	}
	return NULL;
}

static int consume(struct shared *s)
{
	uint64_t e[WORDS_MAX], want[WORDS_MAX];

	for (uint64_t i = 0; i < ELEMENTS;) {
		if (dray_spsc_empty(&s->ring)) {
			sched_yield();
			continue;
		}
		if (!dray_spsc_pop(&s->ring, e)) {
			fprintf(stderr, "the ring is not empty but has no element\n");
			return -1;
		}
		element_fill(want, s->words, i);
		if (memcmp(e, want, s->words * sizeof(*e))) {
			fprintf(stderr, "element %llu differs from the one sent\n",
				(unsigned long long)i);
			return -1;
		}
		i++;
	}
	return dray_spsc_empty(&s->ring) ? 0 : -1;
}

static int run(uint32_t entries, unsigned words)
{
	struct shared s = { .words = words };
	pthread_t thread;
	void *result;
	int r;

	if (dray_spsc_init(&s.ring, entries, (uint32_t)(words * sizeof(uint64_t))) < 0 ||
	    pthread_create(&thread, NULL, produce, &s)) {
		fprintf(stderr, "cannot start the thread\n");
		return -1;
	}
	r = consume(&s);
	if (r < 0) /* the producer could wait for room for ever */
		return r;
	pthread_join(thread, &result);
	dray_spsc_deinit(&s.ring);
	return result ? -1 : 0;
}

int main(void)
{
	static const uint32_t entries[] = { 1, 2, 64, 1024 };
	static const unsigned words[] = { 1, 3, WORDS_MAX };

	for (unsigned i = 0; i < 4; i++)
		for (unsigned j = 0; j < 3; j++)
			if (run(entries[i], words[j]) < 0) {
				printf("not ok - every element once, complete and in order\n");
				return 1;
			}
	printf("ok - every element once, complete and in order\n");
	return 0;
}
