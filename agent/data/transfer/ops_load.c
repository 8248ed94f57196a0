/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies the operations of a transfer out of memory that the client may change at any time: each is read once, checked and
 * merged. Several workers read long lists.
 */
#include <errno.h>
#include <string.h>

#include "agent/data/transfer/object.h"
#include "agent/data/transfer/ops_read.h"
#include "agent/data/transfer/owner.h"
#include "agent/data/transfer/workshare.h"
#include "agent/data/transfer/xfer_internal.h"
#include "agent/model/ranges.h"
#include "lib/cleanup.h"
#include "lib/fault.h"

/* Operations that are read and checked together, so that the copy stays in the first-level cache. */
#define OPS_CHUNK 64u
/*
 * A worker reads a task in about 2 us. A list of SHARED_TASKS_MIN tasks and more is shared with one other worker that is awake. A
 * sleeping one is woken if the list is long, or if lists follow each other. Two workers halve the time; more would mostly wait.
 */
#define SHARED_TASKS (DMSG_OPS_MAX / OPS_READ_MAX)
#define SHARED_TASKS_MIN 3u
/* If operations are longer on average, every device takes longer to move them than one worker takes to read them. */
#define SHARED_BYTES 8192u
#define SHARED_HELPERS 1u
#define WAKE_TASKS 16u
#define WAKE_FOLLOWS_NS 50000

/* Units of work of an operation that is checked one by one, and of one that is looked for in the ranges of a lease. */
#define CHECK_WORK 3
#define RANGE_WORK 16

/* Not empty, and inside both sides. */
static inline bool op_fits(const struct ops_bounds *b, const struct dmsg_op *op)
{
	/* an empty operation wraps around, and exceeds every length */
	return op->length - 1 < dray_min(b->local_length, b->remote_length) &&
	       op->local <= b->local_length - op->length &&
	       op->remote <= b->remote_length - op->length;
}

/*
 * Checks n operations, which lie in wire form after the checked ones, and merges them in place. Returns n, or the index of the
 * first one that is refused. Struct xfer_op has the size of the wire form.
 */
static uint32_t ops_check(struct ops_checked *checked, struct xfer_op *ops, uint32_t n)
{
	struct ops_checked k = *checked;
	const struct xfer_op *wire = &ops[k.n];
	uint32_t i;

	_Static_assert(sizeof(struct xfer_op) == DMSG_OP_SIZE, "operations are decoded in place");
	for (i = 0; i < n; i++) {
		struct dmsg_op op;

		dmsg_op_get(&wire[i], &op);
		if (!op_fits(&k.bounds, &op) ||
		    __builtin_add_overflow(k.seen.bytes, op.length, &k.seen.bytes))
			break;
		k.seen.longest = dray_max(k.seen.longest, op.length);
		if (op.local == k.bounds.local_end && op.remote == k.bounds.remote_end)
			k.seen.longest = dray_max(k.seen.longest, ops[k.n - 1].length += op.length);
		else
			ops[k.n++] = (struct xfer_op){ op.local, op.remote, op.length };
		k.bounds.local_end = op.local + op.length;
		k.bounds.remote_end = op.remote + op.length;
	}
	*checked = k;
	return i;
}

/* Takes the next n operations, which need no check. False: the sum of their bytes overflows. */
static bool ops_take(struct ops_checked *k, const struct xfer_op *ops, uint32_t n,
		     const struct ops_seen *seen)
{
	const struct xfer_op *last = &ops[k->n + n - 1];
	uint64_t bytes;

	if (__builtin_add_overflow(k->seen.bytes, seen->bytes, &bytes))
		return false;
	k->seen = (struct ops_seen){ bytes, dray_max(k->seen.longest, seen->longest) };
	k->bounds.local_end = last->local + last->length;
	k->bounds.remote_end = last->remote + last->length;
	k->n += n;
	return true;
}

static int ops_refuse(const struct ops_checked *k, const void *wire, uint32_t i,
		      struct dray_err *reterr)
{
	struct dmsg_op op;

