/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers of streams. Address space is reserved for all that a stream can borrow, so borrowing never fails.
 * Buffers are taken last in, first out: only as many are resident as were in use at the same time, and
 * memory that only a burst needed is given back afterwards.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "agent/data/transport/tcp/tcp.h"
#include "lib/assert.h"

/* Buffers that stay resident. */
#define KEPT 2
#define TRIM_AFTER_NS DRAY_NS_PER_SEC

int tcp_pool_reserve(struct tcp *t, unsigned n)
{
	if (t->pool_cap + n > t->pool_size) {
		uint32_t size = (t->pool_cap + n) * 2;
		uint8_t **pool = realloc(t->pool, size * sizeof(uint8_t *));

		if (!pool)
			return -ENOMEM;
		t->pool = pool;
		t->pool_size = size;
	}
	for (unsigned i = 0; i < n; i++) {
		void *p = mmap(NULL, TCP_BUFFER, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (p == MAP_FAILED) {
			tcp_pool_unreserve(t, i);
			return -ENOMEM;
		}
		/* clients' data does not belong into core dumps */
		madvise(p, TCP_BUFFER, MADV_DONTDUMP);
		/* used buffers stay at the top */
		memmove(t->pool + 1, t->pool, t->pool_n * sizeof(*t->pool));
		t->pool[0] = p;
		t->pool_n++;
		t->pool_low++;
		t->pool_cap++;
	}
	return 0;
}

void tcp_pool_unreserve(struct tcp *t, unsigned n)
{
	dray_assert(n <= t->pool_n);
	for (unsigned i = 0; i < n; i++)
		munmap(t->pool[--t->pool_n], TCP_BUFFER);
	t->pool_cap -= n;
	t->pool_low = dray_min(t->pool_low, t->pool_n);
}

uint8_t *tcp_pool_get(struct tcp *t)
{
	dray_assert(t->pool_n);
	t->pool_n--;
	if (t->pool_n < t->pool_low) {
		t->pool_low = t->pool_n;
		if (t->pool_cap - t->pool_low > KEPT)
			tcp_timer(t, t->c->now_ns + TRIM_AFTER_NS);
	}
	return t->pool[t->pool_n];
}

void tcp_pool_put(struct tcp *t, uint8_t *buffer)
{
	t->pool[t->pool_n++] = buffer;
}

void tcp_pool_trim(struct tcp *t)
{
	uint32_t keep_from = t->pool_n > KEPT ? t->pool_n - KEPT : 0;

	for (uint32_t i = t->pool_low; i < keep_from; i++)
		madvise(t->pool[i], TCP_BUFFER, MADV_DONTNEED);
	t->pool_low = dray_max(t->pool_low, keep_from);
}
