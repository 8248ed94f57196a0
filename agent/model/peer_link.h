/* SPDX-License-Identifier: Apache-2.0 */
/* How a worker reaches a peer. The control thread creates it; only the atomic members and store_held change. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/addr.h"
#include "lib/handle.h"

#define STREAM_KEY_SIZE 32

struct peer_link {
	dray_handle peer;
	struct dray_addr addr; /* where data streams connect */
	bool partial;  /* an engine with Mooncake of whose RDMA devices only some are used */
	bool may_find; /* its frames find may be answered: there is a key, or peer.allow_insecure */
	uint8_t agent_id[16], peer_agent_id[16];
	uint64_t incarnation, peer_incarnation;
	uint8_t stream_key[STREAM_KEY_SIZE];         /* from the TLS exporter */
	_Atomic uint32_t streams;                    /* open, of both sides */
	_Atomic uint64_t bytes_sent, bytes_received; /* over TCP */
	_Atomic uint64_t moving_ns;      /* of all transfers that use the link, added up */
	_Atomic uint64_t started, ended; /* counts of transfers that use the link */
	_Atomic bool rests;              /* the next transfer that starts sends EVENT_PEER_USED */
	_Atomic uint32_t refs;           /* workers that hold it */
	/* bytes of objects that are sent behind answers to its questions; under the lock of the store */
	uint64_t store_held;
};

/* A transfer starts to use the link. True: the worker must send EVENT_PEER_USED. */
static inline bool link_use(struct peer_link *l)
{
	/* sequentially consistent: the control thread sets `rests` first and reads `started` afterwards */
	atomic_fetch_add(&l->started, 1);
	return atomic_load(&l->rests) && atomic_exchange(&l->rests, false);
}

static inline void link_release(struct peer_link *l)
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
