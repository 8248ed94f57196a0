/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes whose bytes are in their segments, and removals, gather while a batch is committed, and are the next batch. A batch
 * first waits until the bytes are on disk, then writes its rows as one transaction. Its size is bounded: many removals may wait,
 * of rows that nothing refers to at the start.
 *
 * The file system commits, too, and holds other writes up meanwhile. So after a batch the next one gathers for a multiple of the time that it
 * took, unless no writes are in progress, which would join it.
 */
#include <errno.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include "agent/store/disk/internal.h"
#include "lib/time.h"
#include "schema/gen/errors.h"

/* The control thread ends the requests of a batch in one turn. */
#define BATCH_MAX 1024
/* So batches are in progress for a quarter of the time. The last one may have waited for a busy disk. */
#define GATHER_TIMES 3
#define GATHER_MAX_NS (20 * (int64_t)DRAY_NS_PER_MS)

static int sync_segment(struct disk_segment *s, uint32_t end)
{
	int r = disk_fault(s->disk, DISK_CALL_SYNC);

	if (r < 0)
		return r;
	if (fdatasync(s->fd) < 0)
		return -errno;
	return segment_sync_name(s, end);
}

static int sync_batch(struct disk_batch *b)
{
	struct disk_segment *last = NULL;
	int r = 0;

	dray_list_for_each(&b->requests, it, struct disk_request, link) {
		if (r < 0 || it->removes || it->at.segment == last)
			continue;
		last = it->at.segment;
		r = sync_segment(last, b->end);
	}
	return r < 0 ? dray_err_set(&b->why, r, DRAY_E_IO, "writing a segment of the disk tier: %s",
				    dray_errno_text(r)) :
		       0;
}

static void punch(const struct disk_object *at)
{
	if (segment_open(at->segment, true) < 0)
		return;
	segment_punch(at->segment->fd, at->offset, disk_blocks(at->bytes));
	segment_close(at->segment);
}

void commit_punch(const struct dray_list *requests)
{
	dray_list_for_each(requests, it, struct disk_request, link)
		if (it->removes && it->at.segment)
			punch(&it->at);
}

static void run_batch(struct dray_job *j)
{
	struct disk_batch *b = dray_container_of(j, struct disk_batch, job);
	struct disk *d = dray_container_of(b, struct disk, batch);

	b->why = DRAY_ERR_NULL;
	b->result = sync_batch(b);
	if (!b->result)
		b->result = index_commit(d, &b->requests, b->rates, &b->why);
	if (!b->result)
		commit_punch(&b->requests);
	b->lacks_room = b->has_next && segment_lacks_room(d);
}

static void let_go(struct disk *d, struct disk_request *r)
{
	/* A row at the start may name a segment that is gone. */
	if (!r->at.segment)
		return;
	d->info.bytes -= disk_blocks(r->at.bytes);
	r->at.segment->objects--;
	if (r->at.segment == d->tail && !d->tail->objects) {
		segment_rest(d->tail);
		if (d->next)
			segment_rest(d->next);
	} else {
		segment_drop_if_empty(r->at.segment);
	}
}

void commit_removed(struct disk *d, struct disk_request *r)
{
	d->info.removals++;
	let_go(d, r);
	disk_complete(r, DISK_OK);
}

/* The bytes are on disk or given up; the descriptor may be closed. */
static void release_file(struct disk_request *r)
{
	if (dray_take(r->keeps_file))
		segment_close(r->at.segment);
}

static void finish_write(struct disk *d, struct disk_request *r)
{
	release_file(r);
	*r->object = r->at;
	measure_end(d, r, disk_blocks(r->at.bytes));
	d->info.writes++;
	d->info.objects++;
	d->refused = 0;
	disk_complete(r, DISK_OK);
}

