/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store: objects by key in memory of the agent, and on its disk. Each name space has an index, a policy of eviction, and memfds of its own
 * ("segments"), which clients of the name space may map and read. A segment is sealed with F_SEAL_FUTURE_WRITE after the
 * agent has mapped it: nothing else can write to it, and its pages return to the system only all at once.
 *
 * An object is in the index when all its bytes are in place, and its bytes never change. Whoever reads it holds it: it is not
 * evicted meanwhile, and a removal waits for the last holder.
 *
 * With a disk tier an object is in memory, on disk, or both. What is evicted from memory stays on disk if it was written
 * before. A GET of an object that is only on disk finds room for it in memory, and waits until it is there.
 *
 * Any thread may call; one lock guards everything, for well under a microsecond a key. The bytes are copied by the workers,
 * without the lock. Segments are populated and given back by a thread of the store's own; in between the control thread tells a
 * follower of them, who registers them with RDMA devices. The control thread gives what is to be written and read to the threads of
 * the disk tier (work.c).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "agent/model/quota.h"
#include "agent/model/view.h"
#include "agent/store/disk/disk.h"
#include "agent/store/policy/policy.h"
#include "agent/store/turns.h"
#include "lib/err.h"
#include "lib/list.h"
#include "lib/wire.h"
#include "schema/gen/data.h"

/* Text of the error where the configuration has no store. */
#define STORE_ABSENT "this agent has no store; set limits.store_bytes"

struct store;
struct store_user;
struct store_member;
struct store_object;

struct store_disk_config {
	sd_event *event;
	const char *dir; /* NULL or empty: there is no disk tier */
	uint64_t bytes;
	unsigned threads;
	uint64_t read_rate;  /* bytes a second that it may use; 0: what it can do, as learned */
	uint64_t write_rate; /* the same; 0: no limit */
	bool write_back;     /* else objects are written soon after their PUT */
	/* The account of an owner whose objects are on disk, with a reference for the caller. NULL: no memory. */
	struct owner_account *(*account)(void *arg, const char *tenant, uint32_t uid);
	void (*state_changed)(void *arg, enum disk_state state, const struct dray_err *why);
	void *arg;
	int (*fault)(enum disk_call call); /* for tests; may be NULL */
};

struct store_config {
	uint64_t bytes;        /* of all segments; 0: there is no store */
	uint64_t segment_size; /* bytes */
	enum policy_kind policy;
	bool evict;       /* else a PUT without room answers busy */
	bool asks;        /* GETs ask other agents for what is not here */
	bool keep_copies; /* which stays here then, until it is evicted */
	uint32_t replicas; /* agents that are to have the objects of a PUT that does not say how many */
	bool lend;         /* other agents read objects of name spaces with a name */
	uint32_t retry_ms;
	int64_t peer_timeout_ns; /* silence of an agent that is not waited for any longer */
	uint32_t lease_ms,
		leases_max; /* of objects of other agents that EXISTS finds, for each session */
	const char *const *spaces; /* store.spaces; borrowed until store_free() */
	size_t n_spaces;
	/* References to the owner of the account. release: control thread alone. */
	void (*keep)(struct owner_account *a);
	void (*release)(struct owner_account *a);
	struct store_disk_config disk;
};

/* Reads the index of the disk tier, which blocks for some microseconds an object. 0 or -errno with reterr. */
int store_new(struct store **ret, const struct store_config *cfg, struct dray_err *reterr);
/*
 * After the workers have ended. NULL is allowed. False: a call of the disk or one for memory does not return, and its thread keeps
 * what it may use until the process ends.
 */
bool store_free(struct store *s);

/* Its memory as a region, for transfers of workers; offsets are those of store_object_offset(). */
const struct region_view *store_region(const struct store *s);
const struct remote_view *store_remote(const struct store *s);

/* --- a session's worker --- */

/* What a session has of the store. NULL: no memory, or there is no store, with reterr. */
struct store_user *store_user_new(struct store *s, struct owner_account *account,
				  struct dray_err *reterr);
/*
 * Ends its pins and leases. Its transfers have ended. Those that are too many for one call end on the thread of the store, behind the jobs
 * that it has; store_sweep() follows then. NULL is allowed.
 */
void store_user_free(struct store_user *u);

/* Access to a name space; it lasts as long as the user. NULL with reterr: denied. */
struct store_member *store_join(struct store_user *u, struct dray_str space,
				struct dray_err *reterr);

