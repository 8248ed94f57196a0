/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects on a local disk. It knows keys, bytes and costs, and no requests.
 *
 * Objects are appended to segment files; index.db, an sqlite database beside them, has a row for each object. A write is
 * complete when its bytes and then its row are on disk, so after kill -9 or a power cut each completed object is there,
 * and none is torn. The CRC-32C of bytes and key is in the row, and each read verifies it. The bytes of a removed object are
 * given back to the file system as a hole, and a segment without objects is removed. The segment that objects are appended to
 * stays. It has blocks ahead of them, and when it is half full the next segment is made and gets its blocks; what is left of these is
 * given back when both have no objects, when the next segment begins, when the disk fails, at the end, and at the start.
 *
 * Threads of the module read, write and commit. Requests complete on the control thread. When the disk cannot be written,
 * writes fail at once and the tier is marked; it returns by itself, once a test file can be written. All functions belong
 * to the control thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "lib/err.h"
#include "lib/jobs.h"
#include "lib/list.h"

#define DISK_KEY_MAX 512
#define DISK_BLOCK 4096u      /* objects begin and end at multiples of it */
#define DISK_PIECE (1u << 20) /* bytes of a buffer for parts of an object */

/* The bytes that an object takes on disk. */
static inline uint64_t disk_blocks(uint64_t bytes)
{
	return (bytes + DISK_BLOCK - 1) / DISK_BLOCK * DISK_BLOCK;
}

struct disk;
struct disk_segment;

/* Where an object is; embedded by the owner. Zeroed: not on disk. */
struct disk_object {
	struct disk_segment *segment; /* NULL: not on disk */
	uint64_t offset, bytes;
	uint32_t crc;
};

enum disk_result {
	DISK_OK,
	DISK_DOWN,    /* the tier cannot be written now */
	DISK_CORRUPT, /* the bytes are not those that were written; remove the object */
	DISK_FAILED,  /* the disk reported an error of reading */
};

/* Of the owner, who keeps it, the object, the key and the buffer until done() is called, which may free them. */
struct disk_request {
	struct disk_object *object;
	const void *key;
	uint32_t key_bytes;
	float cost;   /* of a write; returned by disk_open() */
	void *buffer; /* fastest at multiples of DISK_BLOCK */
	void (*done)(struct disk_request *r);
	enum disk_result result;
	uint64_t verified; /* bytes, by disk_verify(); zeroed before the first piece */

	/* of the module */
	struct disk *disk;
	struct dray_job job;
	struct dray_list link;
	struct disk_object at;
	uint64_t segment; /* the number of at.segment, or the one in a row whose segment is missing */
	unsigned thread;
	unsigned times_failed; /* that of the disk, when it began */
	int error;             /* -errno of a call */
	uint32_t crc;          /* of what is verified */
	bool writes, removes, verifies;
	bool measured;   /* the rate has counted its start */
	bool keeps_file; /* that of its segment stays open, until it is committed or has failed */
	bool damaged;    /* what was read without an error is not what was written */
};

enum disk_state {
	DISK_STATE_OK,
	DISK_STATE_FULL,
	DISK_STATE_READ_ONLY,
	DISK_STATE_FAILING,
	DISK_STATE_ABSENT, /* the folder could not be read yet, so what is on disk is not known */
};

/* "ok", "full" and so on. */
const char *disk_state_name(enum disk_state state);

/* Calls that a test can let fail: returns 0 or -errno. Called by any thread. */
enum disk_call {
	DISK_CALL_OPEN,
	DISK_CALL_READ,
	DISK_CALL_WRITE,
	DISK_CALL_EXTEND, /* of a segment, ahead of its objects */
	DISK_CALL_SYNC,
	DISK_CALL_SYNC_FOLDER, /* which has the names of segments */
	DISK_CALL_COMMIT,
	DISK_CALL_ALLOC, /* of what a request needs; by the store */
	DISK_CALL_N
};

