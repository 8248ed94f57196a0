/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/peer/binder.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <string.h>

#include "lib/cleanup.h"

/* A list of one binder ends the message: the length of the list, the length of the binder, the binder. */
static const uint8_t list_of_one[] = { 0, BINDER_SIZE + 1, BINDER_SIZE };
#define LIST_SIZE (sizeof(list_of_one) + BINDER_SIZE)

void binder_read(struct binder *b, const uint8_t *hello, size_t n)
{
	const uint8_t *list;

	b->known = false;
	if (n <= LIST_SIZE)
		return;
	list = hello + n - LIST_SIZE;
	b->known = !memcmp(list, list_of_one, sizeof(list_of_one)) &&
		   EVP_Digest(hello, n - LIST_SIZE, b->hash, NULL, EVP_sha256(), NULL);
	if (b->known)
		memcpy(b->proof, list + sizeof(list_of_one), BINDER_SIZE);
}

static bool mac(const uint8_t *key, size_t n_key, const void *data, size_t n,
		uint8_t ret[BINDER_SIZE])
{
	return HMAC(EVP_sha256(), key, (int)n_key, data, n, ret, NULL);
}

/* HKDF-Expand-Label of RFC 8446 section 7.1 for one block of output. */
static bool expand(const uint8_t secret[BINDER_SIZE], const char *label, const uint8_t *context,
		   uint8_t n_context, uint8_t ret[BINDER_SIZE])
{
	uint8_t info[4 + 64 + BINDER_SIZE + 1], n_label = (uint8_t)strlen(label);
	size_t n = 0;

	info[n++] = 0;
	info[n++] = BINDER_SIZE;
	info[n++] = n_label;
	memcpy(info + n, label, n_label);
	n += n_label;
	info[n++] = n_context;
	if (n_context)
		memcpy(info + n, context, n_context);
	n += n_context;
	info[n++] = 1; /* the number of the block */
	return mac(secret, BINDER_SIZE, info, n, ret);
}

bool binder_is_of(const struct binder *b, const uint8_t *key, size_t n)
{
	static const uint8_t no_salt[BINDER_SIZE];
	uint8_t secret[BINDER_SIZE], nothing[BINDER_SIZE], proof[BINDER_SIZE];
	bool same;

	same = b->known && EVP_Digest("", 0, nothing, NULL, EVP_sha256(), NULL) &&
	       mac(no_salt, sizeof(no_salt), key, n, secret) &&
	       expand(secret, "tls13 ext binder", nothing, BINDER_SIZE, secret) &&
	       expand(secret, "tls13 finished", NULL, 0, secret) &&
	       mac(secret, BINDER_SIZE, b->hash, BINDER_SIZE, proof) &&
	       !CRYPTO_memcmp(proof, b->proof, BINDER_SIZE);
	OPENSSL_cleanse(secret, sizeof(secret));
	return same;
}
