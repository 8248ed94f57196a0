/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kept segments: this agent stays connected to the agent that answers there. An attempt accepts any agent id; if
 * that agent is already connected, the kept segment moves to that connection. After a connection or an attempt has
 * ended, the next attempt is a new peer.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "agent/control/peer/internal.h"
#include "lib/backoff.h"
#include "lib/log.h"

struct kept_segment {
	struct dray_list link; /* in p->kept_segments */
	struct dray_map_node by_segment;
	struct peers *p;
	char *segment;
	struct peer *peer; /* NULL: the timer runs */
	bool wanted;       /* by the last call of peers_keep_connected() */
	bool leads_here;   /* this agent itself answered the last attempt */
	sd_event_source *timer;
	unsigned failures; /* consecutive peers that ended before READY */
	char why[DRAY_ERR_MSG_MAX];
};

static void set_peer(struct kept_segment *k, struct peer *peer)
{
	if (k->peer)
		k->peer->n_kept--;
	k->peer = peer;
	if (peer)
		peer->n_kept++;
}

static void handle_failure(struct kept_segment *k, const char *why)
{
	const struct dray_config *cfg = k->p->cfg;
	int64_t pause = backoff_pause(++k->failures, cfg->peer.backoff_min, cfg->peer.backoff_max);

	if (strcmp(k->why, why) != 0)
		log_info(AREA, "kept segment %s is not connected: %s", k->segment, why);
	snprintf(k->why, sizeof(k->why), "%s", why);
	sd_event_source_set_time_relative(k->timer, (uint64_t)pause / 1000);
	sd_event_source_set_enabled(k->timer, SD_EVENT_ONESHOT);
}

static int on_timer(sd_event_source *s, uint64_t usec, void *arg)
{
	struct kept_segment *k = arg;
	struct dray_err why = DRAY_ERR_NULL;
	struct peer *peer;

	if (k->p->stopping)
		return 0;
	if (peer_new_to_any(&peer, k->p, k->segment, &why) < 0) {
		handle_failure(k, why.msg);
		return 0;
	}
	set_peer(k, peer);
	peer_event(peer, PEER_EVENT_DIAL);
	return 0;
}

static void kept_segment_free(struct kept_segment *k)
{
	dray_list_del(&k->link);
	dray_map_del(&k->p->kept_by_segment, &k->by_segment);
	set_peer(k, NULL);
	sd_event_source_disable_unref(k->timer);
	free(k->segment);
	free(k);
}

static int kept_segment_new(struct kept_segment **ret, struct peers *p, const char *segment)
{
	struct kept_segment *k = calloc(1, sizeof(*k));
	int r = -ENOMEM;

	if (!k)
		return -ENOMEM;
	k->p = p;
	dray_list_add(&p->kept_segments, &k->link);
	snprintf(k->why, sizeof(k->why), "not tried yet");
	k->segment = strdup(segment);
	if (k->segment)
		r = sd_event_add_time_relative(p->deps.event, &k->timer, CLOCK_MONOTONIC, 0, 0,
					       on_timer, k);
	if (r < 0) {
		kept_segment_free(k);
		return r;
	}
	dray_map_add(&p->kept_by_segment, &k->by_segment, k->segment, strlen(k->segment));
	*ret = k;
	return 0;
}

static struct kept_segment *kept_segment_find(struct peers *p, const char *segment)
{
	return dray_map_entry(dray_map_find(&p->kept_by_segment, segment, strlen(segment)),
			      struct kept_segment, by_segment);
}

int peers_keep_connected(struct peers *p, const char *const *segments, unsigned n)
{
	dray_list_for_each(&p->kept_segments, k, struct kept_segment, link)
		k->wanted = false;
	for (unsigned i = 0; i < n; i++) {
		struct kept_segment *k = kept_segment_find(p, segments[i]);
		int r = k ? 0 : kept_segment_new(&k, p, segments[i]);

		if (r < 0)
			return r;
		k->wanted = true;
	}
	dray_list_for_each(&p->kept_segments, k, struct kept_segment, link) {
		struct peer *peer = k->peer;

		if (k->wanted)
			continue;
		kept_segment_free(k);
		/* an attempt ends; a connection stays until peer.idle_timeout */
		if (peer)
			peer_event(peer, PEER_EVENT_UNNEEDED);
	}
	return 0;
}

struct peer *kept_segment_peer(struct peers *p, const char *segment)
{
	const struct kept_segment *k = kept_segment_find(p, segment);

	return k ? k->peer : NULL;
}

void kept_segments_adopt(struct peer *to, struct peer *from)
{
	dray_list_for_each(&to->p->kept_segments, k, struct kept_segment, link)
		if (k->peer == from)
			set_peer(k, to);
}

void kept_segments_lost(struct peer *peer, bool was_up)
{
	const char *why = peer->fsm.why.msg;

	dray_list_for_each(&peer->p->kept_segments, k, struct kept_segment, link) {
		if (k->peer != peer)
			continue;
		set_peer(k, NULL);
		k->leads_here = peer->leads_here;
		if (was_up)
			k->failures = 0;
		handle_failure(k, *why ? why : "the connection ended");
	}
}

void kept_segments_free(struct peers *p)
{
	dray_list_for_each(&p->kept_segments, k, struct kept_segment, link)
		kept_segment_free(k);
}

bool peers_segment_leads_here(struct peers *p, const char *segment)
{
	const struct kept_segment *k = kept_segment_find(p, segment);

	return k && k->leads_here && !(k->peer && peer_fsm_is_up(&k->peer->fsm));
}

bool peers_segment_ready(struct peers *p, const char *segment, char *reason, size_t n)
{
	const struct kept_segment *k = kept_segment_find(p, segment);
	const struct peer_fsm *f = k && k->peer ? &k->peer->fsm : NULL;

	if (!f)
		snprintf(reason, n, "not connected: %s", k ? k->why : "not a kept segment");
	else if (f->state == PEER_STATE_READY)
		snprintf(reason, n, "connected");
	else
		snprintf(reason, n, "%s%s%s", peer_state_name(f->state), *f->why.msg ? ": " : "",
			 f->why.msg);
	return f && f->state == PEER_STATE_READY;
}
