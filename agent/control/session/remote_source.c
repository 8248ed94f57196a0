/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The remotes of each peer, and of each engine with Mooncake: those that end when it is lost or drains. They may be many, so
 * that happens over several turns of the loop; requests that use one meanwhile fail because its peer is gone.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "agent/control/session/internal.h"
#include "schema/gen/errors.h"

static struct remote_source *find(const struct sessions *ss, dray_handle handle, bool is_engine)
{
	const struct remote_source_key key = { handle, is_engine };

	return dray_map_entry(dray_map_find(&ss->remote_sources, &key, sizeof(key)),
			      struct remote_source, node);
}

int remote_join_source(struct remote *r, dray_handle handle, bool is_engine,
		       struct dray_err *reterr)
{
	struct sessions *ss = r->session->owner;
	struct remote_source *x = find(ss, handle, is_engine);

	if (!x) {
		x = calloc(1, sizeof(*x));
		if (!x)
			return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY,
					    "no memory for a remote");
		x->key = (struct remote_source_key){ handle, is_engine };
		dray_list_init(&x->remotes);
		dray_list_init(&x->ending);
		dray_list_init(&x->ending_link);
		dray_map_add(&ss->remote_sources, &x->node, &x->key, sizeof(x->key));
	}
	r->view.peer = handle;
	r->source = x;
	dray_list_add(&x->remotes, &r->source_link);
	return 0;
}

void remote_leave_source(struct remote *r)
{
	struct sessions *ss = r->session->owner;
	struct remote_source *x = r->source;

	if (!x)
		return;
	dray_map_del(&ss->remotes_of_peers, &r->index);
	dray_list_del(&r->source_link);
	r->source = NULL;
	if (!dray_list_empty(&x->remotes) || !dray_list_empty(&x->ending))
		return;
	dray_map_del(&ss->remote_sources, &x->node);
	dray_list_del(&x->ending_link);
	free(x);
}

bool remote_sources_step(struct sessions *ss)
{
	struct remote_source *x =
		dray_list_pop(&ss->ending_sources, struct remote_source, ending_link);
	struct remote *r = x ? dray_list_pop(&x->ending, struct remote, source_link) : NULL;

	if (!r)
		return x;
	/* the source stays while it has a remote */
	dray_list_add(&x->remotes, &r->source_link);
	if (!dray_list_empty(&x->ending))
		dray_list_add(&ss->ending_sources, &x->ending_link);
	ss->remote_ends.done++;
	if (!x->lost) {
		remote_retire(r);
		return true;
	}
	/* a lost peer is not informed; an engine's remotes are counted in this agent */
	r->owner_gone = !x->key.is_engine;
	remote_lose(r, x->code, x->why, false);
	remote_leave_source(r);
	return true;
}

static void end_remotes(struct sessions *ss, struct remote_source *x)
{
	dray_list_splice(&x->ending, &x->remotes);
	dray_list_move(&ss->ending_sources, &x->ending_link);
	while (turn_work_has_room(&ss->remote_ends) && remote_sources_step(ss))
		;
	if (!dray_list_empty(&ss->ending_sources))
		turn_work_go_on(&ss->remote_ends);
}

static void lose_remotes(struct sessions *ss, struct remote_source *x, uint32_t code,
			 const char *why)
{
	if (!x)
		return;
	dray_map_del(&ss->remote_sources, &x->node);
	x->lost = true;
	x->code = code;
	snprintf(x->why, sizeof(x->why), "%s", why);
	end_remotes(ss, x);
}

void sessions_peer_lost(struct sessions *ss, dray_handle peer, uint32_t code, const char *why)
{
	lose_remotes(ss, find(ss, peer, false), code, why && *why ? why : dray_error_doc(code));
}

void sessions_engine_lost(struct sessions *ss, dray_handle engine, uint32_t code, const char *why)
{
	lose_remotes(ss, find(ss, engine, true), code, why);
}

void sessions_peer_draining(struct sessions *ss, dray_handle peer)
{
	struct remote_source *x = find(ss, peer, false);

	if (x)
		end_remotes(ss, x);
}
