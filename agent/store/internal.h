/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of this folder. All of it is guarded by store->lock. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "agent/store/slab.h"
#include "agent/store/store.h"
#include "lib/cleanup.h"
#include "lib/handle.h"
#include "lib/jobs.h"
#include "lib/list.h"
#include "lib/map.h"

/* Places of objects are multiples of this. */
#define GRANULE 64u
/* Places are counted in granules. */
#define OBJECT_BYTES_MAX ((uint64_t)UINT32_MAX * GRANULE / 2)
#define HUGE_PAGE (2ull << 20)
/* Bytes of a checksum, about a millisecond, after which the thread of the store does what else there is to do. */
#define SUM_TURN (4ull << 20)
/* Bytes of a checksum that other threads compute themselves: that takes less time than to wake up the thread of the store. */
#define SUM_HERE (64ull << 10)
/* Lists of free extents: four for each power of two. */
#define FREE_CLASSES 124
/* Objects that are evicted for one key. */
#define EVICTED_BY_KEY (2 * STORE_EVICTED_AT_ONCE)

/* A part of a segment: an object, or free. Parts are linked in the order of their places, without gaps. */
struct extent {
	struct extent *prev, *next; /* NULL: the first and the last of the segment */
	uint32_t start;             /* granules from the start of the segment */
	uint32_t slot : 31;         /* of the segment: store->slots */
	uint32_t is_free : 1;
};

struct free_extent {
	struct extent at;
	struct dray_list link; /* on space->free */
};

enum object_state {
	OBJECT_WRITING, /* not in the index yet */
	OBJECT_LIVE,
	OBJECT_GONE, /* removed, but held, or on disk */
};

enum disk_work {
	WORK_NONE,
	WORK_WRITE,
	WORK_READ,
	WORK_REMOVE,
	WORK_REPLACE, /* its damaged bytes are removed; then it is put there again */
};

/* What an object has more if there is a disk tier: it lies in front of it. */
struct disk_part {
	struct dray_list link;    /* on a queue of the tier */
	struct dray_list waiters; /* struct store_get, while it is read */
	struct disk_object at;    /* of the control thread */
	uint32_t after;           /* of a write: removals that were queued before it */
	uint16_t work : 3;        /* enum disk_work: queued or in progress */
	uint16_t on_disk : 1;
	uint16_t cleaned : 1; /* it is written because it would be evicted soon */
	uint16_t vain : 11;   /* evictions from disk for its write that gave its owner no room */
	uint16_t seen;        /* by the verification of this number */
};

/*
 * One block with its key, whose size docs/store.md tells users (object.c checks it). LIVE ones are in the policy of their space's memory if
 * they are resident, else in that of its disk.
 */
struct store_object {
	struct store_object *next;  /* in its bucket */
	struct policy_entry policy; /* and its bytes, cost, and hash of its key */
	struct extent at;
	struct store_member *member; /* who has put it */
	uint32_t holds : 29;
	uint32_t kept : 1; /* for a PUT at another agent; no client here has put or pinned it */
	uint32_t is_counted : 1; /* against the objects of its owner */
	uint32_t has_crc : 1;
	uint32_t crc; /* CRC-32C of its bytes, for other agents; until it appears, its number of store_keep_begin() */
	uint8_t state : 2;    /* enum object_state */
	uint8_t forwards : 1; /* it is on its way to another agent, for a PUT (forward.c) */
	uint8_t prefers : 1;  /* and stays if that does not take it */
	uint8_t resident : 1; /* it has a place in memory */
	uint8_t loading : 1;  /* and its bytes are being read from disk */
	uint8_t unread : 1;   /* which has failed; it leaves memory with the last holder */
	uint8_t copy : 1;     /* another agent has it, too: it is not written to disk */
	uint8_t key_n;
	uint8_t key[];
};

