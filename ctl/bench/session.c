/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/bench/session.h"

#include <stdlib.h>
#include <string.h>

#include "ctl/render/human.h"
#include "lib/cleanup.h"
#include "lib/time.h"

#define DEADLINE_MS 30000
#define PAGE_BYTES 4096u
#define PART_BYTES (1u << 20) /* that are compared at a time */

static uint64_t slot_bytes(const struct bench_plan *p)
{
	return p->size * p->ops;
}

static int remote_get(struct bench_session *s, const struct dray_token *token, uint64_t *ret_length)
{
	const struct bench_plan *p = s->plan;
	unsigned wanted = p->direction == DRAY_DIRECTION_READ ? DRAY_READ : DRAY_WRITE;
	struct dray_remote_info info;
	int err;

	err = dray_remote_import(s->end.d, token, (unsigned)(p->timeout_ns / DRAY_NS_PER_MS),
				 &s->remote);
	if (!err)
		err = dray_remote_get_info(s->end.d, s->remote, &info);
	if (err)
		return bench_failed(s->plan->ctl, s->end.d, "importing the token", err);
	if (!(info.access & wanted))
		return ctl_fail(s->plan->ctl, CTL_EXIT_REFUSED,
				"the token does not allow to %s; use another token or --direction",
				wanted == DRAY_READ ? "read" : "write");
	*ret_length = info.length;
	return 0;
}

/* Sets the number of slots, and the start of this session's part of the far memory. */
static int slots_get(struct bench_session *s, unsigned number, uint64_t far_length,
		     uint64_t *ret_far_at)
{
	const struct bench_plan *p = s->plan;
	uint64_t part = far_length / p->sessions, lists;

	if (part > PAGE_BYTES)
		part -= part % PAGE_BYTES;
	s->slots = dray_min(s->end.length, part) / slot_bytes(p);
	if (s->slots < p->batch)
		return ctl_failed(s->plan->ctl,
				  "the token is for %s, but --size times --ops times --batch%s "
				  "needs %s; start --serve with more --memory",
				  ctl_size(far_length), p->sessions > 1 ? " times --sessions" : "",
				  ctl_size(slot_bytes(p) * p->batch * p->sessions));
	lists = dray_max(BENCH_LISTS_OPS / p->sessions / p->ops, p->batch);
	s->slots = dray_min(s->slots, lists);
	*ret_far_at = part * number;
	return 0;
}

static int lists_make(struct bench_session *s, uint64_t far_at)
{
	const struct bench_plan *p = s->plan;
	struct dray_op *op;

	s->ops = calloc(s->slots * p->ops, sizeof(*s->ops));
	s->wave = calloc(p->batch, sizeof(*s->wave));
	s->flights = calloc(p->batch, sizeof(*s->flights));
	if (!s->ops || !s->wave || !s->flights)
		return ctl_no_memory(s->plan->ctl);
	op = s->ops;
	for (uint64_t slot = 0; slot < s->slots; slot++)
		for (uint64_t i = 0; i < p->ops; i++, op++) {
			uint64_t base = slot * slot_bytes(p);

			*op = (struct dray_op){ .local = base + i * p->size,
						.remote =
							far_at + base + (p->ops - 1 - i) * p->size,
						.length = p->size };
		}
	for (uint64_t i = 0; i < p->batch; i++) {
		s->wave[i] = (struct dray_transfer){ .direction = p->direction,
						     .priority = p->priority,
						     .local = s->end.region,
						     .remote = s->remote,
						     .count = p->ops,
						     .deadline_ms = DEADLINE_MS };
		s->flights[i].next = s->idle;
		s->idle = &s->flights[i];
	}
	return 0;
}

int bench_session_open(struct bench_session *s, const struct bench_plan *p, unsigned number,
		       const struct dray_token *token)
{
	uint64_t far_length = 0, far_at = 0;

	*s = (struct bench_session){ .plan = p };
	if (bench_end_open(&s->end, p, BENCH_SUBMITS, p->memory) < 0 ||
	    remote_get(s, token, &far_length) < 0 || slots_get(s, number, far_length, &far_at) < 0)
		return -1;
	return lists_make(s, far_at);
}

void bench_session_close(struct bench_session *s)
{
	bench_end_close(&s->end);
	free(s->ops);
	free(s->wave);
	free(s->flights);
	*s = (struct bench_session){ .plan = NULL };
}

