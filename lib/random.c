/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/random.h"

#include <errno.h>
#include <sys/random.h>

#include "lib/time.h"

int dray_random_fill(void *p, size_t n)
{
	uint8_t *at = p;

	while (n) {
		ssize_t r = getrandom(at, n, 0);

		if (r < 0 && errno != EINTR)
			return -errno;
		if (r < 0)
			continue;
		at += r;
		n -= (size_t)r;
	}
	return 0;
}

uint64_t dray_random(void)
{
	uint64_t v;

	if (getrandom(&v, sizeof(v), GRND_NONBLOCK) != sizeof(v))
		v = (uint64_t)dray_now().ns * 0x9e3779b97f4a7c15u;
	return v;
}
