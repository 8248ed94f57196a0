/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end that measures. Memory is cut into slots of one transfer each; transfers in flight have slots of
 * their own, and the slots are used in turn, so that more than the caches' content is moved. Within a slot
 * the remote operations lie in the opposite order: the agent would merge neighbours into one.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ctl/bench.h"
#include "ctl/human.h"
#include "lib/cleanup.h"
#include "lib/time.h"

/* A transfer that takes longer has failed. */
#define DEADLINE_MS 30000

struct flight {
	int64_t began_ns;
	bool busy;
};

struct run {
	const struct bench_plan *plan;
	struct bench_result *result;
	struct bench_end here, there; /* there: only where both are ours */
	dray_remote remote;
	uint64_t remote_length;
	struct dray_op *ops;
	struct flight *flights; /* plan->batch */
	uint64_t slots, next_slot;
	uint64_t submitted, in_flight;
};

static uint64_t slot_bytes(const struct bench_plan *p)
{
	return p->size * p->ops;
}

static struct dray_transfer transfer_of(struct run *r, uint64_t slot, void *arg)
{
	const struct bench_plan *p = r->plan;
	uint64_t base = slot * slot_bytes(p);

	for (uint64_t i = 0; i < p->ops; i++)
		r->ops[i] = (struct dray_op){ .local = base + i * p->size,
					      .remote = base + (p->ops - 1 - i) * p->size,
					      .length = p->size };
	return (struct dray_transfer){ .direction = p->direction,
				       .priority = p->priority,
				       .local = r->here.region,
				       .remote = r->remote,
				       .ops = r->ops,
				       .count = p->ops,
				       .deadline_ms = DEADLINE_MS,
				       .arg = arg };
}

/* --- getting ready ------------------------------------------------------------------------------ */

static int token_get(struct run *r, struct dray_token *ret, struct ctl_err *reterr)
{
	const struct bench_plan *p = r->plan;
	int err;

	if (p->token) {
		err = dray_token_parse(p->token, ret);
		return err ? ctl_err_set(
				     reterr, CTL_EXIT_USAGE,
				     "--token: that is not what drayctl bench --serve printed") :
			     0;
	}
	if (bench_end_open(&r->there, p, reterr) < 0)
		return -1;
	err = dray_region_export(r->there.d, r->there.region, NULL, ret);
	return err ? bench_failed(reterr, r->there.d, "exporting", err) : 0;
}

static int remote_get(struct run *r, const struct dray_token *token, struct ctl_err *reterr)
{
	unsigned wanted = r->plan->direction == DRAY_DIRECTION_READ ? DRAY_READ : DRAY_WRITE;
	struct dray_remote_info info;
	char a[CTL_HUMAN_BYTES], b[CTL_HUMAN_BYTES];
	int err;

	err = dray_remote_import(r->here.d, token, (unsigned)(r->plan->timeout_ns / DRAY_NS_PER_MS),
				 &r->remote);
	if (!err)
		err = dray_remote_get_info(r->here.d, r->remote, &info);
	if (err)
		return bench_failed(reterr, r->here.d, "importing the token", err);
	if (!(info.access & wanted))
		return ctl_err_set(reterr, CTL_EXIT_REFUSED, "the token does not allow to %s",
				   wanted == DRAY_READ ? "read" : "write");
	r->slots = dray_min(r->here.memory.length, info.length) / slot_bytes(r->plan);
	if (r->slots < r->plan->batch)
		return ctl_err_set(reterr, CTL_EXIT_FAILED,
				   "the token is for %s, and --size times --ops times --batch "
				   "needs %s; serve more with --memory there",
				   ctl_show_size(info.length, a),
				   ctl_show_size(slot_bytes(r->plan) * r->plan->batch, b));
	return 0;
}

/* Something that a wrong offset would show in. */
static void fill(uint8_t *p, uint64_t n)
{
	uint64_t x = 0x9e3779b97f4a7c15;

	for (uint64_t i = 0; i < n; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		p[i] = (uint8_t)x;
	}
}

/*
 * One transfer before the clock runs: connections are made, and where both ends are ours the bytes are
 * compared.
 */
