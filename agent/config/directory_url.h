/* SPDX-License-Identifier: Apache-2.0 */
/* The URL of store.directory. Pure. */
#pragma once

#include <stdbool.h>

#include "lib/addr.h"
#include "lib/err.h"

#define DIRECTORY_USER_BYTES 129
#define DIRECTORY_DATABASE_MAX 65535
#define DIRECTORY_PREFIX_MAX 64

struct directory_host {
	char host[DRAY_HOST_BYTES]; /* a name, or an address without brackets */
	unsigned port;
};

/* Sentinels, and bytes of the name of their service. */
#define DIRECTORY_HOSTS_MAX 8
#define DIRECTORY_SERVICE_BYTES 65

struct directory_url {
	bool tls;
	bool sentinel; /* the hosts are sentinels, which know the server */
	struct directory_host hosts[DIRECTORY_HOSTS_MAX];
	unsigned n_hosts;                      /* without sentinels: 1 */
	char service[DIRECTORY_SERVICE_BYTES]; /* that the sentinels watch */
	char user[DIRECTORY_USER_BYTES];       /* empty: the default user of the server */
	unsigned database;
};

/*
 * SCHEME://[USER@]HOST[:PORT][/DATABASE], where the scheme is redis or valkey, or with TLS rediss or valkeys; port 6379 by default. With
 * sentinels: SCHEME-sentinel://[USER@]HOST[:PORT],...[/DATABASE]#SERVICE; port 26379.
 * 0, or -EINVAL with reterr, whose text has nothing of what stands before the host: there may be a password.
 */
int directory_url_parse(const char *s, struct directory_url *ret, struct dray_err *reterr);

/* The start of each key in the directory. 0, or -EINVAL with reterr. */
int directory_prefix_check(const char *prefix, struct dray_err *reterr);
