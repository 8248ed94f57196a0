/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/data/transport/stage/channel.h"

#include "agent/data/transfer/xfer.h"

/* WRITEs that are gathered, or being gathered, before the transport has room for them. */
#define AHEAD 4

static void buffer_ready(struct core *c, struct stage_waiter *w)
{
	stage_channel_pull_later(dray_container_of(w, struct stage_channel, waiter));
}

void stage_channel_init(struct stage_channel *p, const struct transport_ops *ops,
			enum dmsg_class class, struct peer_link *link, void *owner,
			struct stage_account *account, struct dray_list *pull_link,
			struct dray_list *pulling)
{
	channel_init(&p->direct, ops, class, link);
	channel_init(&p->staged, ops, class, link);
	p->direct.owner = p->staged.owner = owner;
	p->staged.gpu_path = DMSG_GPU_PATH_STAGED;
	dray_list_init(&p->retry);
	dray_list_init(&p->unstaged);
	dray_list_init(&p->copying);
	dray_list_init(&p->copied);
	dray_list_init(&p->ready);
	dray_list_init(&p->waiter.link);
	p->waiter.ready = buffer_ready;
	p->account = account;
	p->pull_link = pull_link;
	p->pulling = pulling;
	dray_list_init(pull_link);
}

void stage_channel_kick(struct core *c, void *state, struct channel *ch)
{
	stage_channel_pull_later(ch->owner);
}

void stage_channel_deinit(struct stage_channel *p)
{
	dray_list_del(&p->waiter.link);
	dray_list_del(p->pull_link);
	channel_deinit(&p->direct);
	channel_deinit(&p->staged);
}

static struct stage_channel *channel_of(const struct slice *s)
{
	return dray_container_of(s->xfer->channel, struct stage_channel, staged);
}

static void copy_done(struct core *c, struct stage_buffer *b)
{
	struct slice *s = b->holder;
	struct stage_channel *p = channel_of(s);

	xfer_note_gpu_way(s->xfer, b->engines ? DMSG_GPU_WAY_COPY_ENGINE : DMSG_GPU_WAY_KERNEL);
	dray_list_move(&p->copied, &s->link);
	stage_channel_pull_later(p);
}

static void copy(struct core *c, struct slice *s, bool to_gpu)
{
	const struct region_view *local = object_region(s->xfer->local);

	dray_list_add(&channel_of(s)->copying, &s->link);
	stage_copy(c, s->staged, local->gpu, to_gpu, copy_done);
}

static void start(struct core *c, struct stage_channel *p, struct slice *s, struct stage_buffer *b)
{
	s->staged = b;
	b->holder = s;
	for (unsigned i = 0; i < s->n_local; i++)
		b->ranges[i] = s->local[i];
	b->n_ranges = s->n_local;
	b->bytes = s->bytes;
	if (s->xfer->direction == DMSG_DIRECTION_WRITE)
		copy(c, s, false);
	else
		dray_list_add(&p->ready, &s->link);
}

/*
 * Ending a slice can end its transfer and stop others of this channel, so the list is read again after each
 * slice.
 */
void stage_channel_collect(struct core *c, struct stage_channel *p)
{
	struct slice *s;

	while ((s = dray_list_pop(&p->copied, struct slice, link))) {
		if (s->staged->code || s->xfer->direction == DMSG_DIRECTION_READ)
			xfer_slice_done(c, s, s->staged->code, NULL);
		else if (slice_wanted(s))
			dray_list_add(&p->ready, &s->link);
		else
			xfer_slice_done(c, s, s->xfer->code, NULL);
	}
}

static unsigned count_ahead(const struct stage_channel *p)
{
	unsigned n = dray_list_length(&p->ready);

	dray_list_for_each(&p->copying, s, struct slice, link)
		n += s->xfer->direction == DMSG_DIRECTION_WRITE;
	return n;
}

static bool may_stage(const struct stage_channel *p, const struct slice *s)
{
	return !p->has_way || p->has_way(p, s);
}

static struct slice *first_unstaged(const struct stage_channel *p)
{
	dray_list_for_each(&p->unstaged, s, struct slice, link)
		if (may_stage(p, s))
			return s;
	return NULL;
}

static bool wants_buffer(const struct stage_channel *p)
{
	return channel_pending(&p->staged) || first_unstaged(p);
}

/* A session whose slice has no way gives no other one in this look. */
static struct slice *next_new(struct core *c, struct stage_channel *p, uint64_t unit)
{
	uint64_t max = p->max ? dray_min(unit, p->max) : unit;
	struct slice *s;

	while ((s = sched_next(c, &p->staged, max)) && !may_stage(p, s)) {
		dray_list_add(&p->unstaged, &s->link);
		sched_set_aside(s->xfer, p->aside);
	}
	return s;
}

/* The next slice without a buffer; a slice that is too long for a buffer is split. */
static struct slice *next_unstaged(struct core *c, struct stage_channel *p)
{
	uint64_t unit = stage_unit(c);
	struct slice *s = first_unstaged(p);

	if (!s)
		return next_new(c, p, unit);
	if (s->bytes > unit) {
		struct slice *rest = sched_split(c, s, unit);

		if (!rest)
			return NULL;
		dray_list_add_front(&p->unstaged, &rest->link);
	}
	dray_list_del(&s->link);
	return s;
}

void stage_channel_fill(struct core *c, struct stage_channel *p)
{
	for (unsigned n = wants_buffer(p) ? count_ahead(p) : AHEAD; n < AHEAD && wants_buffer(p);
	     n++) {
		struct stage_buffer *b = stage_get(c, STAGE_OWN, p->staged.class, p->account);
		struct slice *s;

		if (!b) {
			stage_wait(c, &p->waiter, STAGE_OWN, p->staged.class);
			return;
		}
		s = next_unstaged(c, p);
		if (!s) {
			stage_put(c, b);
			return;
		}
		start(c, p, s, b);
	}
}

struct slice *stage_channel_next(struct core *c, struct stage_channel *p)
{
	struct slice *s = NULL;

	stage_channel_fill(c, p);
	for (unsigned i = 0; i < 2 && !s; i++) {
		p->staged_next = !p->staged_next;
		s = p->staged_next ? stage_channel_take(p) : sched_next(c, &p->direct, p->max);
	}
	return s;
}

void stage_channel_scatter(struct core *c, struct slice *s)
{
	copy(c, s, true);
}

void stage_channel_stop(struct core *c, struct stage_channel *p, const struct xfer *x, bool urgent,
			struct dray_list *over)
{
	slices_take(&p->retry, x, over);
	slices_take(&p->unstaged, x, over);
	slices_take(&p->ready, x, over);
	dray_list_for_each(&p->copying, s, struct slice, link)
		if (!x || s->xfer == x)
			stage_stop(c, s->staged, urgent);
	if (!urgent)
		return;
	slices_take(&p->copied, x, over);
	if (!x)
		dray_list_del(&p->waiter.link);
}
