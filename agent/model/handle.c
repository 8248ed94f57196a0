/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/model/handle.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "schema/gen/errors.h"

bool handle_kind_differs(dray_handle h, enum dmsg_handle_kind expected, char *buf, size_t size)
{
	unsigned kind = dray_handle_kind(h);

	if (kind == DMSG_HANDLE_KIND_NONE || kind > DMSG_HANDLE_KIND_MAILBOX || kind == expected)
		return false;
	snprintf(buf, size, "0x%" PRIx64 " is a %s, not a %s", h, dmsg_handle_kind_name(kind),
		 dmsg_handle_kind_name(expected));
	return true;
}

int handle_refuse(struct dray_err *reterr, dray_handle h, enum dmsg_handle_kind expected,
		  const char *where)
{
	char differs[80];

	if (handle_kind_differs(h, expected, differs, sizeof(differs)))
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID, "%s; pass the handle of a %s",
				    differs, dmsg_handle_kind_name(expected));
	return dray_err_set(reterr, -ENOENT, DRAY_E_NOT_FOUND, "no %s %" PRIu64 " %s",
			    dmsg_handle_kind_name(expected), h, where);
}
