/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of objects in the directory: PREFIX:DIGEST, where the digest is of the name space and the key. Whoever reads the directory
 * learns neither, and an object of one name space never has the name of another one's.
 */
#pragma once

#include <openssl/evp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/config/directory_url.h"

/* Bytes of the digest as text. */
#define NAME_DIGEST 40
#define NAME_BYTES (DIRECTORY_PREFIX_MAX + 1 + NAME_DIGEST)

struct names {
	EVP_MD *digest;
	EVP_MD_CTX *ctx;
	char prefix[DIRECTORY_PREFIX_MAX + 1];
	size_t n_prefix;
};

/* 0 or -ENOMEM; names_deinit() also after a failure. */
int names_init(struct names *n, const char *prefix);
void names_deinit(struct names *n);
/* The whole digest, EVP_MAX_MD_SIZE bytes at most. False: no memory. */
bool name_digest(struct names *n, const char *space, const uint8_t *key, size_t n_key,
		 uint8_t *ret);
/* Its start as text, without a NUL at its end. False: no memory. */
bool name_of(struct names *n, const char *space, const uint8_t *key, size_t n_key,
	     char ret[NAME_DIGEST]);
