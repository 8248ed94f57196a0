/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/data/transfer/object.h"

#include "agent/data/transfer/transport.h"
#include "agent/data/transfer/xfer.h"

static bool uses(const struct xfer *x, const struct object *o)
{
	return x->local == o || x->remote == o || x->target == o || x->wait.region == o ||
	       x->set.region == o;
}

static void stop_user(struct core *c, struct xfer *x, void *arg)
{
	struct object *o = arg;

	if (uses(x, o))
		xfer_stop(c, x, o->drop_code, NULL, o->drop_urgent);
}

static void drop_users(struct core *c, struct object *o)
{
	object_hold(o);
	xfers_each(c, stop_user, o);
	for (unsigned i = 0; i < c->n_transports; i++)
		if (c->transports[i]->drop)
			c->transports[i]->drop(c, c->transport_state[i], o);
	object_release(c, o);
}

/* From now on new use is refused. NULL: the object is unknown, and the answer was sent. */
static struct object *begin(struct core *c, enum object_kind kind, dray_handle handle,
			    uint32_t code)
{
	struct object *o = object_get(c, kind, handle);

	if (o)
		o->drop_code = code;
	else
		c->up->event(c, &(struct event){
					.type = EVENT_DROPPED, .kind = kind, .handle = handle });
	return o;
}

void object_drop(struct core *c, enum object_kind kind, dray_handle handle, uint32_t code,
		 bool urgent)
{
	struct object *o = begin(c, kind, handle, code);

	if (!o)
		return;
	o->drop_urgent = urgent;
	drop_users(c, o);
}

void object_retire(struct core *c, enum object_kind kind, dray_handle handle, uint32_t code)
{
	struct object *o = begin(c, kind, handle, code);

	if (!o)
		return;
	o->retired = true;
	object_hold(o);
	object_release(c, o);
}

void object_drop_escalate(struct core *c, enum object_kind kind, dray_handle handle, uint32_t code,
			  bool urgent)
{
	struct object *o = object_find(c, kind, handle);

	if (!o || !o->drop_code || o->drop_urgent || (!o->retired && !urgent))
		return;
	if (o->retired)
		o->drop_code = code;
	o->retired = false;
	o->drop_urgent = urgent;
	drop_users(c, o);
}
