/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/data/worker/store_reading.h"

#include <stdlib.h>

#include "agent/data/transfer/object.h"
#include "agent/model/keys.h"
#include "agent/model/store_ask.h"

/* Segments that the objects of one transfer lie in; with more they are read by TCP. */
#define SEGMENTS_MAX 64

/* Keys of all places, for devices. NULL: they have not registered all of them. */
static struct rail_keys *keys_of_places(struct worker *w, const struct landing *landings,
					uint32_t n)
{
	dray_handle segments[SEGMENTS_MAX];
	struct rail_keys *keys[SEGMENTS_MAX];
	struct rail_keys *joined;
	uint32_t n_segments = 0;

	for (uint32_t i = 0; i < n; i++) {
		dray_handle name = store_object_segment(landings[i].object);
		const struct object *o;
		uint32_t k = 0;

		while (k < n_segments && segments[k] != name)
			k++;
		if (k < n_segments)
			continue;
		o = k < SEGMENTS_MAX && name ? object_get(&w->core, OBJECT_REGION, name) : NULL;
		if (!o || !o->keys)
			return NULL;
		segments[n_segments] = name;
		keys[n_segments++] = o->keys;
	}
	joined = rail_keys_join(keys, n_segments);
	return joined && joined->rails ? joined : rail_keys_unref(joined);
}

struct reading *reading_new(struct worker *w, struct store_ask *ask, uint32_t source,
			    const struct landing *landings, uint32_t n)
{
	const struct store_source *s = &ask->sources[source];
	size_t each = sizeof(struct store_object *) + sizeof(struct arriving);
	struct reading *r = calloc(1, sizeof(*r) + n * each);
	uint64_t end = 0;

	if (!r)
		return NULL;
	r->arriving = (void *)(r->objects + n);
	r->n_arriving = n;
	for (uint32_t i = 0; i < n; i++)
		r->arriving[i].end = end += landings[i].bytes;
	r->view = s->view;
	r->ask = ask;
	r->source = source;
	dray_list_init(&r->link);
	object_init(&r->local, &store_region(w->store)->o);
	object_init(&r->remote, &r->view.o);
	/* no memory of a client's, which an owner would copy to and from a window */
	r->remote.no_window = true;
	r->remote.trailing = s->trailing;
	/* devices may be why it is asked again */
	if (!s->keys || ask->again)
		return r;
	if (!landings[0].object) {
		r->remote.keys = rail_keys_ref(s->keys);
		return r;
	}
	r->local.keys = keys_of_places(w, landings, n);
	r->remote.keys = r->local.keys ? rail_keys_ref(s->keys) : NULL;
	if (!r->local.keys)
		core_count(w->core.counters, DRAY_METRIC_STORE_REMOTE_UNREGISTERED_TOTAL, n);
	return r;
}

bool reading_end(struct worker *w, struct reading *r)
{
	/* the transfer is one of its users until it is forgotten */
	r->lingers = r->remote.users > 1;
	if (r->lingers) {
		r->ask->lingers++;
		r->ask->sources[r->source].lingers++;
		dray_map_add(&w->lingering, &r->by_grant, &r->view.grant, sizeof(r->view.grant));
	}
	dray_list_add(&w->readings, &r->link);
	return r->lingers;
}

void reading_keep(struct reading *r, struct store_object *o)
{
	r->objects[r->n++] = o;
}

void readings_hasten(struct worker *w, dray_handle peer, uint64_t grant)
{
	dray_map_for_each_of(&w->lingering, &grant, sizeof(grant), r, struct reading, by_grant)
		if (r->view.peer == peer)
			object_hasten(&w->core, &r->remote);
}

void reading_free(struct reading *r)
{
	rail_keys_unref(r->local.keys);
	rail_keys_unref(r->remote.keys);
	dray_list_del(&r->link);
	free(r);
}

static void source_end(struct worker *w, struct store_ask *k, uint32_t source)
{
	if (k->sent)
		worker_event(w, &(struct event){
					.type = EVENT_STORE_SOURCE_END, .ask = k, .id = source });
}

void source_done(struct worker *w, struct store_ask *k, uint32_t source)
{
	if (k->sources[source].over)
		return;
	k->sources[source].over = true;
	if (!k->sources[source].lingers)
		source_end(w, k, source);
}

void ask_end(struct worker *w, struct store_ask *k)
{
	if (k && k->lingers)
		k->ended = true;
	else if (k && k->sent)
		worker_event(w, &(struct event){ .type = EVENT_STORE_ASK_END, .ask = k });
	else
		store_ask_free(k);
}

/* No device uses its memory any more. */
static void linger_end(struct worker *w, struct reading *r)
{
	struct store_ask *k = r->ask;
	struct store_source *s = &k->sources[r->source];

	dray_map_del(&w->lingering, &r->by_grant);
	for (uint32_t i = 0; i < r->n; i++)
		store_put_end(r->objects[i], false);
	k->lingers--;
	if (!--s->lingers && s->over && !k->ended)
		source_end(w, k, r->source);
	if (!k->lingers && k->ended)
		ask_end(w, k);
}

void readings_check(struct worker *w, bool all)
{
	dray_list_for_each(&w->readings, r, struct reading, link) {
		if (r->remote.users && !all)
			continue;
		if (r->lingers)
			linger_end(w, r);
		reading_free(r);
	}
}
