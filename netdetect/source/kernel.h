/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernel this is. */
#ifndef DRAY_NETDETECT_SOURCE_KERNEL_H
#define DRAY_NETDETECT_SOURCE_KERNEL_H

#include <stdbool.h>

#include "netdetect/source/source.h"

#define ND_RELEASE_MAX 128

/* "6.8.0-45-generic"; "" where it does not say. Returns buf. */
const char *nd_kernel_release(const struct nd_source *s, char buf[ND_RELEASE_MAX]);

/* True too for a release that cannot be read: what is not known is not held against it. Pure. */
bool nd_kernel_at_least(const char *release, unsigned major, unsigned minor);

#endif