	dmsg_op_get(wire, &op);
	if (op_fits(&k->bounds, &op))
		return dray_err_set(
			reterr, -ERANGE, DRAY_E_RANGE,
			"the bytes of the operations overflow 64 bits; split the transfer");
	return dray_err_set(reterr, -ERANGE, DRAY_E_RANGE,
			    "operation %u {%llu, %llu, %llu} is empty, or exceeds the region (%llu "
			    "bytes) or the remote (%llu bytes)",
			    i, (unsigned long long)op.local, (unsigned long long)op.remote,
			    (unsigned long long)op.length,
			    (unsigned long long)k->bounds.local_length,
			    (unsigned long long)k->bounds.remote_length);
}

/*
 * Copies up to n operations after the checked ones; *ret_n: how many. 1: they need no check and are taken; 0: they must be
 * validated; -EFAULT.
 */
static int ops_copy(struct ops_checked *k, struct xfer_op *ops, const struct xfer_request *r,
		    uint32_t from, uint32_t n, uint32_t *ret_n)
{
	const uint8_t *wire = r->ops + (size_t)from * DMSG_OP_SIZE;
	uint32_t many = ops_read_many(dray_min(n, OPS_READ_MAX));
	struct ops_seen seen;
	int ret;

	*ret_n = many ? many : dray_min(n, OPS_CHUNK);
	if (many) {
		ret = ops_read(&ops[k->n], wire, many, &k->bounds, &seen);
		return ret == 1 ? ops_take(k, ops, many, &seen) : ret;
	}
	if (!r->ops_ours)
		return fault_copy(&ops[k->n], wire, (size_t)*ret_n * DMSG_OP_SIZE);
	memcpy(&ops[k->n], wire, (size_t)*ret_n * DMSG_OP_SIZE);
	return 0;
}

/* A list that several workers read at once, one task at a time. */
struct shared_reading {
	const uint8_t *wire;
	struct xfer_op *ops;
	struct ops_bounds bounds;
	int result[SHARED_TASKS]; /* of ops_read() */
	struct ops_seen seen[SHARED_TASKS];
};

_Static_assert(SHARED_TASKS <= WORKSHARE_TASKS_MAX,
	       "a job has room for the tasks of the longest list");

static uint64_t read_task(struct workshare_job *j, unsigned task)
{
	struct shared_reading *s = j->arg;
	size_t first = (size_t)task * OPS_READ_MAX;

	s->result[task] = ops_read(&s->ops[first], s->wire + first * DMSG_OP_SIZE, OPS_READ_MAX,
				   &s->bounds, &s->seen[task]);
	return 0;
}

/* Does the next operation begin where the last checked one ends, on both sides? */
static bool joins(const struct ops_checked *k, const struct xfer_op *ops)
{
	return ops[k->n].local == k->bounds.local_end && ops[k->n].remote == k->bounds.remote_end;
}

/*
 * Reads a long list on, up to operation `end`, with the help of another worker, up to the first task that must be validated; the caller
 * reads from there. Nothing has been merged so far. 0 or -EFAULT. Waits some microseconds for the helper's task.
 */
static int load_shared(struct core *c, struct ops_checked *k, struct xfer *x,
		       const struct xfer_request *r, uint32_t end)
{
	struct shared_reading s = {
		.wire = r->ops + (size_t)k->n * DMSG_OP_SIZE,
		.ops = x->ops + k->n,
		.bounds = { k->bounds.local_length, k->bounds.remote_length, UINT64_MAX,
			    UINT64_MAX },
	};
	uint32_t n = (end - k->n) / OPS_READ_MAX;
	struct workshare_job *job;
	uint64_t none;
	bool follows;

	if (!c->workshare || n < SHARED_TASKS_MIN || k->seen.bytes / k->n >= SHARED_BYTES)
		return 0;
	job = workshare_job(c->workshare, c->index);
	if (!job)
		return 0;
	workshare_set(job, n, SHARED_HELPERS, read_task, &s);
	workshare_publish(c->workshare, c->index, job, -1);
	follows = c->now_ns - c->xfers->shared_ns < WAKE_FOLLOWS_NS;
	c->xfers->shared_ns = c->now_ns;
	if (n >= WAKE_TASKS || follows)
		workshare_wake(c->workshare, c->index, job, SHARED_HELPERS);
	while (workshare_work(job, &none))
		;
	workshare_drain(job);
	workshare_job_put(job);
	workshare_rest(c->workshare, c->index);
	for (uint32_t i = 0; i < n; i++) {
		if (s.result[i] < 0)
			return s.result[i];
		if (!s.result[i] || joins(k, x->ops) ||
		    !ops_take(k, x->ops, OPS_READ_MAX, &s.seen[i]))
			break;
	}
	return 0;
}

