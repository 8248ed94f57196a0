/* SPDX-License-Identifier: Apache-2.0 */
/* The URL of store.directory. Pure. */
#pragma once

#include <stdbool.h>

#include "lib/addr.h"
#include "lib/err.h"

#define DIRECTORY_USER_BYTES 129
#define DIRECTORY_DATABASE_MAX 65535
#define DIRECTORY_PREFIX_MAX 64

struct directory_url {
	bool tls;
	char host[DRAY_HOST_BYTES]; /* a name, or an address without brackets */
	unsigned port;
	char user[DIRECTORY_USER_BYTES]; /* empty: the default user of the server */
	unsigned database;
};

/*
 * SCHEME://[USER@]HOST[:PORT][/DATABASE], where the scheme is redis or valkey, or with TLS rediss or valkeys; port 6379 by default.
 * 0, or -EINVAL with reterr, whose text has nothing of what stands before the host: there may be a password.
 */
int directory_url_parse(const char *s, struct directory_url *ret, struct dray_err *reterr);

/* The start of each key in the directory. 0, or -EINVAL with reterr. */
int directory_prefix_check(const char *prefix, struct dray_err *reterr);
