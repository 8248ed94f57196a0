/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/placement/probe/internal.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/*
 * In memory an empty object takes a hundred times its two bytes. Real descriptors have at most one object or array for
 * 25 bytes and one value for 8; the constants leave room for short texts.
 */
#define CONTAINERS_MAX(n) ((n) / 24 + 64)
#define VALUES_MAX(n) ((n) / 8 + 256)

static bool affordable(const char *text, size_t n)
{
	size_t containers = 0, values = 0;
	bool quoted = false;

	for (size_t i = 0; i < n; i++) {
		if (quoted) {
			if (text[i] == '\\')
				i++;
			else if (text[i] == '"')
				quoted = false;
			continue;
		}
		quoted = text[i] == '"';
		containers += text[i] == '{' || text[i] == '[';
		values += text[i] == ',';
	}
	return containers <= CONTAINERS_MAX(n) && values <= VALUES_MAX(n);
}

int probe_json_parse(const char *text, size_t n, json_t **ret, char *why, size_t n_why)
{
	json_error_t error;
	json_t *v;

	if (!affordable(text, n)) {
		snprintf(why, n_why,
			 "it has more JSON values than a text of its length should have");
		return -EPROTO;
	}
	v = json_loadb(text, n, JSON_DECODE_ANY | JSON_DISABLE_EOF_CHECK | JSON_DECODE_INT_AS_REAL,
		       &error);
	if (!v) {
		snprintf(why, n_why, "it is not JSON (line %d, column %d)", error.line,
			 error.column);
		return -EPROTO;
	}
	*ret = v;
	return 0;
}
