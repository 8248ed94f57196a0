/* SPDX-License-Identifier: Apache-2.0 */
/* RFC 4648 section 5, without padding. */
#ifndef DRAY_LIB_BASE64URL_H
#define DRAY_LIB_BASE64URL_H

#include <stddef.h>

/* Characters for n bytes, terminator not counted. */
#define DRAY_BASE64URL_LEN(n) (((n)*4 + 2) / 3)

/* Writes DRAY_BASE64URL_LEN(n) characters and a terminator. */
void dray_base64url_encode(const void *src, size_t n, char *dst);

/* Bytes written, or -EINVAL (bad character, impossible length, stray bits), -EMSGSIZE (over cap). */
long dray_base64url_decode(const char *src, size_t n, void *dst, size_t cap);

#endif
