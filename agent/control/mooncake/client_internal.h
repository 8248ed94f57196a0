/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by client.c, import.c and queue_pairs.c. */
#pragma once

#include "agent/control/mooncake/client.h"
#include "agent/control/mooncake/descriptor_read.h"
#include "agent/model/mooncake_message.h"
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
	struct dray_list connects;   /* queue_pairs.c: under way */
	uint32_t last_unused;        /* number of a queue pair that nobody uses */
	struct mooncake_client_totals totals;
};

struct engine {
	dray_handle handle;
	struct mooncake_link link; /* borrowed by workers until all have forgotten the engine */
	uint32_t remotes;
	const void *owner; /* of the first one */
	unsigned waits;    /* ending: workers that have not forgotten it */
	bool ending, lost;
	int64_t since_ns;
	char segment[MOONCAKE_NAME_BYTES];
	/* over RDMA; link.link.addr is that of the handshake */
	bool rdma;
	char server[MOONCAKE_NAME_BYTES];
	unsigned n_devices;
	struct mooncake_device devices[MOONCAKE_DEVICES_MAX];
	unsigned queue_pairs; /* that it wants for each of ours, as far as known */
};

/*
 * client.c: one more remote of the engine with this address: of data connections, over RDMA of the handshake. 0: with reterr. Only the
 * buffers and keys of d may be missing.
 */
dray_handle engine_use(struct mooncake_client *c, const void *owner, const struct dray_addr *addr,
		       const struct mooncake_descriptor *d, const char *segment,
		       struct dray_err *reterr);
/* The engine cannot be reached any more, or may not: its remotes end. */
void engine_lose(struct mooncake_client *c, struct engine *e, uint32_t code, const char *why);

/* import.c */
/* Ends those whose addresses mooncake.allow does not have any more. */
void imports_check(struct mooncake_client *c);
void imports_forget(struct mooncake_client *c);

/* queue_pairs.c */
void connects_forget(struct mooncake_client *c);
