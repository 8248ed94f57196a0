/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "client/internal.h"
#include "schema/gen/errors.h"

static uint32_t code_of(int error)
{
	return error < 0 ? 0U - (uint32_t)error : (uint32_t)error;
}

const char *dray_strerror(int error)
{
	return dray_error_doc(code_of(error));
}

const char *dray_strerrorname(int error)
{
	return dray_error_name(code_of(error));
}

const char *dray_strerrorfix(int error)
{
	return dray_error_fix(code_of(error));
}

struct dray_err *dc_error_new(const struct dray *d)
{
	struct results *r = dc_results();

	r->serial = d->serial;
	r->losses = __atomic_load_n(&d->losses, __ATOMIC_RELAXED);
	r->error.code = 0;
	return &r->error;
}

const char *dray_last_error(const struct dray *d)
{
	struct results *r = dc_results();
	struct dray *in dray_auto(dc_leave) = dc_enter(d);

	/* a loss of the session since then, or no failure of this handle yet */
	if (in && (r->serial != d->serial || r->losses != d->losses)) {
		r->error = d->last_loss;
		r->serial = d->serial;
		r->losses = d->losses;
	}
	return r->error.msg;
}

int dc_code_of_errno(int error)
{
	switch (code_of(error)) {
	case ENOMEM:
		return DRAY_E_NO_MEMORY;
	case EMFILE:
	case ENFILE:
		return DRAY_E_NO_FDS;
	case ENOSPC:
		return DRAY_E_NO_SPACE;
	case EACCES:
	case EPERM:
		return DRAY_E_DENIED;
	default:
		return DRAY_E_IO;
	}
}
