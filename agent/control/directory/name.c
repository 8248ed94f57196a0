/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/directory/name.h"

#include <errno.h>
#include <openssl/err.h>
#include <string.h>

int names_init(struct names *n, const char *prefix)
{
	*n = (struct names){ .n_prefix = strlen(prefix) };
	memcpy(n->prefix, prefix, n->n_prefix);
	n->digest = EVP_MD_fetch(NULL, "SHA256", NULL);
	n->ctx = EVP_MD_CTX_new();
	ERR_clear_error();
	return n->digest && n->ctx ? 0 : -ENOMEM;
}

void names_deinit(struct names *n)
{
	EVP_MD_CTX_free(n->ctx);
	EVP_MD_free(n->digest);
}

static char *hex_put(char *p, uint8_t byte)
{
	static const char digits[] = "0123456789abcdef";

	*p++ = digits[byte >> 4];
	*p++ = digits[byte & 15];
	return p;
}

bool name_digest(struct names *n, const char *space, const uint8_t *key, size_t n_key, uint8_t *ret)
{
	/* the terminator of the name space keeps both apart */
	if (EVP_DigestInit_ex(n->ctx, n->digest, NULL) &&
	    EVP_DigestUpdate(n->ctx, space, strlen(space) + 1) &&
	    EVP_DigestUpdate(n->ctx, key, n_key) && EVP_DigestFinal_ex(n->ctx, ret, NULL))
		return true;
	ERR_clear_error();
	return false;
}

bool name_of(struct names *n, const char *space, const uint8_t *key, size_t n_key,
	     char ret[NAME_DIGEST])
{
	uint8_t digest[EVP_MAX_MD_SIZE];
	char *p = ret;

	if (!name_digest(n, space, key, n_key, digest))
		return false;
	for (unsigned i = 0; i < NAME_DIGEST / 2; i++)
		p = hex_put(p, digest[i]);
	return true;
}
