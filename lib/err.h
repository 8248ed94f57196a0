/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors in two layers. Every fallible function returns int: 0 is ok, below 0 is -errno and is only
 * forwarded, above 0 is the module's own code that its direct caller must handle. Paths that answer
 * a request also carry a struct dray_err with the protocol's error code and a sentence that says
 * what is wrong and what to do. The first error set wins.
 */
#pragma once

#define DRAY_ERR_MSG_MAX 240

struct dray_err {
	int code; /* enum dray_error of the schema, 0 while nothing is set */
	char msg[DRAY_ERR_MSG_MAX];
};

#define DRAY_ERR_NULL ((struct dray_err){ 0 })

/* The same for data paths, where clearing all of the text would cost more than what is done. */
static inline void dray_err_init(struct dray_err *e)
{
	e->code = 0;
	e->msg[0] = '\0';
}

/* Sets code and message unless one is set already; e may be NULL. Returns ret. */
int dray_err_set(struct dray_err *e, int ret, int code, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* An error by value. code 0: a reason that is no error. */
struct dray_err dray_err_of(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Text of an errno value (positive or negative) in a static table; thread-safe. */
const char *dray_errno_text(int err);
