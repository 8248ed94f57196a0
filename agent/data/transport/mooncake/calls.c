/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/data/transport/mooncake/calls.h"

#include <string.h>

#include "agent/data/transport/stage/channel.h"
#include "lib/cleanup.h"

uint8_t mooncake_calls_take(struct mooncake_calls *q, struct slice *slice)
{
	uint8_t k = 0;

	while (q->works[k].calls)
		k++;
	q->works[k] = (struct mooncake_work){ .slice = slice };
	q->n_works++;
	return k;
}

void mooncake_calls_add(struct mooncake_calls *q, uint8_t work, uint64_t at, uint64_t address,
			uint64_t bytes)
{
	struct mooncake_work *w = &q->works[work];
	bool write = w->slice->xfer->direction == DMSG_DIRECTION_WRITE;

	*mooncake_calls_at(q, q->tail) =
		(struct mooncake_call){ .bytes = bytes, .at = at, .work = work, .write = write };
	mooncake_request_put(q->heads[q->tail % MOONCAKE_CALLS],
			     &(struct mooncake_request){ .length = bytes,
							 .address = address,
							 .write = write,
							 .with_status = q->with_status });
	q->tail++;
	w->calls++;
}

/* --- calls that are given up --- */

void mooncake_calls_skip(struct mooncake_calls *q, const struct mooncake_work *w)
{
	for (uint32_t i = q->sent; i != q->tail; i++) {
		struct mooncake_call *call = mooncake_calls_at(q, i);

		if (&q->works[call->work] != w || call->skipped || mooncake_calls_begun(q, i))
			continue;
		call->skipped = true;
		q->works[call->work].calls--;
	}
}

void mooncake_calls_pass(struct mooncake_calls *q)
{
	while (q->sent != q->tail && !q->sent_of && mooncake_calls_at(q, q->sent)->skipped)
		q->sent++;
	while (q->head != q->sent && mooncake_calls_at(q, q->head)->skipped)
		q->head++;
}

bool mooncake_calls_has_begun(struct mooncake_calls *q, const struct mooncake_work *w)
{
	for (uint32_t i = q->head; i != q->tail && mooncake_calls_begun(q, i); i++) {
		const struct mooncake_call *call = mooncake_calls_at(q, i);

		if (&q->works[call->work] == w && !call->skipped)
			return true;
	}
	return false;
}

bool mooncake_calls_detach(struct mooncake_calls *q, struct mooncake_work *w)
{
	bool torn = false;

	w->slice = NULL;
	w->again = false;
	mooncake_calls_skip(q, w);
	for (uint32_t i = q->head; i != q->tail && mooncake_calls_begun(q, i); i++) {
		struct mooncake_call *call = mooncake_calls_at(q, i);

		if (&q->works[call->work] != w || call->skipped)
			continue;
		call->dead = true;
		torn |= i == q->sent && call->write;
	}
	if (!w->calls)
		q->n_works--;
	return torn;
}

void mooncake_calls_tear(struct mooncake_calls *q, struct dray_list *again)
{
	struct mooncake_call *torn = mooncake_calls_at(q, q->sent);
	uint64_t used = 0;

	for (uint32_t i = 0; i < MOONCAKE_WORKS; i++) {
		struct mooncake_work *w = &q->works[i];
		uint32_t before = w->calls;

		if (!before)
			continue;
		used |= UINT64_C(1) << i;
		mooncake_calls_skip(q, w);
		w->again |= w->calls != before;
	}
	torn->skipped = true;
	q->works[torn->work].calls--;
	q->tail = q->sent;
	q->sent_of = 0;
	for (uint32_t i = 0; i < MOONCAKE_WORKS; i++) {
		struct mooncake_work *w = &q->works[i];

		if (!(used & UINT64_C(1) << i) || w->calls)
			continue;
		if (w->slice)
			dray_list_add(again, &w->slice->link);
		w->slice = NULL;
		q->n_works--;
	}
}

/* --- bytes --- */

/* Adds [from, from + n) of the slice's bytes. Returns the number of ranges; *ret_n: bytes of them. */
static unsigned add_memory(const struct slice *slice, uint64_t from, uint64_t n, struct iovec *iov,
			   unsigned k, uint64_t *ret_n)
{
	struct iovec staged;
	unsigned n_memory;
	const struct iovec *memory = slice_memory(slice, &staged, &n_memory);
	uint64_t left = n;

	for (unsigned i = 0; i < n_memory && left && k < MOONCAKE_OUT_IOV; i++) {
		uint64_t size;

		if (from >= memory[i].iov_len) {
			from -= memory[i].iov_len;
			continue;
		}
		size = dray_min((uint64_t)memory[i].iov_len - from, left);
		iov[k++] = (struct iovec){ (uint8_t *)memory[i].iov_base + from, size };
		left -= size;
		from = 0;
	}
	*ret_n = n - left;
	return k;
}

