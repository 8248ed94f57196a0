/* SPDX-License-Identifier: Apache-2.0 */
/* Checks before a transfer is accepted. A refused transfer leaves no trace. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/data/transfer/object.h"
#include "agent/data/transfer/ops_load.h"
#include "agent/data/transfer/xfer_internal.h"
#include "lib/cleanup.h"
#include "lib/fault.h"

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
		dray_err_set(reterr, -ENOENT, DRAY_E_NOT_FOUND,
			     "no %s %llu in this session's group", what, (unsigned long long)h);
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

void xfer_memory_fault(struct core *c, dray_handle session)
{
	core_count(c->counters, DRAY_METRIC_REGION_FAULTS_TOTAL, 1);
	c->up->event(c, &(struct event){ .type = EVENT_SESSION_FAULT, .session = session });
}

int xfer_request_check(const struct xfer_request *r, struct dray_err *reterr)
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

static bool is_gpu_memory(const struct object *region)
{
	return object_region(region)->memory == REGION_GPU;
}

/* Memory for its operations. */
static bool ops_room(struct core *c, struct xfer *x, uint32_t n)
{
	struct ops_store *s = &c->xfers->ops;

	x->ops = x->ops_inline;
	if (n <= XFER_OPS_INLINE)
		return true;
	x->ops = NULL;
	if (x->target && (is_gpu_memory(x->local) || is_gpu_memory(x->target)))
		x->ops = ops_store_get_pinned(s, n, &x->ops_class);
	x->ops_pinned = x->ops;
	if (!x->ops)
		x->ops = ops_store_get(s, n, &x->ops_class);
	return x->ops;
}

int xfer_prepare(struct core *c, struct xfer *x, const struct xfer_request *r,
		 struct dray_err *reterr)
{
	const struct dmsg_transfer_spec *spec = &r->spec;
	struct xfer_session *s = x->session;
	bool write = spec->direction == DMSG_DIRECTION_WRITE;
	const struct remote_view *remote;
	int ret;

	x->local = usable(c, s, OBJECT_REGION, spec->local,
			  write ? DMSG_ACCESS_READ : DMSG_ACCESS_WRITE, reterr);
	if (!x->local)
		return -EINVAL;
	x->remote = usable(c, s, OBJECT_REMOTE, spec->remote,
			   write ? DMSG_ACCESS_WRITE : DMSG_ACCESS_READ, reterr);
	if (!x->remote)
		return -EINVAL;
	remote = object_remote(x->remote);
	if (remote->is_local) {
		x->target = object_get(c, OBJECT_REGION, remote->region);
		x->target_offset = remote->offset;
		if (!x->target)
			return dray_err_set(reterr, -ENOENT, DRAY_E_REVOKED,
					    "the remote's region was removed");
	}
	if (spec->flags & DMSG_TRANSFER_FLAG_WAIT) {
		ret = word_get(c, s, "wait", spec->wait_region, spec->wait_offset, spec->wait_value,
			       DMSG_ACCESS_READ, &x->wait, reterr);
		if (ret < 0)
			return ret;
	}
	if (spec->flags & DMSG_TRANSFER_FLAG_SET) {
		ret = word_get(c, s, "set", spec->set_region, spec->set_offset, spec->set_value,
			       DMSG_ACCESS_WRITE, &x->set, reterr);
		if (ret < 0)
			return ret;
	}
	if (!ops_room(c, x, r->n_ops))
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY,
				    "no memory for the operations");
	ret = ops_load(c, x, r, reterr);
	if (ret < 0)
		return ret;
	if (spec->flags & DMSG_TRANSFER_FLAG_NOTIFY) {
		x->notify = true;
		x->notify_tag = spec->notify_tag;
		x->notify_length = r->notify_length;
		x->notify_payload = malloc(r->notify_length + 1);
		if (!x->notify_payload)
			return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY,
					    "no memory for the notification");
		if (fault_copy(x->notify_payload, r->notify, r->notify_length) < 0) {
			xfer_memory_fault(c, s->handle);
			return dray_err_set(
				reterr, -EFAULT, DRAY_E_REGION_FAULT,
				"the notification lies in arena pages that were removed; write it again");
		}
	}
	return 0;
}
