/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection by TCP, with TLS or without, to a host by name or address, on the agent's event loop. Control thread only; nothing
 * blocks. What waits to be sent is bounded.
 */
#pragma once

#include <openssl/ssl.h>
#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "agent/placement/net/resolver.h"
#include "lib/cleanup.h"
#include "lib/err.h"

/* Bytes that wait to be sent. */
#define STREAM_BYTES_MAX (4u << 20)

struct stream;

struct stream_config {
	sd_event *event;           /* borrowed, like those below */
	struct resolver *resolver; /* outlives the stream */
	SSL_CTX *tls;              /* NULL: without TLS */
	const char *host;
	unsigned port;
	int64_t timeout_ns; /* to be connected: names, TCP and TLS */
	/* Connected. */
	void (*opened)(void *arg);
	/* Bytes came. False: the stream has been closed meanwhile. */
	bool (*received)(void *arg, const void *p, size_t n);
	/* It has ended, or was never connected, and is to be closed. The text does not name the host. */
	void (*ended)(void *arg, const struct dray_err *why);
	void *arg;
};

/* No function of the configuration is called inside this call. 0, or -errno with reterr. */
int stream_open(struct stream **ret, const struct stream_config *cfg, struct dray_err *reterr);
/* Returns NULL. NULL is allowed. */
struct stream *stream_close(struct stream *s);
DRAY_DEFINE_CLEANUP(struct stream *, stream_close);

/* Keeps the bytes until stream_flush(). False: too many wait, or there is no memory; some of p may have been kept. */
bool stream_put(struct stream *s, const void *p, size_t n);
/* Sends what waits, as the connection takes it. Calls no function of the configuration. */
void stream_flush(struct stream *s);
/* The same in the next turn, once for all that is kept until then. */
void stream_flush_soon(struct stream *s);
/* Bytes that wait. */
size_t stream_unsent(const struct stream *s);
