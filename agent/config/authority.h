/* SPDX-License-Identifier: Apache-2.0 */
/* HOST[:PORT] in URLs. Pure. */
#pragma once

#include "lib/addr.h"

/*
 * HOST[:PORT] of n bytes, a name or an address, with IPv6 in brackets; without a port: `port`. NULL, or what is wrong;
 * no_url: that there is no host.
 */
const char *authority_parse(const char *s, size_t n, unsigned port, const char *no_url,
			    char host[DRAY_HOST_BYTES], unsigned *ret_port);