/* The name of its name space; empty: the one of the owner. */
const char *store_member_space(const struct store_member *m);

struct store_key {
	const uint8_t *p;
	uint32_t n; /* 1 to DMSG_STORE_KEY_MAX */
};

/*
 * What a request may evict before it returns; zeroed: STORE_EVICTED_AT_ONCE. Evictions for a large object take long, so that a caller that
 * other clients wait for divides them: at `max` a key is busy and `more` set, and the next try goes on if `done` and `more` are zeroed.
 */
struct store_effort {
	uint32_t max;    /* evictions */
	uint32_t done;   /* so far */
	uint32_t of_key; /* those in all tries of one key, zeroed before the first */
	uint32_t vain;   /* of these, for the number of objects, that gave its owner no room */
	bool more;       /* what it has done is not enough */
};
#define STORE_EVICTED_AT_ONCE 4096

/*
 * Room for an object: DMSG_STORE_STATUS_OK with *ret, which store_put_end() consumes. It may evict others of the name space.
 * cost_us: to compute it again; 0: unknown.
 */
enum dmsg_store_status store_put_begin(struct store_member *m, struct store_key key, uint64_t bytes,
				       uint32_t cost_us, struct store_effort *e,
				       struct store_object **ret);
/* The same for a copy of an object that another agent has, for a GET. store_arrivals_add() consumes it, too. */
enum dmsg_store_status store_copy_begin(struct store_member *m, struct store_key key,
					uint64_t bytes, uint32_t cost_us, struct store_effort *e,
					struct store_object **ret);
/*
 * The same for an object of another agent that wants it to be kept here; store_keep_end() consumes it, too. EXISTS: an object with these bytes
 * is here already, and stays from now on as if it had been put. Busy also: it has other bytes. But if it was kept for a PUT elsewhere, or is a
 * copy, then it was removed there meanwhile, and gives way. crc: CRC-32C of the bytes. *turn: bytes whose checksum may be computed to
 * know that, which are then fewer; more are taken for others.
 */
enum dmsg_store_status store_keep_begin(struct store_member *m, struct store_key key,
					uint64_t bytes, uint32_t crc, uint32_t cost_us,
					uint64_t *turn, struct store_effort *e,
					struct store_object **ret);
/*
 * Its bytes are in place, and have this CRC-32C: it appears as after a PUT. For an object with its key that has appeared meanwhile, the status is
 * that of store_keep_begin(); one whose own store_keep_begin() was later stays.
 */
enum dmsg_store_status store_keep_end(struct store_object *o, uint32_t crc);
/* The bytes are in place, and the object appears, unless there is one with its key now; or (done false) it is dropped. */
enum dmsg_store_status store_put_end(struct store_object *o, bool done);

/*
 * The same two steps of a PUT that goes to another agent. prefers: what that does not take stays here. busy: another PUT of this key is on
 * its way to one, and may leave it nowhere. When the bytes are in place, the object may be read there; its place, and *g, are for the caller
 * until store_forward_end().
 */
struct store_get;
enum dmsg_store_status store_forward_put(struct store_member *m, struct store_key key,
					 uint64_t bytes, uint32_t cost_us, bool prefers,
					 struct store_effort *e, struct store_object **ret);
enum dmsg_store_status store_forward_begin(struct store_object *o, struct store_get *g);

/* GETs of one batch whose objects are read from disk. Zeroed before the first one. */
struct store_wait {
	uint32_t ready; /* 1: all are in memory; written by another thread */
	uint32_t pending;
	struct turns_share share; /* of the turns of the disk */
	struct store_effort effort;
	int64_t disk_ns; /* when the last object was read from disk; 0: none was */
	void (*then)(
		struct store_wait *w); /* runs when they are, under the store's lock; may be NULL */
};

/* A GET of one key. Zeroed, and at its place until store_get_end(). */
struct store_get {
	struct store_object *object; /* NULL: nothing is held */
	bool loads;                  /* it is read from disk */
	uint32_t here;               /* 1: its bytes are in place; written by another thread */
	bool arrives;                /* it came from another agent for this GET */
	struct dray_list link;       /* the store's, while it is */
	struct store_wait *wait;
	enum dmsg_store_status status;
	enum dmsg_store_tier tier; /* that had its bytes */
};

/*
 * Finds and holds an object until store_get_end(). Its bytes are in place, or, if it loads, will be when store_get_is_here().
 * busy: there is no room in memory to load it to.
 */
