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
		xfer_stop(c, x, o->drop_code, NULL, o->drop_mode == DROP_URGENT);
}

void object_drop(struct core *c, enum object_kind kind, dray_handle handle, uint32_t code,
		 enum drop_mode mode)
{
	struct object *o = object_find(c, kind, handle);

	if (!o) {
		c->up->event(c, &(struct event){
					.type = EVENT_DROPPED, .kind = kind, .handle = handle });
		return;
	}
	if (o->drop_code && mode <= o->drop_mode)
		return;
	if (!o->drop_code || o->drop_mode == DROP_RETIRE)
		o->drop_code = code;
	o->drop_mode = mode;
	object_hold(o);
	if (mode != DROP_RETIRE)
		xfers_each(c, stop_user, o);
	for (unsigned i = 0; mode != DROP_RETIRE && i < c->n_transports; i++)
		if (c->transports[i]->drop)
			c->transports[i]->drop(c, c->transport_state[i], o);
	object_release(c, o);
}
