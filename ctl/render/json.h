/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes JSON, indented, member by member. Jansson cannot take its place: its integers end at 2^63-1, and it refuses
 * texts that are not UTF-8, as names of interfaces and processes may be. A byte of such a text is shown as \u00NN.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "lib/cleanup.h"

#define CTL_JSON_DEPTH_MAX 8

struct ctl_json {
	FILE *f;
	unsigned depth;
	char closing[CTL_JSON_DEPTH_MAX];
	bool some[CTL_JSON_DEPTH_MAX]; /* has members already */
};

#define CTL_JSON(stream) ((struct ctl_json){ .f = (stream) })

/* A text alone, in quotes. */
void ctl_json_text(FILE *f, const char *s);

/* Opens an object or an array. key: NULL inside arrays and at the top. */
void ctl_json_object(struct ctl_json *j, const char *key);
void ctl_json_array(struct ctl_json *j, const char *key);
/* Closes the innermost one; the outermost one with a newline. */
void ctl_json_end(struct ctl_json *j);

enum ctl_member_kind {
	CTL_MEMBER_NULL,
	CTL_MEMBER_TEXT,
	CTL_MEMBER_UINT,
	CTL_MEMBER_INT,
	CTL_MEMBER_REAL,
	CTL_MEMBER_BOOL,
};

struct ctl_member {
	const char *key; /* NULL inside arrays */
	enum ctl_member_kind kind;
	union {
		const char *s;
		uint64_t u;
		int64_t i;
		double r;
		bool b;
	};
};

#define J_NULL(k) ((struct ctl_member){ .key = (k) })
#define J_TEXT(k, v) ((struct ctl_member){ .key = (k), .kind = CTL_MEMBER_TEXT, .s = (v) })
#define J_UINT(k, v) ((struct ctl_member){ .key = (k), .kind = CTL_MEMBER_UINT, .u = (v) })
#define J_INT(k, v) ((struct ctl_member){ .key = (k), .kind = CTL_MEMBER_INT, .i = (v) })
#define J_REAL(k, v) ((struct ctl_member){ .key = (k), .kind = CTL_MEMBER_REAL, .r = (v) })
#define J_BOOL(k, v) ((struct ctl_member){ .key = (k), .kind = CTL_MEMBER_BOOL, .b = (v) })

/* Adds members to the innermost object or array, as in ctl_json_add(j, J_TEXT("name", name), J_UINT("bytes", n)). */
#define ctl_json_add(j, ...)                                              \
	ctl_json_members((j), (const struct ctl_member[]){ __VA_ARGS__ }, \
			 DRAY_ARRAY_SIZE(((const struct ctl_member[]){ __VA_ARGS__ })))
void ctl_json_members(struct ctl_json *j, const struct ctl_member *v, size_t n);

/* An object of these members alone. */
#define ctl_json_record(j, key, ...)            \
	do {                                    \
		ctl_json_object((j), (key));    \
		ctl_json_add((j), __VA_ARGS__); \
		ctl_json_end(j);                \
	} while (0)
