/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/ballast.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "lib/assert.h"
#include "lib/list.h"

/* More than malloc() takes from the kernel at once. */
#define PIECE_BYTES (2ul << 20)
#define PIECES 16
#define TRIES 1000
#define PAUSE_NS 1000000

static void *_Atomic pieces[PIECES];
static _Atomic bool started;

/* The first piece comes last: while it is there, so are the others. */
static void refill(void)
{
	for (unsigned i = PIECES; i-- > 0;) {
		void *none = NULL, *p;

		if (atomic_load_explicit(&pieces[i], memory_order_relaxed))
			continue;
		p = mmap(NULL, PIECE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			 0);
		if (p == MAP_FAILED)
			return;
		if (!atomic_compare_exchange_strong(&pieces[i], &none, p))
			munmap(p, PIECE_BYTES);
	}
}

void dray_ballast_start(void)
{
	refill();
	atomic_store(&started, true);
}

/* Gives up one piece, or waits until other threads have freed memory. */
static void make_room(void)
{
	for (unsigned i = 0; i < PIECES; i++) {
		void *p = atomic_exchange(&pieces[i], NULL);

		if (!p)
			continue;
		munmap(p, PIECE_BYTES);
		return;
	}
	nanosleep(&(struct timespec){ .tv_nsec = PAUSE_NS }, NULL);
}

/* The first piece is given up before all others. */
static void refill_if_used(void)
{
	if (atomic_load_explicit(&started, memory_order_relaxed) &&
	    !atomic_load_explicit(&pieces[0], memory_order_relaxed))
		refill();
}

void *dray_calloc_sure(size_t n, size_t size)
{
	void *p = calloc(n, size);

	for (unsigned i = 0; !p && i < TRIES; i++) {
		make_room();
		p = calloc(n, size);
	}
	dray_assert(p);
	refill_if_used();
	return p;
}

void *dray_array_grow_sure(void *old, size_t n, size_t more, size_t size)
{
	uint8_t *p = dray_calloc_sure(more, size);

	if (n)
		memcpy(p, old, n * size);
	free(old);
	return p;
}
