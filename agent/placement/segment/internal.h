/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of segments.h share. */
#ifndef DRAY_AGENT_PLACEMENT_SEGMENT_INTERNAL_H
#define DRAY_AGENT_PLACEMENT_SEGMENT_INTERNAL_H

#include "agent/config/segment_rules.h"
#include "agent/config/words.h"
#include "agent/placement/master/master.h"
#include "agent/placement/net/resolver.h"
#include "agent/placement/probe/prober.h"
#include "agent/placement/segment/locality.h"
#include "agent/placement/segment/segments.h"
#include "lib/list.h"
#include "lib/map.h"
#include "lib/time.h"

#define AREA "segment"
/* Former ones and new ones, while they change. */
#define MASTER_SLOTS (2 * MASTERS_MAX)
#define HOST_ADDRS_MAX RESOLVER_ADDRS_MAX

/* Who speaks of a segment now. */
enum segment_source {
	SEGMENT_CONFIG = 1,
	SEGMENT_LISTENER = 2,
	SEGMENT_MASTER = 4,
	SEGMENT_PEER = 8,
	SEGMENT_HINT = 16,
};

/* How its state is known. */
enum segment_check {
	SEGMENT_CHECK_NONE,
	SEGMENT_CHECK_PROBE,
	SEGMENT_CHECK_MASTER, /* a master lists it, or does not any more */
	SEGMENT_CHECK_PEER,   /* the agent there is connected */
	SEGMENT_CHECK_SELF,   /* it is this agent */
};

struct host;

struct segment {
	struct segments *ss;
	char *name;
	struct dray_map_node by_name;
	struct dray_list link;       /* of all */
	struct dray_list foreground; /* of those that may be preferred */
	struct dray_list unsaved;    /* of those whose row follows the next decision */
	unsigned sources;            /* enum segment_source */
	bool named_preferred;        /* segment.preferred or the environment names it */

	/* evidence; NULL: none */
	struct probe_target *configured, *listener, *restored;
	char *te_endpoint; /* where a master says that its transfer engine is */
	uint64_t listener_round, list_round, known_round; /* that last spoke of it */
	uint64_t misnamed_round; /* that found it to be our name for what others call otherwise */
	uint32_t listed_by;      /* masters, a bit each */
	uint32_t ok_by;          /* those of them that say it serves */
	bool was_listed;         /* by any, at any time */
	bool was_peer;           /* a dray agent was met there */
	bool peer_ready;         /* and is connected */
	char *master_status; /* what a master says that does not say that it serves; NULL: none */
	uint64_t capacity, allocated;

	/* is it on this node? */
	bool local;
	char *where;       /* why, or why not */
	struct host *host; /* whose addresses decide */
	struct dray_list of_host;

	/* state */
	enum segment_check check;
	struct watch *watch; /* SEGMENT_CHECK_PROBE alone */
	enum dmsg_segment_state state;
	bool verified;
	char *reason;
	int64_t since_ns; /* monotonic */
	int64_t mentioned_ns;
	uint64_t ready_ms; /* Unix time it last was ready; 0: never */
};

/* A host name of segments, and its addresses. */
struct host {
	struct dray_list link;
	struct dray_map_node by_name;
	struct segments *ss;
	struct dray_list segments;
	struct resolver_query *query;
	int64_t lookup_ns, visited_ns; /* 0: not yet */
	bool known, loopback;
	unsigned n_addrs;
	struct dray_addr addrs[HOST_ADDRS_MAX];
	char name[DRAY_HOST_BYTES];
};

struct master_entry {
	struct segments *ss;
	unsigned index;
	struct master *master;
	char *url;
	unsigned failures; /* in a row */
	bool settled;      /* it has been read, or has failed too often to be waited for */
	bool down;         /* it has failed too often: its word counts for nothing */
	size_t left_out;   /* names that are no segments, of the last read */
	char why[DRAY_ERR_MSG_MAX];
};