static int rehearse(struct run *r, struct ctl_err *reterr)
{
	const struct bench_plan *p = r->plan;
	struct dray_transfer t = transfer_of(r, 0, NULL);
	const uint8_t *local = r->here.memory.address, *remote = r->there.memory.address;
	struct dray_completion c;
	int err;

	if (r->there.d)
		fill(p->direction == DRAY_DIRECTION_READ ? r->there.memory.address :
							   r->here.memory.address,
		     slot_bytes(p));
	err = dray_run(r->here.d, &t, &c);
	if (err)
		return bench_failed(reterr, r->here.d, "the first transfer", err);
	for (uint64_t i = 0; r->there.d && i < p->ops; i++)
		if (memcmp(local + r->ops[i].local, remote + r->ops[i].remote, p->size))
			return ctl_err_set(
				reterr, CTL_EXIT_FAILED,
				"operation %llu of the first transfer brought wrong bytes",
				(unsigned long long)i);
	r->result->transport = c.transport;
	return 0;
}

/* --- measuring ---------------------------------------------------------------------------------- */

static bool wants_more(const struct run *r, int64_t now, int64_t ends)
{
	return r->plan->count ? r->submitted < r->plan->count : now < ends;
}

/* As many as may be in flight. */
static int fly(struct run *r, int64_t ends, struct ctl_err *reterr)
{
	for (uint64_t i = 0; i < r->plan->batch && r->in_flight < r->plan->batch; i++) {
		struct flight *f = &r->flights[i];
		struct dray_transfer t;
		int err;

		if (f->busy)
			continue;
		f->began_ns = dray_now().ns;
		if (!wants_more(r, f->began_ns, ends))
			return 0;
		t = transfer_of(r, r->next_slot, f);
		err = dray_submit(r->here.d, &t, NULL);
		/* room comes with the next completion */
		if (err == -DRAY_E_BUSY && r->in_flight)
			return 0;
		if (err)
			return bench_failed(reterr, r->here.d, "submitting", err);
		r->next_slot = (r->next_slot + 1) % r->slots;
		f->busy = true;
		r->in_flight++;
		r->submitted++;
	}
	return 0;
}

static int land(struct run *r, struct ctl_err *reterr)
{
	struct dray_completion c;

	while (dray_next_completion(r->here.d, &c) > 0) {
		struct flight *f = c.arg;

		if (c.status)
			return ctl_err_set(reterr, CTL_EXIT_FAILED, "a transfer failed: %s (%s)",
					   *c.message ? c.message : dray_strerror(c.status),
					   dray_strerrorname(c.status));
		ctl_histogram_add(&r->result->latency, (uint64_t)(dray_now().ns - f->began_ns));
		f->busy = false;
		r->in_flight--;
		r->result->transfers++;
		r->result->bytes += c.bytes;
		r->result->transport = c.transport;
	}
	return 0;
}

static int measure(struct run *r, struct ctl_err *reterr)
{
	int64_t began = dray_now().ns, ends = began + r->plan->duration_ns;
	int patience_ms = DEADLINE_MS + (int)(r->plan->timeout_ns / DRAY_NS_PER_MS);

	for (;;) {
		int n;

		if (fly(r, ends, reterr) < 0)
			return -1;
		if (!r->in_flight)
			break;
		n = dray_process(r->here.d, patience_ms);
		if (n < 0)
			return bench_failed(reterr, r->here.d, "the session ended", n);
		if (!n)
			return ctl_err_set(reterr, CTL_EXIT_UNREACHABLE,
					   "the agent has ended no transfer for %d s; it may be "
					   "stopped",
					   patience_ms / 1000);
		if (land(r, reterr) < 0)
			return -1;
	}
	r->result->duration_ns = dray_now().ns - began;
	return 0;
}

int bench_run(const struct bench_plan *p, struct bench_result *ret_result, struct ctl_err *reterr)
{
	struct run r = {
		.plan = p, .result = ret_result, .here = BENCH_END_NULL, .there = BENCH_END_NULL
	};
	struct dray_token token;
	int ret;

	r.ops = calloc(p->ops, sizeof(*r.ops));
	r.flights = calloc(p->batch, sizeof(*r.flights));
	ret = r.ops && r.flights ? 0 : ctl_err_set(reterr, CTL_EXIT_FAILED, "out of memory");
	if (!ret)
		ret = token_get(&r, &token, reterr);
	if (!ret)
		ret = bench_end_open(&r.here, p, reterr);
	if (!ret)
		ret = remote_get(&r, &token, reterr);
	if (!ret)
		ret = rehearse(&r, reterr);
	if (!ret)
		ret = measure(&r, reterr);
	bench_end_close(&r.here);
	bench_end_close(&r.there);
	free(r.flights);
	free(r.ops);
	return ret;
}
