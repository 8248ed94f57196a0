/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int dray_err_set(struct dray_err *e, int ret, int code, const char *fmt, ...)
{
	va_list ap;

	if (!e || e->code)
		return ret;
	e->code = code;
	va_start(ap, fmt);
	vsnprintf(e->msg, sizeof(e->msg), fmt, ap);
	va_end(ap);
	return ret;
}

struct dray_err dray_err_of(int code, const char *fmt, ...)
{
	struct dray_err e = { .code = code };
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(e.msg, sizeof(e.msg), fmt, ap);
	va_end(ap);
	return e;
}

const char *dray_errno_text(int err)
{
	/* Unlike strerrordesc_np(), glibc 2.28 has it. Texts of known errors are static, only others are written to the buffer. */
	char unknown[1];
	const char *text = strerror_r(err < 0 ? -err : err, unknown, sizeof(unknown));

	return text == unknown ? "unknown error" : text;
}