/* Its blocks are given back when the disk can be written; without memory, with those of its segment. */
void commit_fail(struct disk *d, struct disk_request *r)
{
	release_file(r);
	if (r->measured)
		measure_end(d, r, 0);
	if (d->info.state == DISK_STATE_FULL)
		d->refused = dray_max(d->refused, disk_blocks(r->at.bytes));
	if (!orphan_add(d, r->key, r->key_bytes, r->segment, &r->at))
		let_go(d, r);
	/* a write that began before the disk failed may end when it can be written again */
	commit_kick(d);
	disk_complete(r, DISK_DOWN);
}

void commit_fail_all(struct disk *d)
{
	struct dray_list all = DRAY_LIST_INIT(all);
	struct disk_request *r;

	dray_list_splice(&all, &d->writes);
	while ((r = dray_list_pop(&all, struct disk_request, link)))
		commit_fail(d, r);
}

static int64_t gather_ns(const struct disk *d)
{
	if (d->cfg.gather_ns)
		return d->cfg.gather_ns;
	return dray_min((dray_now().ns - d->batch.began_ns) * GATHER_TIMES, GATHER_MAX_NS);
}

static void batch_done(struct dray_job *j)
{
	struct disk_batch *b = dray_container_of(j, struct disk_batch, job);
	struct disk *d = dray_container_of(b, struct disk, batch);
	struct dray_list requests = DRAY_LIST_INIT(requests);
	struct disk_request *r;
	/* the end of a request may start the next batch, which has a result of its own */
	int result = b->result;

	d->committing = false;
	d->gather_until_ns = dray_now().ns + gather_ns(d);
	if (!result && b->rates)
		d->saved = *b->rates;
	if (result)
		disk_failed(d, result, &b->why);
	if (b->lacks_room)
		segment_drop_next(d);
	dray_list_splice(&requests, &b->requests);
	while ((r = dray_list_pop(&requests, struct disk_request, link))) {
		if (result && r->removes)
			dray_list_add(&d->removals, &r->link);
		else if (result)
			commit_fail(d, r);
		else if (r->removes)
			commit_removed(d, r);
		else
			finish_write(d, r);
	}
	commit_kick(d);
}

static void add_to_batch(struct disk *d, struct dray_list *from, unsigned *left)
{
	struct disk_request *r;

	for (; *left && (r = dray_list_pop(from, struct disk_request, link)); --*left)
		dray_list_add(&d->batch.requests, &r->link);
}

static int on_gathered(sd_event_source *source, uint64_t usec, void *arg)
{
	commit_kick(arg);
	return 0;
}

int commit_init(struct disk *d)
{
	int r = sd_event_add_time_relative(d->cfg.event, &d->gathered, CLOCK_MONOTONIC, 0, 1,
					   on_gathered, d);

	return r < 0 ? r : sd_event_source_set_enabled(d->gathered, SD_EVENT_OFF);
}

/* True: the batch begins later, by the timer at the latest. */
static bool gathers(struct disk *d)
{
	int64_t left_ns = d->gather_until_ns - dray_now().ns;

	return d->n_writing && left_ns > 0 &&
	       sd_event_source_set_time_relative(d->gathered, (uint64_t)left_ns / 1000 + 1) >= 0 &&
	       sd_event_source_set_enabled(d->gathered, SD_EVENT_ONESHOT) >= 0;
}

void commit_kick(struct disk *d)
{
	unsigned left = BATCH_MAX;

	if (d->committing || d->info.state != DISK_STATE_OK || gathers(d))
		return;
	/* few writes are in progress at a time, so that they never keep removals out */
	add_to_batch(d, &d->writes, &left);
	add_to_batch(d, &d->removals, &left);
	if (left == BATCH_MAX)
		return;
	d->committing = true;
	d->batch.began_ns = dray_now().ns;
	d->batch.has_next = d->next;
	d->batch.end = d->next_id;
	d->batch.rates = rates_changed(d) ? &d->to_save : NULL;
	dray_jobs_add(d->committer, &d->batch.job, run_batch, batch_done);
}

void commit_add(struct disk *d, struct disk_request *r)
{
	dray_list_add(r->removes ? &d->removals : &d->writes, &r->link);
	commit_kick(d);
}
