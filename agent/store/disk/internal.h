/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "agent/state/database.h"
#include "agent/store/disk/disk.h"
#include "agent/store/disk/rate.h"

#include <pthread.h>

/* Requests that a thread may have at a time: one runs, and one waits so that the thread need not wait for the control thread. */
#define THREAD_DEPTH 2
#define DEVICE_TEXT 48

struct disk_segment {
	struct dray_list link;
	struct disk *disk;
	uint32_t id;
	uint64_t end;     /* where the next object begins */
	uint64_t objects; /* also those that are being written or removed */
	uint64_t reads;   /* in flight */
	struct dray_list
		idle; /* on disk->files.idle; this and the next two are guarded by the lock there */
	int fd;       /* -1: not open. Its users read it without the lock */
	unsigned users;
	pthread_mutex_t lock;     /* of the next seven, while the file is opened or extended */
	bool made;                /* the file has been opened before, or was there at the start */
	bool read_only;           /* it is open for reading alone */
	bool stays_open;          /* it has a use of its own, until it is sealed or removed */
	uint64_t begun;           /* where the last write ends that has begun */
	uint64_t allocated;       /* the file has blocks up to here */
	bool extended;            /* it may have blocks beyond its objects */
	bool sealed;              /* it is not extended any more */
	_Atomic bool cached;      /* its bytes pass through the page cache */
	bool synced;              /* its name is on disk; of the committing thread */
	bool resting, rest_again; /* a job gives back blocks, and does so once more */
	bool has_next;            /* a next segment was made while this one was the last */
	int prepared;             /* this one has file and blocks as the next one: 0 or -errno */
	struct dray_job sealing, removal, rest, preparation;
};

/* What index.db remembers of the disk; bytes a second, 0: not known. */
struct disk_rates {
	char device[DEVICE_TEXT]; /* whose rates they are */
	uint64_t read, write;
};

struct disk_batch {
	struct dray_job job;
	struct dray_list requests;      /* in order */
	const struct disk_rates *rates; /* NULL: the index has them */
	int64_t began_ns;
	int result;
	uint32_t end;    /* of the ids of all segments, when it began */
	bool has_next;   /* there was a next segment when it began */
	bool lacks_room; /* there was one, and the file system has less free than it takes */
	struct dray_err why;
};

struct disk_files {
	pthread_mutex_t lock;
	struct dray_list
		idle; /* segments whose files are open without use, the one that was used last at the end */
	unsigned n;   /* open files */
	unsigned max; /* above that, files without use are closed */
};

struct disk {
	struct disk_config cfg;
	char *dir;
	int dir_fd;
	struct disk_info info;
	struct rate reading, writing;     /* writing: until the row is on disk */
	struct disk_rates saved, to_save; /* in index.db; on its way there */
	struct dray_list segments;
	struct disk_segment *tail; /* objects are appended to it; NULL: to a new one */
	struct disk_segment *next; /* comes after the tail, without objects; NULL: not made yet */
	uint32_t next_id;
	struct disk_files files;

	struct dray_list waiting_reads, waiting_writes; /* for a thread */
	uint64_t read_before; /* bytes of reads that went before the first write that waits */
	uint64_t to_write;    /* bytes of writes that wait */
	struct dray_list
		pieces;     /* of objects to be verified: for threads that nothing else waits for */
	unsigned n_threads; /* those that read and write, and one that only reads */
	struct dray_jobs *threads[DISK_THREADS_MAX + 1];
	unsigned in_flight[DISK_THREADS_MAX + 1];  /* requests that the thread has */
	unsigned writing_at[DISK_THREADS_MAX + 1]; /* of these, writes */

	/* The committing thread. */
	struct dray_jobs *committer;
	struct database *index; /* of that thread, after the start; NULL: to be opened */
	/* Of that thread: how fsync() of the folder has failed, which the kernel tells once, for segments before that id without `synced`. */
	int nameless;
	uint32_t nameless_end;
	struct dray_list writes, removals; /* to be committed */
	struct disk_batch batch;
	unsigned n_writing;        /* writes that threads have */
	int64_t gather_until_ns;   /* no batch begins before while threads write */
	sd_event_source *gathered; /* its timer */
	bool committing, probing;
	bool loaded; /* what is on disk is known */
	struct dray_job loading;
	struct load *load; /* what is being loaded */
	disk_found_fn found;
	void *found_arg;
	struct dray_job probe;
	struct dray_list probe_removals;  /* that the probe commits */
	struct dray_list probe_committed; /* those that it has committed */
	uint64_t probe_bytes;             /* info.bytes at its start */
	uint64_t probe_room;              /* that it needs on the disk, beside the test file */
	bool probe_crowded;
	int probe_result;
	struct dray_err probe_why;
	uint32_t failures;
	unsigned times_failed; /* so often it could not be written */
	uint64_t refused; /* the largest write that a full disk has failed since the last one that it took */
	sd_event_source *timer;
};

/* --- index.c: index.db --- */
int index_open(struct disk *d, struct dray_err *reterr);
void index_close(struct disk *d);
struct index_row {
	const void *key;
	uint32_t key_bytes, crc;
	uint64_t segment, offset, bytes;
	float cost;
};
typedef void (*index_row_fn)(struct disk *d, const struct index_row *row, void *arg);
int index_load(struct disk *d, index_row_fn fn, void *arg, struct dray_err *reterr);
/* Writes and removes rows as one transaction, which is on disk afterwards. rates: too, unless NULL. 0 or as database.h. */
int index_commit(struct disk *d, const struct dray_list *requests, const struct disk_rates *rates,
		 struct dray_err *reterr);