struct segment {
	struct dray_job job;
	struct store *store;
	struct store_segment part;
	_Atomic dray_handle name; /* the follower's; 0: it does not know the segment */
	struct dray_list link;    /* on space->segments */
	struct store_space *space;
	int fd;
	uint64_t file; /* its number, which is never used again */
	uint32_t slot, n_slots;
	uint32_t objects;
	uint32_t n_idle; /* those that are live and that nobody holds */
	/* sessions that have its descriptor, and pins of its objects: it is not given back */
	uint32_t users;
	/* whose owner is charged for it, from the first user until there is none; NULL: there is none */
	struct store_member *keeper;
	bool busy; /* the job is queued or runs */
	/* it is being cleared: what becomes free in it is on no list of free extents */
	bool closed;
	int64_t cleared_ns;   /* closed: when that went on last */
	_Atomic bool leaving; /* it is given back when the job has ended */
	struct extent *first;
};

struct store_space {
	struct dray_list link; /* on store->spaces */
	struct store *store;
	uint32_t number;                     /* for traces */
	char name[DMSG_STORE_SPACE_MAX + 1]; /* "": the one of an owner */
	struct owner_account *account;       /* of that owner; else NULL */
	struct dray_list members;
	struct store_object **buckets;
	uint32_t n_slots; /* room for buckets, a power of two */
	uint32_t n_buckets; /* more than half of that: the lower half, and those that were divided off */
	uint32_t n_objects;
	uint64_t seed;
	struct policy *policy;
	struct policy
		*disk_policy; /* of objects that are on disk only; NULL: there is no disk tier */
	struct dray_list segments;
	uint32_t n_closed;              /* segments that are being cleared */
	uint64_t memory;                /* of its segments */
	uint64_t memory_objects, bytes; /* of its objects in memory */
	uint64_t disk_objects, disk_bytes;
	uint32_t flushed; /* buckets whose objects flush.c has queued */
	uint64_t hits, misses, puts, evictions, evicted_cost_us;
	uint64_t disk_hits, disk_evictions, disk_evicted_cost_us;
	uint64_t remote_hits, remote_bytes;  /* that other agents had */
	uint64_t kept;                       /* for PUTs of other agents */
	uint32_t keeps;                      /* numbers of store_keep_begin() */
	uint32_t last_kept;                  /* the highest one whose object is here */
	uint64_t forwarded;                  /* PUTs that went to other agents */
	_Atomic bool hinted;                 /* it has hints for PUTs */
	struct dray_list free[FREE_CLASSES]; /* of struct free_extent */
	uint64_t free_map[2];                /* the lists that are not empty */
};

/* What a member has in the reads or writes that wait for the disk. */
struct disk_sharer {
	struct dray_list link; /* on queue->sharers, while any of it waits */
	struct store_member *member;
};

/* An owner in a name space. */
struct store_member {
	struct dray_list link; /* on space->members */
	struct store_space *space;
	struct owner_account *account; /* kept */
	uint32_t refs; /* users, objects, segments that it keeps, and each list of sharers that it is on */
	/* its live objects that nobody holds, in memory and only on disk */
	uint32_t n_idle, n_idle_on_disk;
	struct disk_sharer reads, writes;
	struct turns to_read;      /* struct disk_part, for it */
	struct dray_list to_write; /* the same, of its objects */
};

struct store_user {
	struct dray_job job;   /* when it ends */
	struct dray_list link; /* on store->ended, then */
	struct store *store;
	struct owner_account *account;
	struct dray_list joined; /* of struct joined */
	struct dray_list holds;  /* of struct hold */
	struct dray_map pins;    /* struct hold, by key */
	struct dray_handles leases;
	struct given_file *files; /* by slot */
};

/* A memfd whose descriptor a user may have: its segment is not given back. */
struct given_file {
	uint64_t number;
	bool lost; /* the user says that it may not have it */
};

struct joined {
	struct dray_list link;
	struct store_member *member;
};

/* A pin or a lease. */
struct hold {
	struct dray_list link;
	struct dray_map_node by_key; /* pins */
	struct store_user *user;
	struct store_object *object;
	dray_handle lease;     /* leases */
	struct segment *keeps; /* pins */
	uint64_t bytes;
};

struct tier;
struct changes;

