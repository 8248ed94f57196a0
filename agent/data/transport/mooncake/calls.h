/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls of a data connection to an engine: requests that lie within one buffer of the engine each, in the order in which they are
 * sent and answered, and the slices that they are parts of. Knows which bytes come next in both directions; has no socket, and does not
 * end transfers.
 */
#pragma once

#include <sys/uio.h>

#include "agent/data/transfer/core.h"
#include "agent/data/transport/mooncake/wire.h"

/* Calls in flight on a stream, and those of one slice. A power of two. */
#define MOONCAKE_CALLS 1024u
#define MOONCAKE_SLICE_CALLS SLICE_SEGS_MAX
/* Slices in flight on a stream. */
#define MOONCAKE_WORKS 64u
/* Answers that one system call receives, and ranges of one. */
#define MOONCAKE_ANSWERS 64u
#define MOONCAKE_OUT_IOV 256u
#define MOONCAKE_SINK 65536u

struct mooncake_call {
	uint64_t bytes;
	uint64_t at; /* where they begin in the slice */
	uint8_t work;
	bool write;
	bool skipped; /* it will not be sent */
	bool dead;    /* it was sent; its bytes are discarded */
};

/* A slice on a stream. */
struct mooncake_work {
	struct slice *slice; /* NULL: it has ended */
	uint32_t calls;      /* not answered and not skipped; 0: the work is free */
	uint32_t code;       /* of a call that the engine refused, or whose memory faulted */
	int64_t limit_ns;    /* its transfer stops: when it ends at the latest; 0: it does not */
	bool again; /* some calls were skipped; the slice is sent again when the others are answered */
};

/* v is a ring: [head, sent) wait for answers, [sent, tail) are being sent; sent_of bytes of the first of them have been sent. */
struct mooncake_calls {
	bool with_status;
	uint32_t head, sent, tail;
	uint64_t sent_of;
	uint64_t received_of; /* bytes of the first call's answer that have come */
	uint32_t n_works;
	uint8_t status[MOONCAKE_STATUS_BYTES]; /* of that answer */
	struct mooncake_work works[MOONCAKE_WORKS];
	struct mooncake_call v[MOONCAKE_CALLS]; /* from here on not cleared */
	uint8_t heads[MOONCAKE_CALLS][MOONCAKE_REQUEST_BYTES];
};

/* Ranges of a system call, and where bytes go that belong to no memory; one for all streams of a worker. */
struct mooncake_scratch {
	struct iovec iov[MOONCAKE_OUT_IOV];
	uint8_t answers[MOONCAKE_ANSWERS][MOONCAKE_STATUS_BYTES];
	uint8_t sink[MOONCAKE_SINK];
};

static inline struct mooncake_call *mooncake_calls_at(struct mooncake_calls *q, uint32_t i)
{
	return &q->v[i % MOONCAKE_CALLS];
}

/* Some of call i was sent. */
static inline bool mooncake_calls_begun(const struct mooncake_calls *q, uint32_t i)
{
	return i - q->head < q->sent - q->head || (i == q->sent && q->sent_of);
}

/* There is room for the calls of a slice. */
static inline bool mooncake_calls_fit(const struct mooncake_calls *q)
{
	return MOONCAKE_CALLS - (q->tail - q->head) >= MOONCAKE_SLICE_CALLS;
}

/* A free work takes the slice; the caller adds its calls. */
uint8_t mooncake_calls_take(struct mooncake_calls *q, struct slice *slice);
/* bytes: of the slice, from `at` on; address: of the engine. */
void mooncake_calls_add(struct mooncake_calls *q, uint8_t work, uint64_t at, uint64_t address,
			uint64_t bytes);

/* Calls of the work that were not begun will not be sent. */
void mooncake_calls_skip(struct mooncake_calls *q, const struct mooncake_work *w);
/* Skipped calls at the head, and before the next one to send, are passed. */
void mooncake_calls_pass(struct mooncake_calls *q);
bool mooncake_calls_has_begun(struct mooncake_calls *q, const struct mooncake_work *w);
/*
 * The caller takes the work's slice: no memory of it is used any more. True: the call that is being sent is a WRITE of it, and cannot be
 * completed.
 */
bool mooncake_calls_detach(struct mooncake_calls *q, struct mooncake_work *w);
/* Gives up the call that is being sent and those behind it. Slices that have no other call go to `again`, others are sent again later. */
void mooncake_calls_tear(struct mooncake_calls *q, struct dray_list *again);

/* Gathers what is sent next, of at most max calls and about `room` bytes. Returns the number of ranges. */
unsigned mooncake_calls_gather(struct mooncake_calls *q, struct iovec iov[MOONCAKE_OUT_IOV],
			       unsigned max, uint64_t room);
/* n bytes more are sent. Returns how many of them are payload. */
uint64_t mooncake_calls_sent(struct mooncake_calls *q, uint64_t n);

/* Bytes of the call's answer. */
uint64_t mooncake_calls_answer(const struct mooncake_calls *q, const struct mooncake_call *call);
/* Gathers the places of the next answers, of at most max calls. Returns the number of ranges; 0: none is awaited. */
unsigned mooncake_calls_places(struct mooncake_calls *q, struct mooncake_scratch *scratch,
			       unsigned max, uint64_t room);
/* The first call is answered. The last one of its slice ends the work, and the slice is returned; otherwise NULL. */
struct slice *mooncake_calls_answered(struct mooncake_calls *q);
