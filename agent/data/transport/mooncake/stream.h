/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of a stream: stream.c has its socket and its turns, send.c and receive.c the bytes, ends.c what ends slices. */
#pragma once

#include "agent/data/transfer/xfer.h"
#include "agent/data/transport/mooncake/mooncake.h"

#define MOONCAKE_PROTOCOL_DETAIL \
	"Mooncake's engine sent something that is no answer of its protocol"

static inline struct core *mooncake_stream_core(const struct mooncake_stream *s)
{
	return mooncake_of(s->ch)->c;
}

static inline dray_handle mooncake_slice_session(const struct slice *slice)
{
	return slice->xfer->session->handle;
}

/* stream.c */

/* The channel has slices for its streams. */
void mooncake_pull_later(struct mooncake_channel *ch);
/* Calls were added, skipped or answered. */
void mooncake_stream_settle(struct mooncake_stream *s);
/* It is over; its slices are the caller's. */
void mooncake_stream_end(struct mooncake_stream *s, bool reset);
/* Version 1: the next call needs another connection. False: the stream is over. */
bool mooncake_stream_reconnect(struct mooncake_stream *s);

/* send.c */
bool mooncake_stream_has_room(const struct mooncake_stream *s);
bool mooncake_stream_may_send(const struct mooncake_stream *s);
/* The next slice to send, with no more calls than a slice may have. */
struct slice *mooncake_next_slice(struct mooncake_channel *ch);
/* Takes the slice, and others of its session behind it. */
void mooncake_stream_fill(struct mooncake_stream *s, struct slice *slice);
void mooncake_stream_send(struct mooncake_stream *s, int64_t *budget);

/* receive.c */
void mooncake_stream_receive(struct mooncake_stream *s, int64_t *budget);

/* ends.c */

/* All calls of the slice are over. */
void mooncake_stream_finish(struct mooncake_stream *s, const struct mooncake_work *w,
			    struct slice *slice);
/* The work's slice goes to `over`: this side does not touch its memory any more. */
void mooncake_stream_detach(struct mooncake_stream *s, struct mooncake_work *w,
			    struct dray_list *over);
/* The memory of this call's slice faulted. */
void mooncake_stream_fault(struct mooncake_stream *s, const struct mooncake_call *call);
/*
 * The connection is unusable. answered: the engine has carried out nothing that it has not answered. code: what READs end with; 0: they
 * are sent again.
 */
void mooncake_stream_lose(struct mooncake_stream *s, bool answered, uint32_t code,
			  const char *detail);