enum dmsg_store_status store_get_begin(struct store_member *m, struct store_key key,
				       struct store_wait *w, struct store_get *ret);
/* The bytes of an object that is held are in place. */
static inline bool store_get_is_here(const struct store_get *g)
{
	return !g->loads || __atomic_load_n(&g->here, __ATOMIC_ACQUIRE);
}

/* After the GETs of a batch, if one of them loads. False: all objects are in memory already. */
bool store_get_waits(struct store *s, struct store_wait *w);
/* Nothing of the object is read any more. corrupt or lost: its bytes on disk were, and those in memory are zeros. */
enum dmsg_store_status store_get_end(struct store_get *g);

/*
 * A part of store_region() with memory of its own, which objects of one name space share. The follower may register it with devices:
 * it goes back to the system only after store_segment_left().
 */
struct store_segment {
	uint8_t *base;
	uint64_t offset, bytes; /* in store_region() */
};
struct store_follower {
	/* All its pages are there. Returns its name for store_object_segment(), or 0: nothing follows. Control thread. */
	dray_handle (*added)(void *arg, struct store_segment *g);
	/* It holds no object any more; store_segment_left() follows, possibly inside the call. Control thread. */
	void (*leaves)(void *arg, struct store_segment *g, dray_handle name);
	void *arg;
};
/* Before there are segments. */
void store_follow(struct store *s, const struct store_follower *f);
void store_segment_left(struct store_segment *g);

enum store_forwarded {
	STORE_FORWARD_HERE,    /* it stays, as after a PUT */
	STORE_FORWARD_THERE,   /* the other agent has it */
	STORE_FORWARD_DROPPED, /* nobody has */
};
/* Of a PUT that went to another agent. Unless it stays, the object is gone, or whoever has put or pinned it meanwhile has it. */
void store_forward_end(struct store_get *g, enum store_forwarded how);

uint64_t store_object_bytes(const struct store_object *o);
/* The name of its segment; 0: it has none yet. The object is held, or not in place yet. */
dray_handle store_object_segment(const struct store_object *o);
/* Its start in store_region(). */
uint64_t store_object_offset(const struct store_object *o);

/* Each writes n results. */
void store_exists(struct store_member *m, const struct store_key *keys, uint32_t n,
		  struct dmsg_store_result *ret);
void store_remove(struct store_member *m, const struct store_key *keys, uint32_t n,
		  struct dmsg_store_result *ret);
/* NULL is allowed. */
bool store_has_disk(const struct store *s);
/*
 * Before a PIN or READ: begins to read those of these keys that are only on disk, from *at on, which is n at the end. False: it has
 * evicted as many objects as the effort allows, and goes on in another call.
 */
bool store_load(struct store_user *u, struct store_member *m, const struct store_key *keys,
		uint32_t n, uint32_t *at, struct turns_share *share, struct store_effort *e);
/* Evicts only a few objects for what is only on disk; store_load() makes room for it. Returns how many. */
uint32_t store_pin(struct store_user *u, struct store_member *m, const struct store_key *keys,
		   uint32_t n, struct dmsg_store_result *ret);
void store_unpin(struct store_user *u, struct store_member *m, const struct store_key *keys,
		 uint32_t n, struct dmsg_store_result *ret);

/* Descriptors of segments that the user has not got; the caller closes them. */
struct store_files {
	int fd[DMSG_FDS_MAX];
	unsigned n;
};
/* Leases objects to be read in place. Without room for a descriptor (-EMFILE) an object answers busy. */
uint32_t store_read(struct store_user *u, struct store_member *m, const struct store_key *keys,
		    uint32_t n, struct dmsg_store_place *ret, struct store_files *files);
/* Leases that ended. files_lost: the user has not got all descriptors; each is given again. */
uint32_t store_release(struct store_user *u, const struct dray_vec *leases, bool files_lost);

uint32_t store_retry_ms(const struct store *s);
/* For how long EXISTS leases objects of other agents at most, and how many for a session. */
uint32_t store_lease_ms(const struct store *s);
bool store_keeps_copies(const struct store *s);
int64_t store_peer_timeout_ns(const struct store *s);
uint32_t store_leases_max(const struct store *s);

/* Another agent is to have the objects of a PUT, too. wanted: as the request says. */
bool store_replicates(const struct store_member *m, uint32_t wanted);
/*
 * Another agent may be preferred for PUTs to this name space that do not say where they go, and that have no copies: the control thread
 * knows.
 */
