/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of its rings a worker looks at. A look is a load from memory that a client shares: nothing for one ring, but
 * for hundreds more than all the work of the one that is busy. So a ring that was looked at in vain often
 * enough, while there was work elsewhere, rests: it stays announced ("agent sleeping" is set), is not looked
 * at, and its client's doorbell brings it back. A completion brings it back as well, since who learns of an end
 * mostly begins anew.
 *
 * So every ring is on worker->polled, or rests with nothing in it and is announced, or its doorbell is on its way:
 * the client clears "agent sleeping" before it rings. Those on the list are announced as well while the worker
 * sleeps. The order of loads and stores that keeps wake-ups from being lost stands in ring.c.
 */
#include "agent/data/worker/internal.h"

/* Looks that cost about as much as a doorbell and its event: from there on asking for one is the better bargain. */
#define LOOKS_MAX 256
/* What an announcement and its end count for: a store that other processors must see, and a cache line from them. */
#define ANNOUNCE_LOOKS 8

void ring_wake(struct ring *r)
{
	struct worker *w = r->session->worker;

	r->vain = 0;
	ring_awake(r);
	if (dray_list_empty(&r->polled_link))
		dray_list_add(&w->polled, &r->polled_link);
}

/* True if it rests: announced, and nothing came before that was seen. */
static bool rest(struct ring *r)
{
	ring_announce(r);
	/* what is in it now began the count anew */
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