/* Fills memory with pseudo-random bytes, in which a wrong offset shows. */
static int fill(struct bench_end *e, uint64_t at, uint64_t n, uint64_t seed, uint8_t *buf)
{
	uint64_t x = 0x9e3779b97f4a7c15 + seed;

	for (uint64_t done = 0, some; done < n; done += some) {
		some = dray_min(n - done, (uint64_t)PART_BYTES);
		for (uint64_t i = 0; i < some; i++) {
			x ^= x << 13;
			x ^= x >> 7;
			x ^= x << 17;
			buf[i] = (uint8_t)x;
		}
		if (bench_end_put(e, at + done, buf, some) < 0)
			return -1;
	}
	return 0;
}

/* Compares the bytes of an operation at both ends. buf: 2 * PART_BYTES. */
static int compare(struct bench_session *s, struct bench_end *far, uint64_t i, uint8_t *buf)
{
	const struct dray_op *op = &s->ops[i];

	for (uint64_t done = 0, some; done < op->length; done += some) {
		const uint8_t *here, *there;

		some = dray_min(op->length - done, (uint64_t)PART_BYTES);
		here = bench_end_view(&s->end, op->local + done, some, buf);
		there = bench_end_view(far, op->remote + done, some, buf + PART_BYTES);
		if (!here || !there)
			return -1;
		if (memcmp(here, there, some))
			return ctl_failed(s->plan->ctl,
					  "operation %llu of the first transfer copied wrong bytes",
					  (unsigned long long)i);
	}
	return 0;
}

int bench_session_rehearse(struct bench_session *s, struct bench_end *far, unsigned *ret_transport)
{
	const struct bench_plan *p = s->plan;
	bool read = p->direction == DRAY_DIRECTION_READ;
	dray_auto_free uint8_t *buf = malloc(2 * PART_BYTES);
	struct dray_transfer t = s->wave[0];
	uint64_t far_at = s->ops[p->ops - 1].remote;
	struct dray_completion c;
	int err;

	if (!buf)
		return ctl_no_memory(p->ctl);
	if (far && fill(read ? far : &s->end, read ? far_at : s->ops[0].local, slot_bytes(p),
			far_at, buf) < 0)
		return -1;
	t.ops = s->ops;
	err = dray_run(s->end.d, &t, &c);
	if (err)
		return bench_failed(p->ctl, s->end.d, "the first transfer", err);
	for (uint64_t i = 0; far && i < p->ops; i++)
		if (compare(s, far, i, buf) < 0)
			return -1;
	*ret_transport = c.transport;
	return 0;
}

/* Assigns lists and flights to the first n transfers of the wave. */
static void wave_load(struct bench_session *s, uint64_t n, int64_t now)
{
	struct bench_flight *f = s->idle;
	uint64_t slot = s->next_slot;

	for (uint64_t i = 0; i < n; i++) {
		s->wave[i].ops = s->ops + slot * s->plan->ops;
		s->wave[i].arg = f;
		f->began_ns = now;
		f = f->next;
		slot = slot + 1 == s->slots ? 0 : slot + 1;
	}
}

int bench_session_start(struct bench_session *s, uint64_t most, int64_t now)
{
	uint64_t n = dray_min(most, s->plan->batch - s->in_flight);
	int started;

	if (!n)
		return 0;
	wave_load(s, n, now);
	started = dray_submit_many(s->end.d, s->wave, n, NULL);
	/* The next completion makes room. */
	if (started == -DRAY_E_BUSY && s->in_flight)
		return 0;
	if (started < 0)
		return bench_failed(s->plan->ctl, s->end.d, "submitting", started);
	for (int i = 0; i < started; i++)
		s->idle = s->idle->next;
	s->next_slot = (s->next_slot + (uint64_t)started) % s->slots;
	s->in_flight += (uint64_t)started;
	return started;
}

int bench_session_complete(struct bench_session *s, struct bench_lap *lap)
{
	int64_t now = dray_now().ns;
	struct dray_completion c;
	struct dray_event ev;
	int n = 0;

	while (dray_next_completion(s->end.d, &c) > 0) {
		struct bench_flight *f = c.arg;

		if (c.status)
			return ctl_failed(s->plan->ctl, "a transfer failed: %s (%s)",
					  *c.message ? c.message : dray_strerror(c.status),
					  dray_strerrorname(c.status));
		ctl_histogram_add(&lap->latency, (uint64_t)(now - f->began_ns));
		f->next = s->idle;
		s->idle = f;
		s->in_flight--;
		s->bytes += c.bytes;
		lap->bytes += c.bytes;
		lap->transfers++;
		lap->transport = c.transport;
		n++;
	}
	/* The status of transfers has the same information, but events left in the queue would prevent sleep. */
	while (dray_next_event(s->end.d, &ev) > 0)
		;
	return n;
}