struct store {
	struct store_config cfg;
	struct tier *tier;       /* NULL: there is no disk tier */
	struct changes *changes; /* NULL: nobody watches */
	bool closing;
	_Atomic enum store_preference prefers;
	bool *hinted; /* for each word of cfg.spaces: its name space has hints for PUTs */
	pthread_mutex_t lock;
	struct dray_jobs *jobs;
	struct dray_list spaces;
	struct slabs objects;
	uint8_t *base; /* of the reserved addresses */
	uint64_t reserved;
	struct segment **slots;
	uint32_t n_slots;
	uint64_t slot_bytes;
	uint64_t last_file;
	uint64_t kept;    /* bytes of segments with users; part of totals.memory */
	uint64_t leaving; /* bytes of segments that are being given back; part of totals.memory */
	struct store_follower follower; /* added NULL: nobody follows */
	struct store_totals totals;
	struct dray_list ended;      /* users whose holds the thread of the store frees */
	struct dray_list loans;      /* of the control thread */
	struct dray_list lends;      /* struct store_loan: those that evict in turns */
	struct dray_job lend;        /* of the control thread: goes on with the first one */
	bool lending;                /* it is queued */
	struct store_verify *verify; /* the same; NULL: nothing is verified */
	uint16_t verifications;
	struct store_trace *trace; /* NULL: nobody wants to know what clients ask for */
	uint32_t last_space;
	/*
	 * Its thread is to end: checksums are not needed any more. Set under the lock, after which the thread changes nothing of owners,
	 * who are freed even if it does not end.
	 */
	_Atomic bool ending;
	struct region_view *region;
	struct remote_view remote;
};

static inline struct store *store_of(const struct store_object *o)
{
	return o->member->space->store;
}

static inline uint64_t object_bytes(const struct store_object *o)
{
	return policy_bytes(&o->policy);
}

static inline void object_set_crc(struct store_object *o, uint32_t crc)
{
	o->crc = crc;
	o->has_crc = true;
}

static inline uint32_t granules(uint64_t bytes)
{
	return (uint32_t)((bytes + GRANULE - 1) / GRANULE);
}

/* What an object costs: whole granules. */
static inline uint64_t room(uint64_t bytes)
{
	return (uint64_t)granules(bytes) * GRANULE;
}

/* store.c */
/* The name space; account: of its owner if it has no name. */
struct store_space *space_find(struct store *s, const struct owner_account *account,
			       struct dray_str name);
/* The name space with this name or, if that is empty, of this owner. NULL: there is none. */
struct store_space *space_named(struct store *s, const char *name, const char *tenant,
				uint32_t uid);
/* The owner in the name space. NULL: it may not use it, or there is no memory. */
struct store_member *store_member_get(struct store *s, struct owner_account *a,
				      struct dray_str name);

/* memory.c */
int memory_init(struct store *s);
void memory_deinit(struct store *s);
/* Room for an object in a segment of the space: sets o->at. False: there is none. */
bool memory_alloc(struct store_space *sp, struct store_object *o, uint32_t n);
void memory_free(struct store_space *sp, struct store_object *o);
/* A new segment with room for n granules. False: no memory is left. */
bool memory_grow(struct store_space *sp, uint32_t n);
/* Gives a segment back that holds no object, and that no user has. False: it has none. */
bool memory_shrink(struct store_space *sp);
/* One that is being cleared, else the one with the fewest objects; nobody holds any of them, and no user has it. NULL: there is none. */
struct segment *memory_clearable(struct store_space *sp);
/* Evicts its objects, as many as the effort allows: nothing is placed where they were until all have gone. */
void memory_clear(struct segment *g, struct store_effort *effort);
/* What is free in segments whose clearing has been given up can be used again. False: there are none. */
bool memory_reopen(struct store_space *sp);
/* Segment g has one more user, of this member. False: its owner keeps as much as it may. */
bool memory_keep(struct segment *g, struct store_member *m);
void memory_unkeep(struct segment *g);

