/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/model/seal.h"

#include <errno.h>
#include <limits.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdlib.h>
#include <string.h>

#include "lib/cleanup.h"
#include "lib/wire.h"

#define NONCE_SIZE 12

struct seal {
	EVP_CIPHER_CTX *closes, *opens;
};

static int derive(const uint8_t key[STREAM_KEY_SIZE], const uint8_t agent_id[16],
		  uint64_t stream_id, enum seal_side side, uint8_t ret[32])
{
	static const char *const labels[] = {
		[SEAL_FIND] = "dray find", [SEAL_FOUND] = "dray found"
	};
	uint8_t text[16 + 16 + 8] = { 0 };
	unsigned int n = 32;

	memcpy(text, labels[side], strlen(labels[side]));
	memcpy(text + 16, agent_id, 16);
	dray_le_put64(text + 32, stream_id);
	return HMAC(EVP_sha256(), key, STREAM_KEY_SIZE, text, sizeof(text), ret, &n) && n == 32 ?
		       0 :
		       -EIO;
}

struct seal *seal_new(const uint8_t key[STREAM_KEY_SIZE], const uint8_t agent_id[16],
		      uint64_t stream_id, enum seal_side side)
{
	struct seal *s = calloc(1, sizeof(*s));
	uint8_t own[32];
	bool ok = s && derive(key, agent_id, stream_id, side, own) == 0;

	if (ok) {
		s->closes = EVP_CIPHER_CTX_new();
		s->opens = EVP_CIPHER_CTX_new();
		ok = s->closes && s->opens &&
		     EVP_EncryptInit_ex(s->closes, EVP_aes_256_gcm(), NULL, own, NULL) == 1 &&
		     EVP_DecryptInit_ex(s->opens, EVP_aes_256_gcm(), NULL, own, NULL) == 1;
	}
	OPENSSL_cleanse(own, sizeof(own));
	return ok ? s : seal_free(s);
}

struct seal *seal_free(struct seal *s)
{
	if (s) {
		EVP_CIPHER_CTX_free(s->closes);
		EVP_CIPHER_CTX_free(s->opens);
		free(s);
	}
	return NULL;
}

int seal_close(struct seal *s, uint64_t number, const uint8_t *from, size_t n, uint8_t *to)
{
	uint8_t nonce[NONCE_SIZE] = { 0 };
	int done, more;

	dray_le_put64(nonce, number);
	if (n > INT_MAX || EVP_EncryptInit_ex(s->closes, NULL, NULL, NULL, nonce) != 1 ||
	    EVP_EncryptUpdate(s->closes, to, &done, from, (int)n) != 1 ||
	    EVP_EncryptFinal_ex(s->closes, to + done, &more) != 1 ||
	    EVP_CIPHER_CTX_ctrl(s->closes, EVP_CTRL_GCM_GET_TAG, SEAL_BYTES, to + n) != 1)
		return -EIO;
	return 0;
}

int seal_open(struct seal *s, uint64_t number, const uint8_t *from, size_t n, uint8_t *to)
{
	uint8_t nonce[NONCE_SIZE] = { 0 }, tag[SEAL_BYTES];
	int done, more;

	if (n < SEAL_BYTES || n > INT_MAX)
		return -EPROTO;
	n -= SEAL_BYTES;
	memcpy(tag, from + n, sizeof(tag));
	dray_le_put64(nonce, number);
	if (EVP_DecryptInit_ex(s->opens, NULL, NULL, NULL, nonce) != 1 ||
	    EVP_CIPHER_CTX_ctrl(s->opens, EVP_CTRL_GCM_SET_TAG, SEAL_BYTES, tag) != 1 ||
	    EVP_DecryptUpdate(s->opens, to, &done, from, (int)n) != 1 ||
	    EVP_DecryptFinal_ex(s->opens, to + done, &more) != 1)
		return -EPROTO;
	return 0;
}
