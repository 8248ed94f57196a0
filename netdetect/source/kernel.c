/* SPDX-License-Identifier: Apache-2.0 */
#include "netdetect/source/kernel.h"

#include <stdio.h>

const char *nd_kernel_release(const struct nd_source *s, char buf[ND_RELEASE_MAX])
{
	nd_read_text(s, buf, ND_RELEASE_MAX, "/proc/sys/kernel/osrelease");
	return buf;
}

bool nd_kernel_at_least(const char *release, unsigned major, unsigned minor)
{
	unsigned a = 0, b = 0;

	if (sscanf(release, "%u.%u", &a, &b) != 2)
		return true;
	return a > major || (a == major && b >= minor);
}
