/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys of remotes, and REKEY: the owner of a remote ends its keys, and waits until no work request uses them any more. A work
 * request holds the set that it was made from, and so does each worker that may still make one. So this thread keeps a
 * reference to each set, and looks from time to time whether it has the last one: work requests end within microseconds.
 */
#include <stdlib.h>

#include "agent/control/session/internal.h"
#include "agent/model/keys.h"
#include "schema/gen/errors.h"

#define LOOK_US 1000

struct held_keys {
	struct dray_list link;
	struct rail_keys *keys;
};

/* A REKEY that is not answered yet. */
struct rekey {
	struct dray_list link, held;
	dray_handle peer;
	uint64_t request_id;
};

/* Releases sets that nothing else uses. */
static void release_unused(struct dray_list *held)
{
	dray_list_for_each(held, h, struct held_keys, link) {
		if (!rail_keys_is_last(h->keys))
			continue;
		rail_keys_unref(h->keys);
		dray_list_del(&h->link);
		free(h);
	}
}

void remote_keys_forget(struct dray_list *held)
{
	dray_list_for_each(held, h, struct held_keys, link) {
		rail_keys_unref(h->keys);
		dray_list_del(&h->link);
		free(h);
	}
}

struct rail_keys *remote_keys_hold(struct dray_list *held, const struct dray_vec *rails,
				   uint64_t length)
{
	struct held_keys *h = calloc(1, sizeof(*h));

	release_unused(held);
	if (h)
		h->keys = rail_keys_read(rails, length);
	if (!h || !h->keys) {
		free(h);
		return NULL;
	}
	dray_list_add(held, &h->link);
	return h->keys;
}

static void answer(struct sessions *ss, dray_handle peer, uint64_t request_id)
{
	peers_send(ss->deps.peers, peer, PMSG_REKEY_REPLY, request_id, NULL);
}

static int look(sd_event_source *source, uint64_t usec, void *arg)
{
	struct sessions *ss = arg;

	dray_list_for_each(&ss->rekeys, k, struct rekey, link) {
		release_unused(&k->held);
		if (!dray_list_empty(&k->held))
			continue;
		answer(ss, k->peer, k->request_id);
		dray_list_del(&k->link);
		free(k);
	}
	if (!dray_list_empty(&ss->rekeys)) {
		sd_event_source_set_time_relative(source, LOOK_US);
		sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
	}
	return 0;
}

static int look_soon(struct sessions *ss)
{
	if (!ss->rekey_timer)
		return sd_event_add_time_relative(ss->deps.event, &ss->rekey_timer, CLOCK_MONOTONIC,
						  LOOK_US, 0, look, ss);
	sd_event_source_set_time_relative(ss->rekey_timer, LOOK_US);
	return sd_event_source_set_enabled(ss->rekey_timer, SD_EVENT_ONESHOT);
}

void remote_keys_end(struct sessions *ss, struct dray_list *held, dray_handle peer,
		     uint64_t request_id)
{
	struct rekey *k;

	release_unused(held);
	if (dray_list_empty(held)) {
		answer(ss, peer, request_id);
		return;
	}
	k = calloc(1, sizeof(*k));
	if (!k || look_soon(ss) < 0) {
		free(k);
		peers_refuse(ss->deps.peers, peer, request_id, DRAY_E_NO_MEMORY,
			     "no memory to wait for the last use of the keys");
		return;
	}
	*k = (struct rekey){ .peer = peer, .request_id = request_id };
	dray_list_init(&k->held);
	dray_list_splice(&k->held, held);
	dray_list_init(&k->link);
	dray_list_add(&ss->rekeys, &k->link);
}

void rekeys_free(struct sessions *ss)
{
	ss->rekey_timer = sd_event_source_disable_unref(ss->rekey_timer);
	dray_list_for_each(&ss->rekeys, k, struct rekey, link) {
		remote_keys_forget(&k->held);
		free(k);
	}
}