/* Bytes of a call on the wire. */
static uint64_t call_size(const struct mooncake_call *call)
{
	return MOONCAKE_REQUEST_BYTES + (call->write ? call->bytes : 0);
}

unsigned mooncake_calls_gather(struct mooncake_calls *q, struct iovec iov[MOONCAKE_OUT_IOV],
			       unsigned max, uint64_t room)
{
	uint64_t of = q->sent_of, n;
	unsigned k = 0;

	for (uint32_t i = q->sent; i != q->tail && max && k + 2 < MOONCAKE_OUT_IOV; i++) {
		const struct mooncake_call *call = mooncake_calls_at(q, i);
		uint64_t want;

		if (call->skipped)
			continue;
		max--;
		if (of < MOONCAKE_REQUEST_BYTES) {
			iov[k++] = (struct iovec){ q->heads[i % MOONCAKE_CALLS] + of,
						   MOONCAKE_REQUEST_BYTES - of };
			of = MOONCAKE_REQUEST_BYTES;
		}
		if (call->write) {
			want = dray_min(call_size(call) - of, room);
			k = add_memory(q->works[call->work].slice,
				       call->at + of - MOONCAKE_REQUEST_BYTES, want, iov, k, &n);
			room -= n;
			if (n < call_size(call) - of)
				break;
		}
		of = 0;
	}
	return k;
}

uint64_t mooncake_calls_sent(struct mooncake_calls *q, uint64_t n)
{
	uint64_t payload = 0;

	while (n) {
		struct mooncake_call *call = mooncake_calls_at(q, q->sent);
		uint64_t take;

		if (call->skipped) {
			q->sent++;
			continue;
		}
		take = dray_min(n, call_size(call) - q->sent_of);
		payload += take - (q->sent_of < MOONCAKE_REQUEST_BYTES ?
					   dray_min(take, MOONCAKE_REQUEST_BYTES - q->sent_of) :
					   0);
		n -= take;
		q->sent_of += take;
		if (q->sent_of == call_size(call)) {
			q->sent++;
			q->sent_of = 0;
		}
	}
	return payload;
}

uint64_t mooncake_calls_answer(const struct mooncake_calls *q, const struct mooncake_call *call)
{
	return (q->with_status ? MOONCAKE_STATUS_BYTES : 0) + (call->write ? 0 : call->bytes);
}

static unsigned add_sink(struct mooncake_scratch *scratch, uint64_t n, unsigned k, uint64_t *ret_n)
{
	*ret_n = dray_min(n, (uint64_t)MOONCAKE_SINK);
	scratch->iov[k] = (struct iovec){ scratch->sink, *ret_n };
	return k + 1;
}

unsigned mooncake_calls_places(struct mooncake_calls *q, struct mooncake_scratch *scratch,
			       unsigned max, uint64_t room)
{
	uint64_t status_n = q->with_status ? MOONCAKE_STATUS_BYTES : 0;
	struct iovec *iov = scratch->iov;
	uint64_t of = q->received_of, n;
	unsigned k = 0, answer = 0;

	memcpy(scratch->answers[0], q->status, MOONCAKE_STATUS_BYTES);
	/* an engine may refuse a call before all of it is sent */
	for (uint32_t i = q->head;
	     i != q->tail && mooncake_calls_begun(q, i) && answer < max && k + 2 < MOONCAKE_OUT_IOV;
	     i++) {
		const struct mooncake_call *call = mooncake_calls_at(q, i);
		uint64_t size = mooncake_calls_answer(q, call), want;

		if (call->skipped)
			continue;
		if (of < status_n) {
			iov[k++] = (struct iovec){ scratch->answers[answer] + of, status_n - of };
			of = status_n;
		}
		answer++;
		if (!call->write && i != q->sent) {
			want = dray_min(size - of, room);
			if (call->dead)
				k = add_sink(scratch, want, k, &n);
			else
				k = add_memory(q->works[call->work].slice, call->at + of - status_n,
					       want, iov, k, &n);
			room -= n;
			if (n < size - of)
				break;
		}
		of = 0;
	}
	return k;
}

struct slice *mooncake_calls_answered(struct mooncake_calls *q)
{
	struct mooncake_work *w = &q->works[mooncake_calls_at(q, q->head)->work];
	struct slice *slice = NULL;

	q->received_of = 0;
	q->head++;
	if (--w->calls)
		return NULL;
	slice = w->slice;
	w->slice = NULL;
	q->n_works--;
	return slice;
}
