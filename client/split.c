/* SPDX-License-Identifier: Apache-2.0 */
#include "client/split.h"

#include <stdlib.h>
#include <string.h>

#include "client/internal.h"

struct split {
	struct dray_transfer t; /* with copies of the operations and the payload behind this struct */
	uint32_t most;
	size_t next;   /* operations that were submitted */
	uint32_t open; /* parts in flight */
	uint32_t lent; /* parts that are unconfirmed */
	bool stopped;
	int status;
	char *message; /* of the status; owned; NULL: the text of the code */
	int64_t started_at;
	uint64_t bytes;
	uint32_t transport;
};

static struct split *copy_of(const struct dray_transfer *t)
{
	size_t payload = t->notify ? t->payload_length : 0;
	struct split *s;
	size_t ops;

	if (__builtin_mul_overflow(t->count, sizeof(*t->ops), &ops) ||
	    ops > SIZE_MAX - sizeof(*s) - payload)
		return NULL;
	s = malloc(sizeof(*s) + ops + payload);
	if (!s)
		return NULL;
	*s = (struct split){ .t = *t, .started_at = dray_now().ns };
	s->t.ops = memcpy(s + 1, t->ops, ops);
	if (payload)
		s->t.payload = memcpy((uint8_t *)(s + 1) + ops, t->payload, payload);
	return s;
}

void dc_split_free(struct split *s)
{
	if (s)
		free(s->message);
	free(s);
}

static bool is_done(const struct split *s)
{
	return !s->open && (s->stopped || s->next == s->t.count);
}

/* Ends the whole if no part is in flight and none follows. */
static void end_if_done(struct dray *d, struct request *whole)
{
	struct split *s = whole->split;

	if (whole->state == REQUEST_ENDED || !is_done(s))
		return;
	whole->bytes = s->bytes;
	whole->transport = s->transport;
	whole->duration_ns = dray_span(dray_now().ns - s->started_at);
	if (s->lent) {
		d->proof.unconfirmed++;
		whole->unconfirmed = true;
		dc_request_end_unconfirmed(d, whole);
	} else {
		dc_request_end(d, whole, s->status, s->message ? dc_text(s->message) : NO_TEXT);
	}
}

/* Operations of the next part; 0: it has to wait. */
static size_t next_ops(const struct split *s)
{
	size_t left = s->t.count - s->next;
	bool last = left <= s->most;

	if (s->stopped || !left)
		return 0;
	if (s->open && s->t.wait.region.id && s->next <= s->most)
		return 0;
	if (s->open && last && (s->t.notify || s->t.set.region.id))
		return 0;
	return dray_min(left, (size_t)s->most);
}

/* The next part as a transfer of its own; false: its deadline has passed. */
static bool next_part(const struct split *s, size_t n, struct dray_transfer *ret)
{
	int64_t passed_ms = (dray_now().ns - s->started_at) / DRAY_NS_PER_MS;

	*ret = s->t;
	ret->ops += s->next;
	ret->count = n;
	if (s->next)
		ret->wait = (struct dray_word){ 0 };
	if (s->next + n < s->t.count) {
		ret->set = (struct dray_word){ 0 };
		ret->notify = 0;
	}
	if (!s->t.deadline_ms)
		return true;
	if (passed_ms >= s->t.deadline_ms)
		return false;
	ret->deadline_ms -= (unsigned int)passed_ms;
	return true;
}

/* Submits parts while there is room. 0, or the error of a part. */
static int pump(struct dray *d, struct request *whole)
{
	struct split *s = whole->split;
	struct dray_transfer t;
	struct request *part;
	int error;
	size_t n;

	while ((n = next_ops(s))) {
		if (!next_part(s, n, &t))
			return -DRAY_E_DEADLINE;
		error = dc_transfer_submit_part(d, &t, &part);
		if (error)
			return error;
		part->internal = true;
		part->whole = whole;
		s->next += n;
		s->open++;
	}
	return 0;
}

static void pump_or_stop(struct dray *d, struct request *whole)
{
	int error = pump(d, whole);

	if (error && error != -DRAY_E_BUSY)
		dc_split_stop(d, whole, error, NO_TEXT);
}

int dc_split_start(struct dray *d, const struct dray_transfer *t, uint32_t most,
		   struct request **ret)
{
	struct request *whole = dc_request_new(d, DMSG_TRANSFER, t->arg);
	int error = 0;

	if (whole)
		whole->split = copy_of(t);
	if (!whole || !whole->split) {
		if (whole)
			dc_request_free(d, whole);
		return dc_fail(d, DRAY_E_NO_MEMORY, "no memory for a transfer of %zu operations",
			       t->count);
	}
	whole->split->most = most;
	whole->region = t->local;
	error = dc_proof_deadline(d, whole, t->deadline_ms);
	if (error)
		error = dc_fail(d, DRAY_E_NO_MEMORY, "no memory for another transfer");
	else
		error = pump(d, whole);
	/* once a part is in flight, the whole is */
	if (error && !whole->split->open) {
		dc_request_free(d, whole);
		return error;
	}
	dc_request_sent(d, whole);
	dray_list_move(&d->splits, &whole->link);
	if (error && error != -DRAY_E_BUSY)
		dc_split_stop(d, whole, error, NO_TEXT);
	*ret = whole;
	return 0;
}

void dc_splits_pump(struct dray *d)
{
	if (dray_list_empty(&d->splits) || !dc_session_is_up(d))
		return;
	dray_list_for_each(&d->splits, whole, struct request, link)
		pump_or_stop(d, whole);
	if (d->ring.base)
		dc_ring_submit(&d->ring);
}

static void cancel_parts(struct dray *d, const struct request *whole)
{
	/* without memory for it, a part goes on, and its end ends the whole later */
	dray_list_for_each(&d->requests.sent, part, struct request, link)
		if (part->whole == whole)
			dc_request_internal(d, DMSG_TRANSFER_CANCEL, NO_REGION, NO_REMOTE,
					    part->id);
}

void dc_split_stop(struct dray *d, struct request *whole, int status, struct dray_str text)
{
	struct split *s = whole->split;

	if (!s->stopped) {
		s->stopped = true;
		s->status = status;
		if (text.n)
			s->message = strndup(text.p, text.n);
		cancel_parts(d, whole);
	}
	end_if_done(d, whole);
}

void dc_split_part_ended(struct dray *d, struct request *part, struct dray_str text)
{
	struct request *whole = part->whole;
	struct split *s = whole->split;

	s->open--;
	s->bytes += part->bytes;
	if (part->transport)
		s->transport = part->transport;
	if (part->status)
		dc_split_stop(d, whole, part->status, text);
	else
		end_if_done(d, whole);
}

void dc_split_part_unconfirmed(struct dray *d, struct request *part)
{
	struct split *s = part->whole->split;

	s->open--;
	s->lent++;
	/* if all parts succeed after all, so does the whole, unless operations are missing */
	dc_split_stop(d, part->whole, s->next < s->t.count ? -DRAY_E_DEADLINE : 0, NO_TEXT);
}

void dc_split_part_answered(struct dray *d, struct request *part, int status)
{
	struct request *whole = part->whole;
	struct split *s = whole->split;

	s->lent--;
	s->bytes += part->bytes;
	if (!s->status)
		s->status = status;
	if (s->lent || !whole->unconfirmed)
		return;
	whole->bytes = s->bytes;
	dc_proof_answered(d, whole, s->status, NO_TEXT);
}

void dc_splits_lost(struct dray *d, int code)
{
	dray_list_for_each(&d->splits, whole, struct request, link)
		dc_split_stop(d, whole, code, dc_text(d->loss.msg));
}
