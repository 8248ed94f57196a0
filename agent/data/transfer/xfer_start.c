/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starts a transfer: checks it, accepts it, and gives it to a transport or carries it out at once. A refused transfer
 * leaves no trace.
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "agent/data/transfer/object.h"
#include "agent/data/transfer/sched.h"
#include "agent/data/transfer/transport.h"
#include "agent/data/transfer/wait.h"
#include "agent/data/transfer/xfer_internal.h"
#include "agent/model/handle.h"
#include "agent/model/peer_link.h"
#include "lib/cleanup.h"
#include "lib/fault.h"

/* Bytes of a transfer that may be carried out as soon as it is read; the copy takes as long as reading the next few requests. */
#define XFER_AT_ONCE_MAX 4096
/* Operations that are read in one step; as many as a message can carry. */
#define OPS_STEP DMSG_OPS_INLINE_MAX
/* Extents that a transfer looks at while its region is being opened, as many as operations in one step. */
#define OPEN_LOOKS_MAX 4096u

static struct object *usable(struct core *c, struct xfer_session *s, enum object_kind kind,
			     dray_handle h, uint16_t access, struct dray_err *reterr)
{
	const char *what = kind == OBJECT_REGION ? "region" : "remote";
	struct object *o = object_get(c, kind, h);

	if (!o && object_drop_code(c, kind, h)) {
		uint32_t code = object_drop_code(c, kind, h);

		dray_err_set(reterr, -ENOENT, (int)code, "%s %llu is gone: %s", what,
			     (unsigned long long)h, dray_error_doc(code));
		return NULL;
	}
	if (!o || o->view->group != s->group) {
		handle_refuse(reterr, h,
			      kind == OBJECT_REGION ? DMSG_HANDLE_KIND_REGION :
						      DMSG_HANDLE_KIND_REMOTE,
			      "in this session's group");
		return NULL;
	}
	if ((o->view->access & access) != access) {
		dray_err_set(reterr, -EACCES, DRAY_E_DENIED, "%s %llu does not allow %s", what,
			     (unsigned long long)h,
			     access == DMSG_ACCESS_READ ? "reading" : "writing");
		return NULL;
	}
	return o;
}

static int word_get(struct core *c, struct xfer_session *s, const char *what, dray_handle region,
		    uint64_t offset, uint32_t value, uint16_t access, struct xfer_word *ret,
		    struct dray_err *reterr)
{
	struct object *o = usable(c, s, OBJECT_REGION, region, access, reterr);
	const struct extent_view *e;
	const struct region_view *r;
	uint8_t *p;

	if (!o)
		return -EINVAL;
	r = object_region(o);
	if (r->memory != REGION_HOST)
		return dray_err_set(
			reterr, -EOPNOTSUPP, DRAY_E_UNSUPPORTED,
			"%s word: region %llu is not host memory; put the word into a memfd that the "
			"GPU's stream reaches too",
			what, (unsigned long long)region);
	if (offset % 4 || offset > o->view->length || o->view->length - offset < 4)
		return dray_err_set(reterr, -EINVAL, offset % 4 ? DRAY_E_INVALID : DRAY_E_RANGE,
				    "%s word at %llu is not an aligned word inside its region",
				    what, (unsigned long long)offset);
	e = &r->extents[region_view_find(r, offset)];
	p = e->base + (offset - e->start);
	if (e->length - (offset - e->start) < 4 || (uintptr_t)p % 4)
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "%s word at %llu is not aligned in its extent", what,
				    (unsigned long long)offset);
	*ret = (struct xfer_word){ (uint32_t *)(void *)p, o, value };
	return 0;
}

static int request_check(const struct xfer_request *r, struct dray_err *reterr)
{
	if (!dmsg_direction_valid(r->spec.direction) || !dmsg_class_valid(r->spec.class))
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "direction %u or class %u is unknown", r->spec.direction,
				    r->spec.class);
	if (r->spec.flags & ~DMSG_TRANSFER_FLAG_ALL)
		return dray_err_set(reterr, -EINVAL, DRAY_E_UNSUPPORTED,
				    "transfer flags 0x%x are unknown",
				    r->spec.flags & ~DMSG_TRANSFER_FLAG_ALL);
	if (!r->n_ops || r->n_ops > DMSG_OPS_MAX)
		return dray_err_set(reterr, -EINVAL, r->n_ops ? DRAY_E_TOO_LARGE : DRAY_E_INVALID,
				    "%u operations; 1 to %u are allowed", r->n_ops, DMSG_OPS_MAX);
	if (r->notify_length > DMSG_NOTIFY_MAX)
		return dray_err_set(reterr, -EINVAL, DRAY_E_TOO_LARGE,
				    "a notification carries at most %u bytes", DMSG_NOTIFY_MAX);
	return 0;
}

