/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transport `mooncake`: one struct mooncake for each worker. It carries no transfers of this agent. It serves data connections of
 * Mooncake's engines, which the control thread has accepted, from buffers that owners exported to them. Only its own
 * files and tests use more than transport_mooncake.
 *
 * Payload goes from the socket straight to its place, and from its place to the socket, by system calls that end within the turn:
 * between turns nothing accesses the memory of a request. A drop of its grant or region therefore ends it at once, by closing the
 * connection, which is also how the peer learns of it.
 *
 * As in transport tcp, callbacks of the loop only note that a socket is ready, and closed connections are freed at the start of the
 * next turn.
 */
#pragma once

#include "agent/data/transfer/transport.h"
#include "agent/data/transport/mooncake/exports.h"
#include "agent/data/transport/mooncake/wire.h"
#include "agent/data/transport/stage/grant.h"

/* Ranges of one system call. */
#define MOONCAKE_IOV 64
/* Bytes of one turn, and those of one connection before the next one has its turn. */
#define MOONCAKE_TURN_BYTES (1 << 20)
#define MOONCAKE_STEP_BYTES (512 << 10)

extern const struct transport_ops transport_mooncake;

struct mooncake {
	struct core *c;
	struct mooncake_exports exports;
	struct dray_list conns, ready, parked, closed;
	struct dray_list busy;     /* those that hold a grant */
	int64_t timer_ns;          /* next time that tick() has work */
	int64_t stall_ns, idle_ns; /* of the configuration, as tick() has seen it */
	struct iovec iov[MOONCAKE_IOV + 1];
};

enum mooncake_conn_state {
	MOONCAKE_HEAD,    /* the head of the next request is being received */
	MOONCAKE_RECEIVE, /* the bytes of a write */
	MOONCAKE_SEND,    /* the bytes of a read */
};

struct mooncake_conn {
	struct loop_source source;
	struct mooncake *m;
	struct dray_list link;       /* on m->conns or m->closed */
	struct dray_list ready_link; /* on m->ready or m->parked */
	struct dray_list busy_link;  /* on m->busy */
	uint64_t id;
	int fd; /* -1: closed */
	enum mooncake_conn_state state;
	bool readable, writable;
	bool parked;      /* until the next turn */
	bool closing;     /* it closes when its status is sent */
	uint8_t waits;    /* turns in which the buffer of the request was unknown */
	uint8_t status_n; /* bytes of the status that are not sent yet; the last ones */
	uint8_t head_n;   /* bytes of the head that are there */
	int64_t since_ns; /* of the last payload, or since when the head is awaited */
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
/* reset: at once, without sending what is queued. */
void mooncake_conn_close(struct mooncake_conn *c, bool reset);
/* mooncake.stall_timeout has changed. */
void mooncake_conn_configure(struct mooncake_conn *c);
/* It waits for bytes that belong to a request. Engines open connections that they use much later, and do not notice when one is closed. */
bool mooncake_conn_is_busy(const struct mooncake_conn *c);

static inline void mooncake_timer(struct mooncake *m, int64_t when_ns)
{
	m->timer_ns = dray_min(m->timer_ns, when_ns);
}
