/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/ctl.h"

#include <errno.h>
#include <stdarg.h>

#include "lib/err.h"

int ctl_err_set(struct ctl_err *e, enum ctl_exit status, const char *fmt, ...)
{
	va_list ap;

	if (!e || e->exit)
		return -1;
	e->exit = status;
	va_start(ap, fmt);
	vsnprintf(e->msg, sizeof(e->msg), fmt, ap);
	va_end(ap);
	return -1;
}

int ctl_no_memory(struct ctl_err *reterr)
{
	return ctl_err_set(reterr, CTL_EXIT_FAILED, "drayctl is out of memory");
}

int ctl_flush(struct ctl *c, struct ctl_err *reterr)
{
	if (fflush(c->out) != 0 || ferror(c->out))
		return ctl_err_set(reterr, CTL_EXIT_FAILED, "cannot write to standard output: %s",
				   dray_errno_text(errno));
	return 0;
}
