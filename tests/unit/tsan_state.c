/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queue between the control thread and the writing thread, under ThreadSanitizer: changes,
 * flushes, questions, an overflow with its refill, and the end. Every change is on disk at the end.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/state/state.h"

#define CHANGES 20000U
#define SCOPES 300U

struct run {
	sd_event *event;
	struct state *s;
	uint32_t last[SCOPES]; /* the last score of each scope */
	unsigned refills, rows, wrong;
};

static void put(struct run *r, unsigned scope)
{
	char name[32];

	snprintf(name, sizeof(name), "%u", scope);
	state_save_hint(r->s, &(struct state_hint){ name, 4, 0, "h:1", "t", r->last[scope], 1, 2 });
}

static void on_refill(void *arg)
{
	struct run *r = arg;

	r->refills++;
	for (unsigned i = 0; i < SCOPES; i++)
		if (r->last[i])
			put(r, i);
}

static void on_hint(void *arg, enum state_kind kind, const union state_row *any)
{
	const struct state_hint *row = &any->hint;
	struct run *r = arg;
	unsigned scope = (unsigned)strtoul(row->scope, NULL, 10);

	r->rows++;
	r->wrong += scope >= SCOPES || row->score != r->last[scope % SCOPES];
}

static int open_state(struct run *r, const char *dir, uint64_t queue_bytes)
{
	struct dray_err err = DRAY_ERR_NULL;

	return state_open(&r->s,
			  &(struct state_deps){ .event = r->event,
						.dir = dir,
						.refill = on_refill,
						.arg = r,
						.gather_ns = 100000,
						.queue_bytes = queue_bytes },
			  &err);
}

static int flush(struct run *r)
{
	struct state_info info;

	for (state_info(r->s, &info); info.queued; state_info(r->s, &info))
		if (info.in_memory || sd_event_run(r->event, 1000) < 0)
			return -1;
	return 0;
}

static int write_all(struct run *r)
{
	struct state_info info;

	for (uint32_t i = 1; i <= CHANGES; i++) {
		r->last[i % SCOPES] = i;
		put(r, i % SCOPES);
		state_add_event(r->s, &(struct state_event){ "h:1", i, 1, 2, "" });
		if (i % 1000 == 0 && flush(r) < 0)
			return -1;
		if (i % 100 == 0)
			state_info(r->s, &info);
		if (i % 10 == 0 && sd_event_run(r->event, 0) < 0)
			return -1;
	}
	return flush(r);
}

static int run(uint64_t queue_bytes, bool overflows)
{
	char dir[] = "/tmp/dray-tsan-XXXXXX", path[64];
	static struct run r;
	int ret = -1;

	r = (struct run){ .rows = 0 };
	if (!mkdtemp(dir) || sd_event_new(&r.event) < 0)
		return -1;
	if (open_state(&r, dir, queue_bytes) == 0 && state_start(r.s) == 0)
		ret = write_all(&r);
	r.s = state_free(r.s);
	if (ret == 0 && open_state(&r, dir, 0) == 0) {
		state_load(r.s, 1u << STATE_HINT, on_hint, &r);
		r.s = state_free(r.s);
	}
	sd_event_unref(r.event);
	snprintf(path, sizeof(path), "%s/state.db", dir);
	unlink(path);
	rmdir(dir);
	return ret < 0 || r.wrong || r.rows != SCOPES || (r.refills > 0) != overflows ? -1 : 0;
}

int main(void)
{
	if (run(0, false) < 0 || run(2000, true) < 0) {
		printf("not ok - every change is on disk at the end\n");
		return 1;
	}
	printf("ok - every change is on disk at the end\n");
	return 0;
}
