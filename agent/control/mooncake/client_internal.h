/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by client.c and import.c. */
#pragma once

#include "agent/control/mooncake/client.h"
#include "agent/control/mooncake/descriptor_read.h"
#include "agent/placement/net/resolver.h"
#include "lib/handle.h"
#include "lib/list.h"

#define AREA "mooncake"

struct mooncake_client {
	struct mooncake_client_deps deps;
	const struct dray_config *cfg;
	struct resolver *resolver;
	struct dray_handles imports; /* struct mooncake_import */
	unsigned imports_max;        /* under way at the same time; each has a connection */
	struct dray_handles engines; /* struct engine */
	struct mooncake_client_totals totals;
};

/* client.c: one more remote of the engine with these data connections. 0: there is no memory. */
dray_handle engine_use(struct mooncake_client *c, const void *owner, const struct dray_addr *addr,
		       bool with_status, const char *segment);

/* import.c */
/* Ends those whose addresses mooncake.allow does not have any more. */
void imports_check(struct mooncake_client *c);
void imports_forget(struct mooncake_client *c);
