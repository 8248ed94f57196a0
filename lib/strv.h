/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* A list of strings it owns. */
struct dray_strv {
	char **v;
	size_t n;
};

#define DRAY_STRV_NULL ((struct dray_strv){ NULL, 0 })

/* Appends a copy of n bytes of s. Returns 0 or -ENOMEM. */
int dray_strv_add(struct dray_strv *s, const char *str, size_t n);

bool dray_strv_has(const struct dray_strv *s, const char *str);

#define DRAY_STRV_BLANKS " \t"

/* Splits at commas, strips blanks, and appends. Text of blanks alone has no words; words may be empty. 0 or -ENOMEM. */
int dray_strv_split(const char *text, struct dray_strv *ret);

/* Frees all, leaves DRAY_STRV_NULL. */
void dray_strv_clear(struct dray_strv *s);
