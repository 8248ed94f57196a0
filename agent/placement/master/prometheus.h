/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The text format of Prometheus, version 0.0.4. Pure: bytes in, samples out.
 *
 * Strict, since half a page or a misread name is worse than none: the first line that is not in order refuses the
 * page, and so does a last line without its end, which is what a page that was cut looks like. Writers that do not
 * escape label values (some versions of Mooncake's master) are met by the same rule: after a quote only a comma or a
 * brace goes on, and a backslash escapes only \, " and n; any other line is refused rather than guessed at.
 */
#ifndef DRAY_AGENT_PLACEMENT_MASTER_PROMETHEUS_H
#define DRAY_AGENT_PLACEMENT_MASTER_PROMETHEUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/err.h"

#define PROMETHEUS_LABELS_MAX 32
#define PROMETHEUS_LINE_MAX 16384

struct prometheus_label {
	const char *name, *value; /* escapes undone; any bytes but NUL */
};

struct prometheus_sample {
	const char *name;
	const struct prometheus_label *labels; /* in the order of the line, no name twice */
	unsigned n_labels;
	double value;
	bool whole;      /* the value is a whole number that fits: */
	int64_t integer; /* that, exactly; else 0 */
	bool has_timestamp;
	int64_t timestamp_ms; /* Unix time; else 0 */
};

/* s and all it points to: valid during the call. Anything but 0 ends the parsing. */
typedef int (*prometheus_sample_fn)(void *arg, const struct prometheus_sample *s);

/*
 * text need not end in NUL. 0; -EPROTO with reterr (DRAY_E_PROTOCOL), which says line and reason; -ENOMEM; or what fn
 * returned, with its own reterr. Samples of a page that is refused further down have been told already: who
 * keeps them waits for the end.
 */
int prometheus_parse(const char *text, size_t n, prometheus_sample_fn fn, void *arg,
		     struct dray_err *reterr);

/* Value of that label; NULL without. */
const char *prometheus_label(const struct prometheus_sample *s, const char *name);

#endif
