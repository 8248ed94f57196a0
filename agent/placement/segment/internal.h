/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of segments.h. */
#pragma once

#include "agent/config/segment_rules.h"
#include "agent/config/words.h"
#include "agent/placement/master/master.h"
#include "agent/placement/net/resolver.h"
#include "agent/placement/probe/prober.h"
#include "agent/placement/segment/locality.h"
#include "agent/placement/segment/segments.h"
#include "lib/list.h"
#include "lib/log.h"
#include "lib/map.h"
#include "lib/time.h"

#define AREA "segment"
/* During a reload former masters are kept beside the new ones. */
#define MASTER_SLOTS (2 * MASTERS_MAX)
#define HOST_ADDRS_MAX RESOLVER_ADDRS_MAX

/* The sources that mention a segment now. */
enum segment_source {
	SEGMENT_STATE = 0, /* the database, which mentions none */
	SEGMENT_CONFIG = 1,
	SEGMENT_LISTENER = 2,
	SEGMENT_MASTER = 4,
	SEGMENT_PEER = 8,
	SEGMENT_HINT = 16,
};

/* How the state of a segment is learned. */
enum segment_check {
	SEGMENT_CHECK_NONE,
	SEGMENT_CHECK_PROBE,
	SEGMENT_CHECK_MASTER, /* from the lists of masters */
	SEGMENT_CHECK_PEER,   /* the agent there is connected as a peer */
	SEGMENT_CHECK_SELF,   /* it is this agent */
};

struct host;

/* What an owner's hints take up of the share that those of all owners have. */
struct hint_share {
	struct dray_map_node node;
	size_t n;                  /* segments of n_of_hints that are known because of this owner */
	bool waits;                /* segments that the owner's hints name were left out */
	struct dray_log_limit log; /* of lines about these segments */
	struct {
		char tenant[TENANT_BYTES];
		uint32_t uid;
	} key;
};

struct segment {
	struct segments *ss;
	char *name;
	struct dray_map_node by_name;
	struct dray_list link;       /* of all */
	struct dray_list foreground; /* of segments that may be preferred */
	struct dray_list own;        /* of segments of this node that more than hints mention */
	struct dray_list unsaved;    /* of segments whose row is written after the next decision */
	struct dray_list
		spare; /* of all for which segment_may_go() holds, and of some for which it held */
	unsigned sources;         /* enum segment_source */
	bool was_hinted;          /* a hint named it, at any time */
	bool of_hints;            /* counted in segments.n_of_hints */
	struct hint_share *share; /* where it is counted, too; NULL: nowhere */
	bool named_preferred;     /* segment.preferred or the environment names it */

	/* targets by source; NULL: none */
	struct probe_target *configured, *listener, *restored;
	char *te_endpoint; /* address of its transfer engine, from a master */
	uint64_t listener_round, list_round,
		known_round; /* the last round in which that source mentioned it */
	/* the last round in which a listener said only how it is probed; 0: none does any more */
	uint64_t probe_round;
	uint64_t misnamed_round; /* the last round in which its listener turned out to have another name */
	uint32_t listed_by;  /* masters, a bit each */
	uint32_t ok_by;      /* of these, the masters that report it as OK */
	bool was_listed;     /* by any master, at any time */
	bool was_peer;       /* a dray agent was connected there */
	bool peer_ready;     /* it is connected and accepts work */
	char *master_status; /* the status, other than OK, that a master reports; NULL: none */
	uint64_t capacity, allocated;

	/* locality */
	bool local;        /* it is on this node */
	char *where;       /* why, or why not */
	struct host *host; /* its host name; NULL: it has an address */
	struct dray_list of_host;

	/* state */
	enum segment_check check;
	struct watch *watch; /* only for SEGMENT_CHECK_PROBE */
	enum dmsg_segment_state state;
	bool verified;
	char *reason;
	int64_t since_ns; /* monotonic */
	int64_t mentioned_ns;
	uint64_t ready_ms; /* Unix time when it was last ready; 0: never */
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
	bool settled;      /* it was read, or has failed too often: nothing waits for it */
	bool down;         /* it has failed too often: its list is ignored */
	size_t left_out;   /* entries of the last read whose name is not HOST:PORT */
	char why[DRAY_ERR_MSG_MAX];
};

struct segments {
	struct segments_deps deps;
	struct resolver *resolver;
	struct prober *prober;
	struct locality locality;
	struct dray_map by_name, hosts_by_name; /* struct segment, struct host */
	struct dray_map shares;                 /* struct hint_share by owner */
	struct dray_list all, foreground, own, unsaved, spare, hosts;
	size_t n, n_lookups;
	size_t n_of_hints; /* of n: those that hints named and no other source mentions */
	struct master_entry masters[MASTER_SLOTS];
	struct port_rule *ports;
	size_t n_ports;
	struct nd_listeners listeners; /* as of the last look */
	uint64_t round; /* counts reads of the configuration, of listeners, and of masters' lists */
	char remembered
		[SEGMENT_NAME_BYTES]; /* the last segment that was detected on this node; "" none */
	sd_event_source *sweep, *decide;
	int64_t decided_ns, remembered_ns;  /* times of the last decision and remember() */
	char preferred[SEGMENT_NAME_BYTES]; /* of the empty scope */
	char self[SEGMENT_NAME_BYTES];      /* this agent's own segment */
	struct segments_totals totals;
	bool located;        /* the addresses of this node are known */
	bool left_out;       /* limits.segments is reached, and that was logged */
	bool hints_left_out; /* the share of hints is used up, and that was logged */
	bool renamed;        /* a listener may have another name now */
	int64_t saved_ns;    /* when the rows of ready segments were last written */
	/* the addresses of this node that others should use, for each family; "" none */
	char advertised4[DRAY_HOST_BYTES], advertised6[DRAY_HOST_BYTES];
};

