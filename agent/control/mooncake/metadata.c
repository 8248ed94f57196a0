/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/mooncake/metadata.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "agent/control/mooncake/frame.h"
#include "lib/plain.h"
#include "schema/gen/errors.h"

/* Bytes of an answer, at most: a descriptor is as long as in a handshake. */
#define ADDRESS_BYTES 4096u
#define KEY_BYTES 1024u

static bool is_plain(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       (c && strchr("-._~", c));
}

/*
 * Escapes as engines do: the server of a master compares keys as they are sent, so that another form of the same text is another key. 0
 * or -EINVAL: there is no room.
 */
static int escape(const char *s, char *to, size_t n)
{
	size_t at = 0;

	for (; *s; s++) {
		if (at + 4 > n)
			return -EINVAL;
		if (is_plain(*s))
			to[at++] = *s;
		else
			at += (size_t)snprintf(to + at, n - at, "%%%02X", (unsigned char)*s);
	}
	to[at] = '\0';
	return 0;
}

/* 0 or -EINVAL: there is no room. */
static int key_make(const struct dray_config *cfg, enum metadata_key key, const char *segment,
		    char ret[static KEY_BYTES])
{
	const char *cluster = cfg->mooncake.metadata_cluster;
	const char *kind = key == METADATA_ADDRESS ? "rpc_meta/" :
			   strchr(segment, '/')    ? "" :
						     "ram/";

	return snprintf(ret, KEY_BYTES, "mooncake/%s%s%s%s", cluster, *cluster ? "/" : "", kind,
			segment) < (int)KEY_BYTES ?
		       0 :
		       -EINVAL;
}

int metadata_request(const struct dray_config *cfg, enum metadata_key key, const char *segment,
		     struct http_request *ret, struct dray_err *reterr)
{
	char text[KEY_BYTES];
	size_t n;
	int r;

	*ret = (struct http_request){ .timeout_ns = cfg->mooncake.timeout,
				      .body_bytes = key == METADATA_SEGMENT ? MOONCAKE_FRAME_MAX :
									      ADDRESS_BYTES };
	r = http_url_parse(cfg->mooncake.metadata, &ret->url, reterr);
	if (r < 0)
		return r;
	n = strlen(ret->url.target);
	n += (size_t)snprintf(ret->url.target + n, sizeof(ret->url.target) - n, "?key=");
	if (n >= sizeof(ret->url.target) || key_make(cfg, key, segment, text) < 0 ||
	    escape(text, ret->url.target + n, sizeof(ret->url.target) - n) < 0)
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "the name of the segment is too long for a metadata server");
	return 0;
}

struct dray_err metadata_refusal(const struct dray_config *cfg, const struct http_answer *answer)
{
	char shown[41];

	dray_plain(shown, sizeof(shown), answer->body, answer->n);
	return dray_err_of(DRAY_E_PROTOCOL,
			   "%.80s answers with HTTP status %u, \"%s\"; is it the metadata server "
			   "of Mooncake's engines?",
			   cfg->mooncake.metadata, answer->status, shown);
}
