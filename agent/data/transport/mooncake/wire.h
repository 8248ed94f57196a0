/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mooncake's data protocol over TCP. A request is a head, and for a write its bytes. The answer to a read is its bytes. Since
 * version 2, which bit 7 of the operation asks for, a status comes before the bytes of a read and after those of a write. There is no
 * other message, and no greeting. All numbers are little-endian. Pure.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define MOONCAKE_REQUEST_BYTES 24
#define MOONCAKE_STATUS_BYTES 8

struct mooncake_request {
	uint64_t length, address;
	bool write;
	bool with_status; /* version 2 */
};

enum mooncake_status { MOONCAKE_STATUS_OK, MOONCAKE_STATUS_REFUSED };

/* 0, or -EPROTO: this is no request that a peer may send. */
int mooncake_request_get(const uint8_t p[static MOONCAKE_REQUEST_BYTES],
			 struct mooncake_request *ret);

void mooncake_request_put(uint8_t p[static MOONCAKE_REQUEST_BYTES],
			  const struct mooncake_request *rq);

/* 0, or -EPROTO: it is none. A status that is unknown is a refusal. */
int mooncake_status_get(const uint8_t p[static MOONCAKE_STATUS_BYTES], enum mooncake_status *ret);
void mooncake_status_put(uint8_t p[static MOONCAKE_STATUS_BYTES], enum mooncake_status status);
