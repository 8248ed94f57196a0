/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects of PUTs that go to another agent, which reads them here. Meanwhile each is held, so that nothing evicts it, and is like a copy of
 * one that the other agent has: it is neither written to disk nor saved by a drain.
 */
#include "agent/store/internal.h"

enum dmsg_store_status item_meets_forward(struct store_object *o, bool prefers)
{
	bool on_its_way = o->copy && o->forwards;

	/* here or there, it will be */
	if (on_its_way && o->prefers)
		return DMSG_STORE_STATUS_EXISTS;
	/* nobody knows yet whether the other agent takes it */
	if (on_its_way && !prefers)
		return DMSG_STORE_STATUS_BUSY;
	item_own(o);
	return DMSG_STORE_STATUS_EXISTS;
}

enum dmsg_store_status store_forward_begin(struct store_object *o, struct store_get *g)
{
	struct store_space *sp = o->member->space;
	struct store_key key = { o->key, o->key_n };
	enum dmsg_store_status status = DMSG_STORE_STATUS_OK;
	struct store_object *other;

	pthread_mutex_lock(&sp->store->lock);
	other = item_find(sp, key);
	o->copy = o->forwards = 1;
	if (other) {
		status = item_meets_forward(other, o->prefers);
	} else if (!item_appear(o)) {
		status = DMSG_STORE_STATUS_BUSY;
	} else {
		item_hold(o);
		*g = (struct store_get){ .object = o };
		dray_list_init(&g->link);
	}
	pthread_mutex_unlock(&sp->store->lock);
	if (status)
		store_put_end(o, false);
	return status;
}

void store_forward_end(struct store_get *g, enum store_forwarded how)
{
	struct store_object *o = dray_take(g->object);
	struct store_space *sp = o->member->space;
	struct store *s = sp->store;
	struct store_key key = { o->key, o->key_n };
	bool here = how == STORE_FORWARD_HERE, there = how == STORE_FORWARD_THERE;

	pthread_mutex_lock(&s->lock);
	sp->puts += here;
	sp->forwarded += there;
	trace_object(sp, STORE_PUT, key, o,
		     here || there ? DMSG_STORE_STATUS_OK : DMSG_STORE_STATUS_NOT_TRIED,
		     there ? DMSG_STORE_TIER_AGENT : DMSG_STORE_TIER_NONE);
	o->forwards = 0;
	/* a client here may have removed it, or put or pinned it */
	if (here || there || !o->copy)
		tier_key_changed(sp, key);
	if (o->state == OBJECT_LIVE && here)
		item_own(o);
	else if (o->state == OBJECT_LIVE && o->copy)
		item_remove(o, false);
	item_put(o);
	pthread_mutex_unlock(&s->lock);
}
