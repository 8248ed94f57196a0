/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mooncake's metadata handshake, as far as a probe needs it: one request, one reply. A frame is a length (u64,
 * little-endian, of what follows), a type byte, and JSON. Pure.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define MOONCAKE_HEAD_SIZE 9              /* length and type */
#define MOONCAKE_LENGTH_MAX (1024 * 1024) /* default limit of both sides */
#define MOONCAKE_REQUEST_SIZE 11

#define MOONCAKE_NAME_MAX 256
#define MOONCAKE_PROTOCOL_MAX 63
#define MOONCAKE_WHY_MAX 160

/* Asks for the descriptor. The daemon ignores the body, so it is empty. */
extern const uint8_t mooncake_metadata_request[MOONCAKE_REQUEST_SIZE];

/* The fields of a descriptor that are used. */
struct mooncake_segment {
	char name[MOONCAKE_NAME_MAX + 1];         /* characters that do not print are ? */
	char protocol[MOONCAKE_PROTOCOL_MAX + 1]; /* several: with commas */
	uint64_t buffers;
};

enum {
	MOONCAKE_E_MORE = 1, /* the reply is not complete yet */
	MOONCAKE_E_NOT_YET,  /* complete: the daemon has no segment yet */
};

/*
 * Parses the first n bytes of a reply and ignores what follows the reply. 0 with *ret; MOONCAKE_E_*; or -EPROTO with
 * why: it is not such a reply, whatever follows.
 */
int mooncake_reply_parse(const uint8_t *p, size_t n, struct mooncake_segment *ret,
			 char why[MOONCAKE_WHY_MAX]);