static enum region_memory memory_of(const struct object *region)
{
	return object_region(region)->memory;
}

/* Memory for its operations. */
static bool ops_room(struct core *c, struct xfer *x, uint32_t n)
{
	struct ops_store *s = &c->xfers->ops;

	x->ops = x->ops_inline;
	if (n <= XFER_OPS_INLINE)
		return true;
	x->ops = NULL;
	if (x->target && (memory_of(x->local) == REGION_GPU || memory_of(x->target) == REGION_GPU))
		x->ops = ops_store_get_pinned(s, n);
	x->ops_pinned = x->ops;
	if (!x->ops)
		x->ops = ops_store_get(s, n);
	return x->ops;
}

/*
 * Checks and fills in objects (not held yet), words, room for operations and the notification. On error xfer_free() frees what
 * was allocated.
 */
static int prepare(struct core *c, struct xfer *x, const struct xfer_request *r,
		   struct dray_err *reterr)
{
	const struct dmsg_transfer_spec *spec = &r->spec;
	struct xfer_session *s = x->session;
	bool write = spec->direction == DMSG_DIRECTION_WRITE;
	const struct remote_view *remote;

	x->local = r->local ? r->local :
			      usable(c, s, OBJECT_REGION, spec->local,
				     write ? DMSG_ACCESS_READ : DMSG_ACCESS_WRITE, reterr);
	if (!x->local)
		return -EINVAL;
	x->remote = r->remote ? r->remote :
				usable(c, s, OBJECT_REMOTE, spec->remote,
				       write ? DMSG_ACCESS_WRITE : DMSG_ACCESS_READ, reterr);
	if (!x->remote)
		return -EINVAL;
	remote = object_remote(x->remote);
	if (remote->mooncake && spec->flags & DMSG_TRANSFER_FLAG_NOTIFY)
		return dray_err_set(reterr, -EOPNOTSUPP, DRAY_E_UNSUPPORTED,
				    "Mooncake's engines take no notifications of this agent; send "
				    "one yourself when the transfer has ended");
	if (r->remote) {
		x->target = r->target;
	} else if (remote->is_local) {
		x->target = object_get(c, OBJECT_REGION, remote->region);
		x->target_offset = remote->offset;
		if (!x->target)
			return dray_err_set(reterr, -ENOENT, DRAY_E_REVOKED,
					    "the remote's region was removed");
	}
	if (spec->flags & DMSG_TRANSFER_FLAG_WAIT &&
	    word_get(c, s, "wait", spec->wait_region, spec->wait_offset, spec->wait_value,
		     DMSG_ACCESS_READ, &x->wait, reterr) < 0)
		return -EINVAL;
	if (spec->flags & DMSG_TRANSFER_FLAG_SET &&
	    word_get(c, s, "set", spec->set_region, spec->set_offset, spec->set_value,
		     DMSG_ACCESS_WRITE, &x->set, reterr) < 0)
		return -EINVAL;
	if (!ops_room(c, x, r->n_ops))
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY,
				    "no memory for the operations");
	if (spec->flags & DMSG_TRANSFER_FLAG_NOTIFY) {
		x->notify_tag = spec->notify_tag;
		x->notify = packet_new(r->notify_length, 0);
		if (!x->notify)
			return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY,
					    "no memory for the notification");
		if (fault_copy(x->notify->data, r->notify, r->notify_length) < 0) {
			xfer_memory_fault(c, s->handle);
			return dray_err_set(
				reterr, -EFAULT, DRAY_E_REGION_FAULT,
				"the notification lies in arena pages that were removed; write it again");
		}
	}
	return 0;
}

static struct xfer *xfer_new(struct xfers *xs)
{
	struct xfer *x = dray_list_pop(&xs->free, struct xfer, flow_link);

	if (x)
		xs->n_free--;
	else if (!(x = malloc(sizeof(*x))))
		return NULL;
	memset(x, 0, offsetof(struct xfer, ops_inline));
	dray_list_init(&x->session_link);
	dray_list_init(&x->flow_link);
	dray_list_init(&x->wait_link);
	dray_list_init(&x->overdue);
	return x;
}

