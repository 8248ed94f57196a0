/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CRC-32C of A and B in a row is that of A moved on by the bytes of B, and that of B, by exclusive or. So the checksum of an object is
 * the sum of those of its pieces, each moved on by the bytes that follow it, and they may come in any order.
 */
#include "agent/data/worker/store_sum.h"

#include "agent/data/transfer/core.h"
#include "lib/cleanup.h"
#include "lib/crc32c.h"
#include "lib/fault.h"

/* The object that has this byte of the transfer. */
static struct arriving *find(struct arriving *v, uint32_t n, uint64_t at)
{
	uint32_t from = 0;

	while (from < n) {
		uint32_t middle = from + (n - from) / 2;

		if (v[middle].end > at)
			n = middle;
		else
			from = middle + 1;
	}
	return v + from;
}

struct adding {
	struct arriving *v; /* that has the first byte */
	const struct slice *s;
};

static void add(void *arg)
{
	const struct adding *a = arg;
	const struct slice *s = a->s;
	struct arriving *v = a->v;
	uint64_t at = s->at;

	for (uint16_t i = 0; i < s->n_local; i++) {
		const uint8_t *p = s->local[i].iov_base;

		for (uint64_t left = s->local[i].iov_len; left;) {
			uint64_t bytes = dray_min(left, v->end - at);
			uint32_t crc = dray_crc32c(0, p, bytes);

			at += bytes;
			/* relaxed: whoever ends the slice orders it before the sum is read */
			atomic_fetch_xor_explicit(&v->crc, dray_crc32c_combine(crc, 0, v->end - at),
						  memory_order_relaxed);
			p += bytes;
			left -= bytes;
			v += at == v->end;
		}
	}
}

int arriving_add(struct arriving *v, uint32_t n, const struct slice *s)
{
	struct adding a = { find(v, n, s->at), s };

	/* it may be memory of a client */
	return fault_run(add, &a);
}