static int no_memory(struct core *c, const struct xfer *x, struct dray_err *reterr)
{
	xfer_memory_fault(c, x->session->handle);
	return dray_err_set(
		reterr, -EFAULT, DRAY_E_REGION_FAULT,
		"the operations lie in arena pages that were removed; write them again");
}

/*
 * The remote is a lease: every merged operation must lie in its ranges. Looks up about `most` units of work. 1: all do; 0: call
 * again; -ERANGE with reterr.
 */
static int check_ranges(const struct xfer *x, struct ops_progress *p, uint32_t most,
			struct dray_err *reterr)
{
	const struct ranges *ranges = object_remote(x->remote)->ranges;
	uint64_t work = 0;

	for (; p->ranged < p->checked.n && work < most; p->ranged++) {
		const struct xfer_op *op = &x->ops[p->ranged];
		/* one operation must not take the steps of a long list: it is not divided */
		uint32_t may = dray_min(p->steps, ranges_steps(1)), left = may;
		bool covered = ranges_cover(ranges, op->remote, op->length, &left);

		p->steps -= may - left;
		work += (uint64_t)(1 + may - left) * RANGE_WORK;
		if (covered)
			continue;
		owner_charge(x->session->owner, work);
		return dray_err_set(
			reterr, -ERANGE, DRAY_E_RANGE, "%llu bytes at offset %llu %s",
			(unsigned long long)op->length, (unsigned long long)op->remote,
			left ? "are outside of the ranges of the lease" :
			       "span too many pieces of the lease; split the operation");
	}
	owner_charge(x->session->owner, work);
	return p->ranged == p->checked.n;
}

/* Reads up to `most` operations. 1: all are read; 0: call again; or an error. */
static int load(struct core *c, struct xfer *x, const struct xfer_request *r,
		struct ops_progress *p, uint32_t most, struct dray_err *reterr)
{
	struct ops_checked *k = &p->checked;
	uint32_t begin = p->i, end = begin + dray_min(most, r->n_ops - begin);

	for (uint32_t n; p->i < end; p->i += n) {
		uint32_t before = k->n, done;
		int ret = ops_copy(k, x->ops, r, p->i, end - p->i, &n);

		if (ret < 0)
			return no_memory(c, x, reterr);
		/* the first operations tell the average length */
		if (ret && p->i == begin && k->n == begin + OPS_READ_MAX &&
		    load_shared(c, k, x, r, end) < 0)
			return no_memory(c, x, reterr);
		if (ret)
			n = k->n - before;
		owner_charge(x->session->owner, ret ? n : (uint64_t)n * CHECK_WORK);
		if (ret)
			continue;
		done = ops_check(k, x->ops, n);
		if (done != n)
			return ops_refuse(k, &x->ops[before + done], p->i + done, reterr);
	}
	return p->i == r->n_ops;
}

int ops_load(struct core *c, struct xfer *x, const struct xfer_request *r, struct ops_progress *p,
	     uint32_t most, struct dray_err *reterr)
{
	struct ops_checked *k = &p->checked;

	if (!p->i)
		/* no operation begins there */
		k->bounds = (struct ops_bounds){ x->local->view->length, x->remote->view->length,
						 UINT64_MAX, UINT64_MAX };
	if (p->i < r->n_ops) {
		int ret = load(c, x, r, p, most, reterr);

		if (ret <= 0)
			return ret;
		x->bytes = x->left = k->seen.bytes;
		x->n_ops = k->n;
		x->longest = k->seen.longest;
		p->steps = ranges_steps(k->n);
	}
	return object_remote(x->remote)->ranges ? check_ranges(x, p, most, reterr) : 1;
}
