/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which rings a worker polls. One poll is a load from memory shared with a client: negligible for one ring, but for
 * hundreds more than all the work of a busy one. So a ring that was polled in vain often enough, while there was work
 * elsewhere, rests: it stays announced ("agent sleeping" is set) and is not polled until its client's doorbell rings. A
 * completion ends the rest too, because a client that sees a completion usually submits again.
 *
 * So every ring is on worker->polled, or rests empty and announced, or its doorbell is on its way:
 * the client clears "agent sleeping" before it rings. While the worker sleeps, the rings on the list are announced
 * as well. ring.c describes the order of loads and stores.
 */
#include "agent/data/worker/internal.h"

/* This many polls cost about as much as a doorbell and its event. */
#define LOOKS_MAX 256
/* An announcement and its end cost this many polls: a store that other processors must see, and a cache miss. */
#define ANNOUNCE_LOOKS 8

void ring_wake(struct ring *r)
{
	struct worker *w = r->session->worker;

	r->vain = 0;
	ring_awake(r);
	if (dray_list_empty(&r->polled_link))
		dray_list_add(&w->polled, &r->polled_link);
}

/* True if the ring rests: it is announced and still empty. */
static bool rest(struct ring *r)
{
	ring_announce(r);
	/* a new submission resets the count */
	if (r->vain > LOOKS_MAX)
		return true;
	ring_awake(r);
	return false;
}

bool rings_poll(struct worker *w)
{
	bool did = false;

	dray_list_for_each(&w->polled, r, struct ring, polled_link) {
		if (ring_poll(r->session))
			did = true;
		else if (r->vain > LOOKS_MAX && rest(r))
			dray_list_del(&r->polled_link);
	}
	return did;
}

void rings_flush(struct worker *w)
{
	dray_list_for_each(&w->completed, r, struct ring, completed_link) {
		dray_list_del(&r->completed_link);
		ring_flush(r);
	}
}

bool rings_announce(struct worker *w)
{
	bool work = false;

	dray_list_for_each(&w->polled, r, struct ring, polled_link) {
		w->announced = true;
		if (ring_announce(r))
			work = true;
		else if (r->vain)
			r->vain += ANNOUNCE_LOOKS;
	}
	return work;
}

void rings_awake(struct worker *w)
{
	if (!w->announced)
		return;
	w->announced = false;
	dray_list_for_each(&w->polled, r, struct ring, polled_link) {
		if (r->announced && r->vain > LOOKS_MAX)
			dray_list_del(&r->polled_link);
		else
			ring_awake(r);
	}
}
