/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by region.c, token.c and grant.c. */
#pragma once

#include "agent/control/region/extents.h"
#include "agent/control/region/region.h"
#include "agent/model/ranges.h"
#include "agent/process/turn_work.h"
#include "lib/handle.h"
#include "lib/heap.h"
#include "lib/list.h"
#include "lib/map.h"
#include "schema/gen/errors.h"

#define AGENT_ID_BYTES 16
#define CAPABILITY_BYTES 16
#define NAME_BYTES 65

/* The last tokens that ended, and why, for a precise error to their importers. */
#define DEAD_TOKENS 1024

struct dead_token {
	struct dray_map_node node; /* in regions->dead_tokens, by token */
	dray_handle token;
	uint8_t capability[CAPABILITY_BYTES];
	uint32_t code;
};

struct regions {
	struct regions_deps deps;
	bool draining;
	struct dray_handles regions, tokens, leases, grants; /* leases: struct token, too */
	struct dray_map peers;                               /* struct grant_peer by handle */
	struct dray_map local_imports;                       /* by remote */
	struct mappings mappings;
	uint64_t bytes;
	uint64_t revocations; /* begun */
	struct dray_heap expiry;
	struct turn_work expiries;     /* of these */
	struct dray_heap lease_expiry; /* by struct token */
	sd_event_source *lease_timer;
	/* regions with tokens whose ends have yet to begin, or whose importers have yet to be detached */
	struct dray_list unended;
	/* that are revoked, with importers who have yet to learn of it */
	struct dray_list unended_tokens;
	struct dray_list gone_peers; /* struct grant_peer with grants that have yet to end */
	struct dray_list orphans;    /* leases of sessions that have ended, which are to end, too */
	/* of all; it counts tokens, grants and local imports that have begun to end, and importers that have been detached */
	struct turn_work ends;
	bool continuing;                     /* inside ends_continue() */
	struct leases_totals lease_totals;   /* without `leases` */
	struct dead_token dead[DEAD_TOKENS]; /* a ring: a new one replaces the oldest */
	struct dray_map dead_tokens;
	uint32_t dead_at;
	uint32_t mooncake_max; /* exports with an address for Mooncake; 0: it is off */
	bool mooncake_rdma;    /* their engines reach them by queue pairs */
	uint64_t mooncake_changes;
};

struct region {
	struct regions *regions;
	dray_handle handle;
	struct region_owner owner;
	char name[NAME_BYTES];
	enum dmsg_kind kind;
	uint32_t n_extents; /* of the request */
	uint64_t pool_bytes;
	struct extents extents;
	struct opening *mapping; /* its extents are being mapped; NULL: they are not */
	struct dray_list tokens;
	struct dray_list revocations; /* REGION_REVOKE of all tokens */
	struct dray_list token_ends;  /* REGION_REVOKE of one, LEASE_END */
	struct dray_list unended;     /* in regions->unended */
	struct dray_list *unreached;  /* in `tokens`: the first that no end of all has reached */
	uint64_t revoked_all;         /* number of the last revocation of all tokens */
	uint32_t end_code;            /* with which transfers end */
	uint32_t n_tokens;
	uint32_t n_all;    /* tokens and leases */
	uint32_t n_live;   /* those that are not revoked, also not by a revocation of all */
	uint32_t serving;  /* grants that workers may still serve */
	uint32_t barriers; /* in flight */
	struct gpu_memory *gpu_memory;
	bool opening; /* added() is pending */
	bool early;   /* GPU memory that transfers may use while it is opened */
	bool ending, urgent;
	bool faulted; /* a page of its session's memory is missing */
	bool exposed; /* a peer has seen its keys, by any token or lease */
	bool dropped; /* by every worker */
	bool leaving; /* only devices still use it */
	bool ended;   /* its memory is released */
	void (*added)(void *arg, const struct dray_err *err);
	void *added_arg;
	struct dray_err refused; /* why it ends before added() */
	struct dray_err lost;    /* why it ended before it was removed */
	void (*done)(void *arg); /* it is being removed */
	void *arg;
};