static void hold_all(struct xfer *x)
{
	for (enum xfer_role role = 0; role < XFER_ROLES; role++) {
		struct object *o = xfer_object(x, role);

		dray_list_init(&x->uses[role]);
		if (!o)
			continue;
		object_hold(o);
		dray_list_add(&o->xfers[role], &x->uses[role]);
	}
}

static void take_link(struct core *c, struct xfer *x, struct peer_link *link)
{
	x->link = link;
	if (link && link_use(link))
		c->up->event(c, &(struct event){ .type = EVENT_PEER_USED, .session = link->peer });
}

/* No transport takes it. `unsupported` if the kind of memory is the reason, because a retry would fail too. */
static void refuse(struct core *c, struct xfer *x)
{
	bool here = x->target;
	uint32_t code = DRAY_E_UNSUPPORTED;
	const char *why = NULL;

	transports_each(c, i, refusal)
		why = why ? why : c->transports[i]->refusal(c, c->transport_state[i], x, &code);
	if (why) {
		xfer_stop(c, x, code, why, false);
		return;
	}
	if (memory_of(x->local) == REGION_RDMA || (here && memory_of(x->target) == REGION_RDMA))
		why = here ? "memory of kind dmabuf moves over RDMA to another agent, not inside of "
			     "one; use cuda_vmm or cuda_ipc" :
			     "memory of kind dmabuf moves over RDMA alone, and there is no path by "
			     "RDMA to the remote's peer";
	else if (memory_of(x->local) == REGION_GPU || (here && memory_of(x->target) == REGION_GPU))
		why = here ? "no GPU of this agent reaches both sides, and there is no memory to "
			     "stage in" :
			     "GPU memory moves over RDMA or is staged, and this agent can do neither "
			     "to the remote's peer";
	else {
		code = DRAY_E_PEER_LOST;
		why = "no transport reaches the remote's peer";
	}
	xfer_stop(c, x, code, why, false);
}

/* Counts a transfer that begins to wait, or may have to wait for its memory. */
static int wait_begin(struct xfer *x, struct dray_err *reterr)
{
	int ret = budget_take(&x->session->shared->account->budget, RESOURCE_WAITING_TRANSFERS, 1,
			      reterr);

	x->waits = ret >= 0;
	return ret;
}

/* Counts the operations of a transfer that have memory of their own. */
static int ops_count(struct xfer *x, struct dray_err *reterr)
{
	int ret;

	if (x->n_ops_given <= XFER_OPS_INLINE)
		return 0;
	ret = budget_take(&x->session->shared->account->budget, RESOURCE_OPS, x->n_ops_given,
			  reterr);
	x->counts_ops = ret >= 0;
	return ret;
}

void xfer_ops_over(struct xfer *x)
{
	if (x->counts_ops)
		budget_put(&x->session->shared->account->budget, RESOURCE_OPS, x->n_ops_given);
	x->counts_ops = false;
}

void xfer_wait_over(struct xfer *x)
{
	if (x->waits)
		budget_put(&x->session->shared->account->budget, RESOURCE_WAITING_TRANSFERS, 1);
	x->waits = false;
}

/*
 * The word of the last allocation of the local region that the transfer touches and that is not open yet; they are opened in their
 * order. The word of all of them, if too many would have to be looked at. NULL: all are open. The target is open, because an export waits
 * for that.
 */
static uint32_t *not_open(const struct xfer *x)
{
	const struct region_view *r = object_region(x->local);
	uint32_t looks = 0, n = 0;

	if (x->local->open || region_view_is_open(r, r->n_parts))
		return NULL;
	for (uint32_t i = 0; i < x->n_ops; i++) {
		uint64_t end = x->ops[i].local + x->ops[i].length;
		uint32_t k = region_view_find(r, x->ops[i].local);

		for (; k < r->n_extents && r->extents[k].start < end; k++) {
			if (++looks > OPEN_LOOKS_MAX)
				return &r->open[r->n_parts];
			if (!region_view_is_open(r, r->extents[k].part))
				n = dray_max(n, r->extents[k].part + 1);
		}
	}
	return n ? &r->open[n - 1] : NULL;
}

