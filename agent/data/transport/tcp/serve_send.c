/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers collect in an output buffer, which is sent after the received frames are handled: many acknowledgements or
 * small READ answers (copied into the buffer) go in one system call. So do READ answers of one range each up to
 * SERVE_JOINED_READ, with the payload from its place behind each head. Another answer is the last of its call. A peer that
 * does not read its answers is not served.
 */
#include <errno.h>
#include <stdlib.h>

#include "agent/data/transport/tcp/serve.h"
#include "lib/fault.h"

static void put_head(struct serve *v, const struct serve_frame *f)
{
	struct pmsg_frame wire = { .kind = f->kind,
				   .status = f->status,
				   .slice = f->slice,
				   .length = f->status ? 0 : f->length };

	if (!v->out)
		v->out = tcp_pool_get(v->s.tcp);
	pmsg_frame_put(v->out + v->out_wr, &wire);
	v->out_wr += PMSG_FRAME_SIZE;
}

/* All payload of the first answer was sent or is in `out`. */
static void sending_end(struct serve *v)
{
	struct serve_frame *f = serve_sending(v);

	v->n_sending--;
	v->grace_ns = 0;
	v->q_head++;
	if (v->n_sending)
		v->sending_left = serve_sending(v)->length;
	if (v->rx == f)
		v->rx = NULL;
	f->taken = true;
	v->founds -= f->found != NULL;
	serve_found_free(f);
	serve_frame_release(f);
}

/* Copies a small answer behind its head, which completes the frame. */
static void read_small(struct serve_frame *f)
{
	struct serve *v = f->serve;
	struct iovec *iov = v->s.tcp->iov;
	uint32_t start = v->out_wr;
	uint64_t bytes;

	while (v->out_wr - start < f->length) {
		unsigned n = grant_walk_ranges(&v->at, &f->held, iov, TCP_IOV, &bytes);

		for (unsigned i = 0; i < n; i++) {
			if (fault_copy(v->out + v->out_wr, iov[i].iov_base, iov[i].iov_len) < 0) {
				v->out_wr = start;
				serve_frame_fault(f);
				return;
			}
			v->out_wr += (uint32_t)iov[i].iov_len;
			grant_walk_advance(&v->at, iov[i].iov_len);
		}
	}
	tcp_count_sent(&v->s, f->length);
	sending_end(v);
}

/* Moves the first answer to `out` if it is ready. */
static bool answer_first(struct serve *v)
{
	struct serve_frame *f = serve_frame_at(v, v->q_head);
	const struct stage_buffer *b = dray_list_first(&f->chunks, struct stage_buffer, link);

	if (f->length && !f->status && (f->host || b || f->found)) {
		if (b && b->busy)
			return false;
		put_head(v, f);
		v->n_sending = 1;
		v->sending_left = f->length + serve_trailing_bytes(f);
		v->sent_of = 0;
		if (f->host && f->length <= SERVE_SMALL_READ && f->length <= TCP_BUFFER - v->out_wr)
			read_small(f);
		return true;
	}
	if (!f->taken || f->copies)
		return false;
	serve_chunks_release(f);
	put_head(v, f);
	v->q_head++;
	return true;
}

/* Adds the next answer to those that are being sent, if it is of their kind. */
static bool answer_next(struct serve *v)
{
	struct serve_frame *f = serve_frame_at(v, v->q_head + v->n_sending);

	if (!serve_sending(v)->base || !f->base || f->status)
		return false;
	put_head(v, f);
	v->n_sending++;
	return true;
}

void serve_answer(struct serve *v)
{
	while (v->q_head + v->n_sending != v->q_tail && TCP_BUFFER - v->out_wr >= PMSG_FRAME_SIZE)
		if (!(v->n_sending ? answer_next(v) : answer_first(v)))
			return;
}

/* What the frame has found, and what follows that, behind the first `skip` bytes. */
static unsigned found_payload(const struct serve_frame *f, uint64_t skip, struct iovec *iov,
			      unsigned max)
{
	const struct trailing *t = f->trailing;
	unsigned n = 0;

	if (skip < f->length)
		iov[n++] = (struct iovec){ f->found + skip, f->length - skip };
	skip -= dray_min(skip, (uint64_t)f->length);
	for (unsigned i = 0; t && i < t->n && n < max; i++) {
		uint64_t skipped = dray_min(skip, (uint64_t)t->v[i].iov_len);

		skip -= skipped;
		if (skipped < t->v[i].iov_len)
			iov[n++] = (struct iovec){ (uint8_t *)t->v[i].iov_base + skipped,
						   t->v[i].iov_len - skipped };
	}
	return n;
}

