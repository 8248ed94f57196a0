/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between the store and its disk tier: shared by tier.c, which knows what is on disk, and work.c, which has what is to be written, read
 * and removed. All of it is guarded by store->lock.
 */
#pragma once

#include <systemd/sd-event.h>

#include "agent/store/changed.h"
#include "agent/store/internal.h"

/* A work that disk/ has. */
struct op {
	struct dray_list link; /* alone: it is not used */
	struct disk_request request;
	struct store_object *object;
	uint64_t bytes; /* that it moves */
	uint8_t key[DISK_KEY_MAX];
};

struct queue {
	struct dray_list sharers; /* struct disk_sharer: owners whose works wait */
	uint64_t served; /* progress of the owner served last, as it was before that work */
	unsigned in_flight;
	uint64_t bytes;         /* of these, that are read or written */
	uint64_t rate;          /* bytes a second that are never exceeded; 0: no limit */
	int64_t due_ns;         /* with a limit, when the next one may begin */
	sd_event_source *timer; /* the same; NULL: without a limit */
	struct op spare; /* without memory the works of the queue go on, one after the other */
};

struct tier {
	struct store *store;
	struct disk *disk;
	bool down;   /* disk/ cannot write */
	bool full;   /* because its file system is */
	bool absent; /* what is on disk is not known yet */
	struct changed_keys changed;
	uint64_t give; /* bytes to evict from disk, because its file system is full of objects */
	/* of work.c */
	struct queue reads, others;
	bool unused;         /* a member without references waits for store_sweep() */
	uint64_t turn_bytes; /* that the disk reads in a turn, by the rate that it has learned so far */
	struct dray_list removals;                /* that wait: struct disk_part */
	uint32_t removals_queued, removals_taken; /* so far, modulo 2^32 */
	struct dray_list ops;                     /* in flight */
	struct dray_job kick;
	bool kicked;
	uint64_t pending; /* bytes on disk, of objects whose work is a write */
};

/* tier.c */
/* The name of an object on disk: name space, owner and key. Returns its bytes. */
uint32_t tier_name(uint8_t ret[DISK_KEY_MAX], const struct store_object *o);
/* A live object has come to the disk, or leaves it. */
void tier_count(struct store_object *o, bool enters);
/*
 * Takes room for it on disk, for which it evicts others, as far as the turn allows. -EAGAIN: the turn is over; -ENOSPC: no more is to
 * be had.
 */
int tier_take_room(struct store_object *o, unsigned *turn);
void tier_return_room(struct store_object *o);
/* Evicts from disk what the full file system wants: of one name space in a turn. Takes the lock. */
void tier_give(struct store *s, unsigned *turn);

/* work.c */
/* 0 or -errno. */
int works_init(struct tier *t);
/* The disk has been closed: no work will be done, and none has an object any more. */
void works_deinit(struct tier *t);
/* The rate at which the disk reads is known, or may have changed. */
void works_set_turn(struct tier *t);
/* The control thread looks at the queues in its next turn. */
void works_kick(struct tier *t);
/* WORK_REMOVE or WORK_REPLACE; the object is held, or in no index. */
void work_remove(struct store_object *o, enum disk_work work);
