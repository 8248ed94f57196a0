/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/ctl.h"

#include <errno.h>
#include <stdarg.h>

#include "lib/err.h"

int ctl_fail(struct ctl *c, enum ctl_exit status, const char *fmt, ...)
{
	va_list ap;

	if (c->failure.exit)
		return -1;
	c->failure.exit = status;
	va_start(ap, fmt);
	vsnprintf(c->failure.msg, sizeof(c->failure.msg), fmt, ap);
	va_end(ap);
	return -1;
}

int ctl_no_memory(struct ctl *c)
{
	return ctl_failed(c, "drayctl is out of memory");
}

int ctl_flush(struct ctl *c)
{
	if (fflush(c->out) != 0 || ferror(c->out))
		return ctl_failed(c, "cannot write to standard output: %s", dray_errno_text(errno));
	return 0;
}
