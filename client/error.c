/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>

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

int dc_no_such(const struct dray *d, uint64_t id, enum dmsg_handle_kind kind)
{
	unsigned is = dray_handle_kind(id);

	if (!id)
		return dc_fail(d, DRAY_E_NOT_FOUND, "no %s is given", dmsg_handle_kind_name(kind));
	if (is != kind && is != DMSG_HANDLE_KIND_NONE &&
	    (is <= DMSG_HANDLE_KIND_REQUEST || is == DMSG_HANDLE_KIND_LEASE ||
	     is == DMSG_HANDLE_KIND_MAILBOX))
		return dc_fail(d, DRAY_E_INVALID, "0x%" PRIx64 " is a %s, not a %s", id,
			       dmsg_handle_kind_name(is), dmsg_handle_kind_name(kind));
	return dc_fail(d, DRAY_E_NOT_FOUND, "no such %s: 0x%" PRIx64, dmsg_handle_kind_name(kind),
		       id);
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
