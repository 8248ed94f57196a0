/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/placement/probe/mooncake_frame.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "agent/placement/probe/internal.h"
#include "lib/cleanup.h"
#include "lib/wire.h"

#define TYPE_METADATA 1

const uint8_t mooncake_metadata_request[MOONCAKE_REQUEST_SIZE] = {
	3, 0, 0, 0, 0, 0, 0, 0, TYPE_METADATA, '{', '}',
};

__attribute__((format(printf, 2, 3))) static int bad(char *why, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, MOONCAKE_WHY_MAX, fmt, ap);
	va_end(ap);
	return -EPROTO;
}

/* Appends text to a string of cap bytes; characters that do not print become ?. False: there is no room. */
static bool append(char *to, size_t cap, const char *text)
{
	size_t n = strlen(to);

	for (; *text; text++) {
		if (n + 1 >= cap)
			return false;
		to[n++] = *text >= ' ' && *text <= '~' ? *text : '?';
		to[n] = '\0';
	}
	return true;
}

static int take_name(const json_t *root, struct mooncake_segment *s, char *why)
{
	const json_t *name = json_object_get(root, "name");

	if (!json_is_string(name) || !json_string_length(name))
		return bad(why, "its name is missing or not a string");
	if (!append(s->name, sizeof(s->name), json_string_value(name)))
		return bad(why, "its name has more than %d bytes", MOONCAKE_NAME_MAX);
	return 0;
}

static int take_protocol(const json_t *root, struct mooncake_segment *s, char *why)
{
	const json_t *protocol = json_object_get(root, "protocol");
	size_t n = json_is_array(protocol) ? json_array_size(protocol) : 1;

	for (size_t i = 0; i < n; i++) {
		const json_t *one = json_is_array(protocol) ? json_array_get(protocol, i) :
							      protocol;

		if (!json_is_string(one) || !json_string_length(one))
			return bad(why, "its protocol is missing or not a string");
		if ((i && !append(s->protocol, sizeof(s->protocol), ",")) ||
		    !append(s->protocol, sizeof(s->protocol), json_string_value(one)))
			return bad(why, "its protocols have more than %d bytes",
				   MOONCAKE_PROTOCOL_MAX);
	}
	return n ? 0 : bad(why, "its list of protocols is empty");
}

static int take_buffers(const json_t *root, struct mooncake_segment *s, char *why)
{
	const json_t *buffers = json_object_get(root, "buffers");

	if (!json_is_array(buffers))
		return bad(why, "its buffers are missing or not an array");
	s->buffers = json_array_size(buffers);
	for (size_t i = 0; i < s->buffers; i++)
		if (!json_is_object(json_array_get(buffers, i)))
			return bad(why, "buffer %zu is not an object", i);
	return 0;
}

static int take(const char *text, size_t n, struct mooncake_segment *ret, char *why)
{
	dray_auto(json_decref) json_t *root = NULL;
	struct mooncake_segment s = { .buffers = 0 };
	int r = probe_json_parse(text, n, &root, why, MOONCAKE_WHY_MAX);

	if (r < 0)
		return r;
	if (json_is_null(root))
		return MOONCAKE_E_NOT_YET;
	if (!json_is_object(root))
		return bad(why, "it is not an object");
	r = take_name(root, &s, why);
	if (r == 0)
		r = take_protocol(root, &s, why);
	if (r == 0)
		r = take_buffers(root, &s, why);
	if (r == 0)
		*ret = s;
	return r;
}

int mooncake_reply_parse(const uint8_t *p, size_t n, struct mooncake_segment *ret,
			 char why[MOONCAKE_WHY_MAX])
{
	uint64_t length;

	if (n < sizeof(length))
		return MOONCAKE_E_MORE;
	length = dray_le_get64(p);
	if (length > MOONCAKE_LENGTH_MAX)
		return bad(why, "it declares %llu bytes, more than the %d that are read",
			   (unsigned long long)length, MOONCAKE_LENGTH_MAX);
	if (!length)
		return bad(why, "it declares an empty frame");
	if (n < MOONCAKE_HEAD_SIZE)
		return MOONCAKE_E_MORE;
	if (p[8] != TYPE_METADATA)
		return bad(why, "its type is %u, not that of the request", p[8]);
	if (n - sizeof(length) < length)
		return MOONCAKE_E_MORE;
	return take((const char *)p + MOONCAKE_HEAD_SIZE, (size_t)length - 1, ret, why);
}
