/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/data/transfer/object.h"

#include <errno.h>
#include <stdlib.h>

#include "agent/data/transfer/transport.h"
#include "agent/model/keys.h"
#include "lib/ballast.h"

/* The objects that were lost last, so that a request for one of them answers with the reason. */
#define LOST_MAX 256

struct lost_object {
	enum object_kind kind;
	dray_handle handle;
	uint32_t code;
};

struct objects {
	/* Chains: the next object with an index may come while the former one is being dropped. */
	struct dray_slots tables[OBJECT_KIND_N];
	struct lost_object lost[LOST_MAX];
	unsigned lost_at;
};

int objects_init(struct core *c)
{
	c->objects = calloc(1, sizeof(*c->objects));
	return c->objects ? 0 : -ENOMEM;
}

void objects_deinit(struct core *c)
{
	if (!c->objects)
		return;
	for (unsigned k = 0; k < OBJECT_KIND_N; k++) {
		struct dray_slots *t = &c->objects->tables[k];

		for (uint32_t i = 0; i < t->n; i++) {
			struct object *next;

			for (struct object *o = t->v[i]; o; o = next) {
				next = o->next;
				rail_keys_unref(o->keys);
				rail_keys_unref(o->engine_keys);
				free(o);
			}
		}
		dray_slots_deinit(t);
	}
	free(c->objects);
	c->objects = NULL;
}

/* All its memory is open. */
static bool is_open(const struct object_view *view)
{
	const struct region_view *r = (const struct region_view *)view;

	return view->kind != OBJECT_REGION || !r->open || region_view_is_open(r, r->n_parts);
}

void object_init(struct object *o, const struct object_view *view)
{
	o->view = view;
	o->open = is_open(view);
	o->handle = view->handle;
	for (unsigned role = 0; role < XFER_ROLES; role++)
		dray_list_init(&o->xfers[role]);
}

void object_publish(struct core *c, const struct object_view *view)
{
	struct dray_slots *t = &c->objects->tables[view->kind];
	struct object *o = dray_calloc_sure(1, sizeof(*o));

	object_init(o, view);
	o->next = dray_slots_get(t, o->handle);
	dray_slots_set(t, o->handle, o);
}

struct object *object_find(struct core *c, enum object_kind kind, dray_handle handle)
{
	struct object *o = dray_slots_get(&c->objects->tables[kind], handle);

	while (o && o->handle != handle)
		o = o->next;
	return o;
}

void object_set_open(struct core *c, dray_handle region)
{
	struct object *o = object_find(c, OBJECT_REGION, region);

	if (o)
		o->open = true;
}

void object_set_keys(struct core *c, enum object_kind kind, dray_handle handle,
		     struct rail_keys *keys)
{
	struct object *o = object_find(c, kind, handle);
	struct rail_keys *former = o ? o->keys : keys;

	if (o) {
		o->keys = keys;
		transports_each(c, i, keys)
			c->transports[i]->keys(c, c->transport_state[i], o);
	}
	rail_keys_unref(former);
}

struct object *object_get(struct core *c, enum object_kind kind, dray_handle handle)
{
	struct object *o = object_find(c, kind, handle);

	return o && !o->drop_code ? o : NULL;
}

bool object_is_taken(const struct object *o)
{
	return o->drop_code && o->drop_code != DRAY_E_CANCELLED &&
	       o->drop_code != DRAY_E_SESSION_CLOSED;
}

void object_hasten_within(struct core *c, const struct object *remote, int64_t ns)
{
	transports_each(c, i, hasten)
		c->transports[i]->hasten(c, c->transport_state[i], remote, ns);
}

void object_hasten(struct core *c, const struct object *remote)
{
	/*
	 * Half of the owner's time is left for queue pairs that do not finish, because both their ends must be destroyed before the owner
	 * is answered. Without an answer the owner gives the connection up, with all that it carries.
	 */
	object_hasten_within(c, remote, c->cfg.fence_timeout_ns / 2);
}

/* Its code is kept: requests for it end with that. */
static bool is_lost(const struct object *o)
{
	/* unknown grants count as revoked */
	if (o->view->kind == OBJECT_GRANT)
		return o->drop_code != DRAY_E_REVOKED;
	/* what its own session has removed or released is unknown, not lost */
	return object_is_taken(o);
}

static void finish(struct core *c, struct object *o)
{
	enum object_kind kind = o->view->kind;
	struct dray_slots *t = &c->objects->tables[kind];
	dray_handle handle = o->handle;
	struct object *before = dray_slots_get(t, handle);

	if (before == o) {
		dray_slots_set(t, handle, o->next);
	} else {
		while (before->next != o)
			before = before->next;
		before->next = o->next;
	}
	if (is_lost(o))
		c->objects->lost[c->objects->lost_at++ % LOST_MAX] =
			(struct lost_object){ kind, handle, o->drop_code };
	rail_keys_unref(o->keys);
	rail_keys_unref(o->engine_keys);
	free(o);
	c->up->event(c, &(struct event){ .type = EVENT_DROPPED, .kind = kind, .handle = handle });
}

void object_release(struct core *c, struct object *o)
{
	if (--o->users == 0 && o->drop_code)
		finish(c, o);
}

uint32_t object_drop_code(struct core *c, enum object_kind kind, dray_handle handle)
{
	const struct object *o = object_find(c, kind, handle);

	if (o)
		return o->drop_code;
	for (unsigned i = 0; i < LOST_MAX; i++)
		if (c->objects->lost[i].handle == handle && c->objects->lost[i].kind == kind)
			return c->objects->lost[i].code;
	return 0;
}
