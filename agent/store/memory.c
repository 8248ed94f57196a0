/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments, and places in them. All addresses are reserved at the start, so that the whole store is one region to transfers.
 * Segments are mapped into slots of it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "agent/store/internal.h"
#include "lib/memfd.h"
#include "lib/time.h"

/* A segment is populated in such steps, so that it can be given back in between. */
#define POPULATE_STEP (4ull << 20)
/* Free extents of one list that are looked at. */
#define LOOKS 16
/* A segment that nobody has gone on with clearing for so long is not needed: the request has ended, or found room elsewhere. */
#define CLEARING_NS DRAY_NS_PER_SEC

void store_follow(struct store *s, const struct store_follower *f)
{
	s->follower = *f;
}

int memory_init(struct store *s)
{
	uint64_t align = HUGE_PAGE, wanted;
	uint8_t *p;

	s->slot_bytes = (s->cfg.segment_size + align - 1) / align * align;
	/* twice as much, so that large objects find slots in a row */
	s->n_slots = (uint32_t)(2 * ((s->cfg.bytes + s->slot_bytes - 1) / s->slot_bytes));
	s->reserved = s->n_slots * s->slot_bytes;
	wanted = s->reserved + align;
	s->slots = calloc(s->n_slots, sizeof(struct segment *));
	if (!s->slots)
		return -ENOMEM;
	p = mmap(NULL, wanted, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		return -errno;
	s->base = (uint8_t *)(((uintptr_t)p + align - 1) & ~(uintptr_t)(align - 1));
	/* the rest, in front and behind, is given up */
	if (s->base != p)
		munmap(p, (size_t)(s->base - p));
	munmap(s->base + s->reserved, (size_t)(p + wanted - (s->base + s->reserved)));
	return 0;
}

static void segment_unmap(struct segment *g)
{
	mmap(g->part.base, g->n_slots * g->store->slot_bytes, PROT_NONE,
	     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	dray_close(g->fd);
}

static void slots_set(struct store *s, uint32_t slot, uint32_t n, struct segment *g)
{
	for (uint32_t i = slot; i < slot + n; i++)
		s->slots[i] = g;
}

void memory_deinit(struct store *s)
{
	for (uint32_t i = 0; s->slots && i < s->n_slots; i++) {
		struct segment *g = s->slots[i];
		struct extent *next;

		if (!g)
			continue;
		slots_set(s, g->slot, g->n_slots, NULL);
		for (struct extent *e = g->first; e; e = next) {
			next = e->next;
			if (e->is_free)
				free(dray_container_of(e, struct free_extent, at));
		}
		dray_close(g->fd);
		free(g);
	}
	free(s->slots);
	if (s->base)
		munmap(s->base, s->reserved);
}

static unsigned class_of(uint32_t n)
{
	unsigned top = 31 - (unsigned)__builtin_clz(n);

	return n < 4 ? n : (top - 1) * 4 + ((n >> (top - 2)) & 3);
}

static uint32_t extent_end(const struct store *s, const struct extent *e)
{
	return e->next ? e->next->start : (uint32_t)(s->slots[e->slot]->part.bytes / GRANULE);
}

static uint32_t extent_size(const struct store *s, const struct extent *e)
{
	return extent_end(s, e) - e->start;
}

static void free_add(struct store_space *sp, struct free_extent *f)
{
	unsigned c = class_of(extent_size(sp->store, &f->at));

	if (sp->store->slots[f->at.slot]->closed)
		return;
	dray_list_add_front(&sp->free[c], &f->link);
	sp->free_map[c / 64] |= 1ull << c % 64;
}

static void free_del(struct store_space *sp, struct free_extent *f)
{
	unsigned c = class_of(extent_size(sp->store, &f->at));

	dray_list_del(&f->link);
	if (dray_list_empty(&sp->free[c]))
		sp->free_map[c / 64] &= ~(1ull << c % 64);
}

/* The next list from c on that is not empty; FREE_CLASSES: none. */
static unsigned class_next(const struct store_space *sp, unsigned c)
{
	for (; c < FREE_CLASSES; c = (c / 64 + 1) * 64) {
		uint64_t map = sp->free_map[c / 64] >> c % 64;

		if (map)
			return c + (unsigned)__builtin_ctzll(map);
	}
	return FREE_CLASSES;
}

static struct free_extent *free_find(struct store_space *sp, uint32_t n)
{
	unsigned looks = 0, c = class_of(n);

	/* only in its own list there are extents that may be too small */
	dray_list_for_each(&sp->free[c], f, struct free_extent, link) {
		if (extent_size(sp->store, &f->at) >= n)
			return f;
		if (++looks == LOOKS)
			break;
	}
	c = class_next(sp, c + 1);
	return c < FREE_CLASSES ? dray_list_first(&sp->free[c], struct free_extent, link) : NULL;
}

/* Puts `e` into the place of `old` in the order of the segment. */
static void extent_replace(struct store *s, struct extent *old, struct extent *e)
{
	e->prev = old->prev;
	e->next = old->next;
	e->start = old->start;
	e->slot = old->slot;
	if (e->prev)
		e->prev->next = e;
	else
		s->slots[e->slot]->first = e;
	if (e->next)
		e->next->prev = e;
}

bool memory_alloc(struct store_space *sp, struct store_object *o, uint32_t n)
{
	struct free_extent *f = free_find(sp, n);

	if (!f)
		return false;
	free_del(sp, f);
	if (extent_size(sp->store, &f->at) == n) {
		extent_replace(sp->store, &f->at, &o->at);
		free(f);
	} else {
		/* in front of what stays free */
		o->at = (struct extent){
			.prev = f->at.prev, .next = &f->at, .start = f->at.start, .slot = f->at.slot
		};
		if (o->at.prev)
			o->at.prev->next = &o->at;
		else
			sp->store->slots[o->at.slot]->first = &o->at;
		f->at.prev = &o->at;
		f->at.start += n;
		free_add(sp, f);
	}
	o->at.is_free = false;
	sp->store->slots[o->at.slot]->objects++;
	return true;
}

/* What is in front of it takes its place. */
static void extent_unlink(struct store *s, struct extent *e)
{
	if (e->prev)
		e->prev->next = e->next;
	else
		s->slots[e->slot]->first = e->next;
	if (e->next)
		e->next->prev = e->prev;
}

static struct free_extent *free_of(struct extent *e)
{
	return e && e->is_free ? dray_container_of(e, struct free_extent, at) : NULL;
}

static void set_closed(struct segment *g, bool closed)
{
	g->space->n_closed += closed;
	g->space->n_closed -= g->closed;
	g->closed = closed;
}

void memory_free(struct store_space *sp, struct store_object *o)
{
	struct free_extent *before = free_of(o->at.prev), *behind = free_of(o->at.next);
	struct segment *g = sp->store->slots[o->at.slot];

	if (!--g->objects)
		set_closed(g, false);
	if (before) {
		free_del(sp, before);
		extent_unlink(sp->store, &o->at);
	} else if (behind) {
		/* the one behind begins earlier */
		free_del(sp, behind);
		behind->at.start = o->at.start;
		behind->at.prev = o->at.prev;
		if (o->at.prev)
			o->at.prev->next = &behind->at;
		else
			g->first = &behind->at;
		free_add(sp, behind);
		return;
	} else {
		before = calloc(1, sizeof(*before));
		if (!before) {
			/* the place is lost until the one in front is freed, or the segment leaves */
			extent_unlink(sp->store, &o->at);
			return;
		}
		extent_replace(sp->store, &o->at, &before->at);
		before->at.is_free = true;
		dray_list_init(&before->link);
		free_add(sp, before);
		return;
	}
	if (behind) {
		free_del(sp, behind);
		extent_unlink(sp->store, &behind->at);
		free(behind);
	}
	free_add(sp, before);
}

/* Thread of the store. */
static void give_back(struct dray_job *j)
{
	struct segment *g = dray_container_of(j, struct segment, job);
	struct store *s = g->store;

	segment_unmap(g);
	pthread_mutex_lock(&s->lock);
	slots_set(s, g->slot, g->n_slots, NULL);
	s->totals.memory -= g->part.bytes;
	s->leaving -= g->part.bytes;
	pthread_mutex_unlock(&s->lock);
	free(g);
}

static struct segment *segment_of(struct store_segment *part)
{
	return dray_container_of(part, struct segment, part);
}

void store_segment_left(struct store_segment *part)
{
	struct segment *g = segment_of(part);

	dray_jobs_add(g->store->jobs, &g->job, give_back, NULL);
}

/* Control thread: the follower must end its use of the segment. */
static void unfollow(struct dray_job *j)
{
	struct segment *g = dray_container_of(j, struct segment, job);
	const struct store_follower *f = &g->store->follower;

	f->leaves(f->arg, &g->part, g->name);
}

/* Control thread. The segment may have left meanwhile, and leaves at once then. */
static void follow(struct dray_job *j)
{
	struct segment *g = dray_container_of(j, struct segment, job);
	const struct store_follower *f = &g->store->follower;
	dray_handle name = g->leaving ? 0 : f->added(f->arg, &g->part);
	bool leaves;

	pthread_mutex_lock(&g->store->lock);
	g->name = name;
	g->busy = false;
	leaves = g->leaving;
	pthread_mutex_unlock(&g->store->lock);
	if (leaves && name)
		unfollow(j);
	else if (leaves)
		store_segment_left(&g->part);
}

/* Thread of the store. Workers may write to the segment meanwhile. */
static void populate(struct dray_job *j)
{
	struct segment *g = dray_container_of(j, struct segment, job);
	struct store *s = g->store;
	bool leaves, followed = s->follower.added, huge = true;

	for (uint64_t at = 0, n; at < g->part.bytes && !g->leaving && !s->ending; at += n) {
		n = dray_min(POPULATE_STEP, g->part.bytes - at);
		huge = huge && dray_populate_huge(g->part.base + at, n);
		/* without memory the copy faults, and its transfer ends with an error */
		if (dray_populate(g->part.base + at, n, true) < 0)
			break;
	}
	pthread_mutex_lock(&s->lock);
	leaves = g->leaving;
	g->busy = leaves || followed;
	pthread_mutex_unlock(&s->lock);
	if (leaves)
		give_back(j);
	else if (followed)
		dray_jobs_finish(s->jobs, j, follow);
}

/* The first of n slots in a row that are free; n_slots: none. */
static uint32_t slots_find(const struct store *s, uint32_t n)
{
	uint32_t row = 0;

	for (uint32_t i = 0; i < s->n_slots; i++) {
		row = s->slots[i] ? 0 : row + 1;
		if (row == n)
			return i + 1 - n;
	}
	return s->n_slots;
}

/* Maps a new memfd at the slots of g, and seals it against other writers. */
static int segment_map(struct segment *g)
{
	g->fd = dray_memfd_unsealed("dray-store", g->part.bytes);
	if (g->fd < 0)
		return g->fd;
	if (mmap(g->part.base, g->part.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, g->fd,
		 0) == MAP_FAILED)
		return -errno;
	(void)madvise(g->part.base, g->part.bytes, MADV_HUGEPAGE);
	return dray_memfd_seal(g->fd, true);
}

static struct segment *segment_new(struct store_space *sp, uint64_t bytes)
{
	struct store *s = sp->store;
	uint32_t n = (uint32_t)((bytes + s->slot_bytes - 1) / s->slot_bytes);
	uint32_t slot = slots_find(s, n);
	struct free_extent *f;
	struct segment *g;

	if (slot == s->n_slots)
		return NULL;
	g = calloc(1, sizeof(*g));
	f = calloc(1, sizeof(*f));
	if (g && f) {
		g->store = s;
		g->space = sp;
		g->part.bytes = bytes;
		g->slot = slot;
		g->n_slots = n;
		g->part.offset = slot * s->slot_bytes;
		g->part.base = s->base + g->part.offset;
		if (segment_map(g) == 0) {
			f->at.slot = slot;
			f->at.is_free = true;
			dray_list_init(&f->link);
			g->first = &f->at;
			slots_set(s, slot, n, g);
			free_add(sp, f);
			return g;
		}
		segment_unmap(g);
	}
	free(g);
	free(f);
	return NULL;
}

bool memory_grow(struct store_space *sp, uint32_t n)
{
	struct store *s = sp->store;
	uint64_t page = 4096, left = s->cfg.bytes - s->totals.memory;
	uint64_t least = ((uint64_t)n * GRANULE + page - 1) / page * page;
	uint64_t usual = dray_min(s->slot_bytes, left / page * page);
	struct segment *g;

	if (least > left)
		return false;
	g = segment_new(sp, dray_max(least, usual));
	if (!g)
		return false;
	g->file = ++s->last_file;
	dray_list_add(&sp->segments, &g->link);
	sp->memory += g->part.bytes;
	s->totals.memory += g->part.bytes;
	g->busy = true;
	dray_jobs_add(s->jobs, &g->job, populate, NULL);
	return true;
}

static void segment_leave(struct segment *g)
{
	struct store_space *sp = g->space;

	/* free extents only; usually one */
	for (struct extent *e = g->first, *next; e; e = next) {
		struct free_extent *f = free_of(e);

		next = e->next;
		free_del(sp, f);
		free(f);
	}
	g->first = NULL;
	dray_list_del(&g->link);
	sp->memory -= g->part.bytes;
	g->space = NULL;
	g->leaving = true;
	g->store->leaving += g->part.bytes;
	if (g->busy)
		return;
	g->busy = true;
	if (g->name)
		dray_jobs_finish(g->store->jobs, &g->job, unfollow);
	else
		dray_jobs_add(g->store->jobs, &g->job, give_back, NULL);
}

bool memory_shrink(struct store_space *sp)
{
	dray_list_for_each(&sp->segments, g, struct segment, link)
		if (!g->objects && !g->users) {
			segment_leave(g);
			return true;
		}
	return false;
}

static struct store_object *object_of(struct extent *e)
{
	return dray_container_of(e, struct store_object, at);
}

static bool may_clear(const struct segment *g)
{
	return !g->users && g->objects == g->n_idle;
}

struct segment *memory_clearable(struct store_space *sp)
{
	struct segment *best = NULL;

	/* one that was begun loses the rest first */
	dray_list_for_each(&sp->segments, g, struct segment, link)
		if (may_clear(g) && (!best || g->closed > best->closed ||
				     (g->closed == best->closed && g->objects < best->objects)))
			best = g;
	return best;
}

void memory_clear(struct segment *g, struct store_effort *effort)
{
	set_closed(g, true);
	g->cleared_ns = dray_now().ns;
	while (g->objects && effort_evicts(effort)) {
		struct extent *e = g->first;

		while (e->is_free)
			e = e->next;
		item_leave_memory(object_of(e), true);
	}
}

/* What the owner may keep: its share of the memory, with an eighth for what objects leave free in segments, in whole segments. */
static uint64_t keep_limit(const struct store *s, const struct owner_account *a)
{
	const struct budget *b = &a->budget.all->of[RESOURCE_STORE_BYTES];
	uint64_t share = budget_share(dray_min(atomic_load(&b->max), s->cfg.bytes),
				      s->kept - a->store_kept, atomic_load(&b->owner_max));

	return (share + share / 8 + s->slot_bytes - 1) / s->slot_bytes * s->slot_bytes;
}

/* It will not be cleared: what has become free in it meanwhile can be used. */
static void open_again(struct segment *g)
{
	set_closed(g, false);
	for (struct extent *e = g->first; e; e = e->next) {
		struct free_extent *f = free_of(e);

		if (f && dray_list_empty(&f->link))
			free_add(g->space, f);
	}
}

bool memory_reopen(struct store_space *sp)
{
	int64_t since_ns;
	bool any = false;

	/* the segments of a full store are many, and evictions look here each time */
	if (!sp->n_closed)
		return false;
	since_ns = dray_now().ns - CLEARING_NS;
	dray_list_for_each(&sp->segments, g, struct segment, link) {
		if (!g->closed || g->cleared_ns > since_ns)
			continue;
		open_again(g);
		any = true;
	}
	return any;
}

bool memory_keep(struct segment *g, struct store_member *m)
{
	struct store *s = g->store;
	struct owner_account *a = m->account;

	if (!g->users) {
		if (a->store_kept + g->part.bytes > keep_limit(s, a))
			return false;
		a->store_kept += g->part.bytes;
		s->kept += g->part.bytes;
		m->refs++;
		g->keeper = m;
		if (g->closed)
			open_again(g);
	}
	g->users++;
	return true;
}

void memory_unkeep(struct segment *g)
{
	struct store_member *m = g->keeper;

	if (--g->users)
		return;
	m->account->store_kept -= g->part.bytes;
	g->store->kept -= g->part.bytes;
	m->refs--;
	g->keeper = NULL;
}
