/* SPDX-License-Identifier: Apache-2.0 */
/* What a worker needs to reach a peer. Made by the control thread, immutable but for the counters. */
#ifndef DRAY_AGENT_MODEL_PEER_LINK_H
#define DRAY_AGENT_MODEL_PEER_LINK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/addr.h"
#include "lib/handle.h"

#define STREAM_KEY_SIZE 32

struct peer_link {
	dray_handle peer;
	struct dray_addr addr; /* where data streams connect */
	uint8_t agent_id[16], peer_agent_id[16];
	uint64_t incarnation, peer_incarnation;
	uint8_t stream_key[STREAM_KEY_SIZE]; /* from the TLS exporter */
	_Atomic uint32_t streams;            /* open, both sides' */
	_Atomic uint64_t bytes_sent, bytes_received;
	_Atomic uint64_t started, ended; /* transfers that use it */
	_Atomic bool rests;    /* the control thread wants to hear of the next one that starts */
	_Atomic uint32_t refs; /* workers that hold it */
};

/* A transfer starts to use it. True if the control thread is to be told. */
static inline bool link_use(struct peer_link *l)
{
	/* against the control thread, which sets `rests` and then looks at what has started */
	atomic_fetch_add(&l->started, 1);
	return atomic_load(&l->rests) && atomic_exchange(&l->rests, false);
}

static inline void link_let_go(struct peer_link *l)
{
	atomic_fetch_add(&l->ended, 1);
}

/*
 * HMAC-SHA256 of a stream hello under the link's key, over the wire form without its mac; and of the
 * welcome, over the wire form without its mac and then the hello's mac. 0 or -EIO.
 */
int stream_hello_mac(const uint8_t key[STREAM_KEY_SIZE], const uint8_t *hello, uint8_t ret_mac[32]);
int stream_welcome_mac(const uint8_t key[STREAM_KEY_SIZE], const uint8_t *welcome,
		       const uint8_t hello_mac[32], uint8_t ret_mac[32]);

#endif
