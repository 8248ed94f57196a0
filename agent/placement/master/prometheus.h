/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parses the text format of Prometheus, version 0.0.4. Pure.
 *
 * The parser is strict, since half a page or a misread name is worse than none: it refuses a page at the first invalid
 * line, and a page whose last line has no end, because it was probably cut off. Some versions of Mooncake's master do
 * not escape label values. So only a comma or a brace may follow a quote, and a backslash escapes only \, " and n.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/err.h"

#define PROMETHEUS_LABELS_MAX 32
#define PROMETHEUS_LINE_MAX 16384

struct prometheus_label {
	const char *name, *value; /* without escapes; any bytes but NUL */
};

struct prometheus_sample {
	const char *name;
	const struct prometheus_label *labels; /* in the order of the line; each name once */
	unsigned n_labels;
	bool whole;      /* the value is a whole number that fits integer */
	int64_t integer; /* exact; else 0 */
};

/* s and everything it points to are valid during the call. Another result than 0 ends the parsing. */
typedef int (*prometheus_sample_fn)(void *arg, const struct prometheus_sample *s);

/*
 * text need not end in NUL. 0; -EPROTO with reterr (DRAY_E_PROTOCOL), which names the line and the reason; -ENOMEM; or
 * the result of fn, with its own reterr. fn may get samples of a page that is refused later.
 */
int prometheus_parse(const char *text, size_t n, prometheus_sample_fn fn, void *arg,
		     struct dray_err *reterr);

/* The value of that label, or NULL. */
const char *prometheus_label(const struct prometheus_sample *s, const char *name);
