/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transport `mooncake`: one struct mooncake for each worker. It carries transfers to engines with Mooncake, and serves data
 * connections of such engines, which the control thread has accepted, from buffers that owners exported to them. Only its own
 * files and tests use more than transport_mooncake.
 *
 * Payload goes from the socket straight to its place, and from its place to the socket, by system calls that end within the turn:
 * between turns nothing accesses the memory of a request. A drop of its grant or region therefore ends it at once, by closing the
 * connection, which is also how the peer learns of it.
 *
 * A slice goes over one stream, as calls: requests that lie within one buffer of the engine each. The engine carries out the calls of a
 * stream in their order, and many are in flight. An engine that knows only version 1 gets one call for each connection, because it may
 * close the connection afterwards. Its close is the answer to a WRITE if its host has acknowledged all bytes: a close with bytes that
 * were not read resets the connection. An engine that ends only its own direction before it has read the bytes is not noticed.
 *
 * Nothing proves to this side that the engine does not write any more what it has been sent. So when a stream breaks, a WRITE whose
 * calls were sent and not answered ends with peer_lost. A READ, and what was not sent, go out again.
 *
 * As in transport tcp, callbacks of the loop only note that a socket is ready, and closed connections are freed at the start of the
 * next turn.
 */
#pragma once

#include "agent/data/transfer/transport.h"
#include "agent/data/transport/mooncake/calls.h"
#include "agent/data/transport/mooncake/exports.h"
#include "agent/data/transport/mooncake/wire.h"
#include "agent/data/transport/stage/channel.h"
#include "agent/data/transport/stage/grant.h"
#include "agent/model/mooncake_message.h"

/* Ranges of one system call. */
#define MOONCAKE_IOV 64
/* Bytes of one turn, and those of one connection before the next one has its turn. */
#define MOONCAKE_TURN_BYTES (1 << 20)
#define MOONCAKE_STEP_BYTES (512 << 10)
/* What a system call counts for in the budget of a turn. */
#define MOONCAKE_CALL_COST 4096

extern const struct transport_ops transport_mooncake;

struct mooncake;
struct mooncake_engine;

/* Streams that broke before an answer, or could not be made, since the last answer. */
struct mooncake_fails {
	uint32_t n;
	int64_t since_ns;
};

struct mooncake_channel {
	struct stage_channel ch; /* first */
	struct mooncake_engine *engine;
	struct dray_list pull_link; /* on m->pulling[class] while streams may take slices */
	struct dray_list streams;
	uint32_t n_streams, n_open;
	struct mooncake_fails refused,
		lacking; /* by the engine; by a lack of this agent, which says nothing about the engine */
	bool lacks;         /* the last one was of this kind */
	int64_t connect_ns; /* earliest next attempt */
};

struct mooncake_engine {
	struct mooncake *m;
	struct peer_link *link;
	bool with_status;
	bool lost; /* it cannot be reached; its transfers end, and the control thread is told, in the next turn */
	bool told;
	int lack; /* -errno: transfers that wait end with it in the next turn; 0: none */
	struct dray_list engines_link;
	struct mooncake_channel channels[2]; /* by class */
	struct stage_account staged;
};

enum mooncake_stream_state {
	MOONCAKE_CONNECTING,
	MOONCAKE_OPEN,
	MOONCAKE_ENDING, /* nothing more is sent; answers to what was sent still come */
	MOONCAKE_OVER,
};

struct mooncake_stream {
	struct loop_source source;
	struct mooncake_channel *ch;
	struct dray_list link;       /* on ch->streams, or m->over */
	struct dray_list ready_link; /* on m->calling[class] */
	int fd;
	int wake; /* its SO_RCVLOWAT */
	enum mooncake_stream_state state;
	bool readable, writable, hup;
	bool shut;    /* version 1: nothing follows the call that was sent */
	bool useful;  /* a call was answered since it is open */
	bool awaited; /* counts in core.awaited */
	int64_t moved_ns, connect_by_ns;
	dray_handle session;         /* of all slices on it */
	struct mooncake_calls calls; /* last: most of it is not cleared */
};

struct mooncake {
	struct core *c;
	struct mooncake_exports exports;
	struct dray_list conns, ready, parked, closed;
	struct dray_list busy;     /* those that hold a grant */
	struct dray_list marked;   /* those that a head does not wake, in the order of written_ns */
	struct loop_source heads;  /* the timer that looks for heads; owned; fd -1: none */
	bool heads_timed;          /* it is running */
	int64_t timer_ns;          /* next time that tick() has work */
	int64_t stall_ns, idle_ns; /* of the configuration, as tick() has seen it */
	struct iovec iov[MOONCAKE_IOV + 1];
	struct dray_list engines;
	struct dray_list calling[2], pulling[2]; /* streams and channels with work, by class */
	struct dray_list over;                   /* streams to be freed */
	struct mooncake_scratch scratch;         /* of streams */
};

enum mooncake_conn_state {
	MOONCAKE_HEAD,    /* the head of the next request is being received */
	MOONCAKE_RECEIVE, /* the bytes of a write */
	MOONCAKE_SEND,    /* the bytes of a read */
};

