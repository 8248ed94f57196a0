/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of addresses and networks in the configuration: 10.0.0.7, 10.0.0.0/24, 2001:db8::/64. */
#pragma once

#include <stdbool.h>

#include "lib/addr.h"
#include "lib/err.h"
#include "lib/strv.h"

struct network {
	struct in6_addr address; /* IPv4: mapped into IPv6 */
	unsigned bits;           /* of 128 */
};

/* 0, or -EINVAL with reterr: this is no network, or the address has bits behind its prefix. */
int network_parse(const char *word, struct network *ret, struct dray_err *reterr);
/* ::/0 has no address of IPv4, and 0.0.0.0/0 none of IPv6. */
bool network_has(const struct network *n, const struct dray_addr *a);
/* One of the words is a network that has the address. */
bool networks_have(const struct dray_strv *words, const struct dray_addr *a);
