/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fake of the workers: it records published objects, and answers a drop when the test calls for
 * it. It defines the functions of agent/data/data.h, so that the real ones are not linked. For one
 * source file of a program.
 */
#pragma once

#include <stdlib.h>

#include "agent/data/data.h"
#include "lib/list.h"

struct fake_drop {
	struct dray_list link;
	enum object_kind kind;
	dray_handle handle;
	uint32_t code;
	bool urgent;
	void (*done)(void *arg);
	void *arg;
};

static struct dray_list fake_drops = DRAY_LIST_INIT(fake_drops);
static const struct object_view *fake_last[OBJECT_KIND_N];
static unsigned fake_published[OBJECT_KIND_N];

void pool_publish(struct worker_pool *p, const struct object_view *view)
{
	fake_last[view->kind] = view;
	fake_published[view->kind]++;
}

void pool_opened(struct worker_pool *p, dray_handle region)
{
}

void pool_drop(struct worker_pool *p, enum object_kind kind, dray_handle handle, uint32_t code,
	       bool urgent, void (*done)(void *arg), void *arg)
{
	struct fake_drop *d = calloc(1, sizeof(*d));

	if (!d)
		abort();
	*d = (struct fake_drop){ .kind = kind,
				 .handle = handle,
				 .code = code,
				 .urgent = urgent,
				 .done = done,
				 .arg = arg };
	dray_list_add(&fake_drops, &d->link);
}

void pool_retire(struct worker_pool *p, enum object_kind kind, dray_handle handle, uint32_t code,
		 void (*done)(void *arg), void *arg)
{
	pool_drop(p, kind, handle, code, false, done, arg);
}

unsigned pool_pick(struct worker_pool *p)
{
	return p->next++ % p->n;
}

static struct fake_drop *fake_drop_find(enum object_kind kind, dray_handle handle)
{
	dray_list_for_each(&fake_drops, d, struct fake_drop, link)
		if (d->kind == kind && d->handle == handle)
			return d;
	return NULL;
}

/* Number of drops without an answer. */
static inline unsigned fake_waiting(void)
{
	unsigned n = 0;

	dray_list_for_each(&fake_drops, d, struct fake_drop, link)
		n++;
	return n;
}

static inline bool fake_dropping(enum object_kind kind, dray_handle handle)
{
	return fake_drop_find(kind, handle);
}

static void fake_finish(struct fake_drop *d)
{
	dray_list_del(&d->link);
	if (d->done)
		d->done(d->arg);
	free(d);
}

/* Answers the drop of this object, as after the last worker. */
static inline void fake_answer(enum object_kind kind, dray_handle handle)
{
	struct fake_drop *d;

	while ((d = fake_drop_find(kind, handle)))
		fake_finish(d);
}

/* Answers all drops, and those that the answers cause. */
static inline void fake_answer_all(void)
{
	struct fake_drop *d;

	while ((d = dray_list_first(&fake_drops, struct fake_drop, link)))
		fake_finish(d);
}

/* Answers all drops except of this object, such as the barriers of revocations. */
static inline void fake_answer_others(enum object_kind kind, dray_handle handle)
{
	dray_list_for_each(&fake_drops, d, struct fake_drop, link)
		if (d->kind != kind || d->handle != handle)
			fake_finish(d);
}