/* The places of the next payload bytes to send, of the first answer. */
static unsigned payload(struct serve *v, struct iovec *iov, unsigned max)
{
	struct serve_frame *f = serve_sending(v);
	uint64_t skip = v->sent_of, bytes;
	unsigned n = 0;

	if (!f)
		return 0;
	if (f->base) {
		iov[0] = (struct iovec){ f->base + (f->length - v->sending_left), v->sending_left };
		return 1;
	}
	if (f->host)
		return grant_walk_ranges(&v->at, &f->held, iov, max, &bytes);
	if (f->found)
		return found_payload(f, skip, iov, max);
	dray_list_for_each(&f->chunks, b, struct stage_buffer, link) {
		if (n == max || b->busy || b->code)
			break;
		iov[n++] = (struct iovec){ b->base + skip, b->bytes - skip };
		skip = 0;
	}
	return n;
}

bool serve_out_pending(struct serve *v)
{
	struct iovec first;

	return v->out_wr > v->out_rd || payload(v, &first, 1);
}

static void payload_sent(struct serve *v, uint64_t n)
{
	struct serve_frame *f = serve_sending(v);

	tcp_count_sent(&v->s, n);
	v->sending_left -= n;
	if (f->host && !f->base)
		grant_walk_advance(&v->at, n);
	else if (!f->host)
		v->sent_of += n;
	dray_list_for_each(&f->chunks, b, struct stage_buffer, link) {
		if (v->sent_of < b->bytes || b->busy)
			break;
		v->sent_of -= b->bytes;
		stage_put(serve_core(v), b);
	}
	if (!v->sending_left)
		sending_end(v);
}

/* Where the output buffer goes on behind the payload of the first `done` answers. */
static uint32_t out_part(const struct serve *v, uint32_t done)
{
	uint32_t behind = v->n_sending > done ? v->n_sending - done - 1 : 0;

	return v->out_wr - behind * PMSG_FRAME_SIZE;
}

/* The next bytes to send: the output buffer, with the payload of at most so many answers where it belongs. */
static unsigned gather_answers(struct serve *v, struct iovec *iov, uint32_t answers)
{
	uint32_t at = v->out_rd;
	unsigned n = 0;

	answers = dray_min(answers, v->n_sending);
	for (uint32_t i = 0; i < dray_max(answers, 1U); i++) {
		const struct serve_frame *f = serve_frame_at(v, v->q_head + i);
		uint32_t end = out_part(v, i);

		if (end > at)
			iov[n++] = (struct iovec){ v->out + at, end - at };
		at = dray_max(at, end);
		if (i)
			iov[n++] = (struct iovec){ f->base, f->length };
		else
			n += payload(v, iov + n, TCP_IOV - 1);
	}
	return n;
}

/* The kernel has taken the next n bytes. */
static void sent(struct serve *v, uint64_t n)
{
	while (n) {
		uint32_t end = out_part(v, 0);
		uint64_t part = end > v->out_rd ? dray_min(n, (uint64_t)(end - v->out_rd)) : 0;

		v->out_rd += (uint32_t)part;
		n -= part;
		part = v->n_sending ? dray_min(n, v->sending_left) : 0;
		if (part)
			payload_sent(v, part);
		n -= part;
	}
	if (v->out && v->out_rd == v->out_wr) {
		tcp_pool_put(v->s.tcp, v->out);
		v->out = NULL;
		v->out_rd = v->out_wr = 0;
	}
}

/* A head that was sent has announced payload that will not come. */
static bool announced_in_vain(struct serve *v)
{
	return v->n_sending && serve_sending(v)->status;
}

bool serve_flush(struct serve *v, struct tcp_budget *b)
{
	struct tcp *t = v->s.tcp;
	uint32_t answers = UINT32_MAX;
	bool broken = announced_in_vain(v);

	while (!broken && v->s.writable && b->left > 0 && serve_out_pending(v)) {
		struct serve_frame *f = serve_sending(v);
		unsigned k = gather_answers(v, t->iov, answers);
		ssize_t n = tcp_stream_send(&v->s, t->iov, k, b);

		if (n >= 0)
			sent(v, (uint64_t)n);
		else if (n == -EFAULT && v->n_sending > 1 && answers > 1)
			/* one answer at a time, to find the one that faults */
			answers = 1;
		else if (n == -EFAULT && f && f->host)
			serve_frame_fault(f);
		else
			broken = n != -EAGAIN;
		serve_answer(v);
		broken |= announced_in_vain(v);
	}
	if (broken)
		tcp_serve_close(&v->s, true, true);
	return !broken;
}