struct mooncake_conn {
	struct loop_source source;
	struct mooncake *m;
	struct dray_list link;        /* on m->conns or m->closed */
	struct dray_list ready_link;  /* on m->ready or m->parked */
	struct dray_list busy_link;   /* on m->busy */
	struct dray_list marked_link; /* on m->marked */
	uint64_t id;
	int fd;   /* -1: closed */
	int wake; /* its SO_RCVLOWAT */
	enum mooncake_conn_state state;
	bool readable, writable, hup;
	bool parked;                    /* until the next turn */
	bool closing;                   /* it closes when its status is sent */
	uint16_t writes, writes_needed; /* small ones in a row, and how many until it is marked */
	uint8_t waits;                  /* turns in which the buffer of the request was unknown */
	uint8_t status_n;   /* bytes of the status that are not sent yet; the last ones */
	uint8_t head_n;     /* bytes of the head that are there */
	int64_t since_ns;   /* of the last payload, or since when the head is awaited */
	int64_t written_ns; /* end of the last write */
	struct mooncake_request request;
	uint64_t left; /* bytes of its payload */
	struct granted held;
	struct pmsg_seg seg;
	struct grant_walk at;
	uint8_t head[MOONCAKE_REQUEST_BYTES], status[MOONCAKE_STATUS_BYTES];
};

/* conn.c */

/* fd: consumed. */
void mooncake_conn_adopt(struct mooncake *m, uint64_t id, int fd);
/* Moves bytes within the budget; may close it. */
void mooncake_conn_step(struct mooncake_conn *c, int64_t *budget);
/* step() has something to do without a further event. */
bool mooncake_conn_wants(const struct mooncake_conn *c);
/* Moves bytes that are too few for an event of the socket. True: there were some. May close it. */
bool mooncake_conn_look(struct mooncake_conn *c);
/* reset: at once, without sending what is queued. */
void mooncake_conn_close(struct mooncake_conn *c, bool reset);
/* mooncake.stall_timeout has changed. */
void mooncake_conn_configure(struct mooncake_conn *c);
/* It waits for bytes that belong to a request. Engines open connections that they use much later, and do not notice when one is closed. */
bool mooncake_conn_is_busy(const struct mooncake_conn *c);

/* mark.c */

/* A new connection; the first one makes the timer. Without a descriptor for that, heads always wake the worker. */
void mooncake_marks_adopt(struct mooncake_conn *c);
void mooncake_marks_deinit(struct mooncake *m);
/* The head of a request has been received. */
void mooncake_mark_request(struct mooncake_conn *c);
/* More of the payload is awaited. */
void mooncake_mark_payload(struct mooncake_conn *c);
/* The payload of a write is over. */
void mooncake_mark_head(struct mooncake_conn *c);
void mooncake_marks_tick(struct mooncake *m);
/* More answers of the engine are awaited, or none. */
void mooncake_mark_answer(struct mooncake_stream *s);

static inline void mooncake_timer(struct mooncake *m, int64_t when_ns)
{
	m->timer_ns = dray_min(m->timer_ns, when_ns);
}

/* engine.c */
void mooncake_engine_up(struct mooncake *m, const struct transport_message *msg);
void mooncake_engine_down(struct mooncake *m, dray_handle engine);
void mooncake_engines_deinit(struct mooncake *m);
/* Those that are over. */
void mooncake_streams_free(struct mooncake *m);
/* The operations channel(), stop() and tick(). */
struct channel *mooncake_engine_channel(struct core *c, void *state, const struct xfer *x);
void mooncake_engine_stop(struct core *c, void *state, struct xfer *x, bool urgent);
void mooncake_engines_tick(struct mooncake *m);
/* Carries out the streams' part of a turn. True: there is more to do. */
bool mooncake_engines_progress(struct mooncake *m);
bool mooncake_engines_idle(const struct mooncake *m);
/* A stream could not be opened, or broke before an answer. error: -errno; 0: it broke, or nobody answers. */
void mooncake_channel_failed(struct mooncake_channel *ch, int error);

/* stream.c */
/* Opens the streams that the channel lacks, if an attempt is allowed now. */
void mooncake_connect(struct mooncake_channel *ch);
/* Gives slices to streams that have room. True: the budget ended it. */
bool mooncake_channel_pull(struct mooncake_channel *ch, int64_t *budget);
void mooncake_stream_step(struct mooncake_stream *s, int64_t *budget);
bool mooncake_stream_wants(const struct mooncake_stream *s);
/* True: a slice or the stream has ended, and with it perhaps others. */
bool mooncake_stream_tick(struct mooncake_stream *s);
/* The stream's part of stop(). Slices that end now go to `over`. */
void mooncake_stream_stop(struct mooncake_stream *s, const struct xfer *x, bool urgent,
			  struct dray_list *over);
/* Closes it without a word; it has no slices. */
void mooncake_stream_close(struct mooncake_stream *s);

static inline struct mooncake *mooncake_of(const struct mooncake_channel *ch)
{
	return ch->engine->m;
}
