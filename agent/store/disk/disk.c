/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/store/disk/disk.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/process/jobs.h"
#include "agent/store/disk/internal.h"
#include "lib/assert.h"
#include "lib/time.h"
#include "schema/gen/errors.h"

/* sqlite needs more than the default of jobs_new(). */
#define COMMITTER_STACK (512ul << 10)
/* Bytes of writes that wait for threads, from which on disk_may_write() is false: some milliseconds of a slow disk. */
#define WRITES_AHEAD (1ull << 20)
/* A rate that differs by at most this part from the one that is remembered is not written. */
#define RATE_NEAR 8

void disk_count_corrupt(struct disk *d)
{
	d->info.corrupt++;
}

void disk_complete(struct disk_request *r, enum disk_result result)
{
	r->result = result;
	if (result == DISK_CORRUPT && !r->verifies)
		disk_count_corrupt(r->disk);
	r->done(r);
}

/* --- rates ----------------------------------------------------------------------------------------- */

static void rates_tell(struct disk *d)
{
	d->info.read_rate = d->cfg.read_rate ? d->cfg.read_rate : d->reading.value;
	d->info.write_rate = d->cfg.write_rate ? d->cfg.write_rate : d->writing.value;
}

static struct rate *rate_of(struct disk *d, bool writes)
{
	return writes ? &d->writing : &d->reading;
}

/* Whatever its kind, what is in flight of the other one is counted up to now. */
static void measure_begin(struct disk *d, struct disk_request *r)
{
	struct rate *own = rate_of(d, r->writes), *other = rate_of(d, !r->writes);
	int64_t now_ns = dray_now().ns;

	rate_pass(other, own, now_ns);
	rate_begin(own, other, now_ns);
	r->measured = true;
}

void measure_end(struct disk *d, const struct disk_request *r, uint64_t bytes)
{
	struct rate *own = rate_of(d, r->writes), *other = rate_of(d, !r->writes);
	int64_t now_ns = dray_now().ns;

	rate_pass(other, own, now_ns);
	rate_end(own, other, now_ns, bytes);
	rates_tell(d);
}

/* Bytes that the device has read. What came from the page cache does not measure it. */
static uint64_t bytes_read(const struct disk_request *r)
{
	if (r->error || r->at.segment->cached)
		return 0;
	return disk_blocks(r->verifies ? (r->verified - 1) % DISK_PIECE + 1 : r->at.bytes);
}

static bool is_near(uint64_t a, uint64_t b)
{
	return dray_max(a, b) - dray_min(a, b) <= dray_max(a, b) / RATE_NEAR;
}

bool rates_changed(struct disk *d)
{
	if (!*d->saved.device ||
	    (is_near(d->reading.value, d->saved.read) && is_near(d->writing.value, d->saved.write)))
		return false;
	d->to_save = d->saved;
	d->to_save.read = d->reading.value;
	d->to_save.write = d->writing.value;
	return true;
}

void rates_restore(struct disk *d, const struct disk_rates *saved)
{
	d->saved = *saved;
	d->reading.n = d->writing.n = 0;
	d->reading.value = saved->read;
	d->writing.value = saved->write;
	rates_tell(d);
}

/* --- requests of the threads --------------------------------------------------------------------- */

static void go_on(struct disk *d);

static struct disk_request *returned(struct dray_job *j)
{
	struct disk_request *r = dray_container_of(j, struct disk_request, job);

	r->disk->in_flight[r->thread]--;
	r->disk->writing_at[r->thread] -= r->writes;
	return r;
}

static void run_write(struct dray_job *j)
{
	io_write(dray_container_of(j, struct disk_request, job));
}

static void run_read(struct dray_job *j)
{
	io_read(dray_container_of(j, struct disk_request, job));
}

static void run_verify(struct dray_job *j)
{
	io_verify(dray_container_of(j, struct disk_request, job));
}

/*
 * Nothing is written to a disk that has failed: it could take the room that the index needs for removals. What was written before an error
 * may be lost, which the kernel tells once, so a write does not outlast it.
 */
static bool is_writable(const struct disk *d, const struct disk_request *r)
{
	return d->info.state == DISK_STATE_OK && r->times_failed == d->times_failed;
}

static void write_done(struct dray_job *j)
{
	struct disk_request *r = returned(j);
	struct disk *d = r->disk;

	d->n_writing--;
	if (r->error) {
		struct dray_err why = dray_err_of(DRAY_E_IO,
						  "writing a segment of the disk tier: %s",
						  dray_errno_text(r->error));

		disk_failed(d, r->error, &why);
	}
	if (is_writable(d, r))
		commit_add(d, r);
	else
		commit_fail(d, r);
	go_on(d);
}

static void read_done(struct dray_job *j)
{
	struct disk_request *r = returned(j);
	struct disk *d = r->disk;
	enum disk_result result = DISK_OK;

	measure_end(d, r, bytes_read(r));
	r->at.segment->reads--;
	/* the object of a piece may be gone */
	segment_drop_if_empty(r->at.segment);
	d->info.reads += !r->verifies;
	if (r->error || r->damaged)
		result = r->error ? DISK_FAILED : DISK_CORRUPT;
	d->info.errors += result == DISK_FAILED;
	disk_complete(r, result);
	go_on(d);
}

