/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transport `local`: both regions belong to sessions of this agent; the worker of the session that asks
 * copies. A slice is copied whole within one call, so nothing is ever in flight between turns.
 */
#include <errno.h>
#include <stdlib.h>

#include "agent/region/fault.h"
#include "agent/transfer/sched.h"
#include "agent/transfer/xfer.h"
#include "agent/transport/transport.h"
#include "lib/cleanup.h"

/* Work of one turn, in bytes; a segment counts as SEGMENT_COST. Bounds how long sockets and rings wait. */
#define TURN_COST (1u << 20)
#define SLICE_MAX (1u << 20)
/*
 * From so many bytes of a transfer on, its larger pieces pass by the caches: the share of a processor's
 * last-level cache that one copy can hope to find again is smaller on every server.
 */
#define STREAM_TRANSFER (8u << 20)
#define STREAM_PIECE (256u << 10)
#define SEGMENT_COST 512

struct local {
	struct channel channels[2]; /* by class */
};

static int local_init(struct core *c, void **ret_state)
{
	struct local *l = calloc(1, sizeof(*l));

	(void)c;
	if (!l)
		return -ENOMEM;
	channel_init(&l->channels[DMSG_CLASS_BULK], &transport_local, DMSG_CLASS_BULK, NULL);
	channel_init(&l->channels[DMSG_CLASS_LATENCY], &transport_local, DMSG_CLASS_LATENCY, NULL);
	*ret_state = l;
	return 0;
}

static void local_deinit(struct core *c, void *state)
{
	struct local *l = state;

	(void)c;
	channel_deinit(&l->channels[DMSG_CLASS_BULK]);
	channel_deinit(&l->channels[DMSG_CLASS_LATENCY]);
	free(l);
}

static struct channel *local_channel(struct core *c, void *state, const struct xfer *x)
{
	const struct remote_view *remote = (const struct remote_view *)x->remote->view;
	struct local *l = state;

	(void)c;
	return remote->is_local ? &l->channels[x->class] : NULL;
}

/* progress() looks at the channels itself */
static void local_kick(struct core *c, void *state, struct channel *ch)
{
	(void)c;
	(void)state;
	(void)ch;
}

static void local_stop(struct core *c, void *state, struct xfer *x, bool urgent)
{
	(void)c;
	(void)state;
	(void)x;
	(void)urgent;
}

/* True where every page of [p, p+n) can be read. */
static bool readable(const uint8_t *p, size_t n)
{
	uint8_t byte;

	for (size_t i = 0; i < n; i += 4096)
		if (fault_copy(&byte, p + i, 1) < 0)
			return false;
	return fault_copy(&byte, p + n - 1, 1) == 0;
}

/* One of the two sides is gone: its session is ended, and nobody else's. */
static void blame(struct core *c, struct xfer *x, const uint8_t *local, size_t n)
{
	const struct object *o = readable(local, n) ? x->target : x->local;

	core_count(c->counters, DRAY_METRIC_REGION_FAULTS_TOTAL, 1);
	c->up->session_fault(c, o->view->session);
}

static int copy(void *to, const void *from, uint64_t n, bool stream)
{
	return stream && n >= STREAM_PIECE ? fault_copy_stream(to, from, n) :
					     fault_copy(to, from, n);
}

/* Walks both lists of pieces side by side; the remote one by way of the target's extents. */
static int copy_slice(struct core *c, struct slice *s)
{
	struct xfer *x = s->xfer;
	const struct region_view *target = (const struct region_view *)x->target->view;
	bool write = x->direction == DMSG_DIRECTION_WRITE;
	bool stream = x->bytes >= STREAM_TRANSFER;
	unsigned li = 0;
	uint64_t lo = 0;

	for (unsigned ri = 0; ri < s->n_remote; ri++) {
		uint64_t offset = x->target_offset + s->remote[ri].offset;
		uint64_t left = s->remote[ri].length;
		const struct extent_view *e = &target->extents[region_view_find(target, offset)];

		while (left) {
			uint64_t skip = offset - e->start;
			uint64_t room = dray_min(e->length - skip, s->local[li].iov_len - lo);
			uint64_t n = dray_min(left, room);
			uint8_t *mine = (uint8_t *)s->local[li].iov_base + lo;
			uint8_t *theirs = e->base + skip;

			if (write ? copy(theirs, mine, n, stream) : copy(mine, theirs, n, stream)) {
				blame(c, x, mine, n);
				return -EFAULT;
			}
			left -= n;
			offset += n;
			lo += n;
			if (lo == s->local[li].iov_len) {
				li++;
				lo = 0;
			}
			if (offset - e->start == e->length && left)
				e++;
		}
	}
	return 0;
}

static bool channel_run(struct core *c, struct channel *ch)
{
	uint64_t cost = 0;
	struct slice *s;

	while (cost < TURN_COST && (s = sched_next(c, ch, SLICE_MAX))) {
		uint64_t bytes = s->bytes;

		cost += bytes + (uint64_t)s->n_remote * SEGMENT_COST;
		if (copy_slice(c, s) < 0) {
			xfer_slice_done(c, s, DRAY_E_REGION_FAULT,
					"memory of a region is not there any more");
		} else {
			core_count(c->counters, DRAY_METRIC_LOCAL_BYTES_TOTAL, bytes);
			xfer_slice_done(c, s, 0, NULL);
		}
	}
	return channel_pending(ch);
}

static bool local_progress(struct core *c, void *state)
{
	struct local *l = state;
	bool more = false;

	if (channel_pending(&l->channels[DMSG_CLASS_LATENCY]))
		more = channel_run(c, &l->channels[DMSG_CLASS_LATENCY]);
	if (channel_pending(&l->channels[DMSG_CLASS_BULK]))
		more |= channel_run(c, &l->channels[DMSG_CLASS_BULK]);
	return more;
}

const struct transport_ops transport_local = {
	.name = "local",
	.id = DMSG_TRANSPORT_LOCAL,
	.init = local_init,
	.deinit = local_deinit,
	.channel = local_channel,
	.kick = local_kick,
	.progress = local_progress,
	.stop = local_stop,
};
