/* SPDX-License-Identifier: Apache-2.0 */
/* What a worker needs to reach a peer. Made by the control thread, immutable but for the counters. */
#ifndef DRAY_AGENT_TRANSPORT_LINK_H
#define DRAY_AGENT_TRANSPORT_LINK_H

#include <stdatomic.h>
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
	_Atomic uint32_t refs; /* workers that hold it */
};

/*
 * HMAC-SHA256 of a stream hello under the link's key, over the wire form without its mac; and of the
 * welcome, over the wire form without its mac and then the hello's mac. 0 or -EIO.
 */
int stream_hello_mac(const uint8_t key[STREAM_KEY_SIZE], const uint8_t *hello, uint8_t ret_mac[32]);
int stream_welcome_mac(const uint8_t key[STREAM_KEY_SIZE], const uint8_t *welcome,
		       const uint8_t hello_mac[32], uint8_t ret_mac[32]);

#endif
