/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mooncake's handshake, the server's side. A frame is a length (u64, little-endian, of what follows), a type byte, and JSON. A
 * connection has one request and one answer, of the same type. Pure.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define MOONCAKE_FRAME_HEAD 9
/* The default limit of Mooncake's own readers, of the length in the head. */
#define MOONCAKE_FRAME_MAX (1024 * 1024)

enum mooncake_frame_type {
	MOONCAKE_CONNECTION, /* queue pairs for RDMA */
	MOONCAKE_METADATA,   /* the descriptor of the segment */
	MOONCAKE_NOTIFY,
	MOONCAKE_PROBE,
};

struct mooncake_frame {
	enum mooncake_frame_type type;
	uint64_t body; /* bytes that follow */
};

/* 0, or -EPROTO: it is not the head of a request. */
int mooncake_frame_get(const uint8_t p[static MOONCAKE_FRAME_HEAD], struct mooncake_frame *ret);
void mooncake_frame_put(uint8_t p[static MOONCAKE_FRAME_HEAD], const struct mooncake_frame *f);