void xfer_go(struct core *c, struct xfer *x)
{
	if (x->state == XFER_RUNNING) {
		if (sched_enqueue(c, x) < 0)
			xfer_stop(c, x, DRAY_E_NO_MEMORY, "no memory for the transfer", false);
		return;
	}
	x->wait.p = not_open(x);
	x->wait.value = 1;
	if (x->wait.p) {
		wait_add(c, x);
		return;
	}
	for (unsigned i = 0; i < c->n_transports; i++) {
		struct channel *ch = c->transports[i]->channel(c, c->transport_state[i], x);

		if (!ch)
			continue;
		xfer_wait_over(x);
		sched_assign(x, i, ch);
		x->state = XFER_RUNNING;
		xfer_enter(x, XFER_PHASE_QUEUE, c->now_ns);
		take_link(c, x, ch->link);
		if (sched_enqueue(c, x) < 0)
			xfer_stop(c, x, DRAY_E_NO_MEMORY, "no memory for the transfer", false);
		return;
	}
	/* before, xfers_retry() or xfers_opened() goes on: a word may be seen before the command that tells of its device */
	if (x->local->open)
		refuse(c, x);
}

/* Goes on if it waits for a path, and neither for a word nor for bytes that may move. */
static void retry_of(struct core *c, struct xfer *x, struct object *o)
{
	if (x->state == XFER_WAITING && dray_list_empty(&x->wait_link) && x != x->session->read)
		xfer_go(c, x);
}

void xfers_opened(struct core *c, dray_handle region)
{
	struct object *o = object_find(c, OBJECT_REGION, region);

	if (!o)
		return;
	object_hold(o);
	xfers_each_of(c, o, XFER_LOCAL, retry_of);
	object_release(c, o);
}

static void retry(struct core *c, struct xfer *x, void *arg)
{
	retry_of(c, x, x->local);
}

void xfers_retry(struct core *c)
{
	xfers_each(c, retry, NULL);
}

/*
 * Carries out a small transfer at once if a transport can: handles, flow, slice and deadline would cost several times the
 * copy. The transfer is in no table, and no object can be dropped meanwhile.
 */
static bool xfer_at_once(struct core *c, struct xfer *x)
{
	if (x->wait.p || x->ready || x->notify || x->bytes > XFER_AT_ONCE_MAX ||
	    x->n_ops > XFER_OPS_INLINE || not_open(x))
		return false;
	for (unsigned i = 0; i < c->n_transports; i++) {
		const struct transport_ops *ops = c->transports[i];

		if (!ops->at_once || !ops->at_once(c, c->transport_state[i], x))
			continue;
		x->transport_index = (uint8_t)i;
		x->n_slices = 1;
		xfer_enter(x, XFER_PHASE_MOVE, c->now_ns);
		if (!x->code)
			xfer_moved(c, x, x->bytes);
		return true;
	}
	return false;
}

/* Takes its quota and its objects, and enters it into the tables. On error nothing is taken. */
static int admit(struct core *c, struct xfer *x, const struct xfer_request *r,
		 struct dray_err *reterr)
{
	int64_t limit_ns = r->spec.deadline_ms ? (int64_t)r->spec.deadline_ms * DRAY_NS_PER_MS :
						 c->cfg.deadline_ns;
	struct xfer_session *s = x->session;
	struct xfers *xs = c->xfers;
	int ret = quotas_take(s->shared, reterr);

	if (ret < 0)
		return ret;
	ret = dray_handles_add(&xs->table, x, &x->handle);
	if (ret >= 0)
		ret = dray_heap_set(&xs->deadlines, &x->deadline, c->now_ns + limit_ns);
	if (ret >= 0)
		ret = ops_count(x, reterr);
	if (ret >= 0 && (x->wait.p || x->ready || !x->local->open))
		ret = wait_begin(x, reterr);
	if (ret < 0) {
		xfer_ops_over(x);
		quotas_put(s->shared);
		return dray_err_set(reterr, ret, ret == -ENOSPC ? DRAY_E_BUSY : DRAY_E_NO_MEMORY,
				    "this worker has no room for another transfer");
	}
	hold_all(x);
	s->ops += r->n_ops;
	dray_list_add(&s->xfers, &x->session_link);
	dray_map_add(&s->by_request, &x->by_request, &x->request_id, sizeof(x->request_id));
	return 0;
}

/* Accepted: from here on an error is the result of the transfer. */
static void begin(struct core *c, struct xfer *x)
{
	xfer_accept(c);
	if (x->wait.p || x->ready)
		wait_add(c, x);
	else
		xfer_go(c, x);
}