/* A pending REGION_REVOKE or LEASE_END. It waits for one token, or for all that were there when it began. */
struct revocation {
	struct dray_list link;     /* in region->revocations or token_ends */
	struct dray_list end_link; /* in token->ends; of all: in none */
	uint64_t number;           /* regions->revocations when it began */
	struct region *region;
	bool rekey; /* peers have seen keys by a token that it ends */
	uint32_t pending, count;
	void (*done)(void *arg, uint32_t count);
	void *arg;
};

struct lease;

struct token {
	struct dray_list link; /* on region->tokens */
	struct region *region;
	dray_handle handle;
	uint64_t offset, length;
	uint16_t access, flags;
	uint64_t mooncake;            /* address of its range for Mooncake's engines; 0: none */
	uint32_t mooncake_pieces;     /* buffers that the range is for them */
	struct dray_heap_node expiry; /* in regions->expiry, or of a lease in lease_expiry */
	uint8_t audience[AGENT_ID_BYTES], capability[CAPABILITY_BYTES];
	bool used;
	bool exposed;  /* a peer has seen keys of the region by this token */
	bool revoked;  /* its end has begun */
	uint64_t born; /* regions->revocations then */
	struct dray_list grants, local_imports; /* those that have begun to end come last */
	struct dray_list unended;               /* in regions->unended_tokens */
	struct lease *lease;                    /* NULL: an export */
	struct dray_list ends;                  /* struct revocation of it alone */
};

/* A remote of this agent that imported a token. */
struct local_import {
	struct dray_list link;          /* in token->local_imports */
	struct dray_map_node by_remote; /* in regions->local_imports */
	dray_handle remote;
	bool ending;
};

struct grant_peer {
	struct dray_map_node by_handle; /* in regions->peers */
	struct dray_list grants;
	struct dray_list unended; /* those of a lost peer that have yet to end */
	struct dray_list gone;    /* in regions->gone_peers */
	struct dray_map shares;   /* struct grant_share by owner */
	dray_handle peer;
	uint32_t n;
};

/* The grants of a peer for regions of one owner. */
struct grant_share {
	struct dray_map_node by_owner;
	struct owner *owner;
	uint32_t n;
};

/*
 * A grant ends when every worker has dropped it and the peer cannot use it any more. After an urgent end of its region it
 * outlives its token.
 */
struct grant {
	struct dray_list token_link, peer_link;
	struct regions *regions;
	struct token *token; /* NULL: the region is gone */
	struct grant_peer *peer;
	struct grant_share *share;
	struct grant_view view;
	bool ending, dropped, fenced;
	bool exposed; /* the peer has RDMA keys, which bypass the workers */
	bool unasked; /* of a lease: sent without a request, and no request of the peer was answered with it yet */
};

static inline const struct region_view *region_view_of(const struct region *r)
{
	return r->extents.view;
}

/* Clients and peers may use it. */
static inline bool region_is_live(const struct region *r)
{
	return !r->opening && !r->ending && !r->done;
}

/* The code with which rights to the region end. */
static inline uint32_t region_rights_code(const struct region *r)
{
	return r->faulted ? DRAY_E_REGION_FAULT : DRAY_E_REVOKED;
}

/* region.c: continues a removal after a step that it may have waited for; may free the region. */
void region_check(struct region *r);
/* region.c: all its tokens have begun to end. */
void region_tokens_ended(struct region *r);

/* ends.c */

/* Tokens and grants that begin to end in one turn; it takes about 2 ms. */
#define ENDS_PER_TURN 512

/* 0 or -errno. */
int ends_init(struct regions *r);
/* Goes on with all that has yet to end, also in later turns. */
void ends_continue(struct regions *r);
/* Begins to end all tokens of a region that are covered, some of them in later turns; then region_tokens_ended() if it is ending. */
void region_end_tokens(struct region *r);

/* Detaches the remaining importers of its tokens, for which it does not wait; some of them in later turns, and then region_check(). */
void region_abandon_tokens(struct region *r);

/* token.c */

/* It takes about 1 ms. */
#define TOKENS_EXPIRE_PER_TURN 8192

