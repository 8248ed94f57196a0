/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The segments that the agent knows, their states, and the one that engines should prefer. A segment is known from the
 * configuration, a listening socket, a Mooncake master's page, a peer, a hint, or from before a restart. Segments that are
 * configured, on this node, hinted or used are probed; others are only known. Control thread; nothing blocks. Upcalls never
 * run inside segments_new() and segments_start(), but may run inside the functions that report news.
 */
#pragma once

#include <systemd/sd-event.h>

#include "agent/placement/hint/hints.h"
#include "agent/placement/probe/probe.h"
#include "agent/placement/segment/preferred.h"
#include "agent/state/state.h"
#include "netdetect/scan.h"
#include "schema/gen/config.h"
#include "schema/gen/data.h"
#include "schema/gen/dbus.h"

struct peers;
struct resolver;
struct hint_owner;
struct segments;

/* For lists and upcalls. Strings are borrowed until the next turn of the loop, and from the struct: it must not be copied. */
struct segment_info {
	struct dray_dbus_segment record;
	enum dmsg_segment_state state;
	bool of_clients; /* only hints of clients name it, so it concerns their owners alone */
	char sources[64], target[PROBE_TARGET_TEXT_MAX];
};

/* The scope of hints for PUTs to the name space NAME of the store is store:NAME. */
#define STORE_SCOPE "store:"

/* An agent that PUTs can go to. Strings are borrowed until the next turn of the loop. */
struct segment_store {
	const char *name;
	const char *fault; /* why it takes no objects now; NULL: it does */
	bool own;          /* this agent */
};
#define SEGMENT_STORES_MAX 65 /* those of store.peers, and this agent */

struct segments_upcalls {
	void (*changed)(void *arg, const struct segment_info *s, enum dmsg_segment_state old);
	/* The preferred segment of the empty scope changed; "": none. s NULL: the segment is not known. */
	void (*preferred)(void *arg, const char *old, const char *now, const struct segment_info *s,
			  const char *reason);
	/* The agents that PUTs can go to; their number. NULL: there are none. */
	unsigned (*stores)(void *arg, struct segment_store ret[SEGMENT_STORES_MAX]);
};

struct segments_deps {
	sd_event *event;
	const struct dray_config *cfg; /* borrowed; read anew by segments_reload() */
	const char *environment; /* MOONCAKE_PREFERRED_SEGMENT, checked; NULL: unset; borrowed */
	const char *environment_master; /* MOONCAKE_MASTER_METRICS_URL, checked; likewise */
	const struct peer_probe_ops *peer_probes; /* how dray agents are probed */
	struct peers *peers;                      /* for peer_probes; borrowed */
	const char *own_segment;                  /* of this agent; "" without a listener; copied */
	struct hints *hints;
	struct state *state;
	const struct segments_upcalls *up;
	void *arg;
};

int segments_new(struct segments **ret, const struct segments_deps *deps, struct dray_err *reterr);
struct segments *segments_free(struct segments *ss);
DRAY_DEFINE_CLEANUP(struct segments *, segments_free);

/* Reads the configuration and begins to probe. Once, before rows are restored. 0 or -errno with reterr. */
int segments_start(struct segments *ss, struct dray_err *reterr);

/* Rows of the database, the preferred one first: before any other news, unless the file could only be read later. */
void segments_restore(struct segments *ss, const struct state_segment *row);
void segments_restore_preferred(struct segments *ss, const struct state_preferred *row);
/* Writes all rows to the database again. */
void segments_refill(struct segments *ss);

/* News. */
void segments_links_changed(struct segments *ss, const struct nd_links *links,
			    const char *own_segment);
/* Takes over the array if it differs from the last one. */
void segments_listeners_changed(struct segments *ss, struct nd_listeners *now);
void segments_peer_changed(struct segments *ss, const char *segment, bool ready);
/* As the upcall `named` of hints. */
void segments_hint_changed(struct segments *ss, const char *segment, const struct hint_owner *owner,
			   bool named);
/* The preferred segment may have changed, such as by a hint for the empty scope. */
void segments_decide_soon(struct segments *ss);
void segments_reload(struct segments *ss);

/*
 * The preferred segment for a scope. Dray agents are left out, unless a hint or the configuration names them; for scopes of name spaces
 * (STORE_SCOPE), agents with stores are all that counts. Strings are borrowed until the next turn of the loop.
 */
struct preferred {
	const char *name; /* "": none */
	enum dmsg_preference preference;
	enum dmsg_segment_state state;
	uint32_t flags; /* enum dmsg_segment_flag */
	uint64_t capacity, allocated;
	bool agent; /* it is known to be a dray agent */
	char reason[PREFERRED_REASON_BYTES];
};
/* viewer: the owner whose hints count beside those of other sources. NULL: as for the node; of clients, those of data.socket's tenant. */
void segments_preferred(struct segments *ss, const char *scope, const struct hint_owner *viewer,
			struct preferred *ret);

/* Calls fn for all candidates for a scope, best first. 0 or -ENOMEM. */
int segments_explain(struct segments *ss, const char *scope,
		     void (*fn)(void *arg, const struct dray_dbus_candidate *candidate), void *arg);

/* False: it is not known. */
bool segments_find(struct segments *ss, const char *name, struct segment_info *ret);
void segments_each(struct segments *ss,
		   void (*fn)(void *arg, const struct dray_dbus_segment *segment), void *arg);

#define SEGMENT_STATES (DMSG_SEGMENT_STATE_LOST + 1)

struct segments_totals {
	uint64_t by_state[SEGMENT_STATES]; /* enum dmsg_segment_state */
	uint64_t known, changes, expired, preferred_changes;
	uint64_t probes, probe_failures, probes_in_flight;
	uint64_t master_reads, master_failures;
};
void segments_totals(const struct segments *ss, struct segments_totals *ret);
