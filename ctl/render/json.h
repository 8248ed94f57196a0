/* SPDX-License-Identifier: Apache-2.0 */
/* Writes JSON, indented. key: NULL inside arrays and at the top. */
#ifndef DRAY_CTL_RENDER_JSON_H
#define DRAY_CTL_RENDER_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define CTL_JSON_DEPTH_MAX 8

struct ctl_json {
	FILE *f;
	unsigned depth;
	char closing[CTL_JSON_DEPTH_MAX];
	bool some[CTL_JSON_DEPTH_MAX]; /* has members already */
};

#define CTL_JSON(stream) ((struct ctl_json){ .f = (stream) })

void ctl_json_object(struct ctl_json *j, const char *key);
void ctl_json_array(struct ctl_json *j, const char *key);
/* Ends the innermost; the last one with a newline. */
void ctl_json_end(struct ctl_json *j);

void ctl_json_string(struct ctl_json *j, const char *key, const char *s);
void ctl_json_uint(struct ctl_json *j, const char *key, uint64_t v);
void ctl_json_int(struct ctl_json *j, const char *key, int64_t v);
void ctl_json_real(struct ctl_json *j, const char *key, double v);
void ctl_json_bool(struct ctl_json *j, const char *key, bool v);
void ctl_json_null(struct ctl_json *j, const char *key);

#endif
