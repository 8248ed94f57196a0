/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <string.h>

#include "agent/config/secret_file.h"
#include "agent/control/peer/tls.h"
#include "lib/assert.h"
#include "schema/gen/errors.h"

/* The longest key file: the largest key as hexadecimal text, and some white space. */
#define FILE_MAX (2 * TLS_KEY_MAX + 16)

/* A keyed digest, of which so few bits are shown that they lead back to no key. */
static void identify(struct tls_key *k)
{
	static const char about[] = "dray key id";
	uint8_t digest[EVP_MAX_MD_SIZE];

	dray_assert(HMAC(EVP_sha256(), k->bytes, (int)k->n, (const uint8_t *)about,
			 sizeof(about) - 1, digest, NULL));
	snprintf(k->id, sizeof(k->id), "%02x%02x%02x%02x", digest[0], digest[1], digest[2],
		 digest[3]);
}

/* Text may end with a line end, which `echo` and editors add; it is not part of the key. All bytes of a raw key count. */
static size_t trimmed(const uint8_t *p, size_t n)
{
	size_t end = n;

	while (end && (p[end - 1] == '\n' || p[end - 1] == '\r' || p[end - 1] == ' '))
		end--;
	for (size_t i = 0; i < end; i++)
		if (p[i] < 0x20 || p[i] > 0x7e)
			return n;
	return end;
}

static bool is_hex(const uint8_t *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!isxdigit(p[i]))
			return false;
	return n % 2 == 0 && n >= 2 * TLS_KEY_MIN && n <= 2 * TLS_KEY_MAX;
}

int tls_key_parse(const uint8_t *p, size_t n, struct tls_key *ret, struct dray_err *reterr)
{
	char text[2 * TLS_KEY_MAX + 1];

	n = trimmed(p, n);
	if (is_hex(p, n)) {
		memcpy(text, p, n);
		text[n] = '\0';
		dray_assert(
			OPENSSL_hexstr2buf_ex(ret->bytes, sizeof(ret->bytes), &ret->n, text, '\0'));
		OPENSSL_cleanse(text, sizeof(text));
		identify(ret);
		return 0;
	}
	if (n < TLS_KEY_MIN || n > TLS_KEY_MAX)
		return dray_err_set(
			reterr, -EINVAL, DRAY_E_INVALID,
			"it has %zu bytes; a key has %d to %d bytes, raw or as hexadecimal text; "
			"drayctl genkey makes one",
			n, TLS_KEY_MIN, TLS_KEY_MAX);
	ret->n = n;
	memcpy(ret->bytes, p, n);
	identify(ret);
	return 0;
}

int tls_key_load(const char *setting, const char *path, struct tls_key *ret,
		 struct dray_err *reterr)
{
	struct dray_err why = DRAY_ERR_NULL;
	uint8_t buf[FILE_MAX + 1];
	size_t n;
	int r = secret_file_read(setting, path, "a key", buf, sizeof(buf), &n, &ret->readers,
				 reterr);

	if (r < 0)
		return r;
	r = tls_key_parse(buf, n, ret, &why);
	OPENSSL_cleanse(buf, sizeof(buf));
	if (r < 0)
		return dray_err_set(reterr, r, why.code, "%s %s: %s", setting, path, why.msg);
	return 0;
}
