/* SPDX-License-Identifier: Apache-2.0 */
/* Asks the metadata server for a segment: for its descriptor, then for the address of its engine. Control thread only. */
#pragma once

#include "agent/control/mooncake/descriptor_read.h"
#include "agent/control/mooncake/metadata.h"

struct lookup;

enum lookup_result {
	LOOKUP_FOUND,
	LOOKUP_UNKNOWN, /* the server does not have the segment */
	LOOKUP_FAILED,
};

/* d: of FOUND; the receiver frees its buffers. why: of the others. The lookup has ended, and must not be cancelled. */
typedef void (*lookup_fn)(void *arg, enum lookup_result result, struct mooncake_descriptor *d,
			  const struct dray_err *why);

struct lookup_deps {
	sd_event *event;
	struct resolver *resolver;
	const struct dray_config *cfg;
};

/* fn runs exactly once, unless it is cancelled, within timeout_ns and not inside this call. 0, or -errno with reterr. */
int lookup_start(struct lookup **ret, const struct lookup_deps *deps, const char *segment,
		 int64_t timeout_ns, lookup_fn fn, void *arg, struct dray_err *reterr);
/* Takes NULL. Returns NULL. */
struct lookup *lookup_cancel(struct lookup *l);