/* The operations are read later, in steps. The transfer holds what it needs until then. */
static int read_later(struct core *c, struct xfer *x, const struct xfer_request *r,
		      struct dray_err *reterr)
{
	struct xfer_session *s = x->session;

	if (!s->reading)
		s->reading = malloc(sizeof(*s->reading));
	if (!s->reading)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY,
				    "no memory for the operations");
	if (admit(c, x, r, reterr) < 0)
		return -EBUSY;
	*s->reading = (struct xfer_reading){ .request = *r };
	s->read = x;
	return 0;
}

void xfer_read(struct core *c, struct xfer_session *s)
{
	struct xfer_reading *l = s->reading;
	struct dray_err err = DRAY_ERR_NULL;
	struct xfer *x = s->read;
	int ret = ops_load(c, x, &l->request, &l->progress, OPS_STEP, &err);

	if (!ret)
		return;
	s->read = NULL;
	if (ret < 0)
		xfer_refuse(c, x, &err);
	else
		begin(c, x);
}

/* Reads all operations, and carries the transfer out or begins it. */
static int start_now(struct core *c, struct xfer *x, const struct xfer_request *r,
		     struct dray_err *reterr)
{
	struct ops_progress progress = { 0 };
	int ret = ops_load(c, x, r, &progress, UINT32_MAX, reterr);

	if (ret < 0)
		return ret;
	if (xfer_at_once(c, x)) {
		core_count(c->counters, DRAY_METRIC_TRANSFERS_ACCEPTED_TOTAL, 1);
		xfer_settle(c, x);
		xfer_free(c->xfers, x);
		return 0;
	}
	ret = admit(c, x, r, reterr);
	if (ret < 0)
		return ret;
	begin(c, x);
	return 0;
}

/* Before operations are read; quotas are taken after the checks, and only by a transfer that lasts. */
static int limits_check(const struct xfer_session *s, uint32_t n_ops, struct dray_err *reterr)
{
	int ret;

	if (n_ops > s->shared->ops_max - s->ops)
		return dray_err_set(
			reterr, -EBUSY, DRAY_E_BUSY,
			"%u operations of this session are in flight (limits.ops_per_session is %u)",
			s->ops, s->shared->ops_max);
	ret = quotas_check(s->shared, reterr);
	if (ret == 0 && n_ops > XFER_OPS_INLINE)
		ret = budget_check(&s->shared->account->budget, RESOURCE_OPS, n_ops, reterr);
	return ret;
}

int xfer_check(struct core *c, struct xfer_session *s, dray_handle local, uint16_t access,
	       uint32_t n_ops, struct dray_err *reterr)
{
	return usable(c, s, OBJECT_REGION, local, access, reterr) ? limits_check(s, n_ops, reterr) :
								    -EINVAL;
}

int xfer_start(struct core *c, struct xfer_session *s, const struct xfer_request *r,
	       struct dray_err *reterr)
{
	struct xfers *xs = c->xfers;
	struct xfer *x;
	int ret;

	c->moved_ns = c->now_ns;
	atomic_store_explicit(&c->counters->asked_ns, c->now_ns, memory_order_relaxed);
	ret = request_check(r, reterr);
	if (ret < 0)
		goto refused;
	ret = limits_check(s, r->n_ops, reterr);
	if (ret < 0)
		goto refused;
	x = xfer_new(xs);
	if (!x) {
		ret = dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for the transfer");
		goto refused;
	}
	x->session = s;
	x->request_id = r->request_id;
	x->from_ring = r->from_ring;
	x->ready = r->ready;
	x->arrived = r->arrived;
	x->ended = r->ended;
	x->ended_arg = r->ended_arg;
	x->outlived = r->outlived;
	x->to_client = !r->local;
	x->direction = (enum dmsg_direction)r->spec.direction;
	x->class = (enum dmsg_class)r->spec.class;
	x->accepted_ns = x->phase_ns[XFER_PHASE_WAIT] = c->now_ns;
	x->n_ops_given = r->n_ops;
	ret = prepare(c, x, r, reterr);
	if (ret == 0)
		/* batches of the store start also while a list of the session is being read, and have an end of their own */
		ret = r->n_ops > OPS_STEP && !r->ended && !s->read ? read_later(c, x, r, reterr) :
								     start_now(c, x, r, reterr);
	if (ret == 0)
		return 0;
	xfer_unlink(xs, x);
	xfer_free(xs, x);
refused:
	core_count(c->counters, DRAY_METRIC_TRANSFERS_REFUSED_TOTAL, 1);
	return ret;
}