bool store_prefers(const struct store_member *m);
enum store_preference {
	STORE_PREFERS_HINTS,  /* for name spaces with hints */
	STORE_PREFERS_AGENT,  /* for all */
	STORE_PREFERS_ITSELF, /* for none */
};
/* From now on. Any thread. */
void store_prefer(struct store *s, enum store_preference how);
/* The name space of this name has hints, or has none any more. Any thread. */
void store_hinted(struct store *s, const char *space, bool on);
/* GETs ask other agents for keys of this name space that are not here. */
bool store_asks(const struct store_member *m);

/* Objects whose bytes came from other agents, for GETs of one batch. NULL: no memory. */
struct store_arrivals;
struct store_arrivals *store_arrivals_new(struct store *s, uint32_t max);
/* The bytes of o, of store_copy_begin(), are in place: their CRC-32C is sum, and should be crc. The GET gets it. Consumes o. */
void store_arrivals_add(struct store_arrivals *a, struct store_object *o, uint32_t crc,
			uint32_t sum, struct store_get *get);
/* An object of another agent went to a client, without a place here. */
void store_passed(const struct store_member *m, struct store_key key, uint64_t bytes,
		  uint32_t cost_us);
/*
 * Each GET holds its object from now on. Those that are right appear in the store, or, without copies, end with their GET. The others are
 * corrupt, and their bytes are zeros. Consumes the arrivals.
 */
void store_arrive(struct store_arrivals *a);
/* Before that: writes the zeros, at most *left bytes, which it takes from that. False: there are more. */
bool store_arrivals_clear(struct store_arrivals *a, uint64_t *left);
/* Instead: the objects are dropped. NULL is allowed. */
void store_arrivals_drop(struct store_arrivals *a);

/*
 * Splits the blob of keys of a request: a byte with the length of each, then the key. Their number, or -EINVAL with reterr.
 */
int store_keys_split(struct store_key *keys, uint32_t max, struct dray_blob blob,
		     struct dray_err *reterr);

/* For whom another agent asks. */
struct store_asker {
	struct dray_str space, tenant;
	uint32_t uid;
};

/* Other agents read objects of name spaces with a name. */
bool store_lends(const struct store *s);

/* A checksum that is computed in turns. Zeroed before the first one. */
struct summing {
	uint64_t at; /* it is that of the bytes before */
	uint32_t crc;
};

/*
 * Holds an object in memory, of at most `most` bytes, for another agent, whose owner may use the name space (store_may_use()), until
 * store_lent_end(). Busy: there is one that is not in memory, is larger, or may not be lent now. held: bytes that this agent holds so,
 * which the store counts under its lock; it outlives what is held.
 */
struct store_lent {
	struct store_object *object;
	uint64_t *held;
	uint8_t *p;
	uint64_t bytes;
	uint32_t cost_us;
	struct summing sum; /* of its bytes */
};
enum dmsg_store_status store_find(struct store *s, struct dray_str space, struct store_key key,
				  uint64_t most, uint64_t *held, struct store_lent *ret);
/* Goes on with the checksum for at most *turn bytes, which are then fewer. False: there are more. It may be known from the start. */
bool store_lent_sum(struct store_lent *f, uint64_t *turn);
void store_lent_end(struct store_lent *f);
/* What other agents hold now, by store_find() and in loans; whole granules. */
uint64_t store_lent_bytes(struct store *s);

/* --- control thread --- */

/* 0: the name space has a name, and the owner for whom another agent asks may use it. Else -errno with reterr. Any thread. */
int store_may_use(const struct store *s, const struct store_asker *who, struct dray_err *reterr);

/* Objects that another agent reads: they are held until store_loan_end(). */
struct store_loan;

struct store_loan_key {
	enum dmsg_store_status
		status; /* too_large: for any lease. Of the others, only busy has more to say */
	uint64_t offset, bytes; /* in store_region() */
	dray_handle segment;    /* that it lies in; 0: it has no name yet */
	uint32_t crc, cost_us;
};

/*
 * Finds and holds what the name space has of the keys, up to room_of(arg) bytes, and up to half of an owner's memory in all loans; what
 * exceeds them is busy. Objects on disk are read; what they evict may take several turns, and room_of() runs in each. hold: they are busy meanwhile, and half as much may be
 * held: it is lent once more when it is read. 1: all bytes are in place, and their checksums are known. 0: ready(arg) runs once, not
 * inside the call, when that is so, unless the loan ends before. Then what could not be read is not held any more.
 * denied: the name space has no name, or that owner may not use it.
 */