/* index.c */
uint32_t item_hash(const struct store_space *sp, struct store_key key);
/* Room in the index for one more. False: there is no memory even for the first one. */
bool index_room(struct store_space *sp);
void index_add(struct store_space *sp, struct store_object *o);
void index_del(struct store_space *sp, struct store_object *o);
struct store_object *index_find(const struct store_space *sp, struct store_key key, uint32_t hash);
/*
 * A walk over an index with buckets, in as many turns as wanted; objects may come and go between them. It begins with group 0, and ends
 * when index_after() is 0. Each object that is there all the time is met once.
 */
struct store_object *index_first(const struct store_space *sp, uint32_t group);
struct store_object *index_next(const struct store_space *sp, const struct store_object *o);
uint32_t index_after(const struct store_space *sp, uint32_t group);

/* object.c */
/* An object with its key and without an owner. NULL: no memory. */
struct store_object *item_new(struct store *s, struct store_key key);
void item_dealloc(struct store *s, struct store_object *o);
/* Frees one that does not count against the objects of its owner any more. */
void item_forget(struct store_object *o);
/* A live object enters the policy of memory or of the disk, by where it is. Its bytes, cost and tag are set. 0 or -ENOMEM. */
int item_enter(struct store_object *o);
/* A live object, which is not on disk, is found from now on. There is room for it in the index. */
void item_list(struct store_object *o);
void count_unsaved(struct store_object *o, bool enters);
/* Evicts one object from memory. False: there is none to evict. */
bool item_evict(struct store_space *sp);
/* The same for this one, which is not held. */
void item_leave_memory(struct store_object *o, bool evicted);
/*
 * A live object is in memory, or gets a place there, where it is held until work.c has read it; also if that has failed before. share: of
 * the batch it is read for.
 */
enum dmsg_store_status item_fetch(struct store_object *o, struct turns_share *share,
				  struct store_effort *e);
/* Evictions that are left. */
static inline uint32_t effort_left(const struct store_effort *e)
{
	return (e->max ? e->max : STORE_EVICTED_AT_ONCE) - e->done;
}
/* One more eviction is allowed, and counted. */
static inline bool effort_evicts(struct store_effort *e)
{
	e->more = !effort_left(e);
	if (e->more)
		return false;
	e->done++;
	return true;
}

/*
 * A live object that is only on disk gets a place in memory and is read, if there is room without an eviction. not_tried: there is
 * none; busy: too much is being read; too_large: its owner has none.
 */
enum dmsg_store_status item_load_spare(struct store_object *o, struct turns_share *share);
/* A client here has stored or pinned it: it is no mere copy of another agent's any more. */
void item_own(struct store_object *o);
/* Where its bytes are. NULL: nowhere. */
enum dmsg_store_tier item_tier(const struct store_object *o);
/* GET and READ: a key was found there before item_fetch(), or nowhere. */
void item_count(struct store_space *sp, enum dmsg_store_tier tier);
/* Holds the object for a GET, until store_get_end(). */
enum dmsg_store_status item_get(struct store_object *o, struct store_wait *w, struct store_get *g);
/* A GET of the batch does not wait for its object any more. */
void wait_less(struct store_wait *w);
/* Removes it from the index, and frees it unless it is held. */
void item_remove(struct store_object *o, bool evicted);
struct store_object *item_find(struct store_space *sp, struct store_key key);
void item_hold(struct store_object *o);
void item_put(struct store_object *o);
/* The same for one that was the next victim when it was held: it is it again. */
void item_return(struct store_object *o);
/* Appears in the index, in memory, unless there is one with its key. False: there is, or no memory. */
bool item_appear(struct store_object *o);

