/* SPDX-License-Identifier: Apache-2.0 */
/* The words of data.tenants: NAME:PATH, a further data socket with the name of its tenant. Pure. */
#pragma once

#include "lib/err.h"

#define TENANTS_MAX 64
#define TENANT_BYTES 32 /* of a name, with its NUL */

struct tenant {
	char name[TENANT_BYTES];
	const char *path; /* in the word */
};

/* 0, or -EINVAL with reterr: letters, digits, dots, underscores and hyphens, less than TENANT_BYTES of them. */
int tenant_name_check(const char *name, struct dray_err *reterr);
/* 0, or -EINVAL with reterr. */
int tenant_parse(const char *word, struct tenant *ret, struct dray_err *reterr);