int store_lend(struct store *s, const struct store_asker *who, const struct store_key *keys,
	       uint32_t n, bool hold, uint64_t (*room_of)(void *arg), void (*ready)(void *arg),
	       void *arg, struct store_loan **ret, struct dray_err *reterr);
/* The largest object that is lent, with all others that its borrower holds. */
uint64_t store_lend_most(const struct store *s);
/* Bytes that it holds so far; whole granules. */
uint64_t store_loan_bytes(const struct store_loan *l);
/* Once it is ready: n is the number of its keys. */
struct store_loan_key store_loan_key(const struct store_loan *l, uint32_t i);
/* Its answers are not needed: it is ready as soon as the store lets go of its objects. */
void store_loan_stop(struct store_loan *l);
void store_loan_end(struct store_loan *l);

struct store_totals {
	uint64_t objects, bytes, memory, held_bytes;
	uint64_t evictions, evicted_bytes, evicted_cost_us;
	uint64_t disk_objects, disk_bytes, disk_pending_bytes;
	uint64_t disk_evictions, disk_skipped;
	uint64_t disk_batches, disk_turns; /* that read from disk, and the turns they took */
	uint64_t lent;                     /* bytes that other agents hold now; whole granules */
	uint64_t lent_objects, lent_bytes; /* to other agents, since the start */
	uint64_t copies;                   /* that came from other agents */
	uint64_t unsaved_objects, unsaved_bytes; /* that are only in memory */
	bool has_disk;
	struct disk_info disk; /* of the tier itself */
};
struct store_totals store_totals(struct store *s);

struct store_space_info {
	const char *name, *tenant; /* tenant: of a name space without a name, else "" */
	uint32_t uid;
	uint64_t objects, bytes, memory, segments;
	uint64_t memory_objects, disk_objects, disk_bytes;
	uint64_t hits, misses, puts, evictions, evicted_cost_us;
	uint64_t disk_hits; /* of hits: the bytes were not in memory */
	uint64_t disk_evictions, disk_evicted_cost_us;
	uint64_t remote_hits, remote_bytes; /* that other agents had */
	uint64_t kept;                      /* for PUTs of other agents */
	uint64_t forwarded;                 /* that were put, and went to other agents */
};
/* name and tenant of each stay until store_sweep(). */
void store_each(struct store *s, void (*fn)(void *arg, const struct store_space_info *i),
		void *arg);

struct store_evicted {
	bool found; /* there is such a name space */
	bool more;  /* fewer bytes than asked for, and there may be more objects */
	uint32_t objects;
	uint64_t bytes;
};
/*
 * Evicts objects of the name space from memory, the least valuable first, until these bytes are evicted or a turn is over.
 * Those that are held stay.
 */
struct store_evicted store_evict(struct store *s, const char *space, const char *tenant,
				 uint32_t uid, uint64_t bytes);

/* An object of a name space. */
struct store_found {
	uint64_t bytes, cost_us;
	uint32_t uses; /* lately; the addition is one */
	double worth;  /* uses x cost / bytes, in microseconds a byte */
	bool in_memory, on_disk, held;
	uint8_t key_n;
	uint8_t key[DMSG_STORE_KEY_MAX];
};

/*
 * The most valuable objects of a name space, at most `most`; disk_only: of those that are only on disk, and for which their owner
 * has room in memory. It takes turns, since it
 * looks at all objects. NULL with reterr: no such name space, or no memory.
 */
struct store_search *store_search_new(struct store *s, const char *space, const char *tenant,
				      uint32_t uid, uint32_t most, bool disk_only,
				      struct dray_err *reterr);
/* NULL is allowed. */
void store_search_free(struct store_search *q);
/* False: it has ended. */
bool store_search_turn(struct store_search *q);
/* After the end: the most valuable one first; borrowed. */
const struct store_found *store_search_found(const struct store_search *q, uint32_t *ret_n);

struct store_loaded {
	uint32_t objects;
	uint64_t bytes;
	bool full;  /* there is no room for others without an eviction, or their owners have none */
	bool waits; /* too much is being read now */
	bool more;  /* some are being read, and there may be more than the search has found */
};
/* After the end: reads what was found from disk into memory, the most valuable first, until these bytes are begun. */
struct store_loaded store_search_load(const struct store_search *q, uint64_t bytes);

