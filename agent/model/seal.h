/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Seals payload of a data stream: AES-256-GCM under a key of this stream and direction, which comes from the stream's key. So nobody between
 * two agents can read, make or repeat what is sealed. A number is used once for each key: numbers rise in a stream, and an agent refuses a stream id that was used before.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "agent/model/peer_link.h"

/* Bytes that sealing adds. */
#define SEAL_BYTES 16

enum seal_side { SEAL_FIND, SEAL_FOUND };

struct seal;
/* agent_id: of the side that has connected the stream. NULL: no memory. */
struct seal *seal_new(const uint8_t key[STREAM_KEY_SIZE], const uint8_t agent_id[16],
		      uint64_t stream_id, enum seal_side side);
/* NULL is allowed. Returns NULL. */
struct seal *seal_free(struct seal *s);
/* Seals n bytes; `to` has room for SEAL_BYTES more. */
void seal_close(struct seal *s, uint64_t number, const uint8_t *from, size_t n, uint8_t *to);
/* The opposite: n includes SEAL_BYTES, and may lie at the same place. 0, or -EPROTO: they are not what was sealed. */
int seal_open(struct seal *s, uint64_t number, const uint8_t *from, size_t n, uint8_t *to);
