/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/mooncake/gid.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int mooncake_gid_parse(const char *text, struct in6_addr *ret)
{
	static const char digits[] = "0123456789abcdef";

	if (strlen(text) != MOONCAKE_GID_TEXT - 1)
		return -EINVAL;
	for (unsigned i = 0; i < sizeof(ret->s6_addr); i++, text += 3) {
		const char *high = memchr(digits, text[0] | 0x20, 16);
		const char *low = memchr(digits, text[1] | 0x20, 16);

		if (!high || !low || text[2] != (i + 1 < sizeof(ret->s6_addr) ? ':' : '\0'))
			return -EINVAL;
		ret->s6_addr[i] = (uint8_t)((high - digits) << 4 | (low - digits));
	}
	return 0;
}

const char *mooncake_gid_show(const struct in6_addr *gid, char buf[static MOONCAKE_GID_TEXT])
{
	for (unsigned i = 0; i < sizeof(gid->s6_addr); i++)
		snprintf(buf + (size_t)3 * i, MOONCAKE_GID_TEXT - (size_t)3 * i,
			 "%02x:", gid->s6_addr[i]);
	return buf;
}
