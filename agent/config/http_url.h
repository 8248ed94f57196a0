/* SPDX-License-Identifier: Apache-2.0 */
/* URLs of plain HTTP. Pure. */
#pragma once

#include <stddef.h>

#include "lib/addr.h"
#include "lib/err.h"

#define HTTP_HOST_MAX DRAY_HOST_MAX
#define HTTP_TARGET_MAX 1023

struct http_url {
	char host[DRAY_HOST_BYTES];       /* a name, or an address without brackets */
	unsigned port;                    /* 1 to 65535 */
	char target[HTTP_TARGET_MAX + 1]; /* path and query as they are sent; begins with a slash */
};

/*
 * http://HOST[:PORT][/PATH][?QUERY], with IPv6 in brackets; without port: 80. 0, or -EINVAL with reterr, a sentence
 * that quotes the URL: https, user names, fragments, zones and characters that must be escaped are refused.
 */
int http_url_parse(const char *s, struct http_url *ret, struct dray_err *reterr);

/* "HOST:PORT", with brackets where it is IPv6. Returns buf. */
#define HTTP_AUTHORITY_MAX (HTTP_HOST_MAX + 8)
const char *http_url_authority(const struct http_url *url, char *buf, size_t n);
