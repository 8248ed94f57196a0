/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments: which are known and from where, in what state they are, and which one engines are to prefer. A
 * segment is known from the configuration, from a listening socket, from a Mooncake master's pages, because a
 * peer was met or a hint names it, or from before a restart. Probed are those that are configured, on this
 * node, hinted or used; the others are merely known. Control thread only; nothing blocks. Upcalls never run
 * inside the calls that set them up, but may inside calls that bring news.
 */
#ifndef DRAY_AGENT_PLACEMENT_SEGMENT_SEGMENTS_H
#define DRAY_AGENT_PLACEMENT_SEGMENT_SEGMENTS_H

#include <systemd/sd-event.h>

#include "agent/placement/hint/hints.h"
#include "agent/placement/probe/probe.h"
#include "agent/placement/segment/preferred.h"
#include "agent/state/state.h"
#include "netdetect/scan.h"
#include "schema/gen/config.h"
#include "schema/gen/data.h"

struct peers;
struct resolver;
struct segments;

/* What is said of one. Strings are borrowed until the next turn of the loop. */
struct segment_info {
	const char *name;
	enum dmsg_segment_state state;
	bool verified;  /* a probe, or who knows, has confirmed the state since the agent's start */
	bool preferred; /* of the empty scope */
	bool local;
	char sources[64];  /* by comma */
	const char *probe; /* tcp, dray, mooncake, http, master, peer; "": not at all */
	char target[PROBE_TARGET_TEXT_MAX]; /* "": its own address */
	const char *reason;
	int64_t since_ns;   /* age of the state */
	int64_t latency_ns; /* 0: none was answered */
	uint64_t probes, failures;
	int64_t next_ns; /* until the next probe; 0: none is due */
	uint64_t capacity, allocated;
	int64_t ready_ago_ns; /* 0: now, or never */
};

struct segments_upcalls {
	void (*changed)(void *arg, const struct segment_info *s, enum dmsg_segment_state old);
	/* Another segment is preferred, of the empty scope; "" for none. `s` NULL: nothing is known of it. */
	void (*preferred)(void *arg, const char *old, const char *now, const struct segment_info *s,
			  const char *reason);
};

struct segments_deps {
	sd_event *event;
	const struct dray_config *cfg; /* borrowed; read anew by segments_reload() */
	const char *environment; /* MOONCAKE_PREFERRED_SEGMENT, checked; NULL: unset; borrowed */
	const char *environment_master; /* MOONCAKE_MASTER_METRICS_URL, checked; likewise */
	const struct peer_probe_ops *peer_probes; /* how dray agents are probed */
	struct peers *peers;                      /* for peer_probes; borrowed */
	const char *own_segment;                  /* of this agent, "" without a listener; copied */
	struct hints *hints;
	struct state *state;
	const struct segments_upcalls *up;
	void *arg;
};

int segments_new(struct segments **ret, const struct segments_deps *deps, struct dray_err *reterr);
struct segments *segments_free(struct segments *ss);
DRAY_DEFINE_CLEANUP(struct segments *, segments_free);

/* Reads the configuration, and begins to probe. Once, before what is restored. 0 or -errno with reterr. */
int segments_start(struct segments *ss, struct dray_err *reterr);

/* Rows of the state database, before any other news; the preferred one first. */
void segments_restore(struct segments *ss, const struct state_segment *row);
void segments_restore_preferred(struct segments *ss, const struct state_preferred *row);
/* Puts everything to the state database again. */
void segments_refill(struct segments *ss);

/* News. */
void segments_links_changed(struct segments *ss, const struct nd_links *links,
			    const char *own_segment);
void segments_listeners_changed(struct segments *ss, const struct nd_listeners *now);
void segments_peer_changed(struct segments *ss, const char *segment, bool ready);
void segments_hint_changed(struct segments *ss, const char *segment, bool named);
/* Another hint counts, or none. */
void segments_hints_changed(struct segments *ss);
void segments_reload(struct segments *ss);

/* The preferred segment for a scope. Strings are borrowed until the next turn of the loop. */
struct preferred {
	const char *name; /* "": none */
	enum dmsg_preference preference;
	enum dmsg_segment_state state;
	uint32_t flags; /* enum dmsg_segment_flag */
	uint64_t capacity, allocated;
	char reason[PREFERRED_REASON_BYTES];
};
void segments_preferred(struct segments *ss, const char *scope, struct preferred *ret);

/* All candidates for a scope, best first; reterr where there is no memory. */
int segments_explain(struct segments *ss, const char *scope,
		     void (*fn)(void *arg, unsigned rank, const struct candidate *c), void *arg);

/* False: it is not known. */
bool segments_find(struct segments *ss, const char *name, struct segment_info *ret);
void segments_each(struct segments *ss, void (*fn)(void *arg, const struct segment_info *s),
		   void *arg);

#define SEGMENT_STATES (DMSG_SEGMENT_STATE_LOST + 1)

struct segments_totals {
	uint64_t by_state[SEGMENT_STATES]; /* enum dmsg_segment_state */
	uint64_t known, changes, expired, preferred_changes;
	uint64_t probes, probe_failures, probes_in_flight;
	uint64_t master_reads, master_failures;
};
void segments_totals(const struct segments *ss, struct segments_totals *ret);

#endif
