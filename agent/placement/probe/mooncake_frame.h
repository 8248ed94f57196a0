/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mooncake's metadata handshake, as far as a probe needs it: one request, one reply. A frame is a length (u64,
 * little-endian, of what follows), a type byte, and JSON. Pure.
 */
#ifndef DRAY_AGENT_PLACEMENT_PROBE_MOONCAKE_FRAME_H
#define DRAY_AGENT_PLACEMENT_PROBE_MOONCAKE_FRAME_H

#include <stddef.h>
#include <stdint.h>

#define MOONCAKE_HEAD_SIZE 9              /* length and type */
#define MOONCAKE_LENGTH_MAX (1024 * 1024) /* that both sides read by default */
#define MOONCAKE_REQUEST_SIZE 11

#define MOONCAKE_NAME_MAX 256
#define MOONCAKE_PROTOCOL_MAX 63
#define MOONCAKE_WHY_MAX 160

/* Asks for the descriptor. The body says nothing of us: the daemon does not look at it. */
extern const uint8_t mooncake_metadata_request[MOONCAKE_REQUEST_SIZE];

/* Of a descriptor. */
struct mooncake_segment {
	char name[MOONCAKE_NAME_MAX + 1];         /* what does not print is replaced */
	char protocol[MOONCAKE_PROTOCOL_MAX + 1]; /* several: with commas */
	uint64_t buffers;
};

enum {
	MOONCAKE_E_MORE = 1, /* the reply is not complete yet */
	MOONCAKE_E_NOT_YET,  /* complete: the daemon has no segment yet */
};

/*
 * The first n bytes of a reply; what follows it is not looked at. 0 with *ret; MOONCAKE_E_*; or -EPROTO with why: no
 * such reply, whatever may follow.
 */
int mooncake_reply_parse(const uint8_t *p, size_t n, struct mooncake_segment *ret,
			 char why[MOONCAKE_WHY_MAX]);

#endif
