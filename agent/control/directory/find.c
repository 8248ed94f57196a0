/* SPDX-License-Identifier: Apache-2.0 */
/* Questions to the directory: who has these keys? */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/directory/internal.h"
#include "lib/time.h"
#include "schema/gen/errors.h"

#define ACCURACY_US 1000

struct directory_find {
	struct dray_list link; /* in d->finds.all */
	struct directory *d;
	struct link_op *op; /* NULL: it has got all answers */
	const struct directory_found *found;
	void *arg;
	uint32_t n, answered;
	int64_t began_ns;
};

static void leave(struct directory_find *f)
{
	f->d->totals.wait_ns += dray_span(dray_now().ns - f->began_ns);
	if (f->op)
		link_op_forget(f->op);
	dray_list_del(&f->link);
}

void directory_find_cancel(struct directory_find *f)
{
	if (!f)
		return;
	leave(f);
	free(f);
}

static void unknown(struct directory_find *f, uint32_t i)
{
	f->d->totals.unknown++;
	f->found->unknown(f->arg, i);
}

/* Of the keys without an answer, the directory says nothing. */
static void end(struct directory_find *f)
{
	const struct directory_found *found = f->found;
	void *arg = f->arg;

	while (f->answered < f->n)
		unknown(f, f->answered++);
	directory_find_cancel(f);
	found->done(arg);
}

static void take(struct directory_find *f, uint32_t i, const redisReply *r)
{
	char owners[ANSWER_OWNERS_MAX][DRAY_ADDR_TEXT_MAX];
	struct directory *d = f->d;
	int n = answer_owners(r, owners), named = 0;

	if (n < 0) {
		directory_refused(d, r, false);
		unknown(f, i);
		return;
	}
	for (int k = 0; k < n; k++) {
		/* what this agent has has been looked for in its store */
		if (!strcmp(owners[k], d->entries.segment))
			continue;
		f->found->named(f->arg, i, owners[k]);
		named++;
	}
	if (named)
		d->totals.named++;
	else if (!directory_is_complete(d))
		unknown(f, i);
}

static void on_answer(void *arg, uint32_t i, const redisReply *r)
{
	struct directory_find *f = arg;

	if (r) {
		take(f, i, r);
		f->answered = i + 1;
	}
	if (r && f->answered < f->n)
		return;
	f->op = NULL;
	end(f);
}

/* All wait equally long, so that the oldest one is the first. */
static void watch(struct directory *d)
{
	struct finds *fs = &d->finds;
	const struct directory_find *f = dray_list_first(&fs->all, struct directory_find, link);

	if (!f)
		return;
	sd_event_source_set_time(
		fs->timer,
		(uint64_t)(f->began_ns + d->deps.cfg->store.directory_timeout) / 1000 + 1);
	sd_event_source_set_enabled(fs->timer, SD_EVENT_ONESHOT);
}

static int on_timer(sd_event_source *source, uint64_t usec, void *arg)
{
	struct directory *d = arg;
	int64_t late = dray_now().ns - d->deps.cfg->store.directory_timeout;
	struct directory_find *f;

	while ((f = dray_list_first(&d->finds.all, struct directory_find, link)) &&
	       f->began_ns <= late)
		end(f);
	watch(d);
	return 0;
}

static bool command(struct directory *d, struct link_op *op, const char *space,
		    struct store_key key, const char *now)
{
	char name[NAME_BYTES], most[2] = { '0' + ANSWER_OWNERS_MAX, 0 };
	size_t n = name_of(&d->names, space, key.p, key.n, name);
	const struct link_word words[] = {
		{ "ZREVRANGEBYSCORE", 16 },
		{ name, n },
		{ "+inf", 4 },
		{ now, strlen(now) },
		{ "LIMIT", 5 },
		{ "0", 1 },
		{ most, 1 },
	};

	if (n)
		link_command(d->link, op, words, DRAY_ARRAY_SIZE(words));
	return n;
}

struct directory_find *directory_find(struct directory *d, const char *space,
				      const struct store_key *keys, uint32_t n,
				      const struct directory_found *found, void *arg)
{
	struct directory_find *f;
	char now[24];

	d->totals.asked += n;
	/* agents whose entries it has not taken are not named */
	f = d->state == DIRECTORY_OK && !link_is_late(d->link) ? malloc(sizeof(*f)) : NULL;
	if (!f) {
		d->totals.unknown += n;
		return NULL;
	}
	*f = (struct directory_find){
		.d = d, .found = found, .arg = arg, .n = n, .began_ns = dray_now().ns
	};
	f->op = link_begin(d->link, on_answer, f);
	if (!f->op) {
		d->totals.unknown += n;
		free(f);
		return NULL;
	}
	snprintf(now, sizeof(now), "%" PRId64, link_time_ms(d->link));
	for (uint32_t i = 0; i < n; i++)
		if (!command(d, f->op, space, keys[i], now)) {
			link_fail(d->link, DRAY_E_NO_MEMORY, "no memory for a digest");
			break;
		}
	link_send(d->link);
	dray_list_add(&d->finds.all, &f->link);
	watch(d);
	return f;
}

int finds_init(struct directory *d)
{
	int r;

	dray_list_init(&d->finds.all);
	r = sd_event_add_time(d->deps.event, &d->finds.timer, CLOCK_MONOTONIC, 0, ACCURACY_US,
			      on_timer, d);
	return r < 0 ? r : sd_event_source_set_enabled(d->finds.timer, SD_EVENT_OFF);
}

void finds_deinit(struct directory *d)
{
	d->finds.timer = sd_event_source_disable_unref(d->finds.timer);
}