struct disk_config {
	sd_event *event;
	const char *dir;
	uint64_t segment_bytes;
	unsigned threads;    /* that read and write: 1 to DISK_THREADS_MAX; one more reads */
	uint64_t read_rate;  /* bytes a second; 0: it is learned, and kept in index.db */
	uint64_t write_rate; /* the same */
	int64_t retry_min_ns,
		retry_max_ns; /* of tests whether the disk can be written; 0: 1 s and 30 s */
	int64_t gather_ns; /* after a batch, how long others gather while threads write; 0: as long as it took, times a factor */
	void (*state_changed)(void *arg, enum disk_state state, const struct dray_err *why);
	void *arg;
	/* The file system is full, mostly of `bytes` of this tier: some objects should be removed. May be NULL. */
	void (*crowded)(void *arg, uint64_t bytes);
	/* disk_may_write() has become true. May be NULL. */
	void (*writes_taken)(void *arg);
	int (*fault)(enum disk_call call); /* for tests; may be NULL */
};

#define DISK_THREADS_MAX 16

/*
 * Each object that is found, at the start or when the folder can be read. 0 with the object that is to be filled, or with NULL: it is
 * removed from the disk later. -ENOMEM: nobody has it until the next start.
 */
typedef int (*disk_found_fn)(void *arg, const void *key, uint32_t key_bytes, uint64_t bytes,
			     float cost, struct disk_object **ret);

/*
 * Opens or makes the tier, and reports what is there. Blocks for some microseconds an object, so it is called at start
 * only. A folder that cannot be used marks the tier, and is tried again; then the objects are reported later. An index of a
 * later version is refused. 0 or -errno with reterr.
 */
int disk_open(struct disk **ret, const struct disk_config *cfg, disk_found_fn found, void *arg,
	      struct dray_err *reterr);

/*
 * Ends the requests that threads have; done() is not called any more. NULL is allowed. False: a call of the disk does not
 * return, and its thread keeps the disk, the requests and their buffers until the process ends.
 */
bool disk_close(struct disk *d);

/* bytes: of the object. done() may be called before this returns. The object must not be on disk. */
void disk_write(struct disk *d, struct disk_request *r, uint64_t bytes);

/*
 * Few bytes of writes wait for a thread. A caller whose writes compete begins them only then, because they go in the order in which they
 * have begun; the threads have enough to do meanwhile.
 */
bool disk_may_write(const struct disk *d);

/* The buffer has the bytes of the object if the result is DISK_OK, else zeros. */
void disk_read(struct disk *d, struct disk_request *r);

/* No request for the object may be in flight, but that of a piece. The object is not on disk from now on; done(): nor after a restart. */
void disk_remove(struct disk *d, struct disk_request *r);

/*
 * Verifies the next piece of the object, which is in the same place as for the last one, on a thread that nothing else waits
 * for. r is of the object alone, and has the buffer, of DISK_PIECE bytes at a multiple of DISK_BLOCK. DISK_CORRUPT: the whole
 * object is; this counts if disk_is_place() says so.
 */
void disk_verify(struct disk *d, struct disk_request *r);
/* The object is still where the last piece was. */
bool disk_is_place(const struct disk_request *r, const struct disk_object *o);
/* The bytes of an object that is on disk, and has this key, have this CRC-32C. Any thread that knows that it is there. */
bool disk_is_sum(const struct disk_object *o, uint32_t crc, const void *key, uint32_t key_bytes);
/* A verification has found a damaged object, which was still in its place. */
void disk_count_corrupt(struct disk *d);

struct disk_info {
	enum disk_state state;
	char why[DRAY_ERR_MSG_MAX]; /* unless the state is ok */
	uint64_t objects, bytes;    /* bytes: in blocks */
	uint64_t segments, reads, writes, removals, corrupt, errors;
	uint64_t read_rate;  /* bytes a second, as configured or learned; 0: not known yet */
	uint64_t write_rate; /* the same */
};
struct disk_info disk_info(const struct disk *d);