/* 0 or -errno. */
int tokens_init(struct regions *r);
/* Whether a token of the region may have this access and carry such a segment. 0, or -errno with reterr. */
int token_allowed(const struct region *region, uint32_t access, size_t segment_length,
		  struct dray_err *reterr);
/* An export or a lease. NULL with reterr. The caller sets its expiry. */
struct token *token_new(struct region *region, const struct dmsg_region_export *m, bool is_lease,
			struct dray_err *reterr);
uint32_t token_write(const struct token *t, const char *segment, uint32_t ttl_ms, uint8_t *ret);
struct region *region_of_group(struct regions *r, dray_handle handle,
			       const struct region_owner *owner, struct dray_err *reterr);
/* Begins to end the token, or all of the region (NULL), and waits for that. */
int revocation_start(struct region *region, struct token *only,
		     void (*done)(void *arg, uint32_t count), void *arg, struct dray_err *reterr);
/* A remote of this agent uses the token from now on; sets its range and access. */
int token_add_local(struct token *t, struct remote_view *remote, struct dray_err *reterr);

/* Checks an import or an acquisition, local or by a peer. NULL with reterr. */
struct token *token_find(struct regions *r, bool is_lease, const struct pmsg_import *m,
			 const uint8_t importer[AGENT_ID_BYTES], struct dray_err *reterr);
void local_import_free(struct regions *r, struct local_import *import);
/* After a grant or local import has ended: frees the token if it was the last, and the token is revoked, expired or used. */
void token_check(struct token *t);
/* False: there are more that have expired than this turn has room for, and later turns go on. */
bool tokens_expire(struct regions *r);
/* It ends with all others of its region, perhaps in a later turn. */
bool token_is_covered(const struct token *t);
/* Begins to end the token, which this may free, and its grants and local imports as far as the turn has room. False: some are left. */
bool token_revoke(struct token *t);
/* The same; later turns go on with what is left. */
void token_end(struct token *t);
void revocation_step(struct revocation *v);

/* lease.c */

/* Further expired leases end in the next turn of the loop. */
#define LEASES_EXPIRE_PER_TURN 256

/* 0 or -errno. */
int leases_init(struct regions *r);
const struct ranges *lease_ranges(const struct token *t);
/* All its holders have acquired it. */
bool lease_is_taken(const struct token *t);
/* Its outcome, unless it has one: for revocations of any kind. */
void lease_set_outcome(struct token *t, enum dmsg_lease_outcome outcome);
/* A holder has released the lease, is lost, or gives it back. */
void lease_holder_gone(struct token *t, enum pmsg_release_how how);
/* The code for acquisitions after its end. */
uint32_t lease_dead_code(const struct token *t);
/* Nobody can import, acquire or renew it any more; it may have yet to end in a later turn. */
bool token_is_over(const struct token *t);
/* Begins to end leases in regions->orphans, as many as the turn has room for. */
void leases_end_orphans(struct regions *r);
/* Tells its session; nobody accesses it any more. Frees t->lease. */
void lease_free(struct token *t);
/* Frees it without a word, at the end of the agent. */
void lease_forget(struct token *t);

/* grant.c */

/* A grant of the token for the peer, published to the workers. NULL with reterr. */
struct grant *grant_make(struct token *t, dray_handle peer, struct dray_err *reterr);
/* The grant, unless it is of another peer or has begun to end. */
struct grant *grant_live(struct regions *r, dray_handle peer, dray_handle handle);

void grant_end(struct grant *g, bool fence, bool urgent);
/* Ends grants of regions->gone_peers, as many as the turn has room for. */
void grants_end_gone(struct regions *r);
/* Whose grants are gone. */
void grant_peer_free(struct grant_peer *p);
/* Removes it from its token, which it outlives. */
void grant_detach(struct grant *g);

/* mooncake.c */

/* How many buffers a range is for Mooncake's engines. */
uint32_t mooncake_pieces(const struct region *region, uint64_t offset, uint64_t length);
/* Whether this range may be a buffer for Mooncake's engines. 0, or -errno with reterr. */
int mooncake_export_check(const struct region *region, const struct dmsg_region_export *m,
			  struct dray_err *reterr);
