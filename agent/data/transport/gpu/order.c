/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Beside an engine pages in host memory are best moved in long runs, and pages that a client lists in any order often fill a part
 * of that memory. In the order of their places they are such runs; where they are not, they miss fewer translations of
 * addresses. So all operations of a transfer are sorted, before the first of them is copied, unless its bytes come in their order.
 */
#include "agent/data/transfer/sched.h"
#include "agent/data/transfer/xfer.h"
#include "agent/data/transport/gpu/gpu.h"

/* Fewer pieces, or longer ones on average, are as fast in any order. */
#define PIECES_MIN 64u
#define PIECE_MAX (1u << 20)

void gpu_order(struct core *c, struct slice *s)
{
	struct xfer *x = s->xfer;
	bool local = object_region(x->local)->memory == REGION_HOST;

	if (x->ready || x->ops_sorted || x->n_slices != 1 || x->n_ops < PIECES_MIN ||
	    x->bytes / x->n_ops >= PIECE_MAX)
		return;
	x->ops_sorted = true;
	if (xfer_sort_ops(c, x, local))
		sched_recut(s);
}
