/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The binder of a ClientHello (RFC 8446 section 4.2.11.2) proves the pre-shared key that the client offers. All agents offer theirs
 * under one identity, so an agent that accepts two keys finds out by the binder which one a client means. OpenSSL, which is told
 * one key for an identity, verifies the proof itself.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BINDER_SIZE 32

struct binder {
	bool known;
	uint8_t hash[BINDER_SIZE]; /* SHA-256 of the ClientHello up to the binders */
	uint8_t proof[BINDER_SIZE];
};

/* From a whole ClientHello with one binder of SHA-256; otherwise it is not known. */
void binder_read(struct binder *b, const uint8_t *hello, size_t n);

/* True if the binder was made with this key. Only for the first ClientHello of a handshake. */
bool binder_is_of(const struct binder *b, const uint8_t *key, size_t n);
