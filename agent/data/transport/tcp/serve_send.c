/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers collect in an output buffer, which is sent after the received frames are handled: many
 * acknowledgements or small READ answers (copied into the buffer) go in one system call. The payload of a
 * large READ answer is sent from its place, behind that buffer. A peer that does not read its answers is
 * not served.
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

/* All payload of the answer was sent or is in `out`. */
static void sending_end(struct serve *v)
{
	struct serve_frame *f = v->sending;

	v->sending = NULL;
	v->grace_ns = 0;
	v->q_head++;
	if (v->rx == f)
		v->rx = NULL;
	f->taken = true;
	v->founds -= f->found != NULL;
	free(dray_take(f->found));
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
		v->sending = f;
		v->sending_left = f->length;
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

void serve_answer(struct serve *v)
{
	while (v->q_head != v->q_tail && !v->sending && TCP_BUFFER - v->out_wr >= PMSG_FRAME_SIZE)
		if (!answer_first(v))
			return;
}

/* The places of the next payload bytes to send, in `sending`. */
static unsigned payload(struct serve *v, struct iovec *iov, unsigned max)
{
	struct serve_frame *f = v->sending;
	uint64_t skip = v->sent_of, bytes;
	unsigned n = 0;

	if (!f)
		return 0;
	if (f->host)
		return grant_walk_ranges(&v->at, &f->held, iov, max, &bytes);
	if (f->found) {
		iov[0] = (struct iovec){ f->found + v->sent_of, v->sending_left };
		return 1;
	}
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
	struct serve_frame *f = v->sending;

	tcp_count_sent(&v->s, n);
	v->sending_left -= n;
	if (f->host)
		grant_walk_advance(&v->at, n);
	else
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

/* The kernel has taken n bytes of the output buffer and the payload behind it. */
static void sent(struct serve *v, uint64_t n)
{
	uint64_t head = dray_min(n, (uint64_t)(v->out_wr - v->out_rd));

	v->out_rd += (uint32_t)head;
	if (n > head)
		payload_sent(v, n - head);
	if (v->out && v->out_rd == v->out_wr) {
		tcp_pool_put(v->s.tcp, v->out);
		v->out = NULL;
		v->out_rd = v->out_wr = 0;
	}
}

bool serve_flush(struct serve *v, struct tcp_budget *b)
{
	struct tcp *t = v->s.tcp;
	/* A head that was sent has announced payload that will not come. */
	bool broken = v->sending && v->sending->status;

	while (!broken && v->s.writable && b->left > 0 && serve_out_pending(v)) {
		unsigned k = 0;
		ssize_t n;

		if (v->out_wr > v->out_rd)
			t->iov[k++] = (struct iovec){ v->out + v->out_rd, v->out_wr - v->out_rd };
		k += payload(v, t->iov + k, TCP_IOV - 1);
		n = tcp_stream_send(&v->s, t->iov, k, b);
		if (n >= 0)
			sent(v, (uint64_t)n);
		else if (n == -EFAULT && v->sending && v->sending->host)
			serve_frame_fault(v->sending);
		else
			broken = n != -EAGAIN;
		serve_answer(v);
		broken |= v->sending && v->sending->status;
	}
	if (broken)
		tcp_serve_close(&v->s, true, true);
	return !broken;
}