/* --- table.c --- */

struct segment *segment_find(const struct segments *ss, const char *name);
/*
 * The segment, which is made if needed. For the configuration and listeners a less important one makes room at
 * limits.segments. Other sources may name any number of segments, and then no segment is made; for hints the caller asks
 * shares_have_room(), too. NULL: no memory, or a limit is reached.
 */
struct segment *segment_ensure(struct segments *ss, const char *name, enum segment_source source);
void segment_remove(struct segment *s);
/* After a change that segment_may_go() depends on: the segment makes room for others if that is needed. */
void segment_spare(struct segment *s);
/* After a change of its sources: counts it for hints, or not any more. */
void segment_count(struct segment *s);
/* Sets a string of a segment; NULL clears it. Without memory it is cleared. */
void segment_text(char **member, const char *text);
/* The same for a target. */
void segment_target(struct probe_target **member, const struct probe_target *target);

/* --- shares.c --- */

/* The share of this owner, which is made if needed. NULL: no memory. */
struct hint_share *share_ensure(struct segments *ss, const struct hint_owner *owner);
/* The segment, which n_of_hints counts, is known because of this owner (NULL: of none) from now on. */
void share_charge(struct segment *s, struct hint_share *share);
/* A line about a segment that only hints of clients name, within limits.log_lines_per_owner. */
void share_log(const struct segment *s, enum dmsg_segment_state old, const char *reason);
bool share_is_of(const struct hint_share *share, const struct hint_owner *owner);
/*
 * Another segment that no other source mentions may be known because a hint of this owner names it: hints have half of what
 * the other sources leave of limits.segments, and each owner half of what the other owners leave of that, but always one.
 */
bool share_has_room(const struct segments *ss, const struct hint_share *share);
/* A segment is left out; logs once. */
void share_waits(struct segments *ss, struct hint_share *share);
bool shares_wait(const struct segments *ss);
/* Some of those who wait have room now; they wait no longer. */
bool shares_take_waiting(struct segments *ss);
void shares_free(struct segments *ss);

/* --- check.c --- */

/* No source mentions it, or a master alone, and it is not in use on this node. */
bool segment_may_go(const struct segment *s);
/* After any news of the segment: decides how its state is learned, and applies what is known. */
void segment_recheck(struct segment *s);
void segment_set_state(struct segment *s, enum dmsg_segment_state state, bool verified,
		       const char *reason);
/* Writes its row to the database if it is ready or lost. */
void segment_save(const struct segment *s);
/*
 * The same after the next decision. The preferred segment is written first, so a kill at any time leaves a database that
 * names a preferred segment if it has a ready one.
 */
void segment_save_soon(struct segment *s);
/* prober_deps.probed; owner: the segment. */
void segment_on_probe(void *arg, void *owner, enum dmsg_segment_state old,
		      const struct probe_fsm *f);
/* Masters list it, and none of those that answer reports it as OK. */
bool segment_is_refused(const struct segment *s);
void segment_info_of(const struct segment *s, struct segment_info *ret);

/* --- hosts.c --- */

/* Finds out whether it is on this node. The addresses of a host name come later. */
void segment_locate(struct segment *s);
void segment_leave_host(struct segment *s);
/* Its name is a loopback address, which other nodes cannot use. */
bool segment_is_loopback(const struct segment *s);
/* Looks up the host names whose last lookup is too old. */
void hosts_refresh(struct segments *ss);

/* --- decide.c --- */

/* Makes a pending decision now: before the end, so that the next agent restores its result. */
void segments_decide_pending(struct segments *ss);
/* Renews the hint of the detected segment before it expires. */
void segments_remember(struct segments *ss);
int segments_decide_init(struct segments *ss);
/* Writes the remembered segment to the database. */
void segments_save_remembered(const struct segments *ss);

/* --- sources.c --- */

/* Applies the segments that the configuration names. 0 or -ENOMEM. */
int segments_configure(struct segments *ss);
/* Names segments of hints that were left out again, as far as there is room now. */
void segments_hints_again(struct segments *ss);
/* The source mentions the segment, or does so no longer. */
void segment_mention(struct segment *s, enum segment_source source, bool on);

/* --- listeners.c --- */

/* Reads segment.ports. 0 or -ENOMEM. */
int listeners_configure(struct segments *ss);
/* Applies the last list of listeners again. */
void listeners_apply(struct segments *ss);
/* The same for one segment, which is on this node, or which a hint names, only since then. */
void listeners_find(struct segment *s);

/* --- masters.c --- */

/* Opens and closes masters by the configuration; those that stay keep running. 0 or -errno with reterr. */
int masters_set(struct segments *ss, struct dray_err *reterr);
/* Some masters have not been read yet, so segments that only they know may be missing. */
bool masters_pending(const struct segments *ss);
/* The masters of the set (a bit each) whose lists count. */
uint32_t masters_answering(const struct segments *ss, uint32_t of);
void masters_free(struct segments *ss);
