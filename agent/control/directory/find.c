/* SPDX-License-Identifier: Apache-2.0 */
/* Questions to the directory: who has these keys? */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/directory/internal.h"
#include "lib/time.h"

#define ACCURACY_US 1000

struct directory_find {
	struct dray_list link; /* in d->finds.all */
	struct directory *d;
	const struct directory_found *found;
	void *arg;
	uint32_t n, left; /* keys, and those whose answer may still come */
	int64_t began_ns;
	bool answered[]; /* by key */
};

void directory_find_cancel(struct directory_find *f)
{
	if (!f)
		return;
	f->d->totals.wait_ns += dray_span(dray_now().ns - f->began_ns);
	batches_forget(f->d, f);
	dray_list_del(&f->link);
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

	for (uint32_t i = 0; i < f->n; i++)
		if (!f->answered[i])
			unknown(f, i);
	directory_find_cancel(f);
	found->done(arg);
}

/* The end of the entry, by which it can be removed: 0 if another entry ends at the same time. */
static int64_t until_of(const struct answer_owner *owners, int n, int k)
{
	for (int i = 0; i < n; i++)
		if (i != k && owners[i].until_ms == owners[k].until_ms)
			return 0;
	return owners[k].until_ms;
}

static void take(struct server *s, struct directory_find *f, uint32_t i, const redisReply *r)
{
	struct answer_owner owners[ANSWER_OWNERS_MAX];
	struct directory *d = f->d;
	int n = answer_owners(r, owners), named = 0;

	if (n < 0) {
		directory_refused(s, r, false);
		unknown(f, i);
		return;
	}
	for (int k = 0; k < dray_min(n, ANSWER_OWNERS_USED); k++) {
		/* what this agent has has been looked for in its store */
		if (!strcmp(owners[k].segment, d->entries.segment))
			continue;
		f->found->named(f->arg, i, owners[k].segment, until_of(owners, n, k));
		named++;
	}
	if (named)
		d->totals.named++;
	else if (!directory_is_complete(s))
		unknown(f, i);
}

void find_answer(struct server *s, struct directory_find *f, uint32_t i, const redisReply *r)
{
	if (r) {
		take(s, f, i, r);
		f->answered[i] = true;
	}
	if (!--f->left)
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

/* Sends the question for one key to the server that has it, if that answers in time. */
static void ask(struct directory_find *f, const char *space, struct store_key key, uint32_t i)
{
	struct key_command k = { .kind = KEY_FIND, .i = i };
	struct server *s = NULL;

	if (name_of(&f->d->names, space, key.p, key.n, k.name)) {
		k.n_name = NAME_DIGEST;
		s = server_of(f->d, &k);
	}
	if (s && !s->making && !link_is_late(s->link))
		s->making = batch_new(s, f, "");
	if (s && s->making)
		f->left += batch_add(s->making, &k);
}

struct directory_find *directory_find(struct directory *d, const char *space,
				      const struct store_key *keys, uint32_t n,
				      const struct directory_found *found, void *arg)
{
	struct directory_find *f;

	d->totals.asked += n;
	/* agents whose entries it has not taken are not named */
	f = d->state == DIRECTORY_OK ? calloc(1, sizeof(*f) + n * sizeof(f->answered[0])) : NULL;
	if (f) {
		f->d = d;
		f->found = found;
		f->arg = arg;
		f->n = n;
		f->began_ns = dray_now().ns;
		for (uint32_t i = 0; i < n; i++)
			ask(f, space, keys[i], i);
		batches_send(d);
	}
	if (!f || !f->left) {
		d->totals.unknown += n;
		free(f);
		return NULL;
	}
	dray_list_add(&d->finds.all, &f->link);
	watch(d);
	return f;
}

int finds_init(struct directory *d)
{
	int r;

	r = sd_event_add_time(d->deps.event, &d->finds.timer, CLOCK_MONOTONIC, 0, ACCURACY_US,
			      on_timer, d);
	return r < 0 ? r : sd_event_source_set_enabled(d->finds.timer, SD_EVENT_OFF);
}

void finds_deinit(struct directory *d)
{
	d->finds.timer = sd_event_source_disable_unref(d->finds.timer);
}
