/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/model/peer_link.h"

#include <errno.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <string.h>

#include "schema/gen/peer.h"

#define MAC_SIZE 32
#define HELLO_SIZE (PMSG_STREAM_HELLO_SIZE - MAC_SIZE)
#define WELCOME_SIZE (PMSG_STREAM_WELCOME_SIZE - MAC_SIZE)

static int mac(const uint8_t key[STREAM_KEY_SIZE], const uint8_t *p, size_t n,
	       uint8_t ret[MAC_SIZE])
{
	unsigned int len = MAC_SIZE;

	return HMAC(EVP_sha256(), key, STREAM_KEY_SIZE, p, n, ret, &len) && len == MAC_SIZE ? 0 :
											      -EIO;
}

int stream_hello_mac(const uint8_t key[STREAM_KEY_SIZE], const uint8_t *hello, uint8_t ret_mac[32])
{
	return mac(key, hello, HELLO_SIZE, ret_mac);
}

int stream_welcome_mac(const uint8_t key[STREAM_KEY_SIZE], const uint8_t *welcome,
		       const uint8_t hello_mac[32], uint8_t ret_mac[32])
{
	uint8_t text[WELCOME_SIZE + MAC_SIZE];

	memcpy(text, welcome, WELCOME_SIZE);
	memcpy(text + WELCOME_SIZE, hello_mac, MAC_SIZE);
	return mac(key, text, sizeof(text), ret_mac);
}