struct segments {
	struct segments_deps deps;
	struct resolver *resolver;
	struct prober *prober;
	struct locality locality;
	struct dray_map by_name, hosts_by_name; /* struct segment, struct host */
	struct dray_list all, foreground, unsaved, hosts;
	size_t n, n_lookups;
	struct master_entry masters[MASTER_SLOTS];
	struct port_rule *ports;
	size_t n_ports;
	struct nd_listeners listeners;       /* as of the last look */
	uint64_t round;                      /* of looking at listeners or a master's list */
	char remembered[SEGMENT_NAME_BYTES]; /* what was found on this node before; "" none */
	sd_event_source *sweep, *decide;
	int64_t decided_ns, remembered_ns;  /* when it last was */
	char preferred[SEGMENT_NAME_BYTES]; /* of the empty scope */
	char self[SEGMENT_NAME_BYTES];      /* this agent's own segment */
	struct segments_totals totals;
	bool located;     /* the addresses of this node are known */
	bool left_out;    /* limits.segments is reached, and that was said */
	bool renamed;     /* a listener may be called otherwise now */
	int64_t saved_ns; /* when what is ready was put to the database */
	/* the addresses of this node that others should use, of both families; "" none */
	char advertised4[DRAY_HOST_BYTES], advertised6[DRAY_HOST_BYTES];
};

/* --- table.c --- */

struct segment *segment_find(const struct segments *ss, const char *name);
/*
 * NULL: no memory; or, where it is bounded (whoever speaks of it may speak of any number), limits.segments is reached
 * and nothing that matters less can go.
 */
struct segment *segment_ensure(struct segments *ss, const char *name, bool bounded);
void segment_remove(struct segment *s);
/* Sets a string of a segment; NULL clears it. No memory: it is cleared. */
void segment_text(char **member, const char *text);
/* The same for a target. */
void segment_target(struct probe_target **member, const struct probe_target *target);

/* --- check.c --- */

/* Something was learnt: how its state is to be known, anew. */
void segment_recheck(struct segment *s);
void segment_set_state(struct segment *s, enum dmsg_segment_state state, bool verified,
		       const char *reason);
/* Writes its row to the state database if it is ready or lost. */
void segment_save(const struct segment *s);
/*
 * The same after the next decision. The row of the preferred segment is written first, so that a kill at any
 * time leaves a database that names the preferred segment if it has a ready one.
 */
void segment_save_soon(struct segment *s);
/* prober_deps.probed; owner: the segment. */
void segment_on_probe(void *arg, void *owner, enum dmsg_segment_state old,
		      const struct probe_fsm *f);
/* Masters list it, and none that is heard says that it serves. */
bool segment_is_refused(const struct segment *s);
void segment_info_of(const struct segment *s, struct segment_info *ret);

/* --- hosts.c --- */

/* Is it on this node? Asks for the addresses of its host where that has to be. */
void segment_locate(struct segment *s);
void segment_leave_host(struct segment *s);
/* Nobody else could reach it by that name. */
bool segment_is_loopback(const struct segment *s);
/* Asks about some hosts that were not asked about for some time. */
void hosts_refresh(struct segments *ss);
void hosts_free(struct segments *ss);

/* --- decide.c --- */

/* The preferred segment may be another. */
void segments_decide_soon(struct segments *ss);
/* Makes a decision that is pending: before the end, so that the next agent knows its outcome. */
void segments_decide_pending(struct segments *ss);
/* What was found is put to the hints again before it expires there. */
void segments_remember(struct segments *ss);
int segments_decide_init(struct segments *ss);
/* Puts what was found on this node to the state database. */
void segments_save_remembered(const struct segments *ss);

/* --- sources.c --- */

/* The configuration's words. 0 or -ENOMEM. */
int segments_configure(struct segments *ss);
/* Who speaks of it, one more or one less. */
void segment_mention(struct segment *s, enum segment_source source, bool on);

/* --- listeners.c --- */

/* segment.ports. 0 or -ENOMEM. */
int listeners_configure(struct segments *ss);
/* The listeners of the last look, again. */
void listeners_apply(struct segments *ss);

/* --- masters.c --- */

/* Those of the configuration. 0 or -errno with reterr; those that go on are not disturbed. */
int masters_set(struct segments *ss, struct dray_err *reterr);
/* Some have not been heard yet: what they know may be missing. */
bool masters_pending(const struct segments *ss);
/* Those of a set, a bit each, whose word counts. */
uint32_t masters_answering(const struct segments *ss, uint32_t of);
void masters_free(struct segments *ss);

#endif