/* Those of this device, or else without rates. 0 or as database.h. */
int index_rates(struct disk *d, struct disk_rates *ret, struct dray_err *reterr);
/* What index_load() has read is on disk, and will be read again. 0 or -errno. */
int index_sync(struct disk *d);
/* Writes the rates alone, if the index is open; that they are not on disk is no error. */
void index_keep_rates(struct disk *d, const struct disk_rates *rates);

/* --- segment.c: files --- */
struct disk_segment *segment_new(struct disk *d, uint32_t id);
void segment_free(struct disk_segment *s);
/* Removes the file if nothing is in it, and nothing will be; frees the segment. */
void segment_drop_if_empty(struct disk_segment *s);
/* Blocks. */
void segment_unlink(const struct disk *d, uint32_t id);
void segment_name(uint32_t id, char ret[32]);
/* Gives blocks in the middle of a file back. Blocks. 0, or -errno: -EOPNOTSUPP if the file system has no holes. */
int segment_punch(int fd, uint64_t offset, uint64_t bytes);
/* Before a write that ends at `end`, to a file that is open. A file system that cannot do it extends the file by the write. */
void segment_extend(struct disk_segment *s, uint64_t end);
/* Nothing more is appended to the last segment; its blocks beyond its objects are given back. */
void segment_seal(struct disk *d);
/* The last segment, or the next one, has no objects: its blocks are given back, and the next object is appended to the last one. */
void segment_rest(struct disk_segment *s);
/* The segment after a full one. NULL: no memory. */
struct disk_segment *segment_next(struct disk *d);
/* Makes the segment after the tail, and allocates its blocks, before it is needed. */
void segment_prepare_next(struct disk *d);
/* Its blocks are needed elsewhere. */
void segment_drop_next(struct disk *d);
/* The file system has less free than a segment. Blocks. */
bool segment_lacks_room(const struct disk *d);
/* The name is on disk, or -errno. end: of the ids of the segments that fail with this one. On the committing thread. */
int segment_sync_name(struct disk_segment *s, uint32_t end);
/* Gives the blocks beyond its objects back. Blocks. */
void segment_trim(struct disk_segment *s);

/* --- files.c: open files --- */
void files_init(struct disk_files *f);
void files_deinit(struct disk_files *f);
/* Opens the file if needed, and keeps it open until segment_close(). On a thread. 0, or -errno: -EROFS for a write if it can only be read. */
int segment_open(struct disk_segment *s, bool writes);
/* The same for a write of an object; the file stays open from then on, until the segment is sealed. */
int segment_open_to_append(struct disk_segment *s);
/* segment_open() under s->lock. */
int files_open_locked(struct disk_segment *s, bool writes);
/* Any thread; does not block. */
void segment_close(struct disk_segment *s);
/* Closes the file of a segment that nobody else uses any more. */
void files_forget(struct disk_segment *s);

/* --- io.c: on a thread --- */
void io_write(struct disk_request *r);
void io_read(struct disk_request *r);
void io_verify(struct disk_request *r);
int disk_fault(const struct disk *d, enum disk_call call);

/* --- commit.c --- */
/* 0 or -errno. */
int commit_init(struct disk *d);
void commit_add(struct disk *d, struct disk_request *r);
void commit_kick(struct disk *d);
/* A write that was not committed, and all that wait for it. */
void commit_fail(struct disk *d, struct disk_request *r);
void commit_fail_all(struct disk *d);
/* Gives the blocks of removed objects back. Where the file system has no holes, they return with the segment. */
void commit_punch(const struct dray_list *requests);
/* The row of a removed object is gone. */
void commit_removed(struct disk *d, struct disk_request *r);

/* --- orphan.c --- */
/*
 * Removes the row of this key and place, if there is one, and gives the blocks back. at->segment has counted the object; NULL: it
 * is missing, and `segment` is its number. False: no memory.
 */
bool orphan_add(struct disk *d, const void *key, uint32_t key_bytes, uint64_t segment,
		const struct disk_object *at);
/* Forgets those that wait. */
void orphan_free_all(struct disk *d);

/* --- load.c --- */
/* Reads the folder, and blocks. 0 or -errno with reterr. */
int load_now(struct disk *d, struct dray_err *reterr);
/* Does so without blocking, then calls heal_probe() or heal_again(). */
void load_later(struct disk *d);
void load_free(struct disk *d);

/* --- probe.c --- */
/* On the committing thread: commits d->probe_removals, and sets the results in `d`. */
void probe_run(struct disk *d);

/* --- heal.c --- */
/* 0 or -errno. */
int heal_init(struct disk *d);
/* At the start, and blocks. */
void heal_now(struct disk *d);
void heal_probe(struct disk *d);
/* With d->probe_result and d->probe_why. */
void heal_again(struct disk *d);
/* The disk cannot be written: marks the tier, and tests until it can. */
void disk_failed(struct disk *d, int error, const struct dray_err *why);

/* The rates are worth remembering: they are not near those that the index has. True: d->to_save has them. */
bool rates_changed(struct disk *d);
/* What the index remembers holds until something else is measured. */
void rates_restore(struct disk *d, const struct disk_rates *saved);
/* A request has ended whose begin was measured. bytes: that the disk has moved for it; 0: it does not count. */
void measure_end(struct disk *d, const struct disk_request *r, uint64_t bytes);

void disk_complete(struct disk_request *r, enum disk_result result);
