/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engines with Mooncake that this agent imports from: the client's side of the handshake, and for all remotes of an engine one data
 * endpoint, which workers connect to (agent/data/transport/mooncake), or its devices, to which the rails make queue pairs. Each import
 * asks the engine anew for its buffers.
 *
 * An engine proves nothing. What it sends is bounded in size and time, and both the address of its handshake and the one that it names for
 * data must be in mooncake.allow. Control thread only; callbacks never run inside the call that set them up.
 */
#pragma once

#include <systemd/sd-event.h>

#include "agent/control/rails/rails.h"
#include "agent/data/data.h"
#include "agent/model/mooncake_buffers.h"
#include "lib/err.h"
#include "schema/gen/config.h"
#include "schema/gen/dbus.h"

struct mooncake_client;
struct sessions;

/* What begins a token that names a segment of Mooncake: mooncake://HOST:PORT, or any name with a metadata server. */
#define MOONCAKE_SCHEME "mooncake://"
/* The limit of an import whose caller gives none. */
#define MOONCAKE_IMPORT_TIMEOUT_NS (10 * DRAY_NS_PER_SEC)

struct mooncake_client_deps {
	sd_event *event;
	const struct dray_config *cfg;
	struct worker_pool *pool;
	struct rails *const *rails; /* set before the first event */
	const uint8_t *agent_id;
	/* The engine cannot be reached any more, or may not: its remotes end. */
	void (*lost)(struct sessions *sessions, dray_handle engine, uint32_t code, const char *why);
	/* before, after: its states, as mooncake_client_each() has them; "": it was not there, "closed": it is not any more. */
	void (*changed)(void *arg, dray_handle engine, const char *segment, const char *before,
			const char *after, const char *why);
	void *arg;
	/* set before the first upcall */
	struct sessions *const *sessions;
};

/* *ret is NULL without mooncake.import; all other calls take NULL. 0, or -errno with reterr. */
int mooncake_client_new(struct mooncake_client **ret, const struct mooncake_client_deps *deps,
			struct dray_err *reterr);
/* After the workers have ended, which borrow the engines' links. */
struct mooncake_client *mooncake_client_free(struct mooncake_client *c);

/* Ends the imports, and tells that engines are lost, whose addresses mooncake.allow does not have any more. */
void mooncake_client_reload(struct mooncake_client *c);
/* rails_deps: engine_connect, engine_gone. */
void mooncake_client_connect(struct mooncake_client *c, const struct rails_engine_request *request);
void mooncake_client_gone(struct mooncake_client *c, dray_handle engine);
/* A message of a worker. */
void mooncake_client_message(struct mooncake_client *c, const struct transport_message *m);

/*
 * err->code 0: the engine, its buffers, and over RDMA their keys; the receiver gets a reference to each. Otherwise an error alone.
 */
typedef void (*mooncake_import_fn)(void *arg, const struct dray_err *err, dray_handle engine,
				   struct mooncake_buffers *buffers, struct rail_keys *keys);

/*
 * owner: whom a share of the imports under way, and of the engines, is counted for; compared alone. Asks the engine at HOST:PORT, or the metadata server for the segment of this name, for its buffers. fn runs exactly once within timeout_ns (0: MOONCAKE_IMPORT_TIMEOUT_NS), unless
 * cancelled. Success counts as one remote, until mooncake_release(). 0 with an id, or an error at once.
 */
int mooncake_import(struct mooncake_client *c, const void *owner, const char *segment,
		    int64_t timeout_ns, mooncake_import_fn fn, void *arg, uint64_t *ret_id,
		    struct dray_err *reterr);
void mooncake_import_cancel(struct mooncake_client *c, uint64_t id);
/* The workers do not use a remote of the engine any more. */
void mooncake_release(struct mooncake_client *c, dray_handle engine);

/* Fills every field that applies. */
void mooncake_client_each(struct mooncake_client *c,
			  void (*fn)(void *arg, const struct dray_dbus_peer *peer), void *arg);

struct mooncake_client_totals {
	uint64_t imports, imports_failed, engines;
};
struct mooncake_client_totals mooncake_client_totals(const struct mooncake_client *c);
