/* SPDX-License-Identifier: Apache-2.0 */
/* How a drain stands, in words. */
#ifndef DRAY_CTL_VERBS_DRAIN_H
#define DRAY_CTL_VERBS_DRAIN_H

#include <stddef.h>

#include "ctl/bus/properties.h"

#define CTL_DRAIN_BYTES 200

/* What is left, and until when. buf is filled and returned. */
const char *ctl_drain_text(const struct ctl_properties *p, char *buf, size_t n);

#endif
