/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tier that cannot be written is marked, and its writes fail at once. From time to time the committing thread writes a
 * test file and the index; when both are on disk, the tier returns. A folder that could not be read is read first. The room
 * of a reserve lets the index take removals on a file system that the tier itself has filled.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "agent/store/disk/internal.h"
#include "lib/backoff.h"
#include "lib/time.h"
#include "schema/gen/errors.h"

/* Removals that one test commits; the control thread ends them in one turn. */
#define REMOVALS_AT_ONCE 1024
#define RETRY_MIN_NS (1 * DRAY_NS_PER_SEC)
#define RETRY_MAX_NS (30 * DRAY_NS_PER_SEC)

static enum disk_state state_of(const struct disk *d, int error)
{
	if (!d->loaded)
		return DISK_STATE_ABSENT;
	switch (error) {
	case -ENOSPC:
	case -EDQUOT:
		return DISK_STATE_FULL;
	case -EROFS:
		return DISK_STATE_READ_ONLY;
	default:
		return DISK_STATE_FAILING;
	}
}

const char *disk_state_name(enum disk_state state)
{
	static const char *const names[] = {
		[DISK_STATE_OK] = "ok",
		[DISK_STATE_FULL] = "full",
		[DISK_STATE_READ_ONLY] = "read-only",
		[DISK_STATE_FAILING] = "failing",
		[DISK_STATE_ABSENT] = "absent",
	};

	return names[state];
}

static void set_state(struct disk *d, enum disk_state state, const struct dray_err *why)
{
	d->info.state = state;
	snprintf(d->info.why, sizeof(d->info.why), "%s", why->msg);
	if (d->cfg.state_changed)
		d->cfg.state_changed(d->cfg.arg, state, why);
}

static void run_probe(struct dray_job *j)
{
	probe_run(dray_container_of(j, struct disk, probe));
}

static void start_timer(struct disk *d);

static void end_removals(struct disk *d)
{
	struct dray_list committed = DRAY_LIST_INIT(committed);
	struct disk_request *r;

	dray_list_splice(&d->removals, &d->probe_removals);
	dray_list_splice(&committed, &d->probe_committed);
	/* progress: the next test is soon */
	if (!dray_list_empty(&committed))
		d->failures = 0;
	while ((r = dray_list_pop(&committed, struct disk_request, link)))
		commit_removed(d, r);
}

static void probe_done(struct dray_job *j)
{
	struct disk *d = dray_container_of(j, struct disk, probe);

	d->probing = false;
	end_removals(d);
	if (!d->probe_result) {
		d->failures = 0;
		if (d->info.state != DISK_STATE_OK)
			set_state(d, DISK_STATE_OK, &DRAY_ERR_NULL);
		commit_kick(d);
		return;
	}
	heal_again(d);
}

void heal_again(struct disk *d)
{
	enum disk_state state = state_of(d, d->probe_result);

	/* The remedy may be another one now. */
	if (state != d->info.state || strcmp(d->info.why, d->probe_why.msg))
		set_state(d, state, &d->probe_why);
	start_timer(d);
	/* Removals that wait may make room enough. */
	if (d->info.state == DISK_STATE_FULL && dray_take(d->probe_crowded) &&
	    dray_list_empty(&d->removals) && d->cfg.crowded)
		d->cfg.crowded(d->cfg.arg, d->probe_bytes);
}

void heal_now(struct disk *d)
{
	d->probe_bytes = d->info.bytes;
	d->probe_room = 0;
	run_probe(&d->probe);
	probe_done(&d->probe);
}

void heal_probe(struct disk *d)
{
	struct disk_request *r;
	unsigned n = 0;

	d->probing = true;
	d->probe_bytes = d->info.bytes;
	d->probe_room = d->refused;
	while (n++ < REMOVALS_AT_ONCE &&
	       (r = dray_list_pop(&d->removals, struct disk_request, link)))
		dray_list_add(&d->probe_removals, &r->link);
	dray_jobs_add(d->committer, &d->probe, run_probe, probe_done);
}

static int on_timer(sd_event_source *source, uint64_t usec, void *arg)
{
	struct disk *d = arg;

	if (d->loaded)
		heal_probe(d);
	else
		load_later(d);
	return 0;
}

int heal_init(struct disk *d)
{
	int r = sd_event_add_time_relative(d->cfg.event, &d->timer, CLOCK_MONOTONIC, 0, 0, on_timer,
					   d);

	return r < 0 ? r : sd_event_source_set_enabled(d->timer, SD_EVENT_OFF);
}

static void start_timer(struct disk *d)
{
	int64_t min = d->cfg.retry_min_ns ? d->cfg.retry_min_ns : RETRY_MIN_NS;
	int64_t max = d->cfg.retry_max_ns ? d->cfg.retry_max_ns : RETRY_MAX_NS;
	int64_t pause = backoff_spread(backoff_pause(++d->failures, min, max));
	int r = sd_event_source_set_time_relative(d->timer, (uint64_t)pause / 1000);

	/* It needs no memory, so that this only fails when the event loop has ended. */
	if (r >= 0)
		r = sd_event_source_set_enabled(d->timer, SD_EVENT_ONESHOT);
	d->probing = r >= 0;
}

void disk_failed(struct disk *d, int error, const struct dray_err *why)
{
	d->info.errors++;
	d->times_failed++;
	/* What was written behind an error may be lost, so nothing is appended there. */
	segment_seal(d);
	segment_drop_next(d);
	if (d->info.state == DISK_STATE_OK)
		set_state(d, state_of(d, error), why);
	commit_fail_all(d);
	if (!d->probing)
		start_timer(d);
}
