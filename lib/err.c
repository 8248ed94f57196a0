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
	const char *text = strerrordesc_np(err < 0 ? -err : err);

	return text ? text : "unknown error";
}