/* The first thread takes reads alone. No read is given to a thread behind a write, which may be of many bytes. */
static bool may_take(const struct disk *d, unsigned thread, bool write)
{
	return d->in_flight[thread] < THREAD_DEPTH && (write ? thread > 0 : !d->writing_at[thread]);
}

/* The thread with the fewest requests of those that may take one more of this kind. d->n_threads: there is none. */
static unsigned idlest(const struct disk *d, bool write)
{
	unsigned best = d->n_threads;

	for (unsigned i = 0; i < d->n_threads; i++)
		if (may_take(d, i, write) &&
		    (best == d->n_threads || d->in_flight[i] < d->in_flight[best]))
			best = i;
	return best;
}

/* NULL: none waits, or no thread may take it now. */
static struct disk_request *take_write(struct disk *d, unsigned *ret_thread)
{
	struct disk_request *r = NULL;

	*ret_thread = idlest(d, true);
	if (*ret_thread < d->n_threads)
		r = dray_list_pop(&d->waiting_writes, struct disk_request, link);
	if (r) {
		d->read_before = 0;
		d->to_write -= disk_blocks(r->at.bytes);
	}
	return r;
}

static struct disk_request *take_read(struct disk *d, unsigned *ret_thread)
{
	struct disk_request *r = NULL;

	*ret_thread = idlest(d, false);
	if (*ret_thread < d->n_threads)
		r = dray_list_pop(&d->waiting_reads, struct disk_request, link);
	if (r && !dray_list_empty(&d->waiting_writes))
		d->read_before += disk_blocks(r->at.bytes);
	return r;
}

static struct disk_request *take_piece(struct disk *d, unsigned *ret_thread)
{
	*ret_thread = idlest(d, false);
	if (*ret_thread == d->n_threads || d->in_flight[*ret_thread])
		return NULL;
	return dray_list_pop(&d->pieces, struct disk_request, link);
}

/* Reads go first, but before each write no more than it has bytes itself. While they wait, threads finish their writes. */
static struct disk_request *take(struct disk *d, unsigned *ret_thread)
{
	struct disk_request *write = dray_list_first(&d->waiting_writes, struct disk_request, link);
	struct disk_request *r = NULL;

	if (write && d->read_before >= disk_blocks(write->at.bytes))
		r = take_write(d, ret_thread);
	if (!r)
		r = take_read(d, ret_thread);
	if (!r && dray_list_empty(&d->waiting_reads))
		r = take_write(d, ret_thread);
	return r ? r : take_piece(d, ret_thread);
}

static void dispatch(struct disk *d)
{
	struct disk_request *r;
	unsigned thread;

	while ((r = take(d, &thread))) {
		if (r->writes && !is_writable(d, r)) {
			commit_fail(d, r);
			continue;
		}
		r->thread = thread;
		d->in_flight[thread]++;
		d->writing_at[thread] += r->writes;
		d->n_writing += r->writes;
		measure_begin(d, r);
		dray_jobs_add(d->threads[thread], &r->job,
			      r->writes   ? run_write :
			      r->verifies ? run_verify :
					    run_read,
			      r->writes ? write_done : read_done);
	}
}

bool disk_may_write(const struct disk *d)
{
	return d->to_write < WRITES_AHEAD;
}

/* A thread has room for a request. */
static void go_on(struct disk *d)
{
	bool might_write = disk_may_write(d);

	dispatch(d);
	if (!might_write && disk_may_write(d) && d->cfg.writes_taken)
		d->cfg.writes_taken(d->cfg.arg);
}

static void submit(struct disk *d, struct disk_request *r, struct dray_list *waiting)
{
	dray_list_add(waiting, &r->link);
	dispatch(d);
}

static void prepare(struct disk *d, struct disk_request *r)
{
	dray_assert(r->key_bytes <= DISK_KEY_MAX);
	r->disk = d;
	r->times_failed = d->times_failed;
	r->error = 0;
	r->removes = r->writes = r->verifies = false;
	r->measured = r->keeps_file = r->damaged = false;
}

/* --- where an object goes -------------------------------------------------------------------------- */

static struct disk_segment *segment_for(struct disk *d, uint64_t bytes)
{
	struct disk_segment *s = d->tail;

	if (s && s->end && s->end + disk_blocks(bytes) > d->cfg.segment_bytes) {
		segment_seal(d);
		s = NULL;
	}
	if (!s)
		s = d->tail = segment_next(d);
	return s;
}

void disk_write(struct disk *d, struct disk_request *r, uint64_t bytes)
{
	struct disk_segment *s = NULL;

	dray_assert(!r->object->segment && bytes);
	prepare(d, r);
	if (d->info.state == DISK_STATE_OK)
		s = segment_for(d, bytes);
	if (!s) {
		disk_complete(r, DISK_DOWN);
		return;
	}
	r->writes = true;
	r->at = (struct disk_object){ .segment = s, .offset = s->end, .bytes = bytes };
	r->segment = s->id;
	s->end += disk_blocks(bytes);
	s->objects++;
	d->info.bytes += disk_blocks(bytes);
	d->to_write += disk_blocks(bytes);
	submit(d, r, &d->waiting_writes);
	segment_prepare_next(d);
}