/* tier.c */
/* 0 or -errno with reterr. */
int tier_new(struct store *s, struct dray_err *reterr);
/* Frees objects that are not in the index, and drops the holds of the tier. False: the disk keeps the store's memory. */
bool tier_free(struct store *s);
/* An object of this key was put, or its removal was asked for: what is on disk of it is older, also if that is not known yet. */
void tier_key_changed(const struct store_space *sp, struct store_key key);
/* An object was put. */
void tier_put(struct store_object *o);
/* It is not on disk but should be, and nobody is about to change that. */
bool tier_is_dirty(struct store_object *o);
/* Objects that would be evicted next are written, if memory is nearly full. */
void tier_clean(struct store_space *sp);
/* Evicts an object of the name space that is only on disk. Returns its bytes there; 0: there is none. */
uint64_t tier_evict(struct store_space *sp);
/* An object that is in no index and not held; it is freed when it is not on disk any more. */
void tier_remove(struct store_object *o);
/* Gives the next piece of an object that is on disk to the disk, with its name there. Control thread, without the lock. */
void tier_verify(struct store_object *o, struct disk_request *r, uint8_t name[DISK_KEY_MAX]);
/*
 * A live object is damaged on disk. If its bytes are in memory, they are written again; else it is removed. Control thread.
 */
void tier_damaged(struct store_object *o);
/* There is a disk tier, and its disk can be written. */
bool tier_can_write(const struct store *s);
/* It cannot, because its file system is full. */
bool tier_is_full(const struct store *s);
/* Bytes on disk, of objects that are to be written. */
uint64_t tier_pending(const struct store *s);
/* The bytes of an object that is on disk have this CRC-32C. False also as long as not all of the disk is known. */
bool tier_has_crc(struct store_object *o, uint32_t crc);
/* Fills in what the tier counts. Control thread. */
void tier_totals(struct store *s, struct store_totals *t);

/* forward.c */
/* The status of a PUT that is to go to another agent, and finds this object here. prefers: it may stay. */
enum dmsg_store_status item_meets_forward(struct store_object *o, bool prefers);

/* work.c */
/* A live object is written soon. False: too much waits for the disk, or it cannot be written. */
bool work_write(struct store_object *o);
/* An object whose `loading` is set, and that is held, is read soon: for the batch that has this share. */
void work_read(struct store_object *o, struct turns_share *share);

/* hold.c */
/* Frees users that have ended and still have holds. After the thread of the store has ended. */
void users_free(struct store *s);

/* trace.c */
void trace_add(struct store_space *sp, enum store_operation operation, struct store_key key,
	       uint64_t bytes, float cost, enum dmsg_store_status status,
	       enum dmsg_store_tier tier);

/* Notes a request for one key, if anybody wants to know. bytes: 0 if they are not known. */
static inline void trace(struct store_space *sp, enum store_operation operation,
			 struct store_key key, uint64_t bytes, float cost,
			 enum dmsg_store_status status, enum dmsg_store_tier tier)
{
	if (sp->store->trace)
		trace_add(sp, operation, key, bytes, cost, status, tier);
}

/* The same for an object; NULL: there is none. */
static inline void trace_object(struct store_space *sp, enum store_operation operation,
				struct store_key key, const struct store_object *o,
				enum dmsg_store_status status, enum dmsg_store_tier tier)
{
	trace(sp, operation, key, o ? object_bytes(o) : 0, o ? o->policy.cost : 0, status, tier);
}

/* verify.c */
/* After the disk has been closed. */
void verify_free(struct store_verify *v);

/* changes.c */
/* An object of a name space with a name has appeared, or is gone. */
void change_add(const struct store_object *o, bool here);

/* lend.c */
/* Goes on with the object, which is held, for at most *turn bytes, which are then fewer. False: there are more. Without the lock. */
bool sum_go_on(struct summing *c, const struct store_object *o, uint64_t *turn);
/* After the thread of the store has ended. */
void loans_free(struct store *s);

/* flush.c */
/* The disk may take what it has not taken before. */
void flush_restart(struct store *s);

static inline struct disk_part *disk_part(struct store_object *o)
{
	return (struct disk_part *)(void *)o - 1;
}

static inline struct store_object *object_of_part(struct disk_part *p)
{
	return (struct store_object *)(void *)(p + 1);
}

static inline bool is_on_disk(struct store_object *o)
{
	return store_of(o)->tier && disk_part(o)->on_disk;
}
