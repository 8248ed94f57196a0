/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/data/transfer/wait.h"

#include "agent/data/transfer/owner.h"
#include "agent/data/transfer/xfer_internal.h"
#include "lib/cleanup.h"
#include "lib/fault.h"

/* Pause between looks at the words of an owner; it grows with the time waited. */
#define PAUSE_MIN_NS 20000
#define PAUSE_MAX_NS 1000000

/* Words of one owner that one turn looks at: a few microseconds. If more transfers wait, turns look at them in parts. */
#define LOOKS_MAX 128u

void wait_add(struct core *c, struct xfer *x)
{
	struct xfer_session *s = x->session;
	struct xfer_owner *o = s->owner;

	dray_list_add(&s->waiting, &x->wait_link);
	if (!s->n_waiting++) {
		dray_list_add(&o->waiting, &s->waiting_link);
		o->n_waiting_sessions++;
	}
	o->n_waiting++;
	o->changed_ns = c->now_ns;
	/* this turn may have looked already: the next one says when to look again */
	c->kicked = true;
}

void wait_del(struct xfer *x)
{
	struct xfer_session *s = x->session;

	if (dray_list_empty(&x->wait_link))
		return;
	dray_list_del(&x->wait_link);
	s->owner->n_waiting--;
	if (--s->n_waiting)
		return;
	dray_list_del(&s->waiting_link);
	s->owner->n_waiting_sessions--;
}

static void go_on(struct core *c, struct xfer *x)
{
	x->session->owner->changed_ns = c->now_ns;
	wait_del(x);
	xfer_go(c, x);
}

/* May end the transfer, and with it its session and the transfers of that. */
static void look_at(struct core *c, struct xfer *x)
{
	uint32_t v;

	if (!x->wait.p) {
		if (xfer_ready(x))
			go_on(c, x);
	} else if (fault_load32(x->wait.p, &v) < 0) {
		xfer_memory_fault(c, x->wait.region->view->session);
		xfer_stop(c, x, DRAY_E_REGION_FAULT, "the page of the wait word was removed",
			  false);
	} else if (v == x->wait.value) {
		go_on(c, x);
	}
}

/* Looks at n words of the session, oldest look first. */
static void look_session(struct core *c, struct xfer_session *s, uint32_t n)
{
	struct xfer *x;

	while (n-- && (x = dray_list_first(&s->waiting, struct xfer, wait_link))) {
		dray_list_move(&s->waiting, &x->wait_link);
		look_at(c, x);
	}
}

/* Looks at up to n words of the owner. Returns how many. */
static uint32_t look(struct core *c, struct xfer_owner *o, uint32_t n)
{
	bool all = n >= o->n_waiting;
	uint32_t looked = 0;
	struct xfer_session *s;

	for (uint32_t left = o->n_waiting_sessions; left && looked < n; left--) {
		uint32_t part = dray_max((n - looked) / left, 1u);

		s = dray_list_first(&o->waiting, struct xfer_session, waiting_link);
		if (!s)
			break;
		dray_list_move(&o->waiting, &s->waiting_link);
		part = all ? s->n_waiting : dray_min(part, s->n_waiting);
		looked += part;
		look_session(c, s, part);
	}
	return looked;
}

static int64_t owner_tick(struct core *c, struct xfer_owner *o)
{
	int64_t pause;

	if (c->now_ns < o->look_ns)
		return o->look_ns;
	if (!o->to_look || o->to_look > o->n_waiting)
		o->to_look = o->n_waiting;
	/* a busy worker too looks at only so many in that time */
	o->look_ns = o->n_waiting > LOOKS_MAX ? c->now_ns + PAUSE_MIN_NS : 0;
	o->to_look -= look(c, o, dray_min(o->to_look, LOOKS_MAX));
	if (!o->n_waiting)
		return INT64_MAX;
	if (o->to_look)
		return c->now_ns + PAUSE_MIN_NS;
	pause = dray_max((c->now_ns - o->changed_ns) / 8, (int64_t)PAUSE_MIN_NS);
	return c->now_ns + dray_min(pause, (int64_t)PAUSE_MAX_NS);
}

int64_t waits_tick(struct core *c)
{
	int64_t next = INT64_MAX;

	dray_list_for_each(&c->owners, o, struct xfer_owner, link)
		if (o->n_waiting)
			next = dray_min(next, owner_tick(c, o));
	return next;
}