void disk_read(struct disk *d, struct disk_request *r)
{
	dray_assert(r->object->segment);
	prepare(d, r);
	r->at = *r->object;
	r->at.segment->reads++;
	submit(d, r, &d->waiting_reads);
}

bool disk_is_place(const struct disk_request *r, const struct disk_object *o)
{
	return o->segment && o->segment->id == r->segment && o->offset == r->at.offset;
}

void disk_verify(struct disk *d, struct disk_request *r)
{
	dray_assert(r->object->segment);
	prepare(d, r);
	r->verifies = true;
	r->at = *r->object;
	r->segment = r->at.segment->id;
	r->at.segment->reads++;
	submit(d, r, &d->pieces);
}

void disk_remove(struct disk *d, struct disk_request *r)
{
	dray_assert(r->object->segment);
	prepare(d, r);
	r->removes = true;
	r->at = *r->object;
	r->segment = r->at.segment->id;
	*r->object = (struct disk_object){ .segment = NULL };
	d->info.objects--;
	commit_add(d, r);
}

struct disk_info disk_info(const struct disk *d)
{
	return d->info;
}

/* --- start and end ----------------------------------------------------------------------------------- */

static int start_threads(struct disk *d)
{
	int r = jobs_new(&d->committer, d->cfg.event, "disk-commit", COMMITTER_STACK);

	for (unsigned i = 0; r >= 0 && i < d->n_threads; i++)
		r = jobs_new(&d->threads[i], d->cfg.event, "disk-io", 0);
	return r;
}

/* A folder that cannot be used now marks the tier, which returns later. 0 or -errno with reterr. */
static int start_loading(struct disk *d, struct dray_err *reterr)
{
	struct dray_err why = DRAY_ERR_NULL;
	int r = load_now(d, &why);

	if (r < 0 && why.code != DRAY_E_VERSION && why.code != DRAY_E_NO_MEMORY) {
		disk_failed(d, r, &why);
		return 0;
	}
	if (r < 0)
		*reterr = why;
	else
		heal_now(d);
	return r;
}

int disk_open(struct disk **ret, const struct disk_config *cfg, disk_found_fn found, void *arg,
	      struct dray_err *reterr)
{
	struct disk *d = calloc(1, sizeof(*d));
	int r;

	if (!d)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY,
				    "no memory for the disk tier");
	dray_assert(cfg->threads && cfg->threads <= DISK_THREADS_MAX);
	d->cfg = *cfg;
	d->n_threads = cfg->threads + 1;
	d->reading.threads = d->writing.threads = cfg->threads;
	rates_tell(d);
	d->dir_fd = -1;
	files_init(&d->files);
	d->next_id = 1;
	dray_list_init(&d->segments);
	dray_list_init(&d->waiting_reads);
	dray_list_init(&d->waiting_writes);
	dray_list_init(&d->pieces);
	dray_list_init(&d->writes);
	dray_list_init(&d->removals);
	dray_list_init(&d->batch.requests);
	dray_list_init(&d->probe_removals);
	dray_list_init(&d->probe_committed);
	d->found = found;
	d->found_arg = arg;
	d->dir = strdup(cfg->dir);
	r = d->dir ? 0 :
		     dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for the disk tier");
	if (!r && (start_threads(d) < 0 || heal_init(d) < 0 || commit_init(d) < 0))
		r = dray_err_set(reterr, -EAGAIN, DRAY_E_NO_MEMORY, "no threads for the disk tier");
	if (!r)
		r = start_loading(d, reterr);
	if (r < 0) {
		disk_close(d);
		return r;
	}
	commit_kick(d);
	*ret = d;
	return 0;
}

bool disk_close(struct disk *d)
{
	bool ended = true;

	if (!d)
		return true;
	sd_event_source_disable_unref(d->timer);
	sd_event_source_disable_unref(d->gathered);
	for (unsigned i = 0; i < d->n_threads; i++)
		ended = jobs_free(d->threads[i]) && ended;
	ended = jobs_free(d->committer) && ended;
	if (!ended)
		return false;
	load_free(d);
	/* a batch that was not delivered */
	dray_list_splice(&d->removals, &d->batch.requests);
	dray_list_splice(&d->removals, &d->probe_removals);
	dray_list_splice(&d->removals, &d->probe_committed);
	orphan_free_all(d);
	if (rates_changed(d))
		index_keep_rates(d, &d->to_save);
	index_close(d);
	if (d->tail)
		segment_trim(d->tail);
	if (d->next)
		segment_unlink(d, d->next->id);
	dray_list_for_each(&d->segments, s, struct disk_segment, link)
		segment_free(s);
	files_deinit(&d->files);
	dray_close(d->dir_fd);
	free(d->dir);
	free(d);
	return true;
}