enum store_operation {
	STORE_GET,
	STORE_PUT,
	STORE_EXISTS,
	STORE_REMOVE,
	STORE_PIN,
	STORE_READ,
	STORE_OPERATION_N
};
/* "get" and so on. */
const char *store_operation_name(enum store_operation operation);

/* A request for one key. */
struct store_traced {
	int64_t ns;     /* since the trace began */
	uint64_t key;   /* a hash with a secret of the trace */
	uint64_t bytes; /* of the object; 0: there is none */
	uint32_t cost_us;
	uint32_t space; /* a number */
	uint8_t operation, status, tier;
};

/* What clients ask of the store, while anybody wants to know. What is not taken in time is lost. */
struct store_trace;
/* One at a time: else DRAY_E_BUSY. 0 or -errno with reterr. */
int store_trace_new(struct store_trace **ret, struct store *s, struct dray_err *reterr);
/* NULL is allowed. */
void store_trace_free(struct store_trace *t);
/* Takes the oldest records. Their number. */
uint32_t store_trace_take(struct store_trace *t, struct store_traced *ret, uint32_t max);
/* Records that there was no room for. */
uint64_t store_trace_lost(struct store_trace *t);

/* Reads what a name space has on disk, and verifies its checksums. */
struct store_verify;

struct store_amount {
	uint64_t objects, bytes;
};

struct store_verified {
	struct store_amount good, damaged, unreadable;
	bool more; /* it goes on */
};

/*
 * Begins a verification at so many bytes a second at most. Reads for clients go first. Objects that are damaged are removed, or
 * written again if they are in memory, too. One runs at a time: else DRAY_E_BUSY. DRAY_E_NOT_FOUND: no such name space;
 * DRAY_E_UNSUPPORTED: no disk tier, or what it has is not known.
 */
int store_verify_new(struct store_verify **ret, struct store *s, const char *space,
		     const char *tenant, uint32_t uid, uint64_t rate, struct dray_err *reterr);
/* Ends it. A piece that is being read ends later, and until then no other one can begin. NULL is allowed. */
void store_verify_free(struct store_verify *v);
bool store_verify_is_of(const struct store_verify *v, const char *space, const char *tenant,
			uint32_t uid);
/* What has been found so far. */
struct store_verified store_verify_found(const struct store_verify *v);

/*
 * Queues objects that are only in memory for the disk tier, some at a time. True: there are still some to queue or to write, or
 * the disk is full and may return, so call it again later. False: totals.unsaved_objects are those that the disk has not taken.
 * NULL is allowed.
 */
bool store_flush(struct store *s);
/* The next store_flush() looks at all objects again. NULL is allowed. */
void store_flush_again(struct store *s);

/* An object of a name space with a name. */
struct store_change {
	bool here; /* it has appeared; else it is gone, from memory and disk */
	const char *space;
	struct store_key key;
};
typedef void (*store_change_fn)(void *arg, const struct store_change *c);

/* From now on changes are kept for store_changes(); changed(arg) says that there are some. 0 or -ENOMEM. */
int store_watch(struct store *s, void (*changed)(void *arg), void *arg);
/*
 * Gives up to max changes to fn, the oldest first. Returns their number. When more come than are taken, some are lost; *ret_lost
 * counts them since the start.
 */
uint32_t store_changes(struct store *s, uint32_t max, store_change_fn fn, void *arg,
		       uint64_t *ret_lost);

/* Where a listing of all objects of name spaces with a name is. Zeroed: at its start. */
struct store_listing {
	char space[DMSG_STORE_SPACE_MAX + 1]; /* "": the first one */
	uint32_t group;                       /* of the index, that is next */
};
/*
 * Gives the next objects, about max and at most a few more, to fn. Objects that come or go meanwhile may be left out, and others be given twice. After
 * store_watch(). False: these were the last ones.
 */
bool store_list(struct store *s, struct store_listing *at, uint32_t max, store_change_fn fn,
		void *arg);
/* Objects of name spaces with a name. */
uint64_t store_listed(struct store *s);

/*
 * Forgets name spaces that have no objects and no users, and gives their memory back. The store does it by itself when the last object of an
 * owner in one is not on disk any more.
 */
void store_sweep(struct store *s);
