/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One control connection: TCP, TLS, and messages in both directions. Its owner interprets the messages. An
 * accepted connection changes its owner once, from the incoming connection to the peer.
 *
 * Callbacks come from the event loop alone. Any of them may free the connection. A connection that failed reports
 * that once and then does nothing more.
 */
#pragma once

#include <systemd/sd-event.h>

#include "agent/control/peer/msgbuf.h"
#include "agent/control/peer/tls.h"
#include "agent/process/turn_work.h"
#include "lib/addr.h"
#include "lib/cleanup.h"

struct conn;

struct conn_ops {
	void (*connected)(struct conn *c); /* TCP; dialled connections only; may be NULL */
	void (*secured)(struct conn *c);   /* TLS: the key is proved */
	/* body lies in c's buffer and is valid during the call. */
	void (*message)(struct conn *c, const struct pmsg_header *h, const uint8_t *body);
	/* The last callback. why->code: peer_lost (closed), peer_denied (key), ... */
	void (*failed)(struct conn *c, const struct dray_err *why);
};

enum conn_phase { CONN_CONNECTING, CONN_HANDSHAKING, CONN_OPEN, CONN_FAILED };

struct conn {
	const struct conn_ops *ops;
	void *owner;
	enum conn_phase phase;
	int fd; /* -1: detached, see conn_new_detached */
	struct tls_conn tls;
	sd_event_source *io, *defer;
	struct turn_work reading;
	struct msgbuf in, out;
	size_t message_max; /* bytes of one message that is accepted */
	struct dray_err failure;
	unsigned busy; /* callbacks on the stack */
	bool freed;    /* while busy */
	bool refused;  /* nothing listens at the address */
};

/* Bytes of pending output: above SOFT new requests of ours are refused as busy, above HARD the connection fails. */
#define CONN_OUT_SOFT (4u << 20)
#define CONN_OUT_HARD (8u << 20)

/* Connects. 0, or -errno with reterr where it fails at once. */
int conn_dial(struct conn **ret, sd_event *event, struct tls *tls, const struct dray_addr *addr,
	      const struct conn_ops *ops, void *owner, struct dray_err *reterr);

/* Serves an accepted socket, which is consumed, also on error. */
int conn_accept(struct conn **ret, sd_event *event, struct tls *tls, int fd,
		const struct conn_ops *ops, void *owner, struct dray_err *reterr);

/* An open connection without socket and TLS: conn_feed() is its input, and its output is discarded. For tests. */
int conn_new_detached(struct conn **ret, sd_event *event, const struct conn_ops *ops, void *owner);
void conn_feed(struct conn *c, const void *p, size_t n);

/* Sends the queued output and a close_notify as far as the socket takes them, then closes. Returns NULL. */
struct conn *conn_free(struct conn *c);

DRAY_DEFINE_CLEANUP(struct conn *, conn_free);

/* Priority in the event loop, as in sd_event_source_set_priority(). */
void conn_set_priority(struct conn *c, int64_t priority);

void conn_set_owner(struct conn *c, const struct conn_ops *ops, void *owner);

/* Queues one encoded message. The event loop sends it. Does nothing after the connection failed. */
void conn_send(struct conn *c, const void *p, size_t n);
/* Sends what is queued now, unless a callback of this connection runs, which ends with that. Runs no callback. */
void conn_flush(struct conn *c);
/* Encodes and queues one message; its fields must be within their limits. body may be NULL if it has none. */
void conn_send_message(struct conn *c, uint16_t type, uint64_t request_id,
		       const union pmsg_body *body);
void conn_send_error(struct conn *c, uint64_t request_id, struct dray_err err);

/* True if the peer reads too slowly for new requests of ours. */
static inline bool conn_is_clogged(const struct conn *c)
{
	return msgbuf_size(&c->out) >= CONN_OUT_SOFT;
}

/* Ends the connection: `failed` runs later from the event loop. The first reason counts. */
void conn_fail(struct conn *c, struct dray_err why);

/* Key material of the TLS connection; 0 or -EIO. Zeros for a detached connection. */
int conn_export(struct conn *c, const char *label, const void *context, size_t n_context,
		uint8_t *ret, size_t n);
