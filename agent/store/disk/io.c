/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading and writing on a thread. O_DIRECT wants addresses, offsets and lengths at multiples of a block. What has them is
 * moved without a copy; the rest of an object, or all of one whose buffer is elsewhere, passes through a buffer of the thread.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/store/disk/internal.h"
#include "lib/crc32c.h"

int disk_fault(const struct disk *d, enum disk_call call)
{
	return d->cfg.fault ? d->cfg.fault(call) : 0;
}

static int all(struct disk_segment *s, uint8_t *p, uint64_t n, uint64_t offset, bool write)
{
	int r = disk_fault(s->disk, write ? DISK_CALL_WRITE : DISK_CALL_READ);

	while (r == 0 && n) {
		ssize_t moved = write ? pwrite(s->fd, p, n, (off_t)offset) :
					pread(s->fd, p, n, (off_t)offset);

		if (moved < 0 && errno == EINTR)
			continue;
		/* The file of an object is never shorter than the object. */
		if (moved <= 0)
			return moved < 0 ? -errno : -EIO;
		p += moved;
		offset += (uint64_t)moved;
		n -= dray_min((uint64_t)moved, n);
	}
	return r;
}

/* How much of the buffer can be moved without a copy, from its start. */
static uint64_t direct_bytes(const void *buffer, uint64_t bytes)
{
	return (uintptr_t)buffer % DISK_BLOCK ? 0 : bytes / DISK_BLOCK * DISK_BLOCK;
}

static int pass(struct disk_request *r, uint8_t *own, uint64_t done, bool write)
{
	const struct disk_object *at = &r->at;
	int e = 0;

	for (uint64_t n; !e && done < at->bytes; done += n) {
		uint8_t *p = (uint8_t *)r->buffer + done;

		n = dray_min(at->bytes - done, (uint64_t)DISK_PIECE);
		if (write) {
			memcpy(own, p, n);
			memset(own + n, 0, disk_blocks(n) - n);
		}
		e = all(at->segment, own, disk_blocks(n), at->offset + done, write);
		if (!e && !write)
			memcpy(p, own, n);
	}
	return e;
}

static int move(struct disk_request *r, bool write)
{
	uint64_t direct = direct_bytes(r->buffer, r->at.bytes);
	dray_auto_free uint8_t *own = NULL;
	int e = 0;

	if (direct)
		e = all(r->at.segment, r->buffer, direct, r->at.offset, write);
	if (e || direct == r->at.bytes)
		return e;
	own = aligned_alloc(DISK_BLOCK,
			    disk_blocks(dray_min(r->at.bytes - direct, (uint64_t)DISK_PIECE)));
	return own ? pass(r, own, direct, write) : -ENOMEM;
}

bool disk_is_sum(const struct disk_object *o, uint32_t crc, const void *key, uint32_t key_bytes)
{
	/* of bytes and key, so that the bytes of another object are found out, too */
	return dray_crc32c(crc, key, key_bytes) == o->crc;
}

static uint32_t checksum(const struct disk_request *r)
{
	return dray_crc32c(dray_crc32c(0, r->buffer, r->at.bytes), r->key, r->key_bytes);
}

void io_write(struct disk_request *r)
{
	r->at.crc = checksum(r);
	r->error = segment_open_to_append(r->at.segment);
	r->keeps_file = !r->error;
	if (r->error)
		return;
	segment_extend(r->at.segment, r->at.offset + disk_blocks(r->at.bytes));
	r->error = move(r, true);
}

void io_read(struct disk_request *r)
{
	r->error = segment_open(r->at.segment, false);
	if (!r->error) {
		r->error = move(r, false);
		segment_close(r->at.segment);
	}
	r->damaged = !r->error && checksum(r) != r->at.crc;
	/* what was in the buffer before may be of another object */
	if (r->error || r->damaged)
		memset(r->buffer, 0, r->at.bytes);
}

void io_verify(struct disk_request *r)
{
	const struct disk_object *at = &r->at;
	uint64_t n = dray_min(at->bytes - r->verified, (uint64_t)DISK_PIECE);

	r->error = segment_open(at->segment, false);
	if (!r->error) {
		r->error = all(at->segment, r->buffer, disk_blocks(n), at->offset + r->verified,
			       false);
		segment_close(at->segment);
	}
	if (!r->error)
		r->crc = dray_crc32c(r->verified ? r->crc : 0, r->buffer, n);
	r->verified += n;
	r->damaged = !r->error && r->verified == at->bytes &&
		     !disk_is_sum(at, r->crc, r->key, r->key_bytes);
}
