/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments to which a connection is kept up, whoever answers there: nobody has named an agent id as a token
 * does. An attempt takes the id that it is shown; where that agent is connected already, the want moves to
 * that connection. When a connection or an attempt ends for good, the next attempt is a new peer.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "lib/backoff.h"
#include "agent/control/peer/internal.h"
#include "lib/log.h"
#include "schema/gen/errors.h"

struct want {
	struct dray_list link; /* in p->wants */
	struct peers *p;
	char *segment;
	struct peer *peer; /* NULL: the timer runs */
	sd_event_source *timer;
	unsigned failures; /* in a row, of those that end an attempt for good */
	char why[DRAY_ERR_MSG_MAX];
};

static void want_set_peer(struct want *w, struct peer *peer)
{
	if (w->peer)
		w->peer->wants--;
	w->peer = peer;
	if (peer)
		peer->wants++;
}

static void want_later(struct want *w)
{
	const struct dray_config *cfg = w->p->cfg;
	int64_t pause = backoff_pause(++w->failures, cfg->peer.backoff_min, cfg->peer.backoff_max);

	sd_event_source_set_time_relative(w->timer, (uint64_t)pause / 1000);
	sd_event_source_set_enabled(w->timer, SD_EVENT_ONESHOT);
}

static void want_failed(struct want *w, const char *why)
{
	if (strcmp(w->why, why) != 0)
		log_info(AREA, "the wanted segment %s is not connected: %s", w->segment, why);
	snprintf(w->why, sizeof(w->why), "%s", why);
	want_later(w);
}

static int on_due(sd_event_source *s, uint64_t usec, void *arg)
{
	static const uint8_t nobody[16];
	struct want *w = arg;
	struct peers *p = w->p;
	struct dray_err why = DRAY_ERR_NULL;
	struct dray_addr addr;
	struct peer *peer;

	if (p->stopping)
		return 0;
	if (segment_addr(p, w->segment, &addr, &why) < 0 ||
	    peer_new(&peer, p, nobody, true, &why) < 0) {
		want_failed(w, why.msg);
		return 0;
	}
	peer->any_agent = true;
	peer->addr = addr;
	snprintf(peer->segment, sizeof(peer->segment), "%s", w->segment);
	want_set_peer(w, peer);
	peer_event(peer, PEER_EVENT_DIAL, 0, NULL);
	return 0;
}

static struct want *want_free(struct want *w)
{
	if (!w)
		return NULL;
	dray_list_del(&w->link);
	want_set_peer(w, NULL);
	sd_event_source_disable_unref(w->timer);
	free(w->segment);
	free(w);
	return NULL;
}

static int want_new(struct peers *p, const char *segment)
{
	struct want *w = calloc(1, sizeof(*w));
	int r = -ENOMEM;

	if (!w)
		return -ENOMEM;
	w->p = p;
	dray_list_init(&w->link);
	snprintf(w->why, sizeof(w->why), "not tried yet");
	w->segment = strdup(segment);
	if (w->segment)
		r = sd_event_add_time_relative(p->event, &w->timer, CLOCK_MONOTONIC, 0, 0, on_due,
					       w);
	if (r < 0) {
		want_free(w);
		return r;
	}
	dray_list_add(&p->wants, &w->link);
	return 0;
}

static struct want *want_find(struct peers *p, const char *segment)
{
	dray_list_for_each(&p->wants, w, struct want, link)
		if (!strcmp(w->segment, segment))
			return w;
	return NULL;
}

static bool among(const char *const *segments, unsigned n, const char *segment)
{
	for (unsigned i = 0; i < n; i++)
		if (!strcmp(segments[i], segment))
			return true;
	return false;
}

int peers_want(struct peers *p, const char *const *segments, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		int r = want_find(p, segments[i]) ? 0 : want_new(p, segments[i]);

		if (r < 0)
			return r;
	}
	dray_list_for_each(&p->wants, w, struct want, link) {
		struct peer *peer = w->peer;

		if (among(segments, n, w->segment))
			continue;
		want_free(w);
		/* an attempt ends; a connection stays until it has been idle for long */
		if (peer)
			peer_event(peer, PEER_EVENT_UNWANTED, 0, NULL);
	}
	return 0;
}

void wants_adopt(struct peer *to, struct peer *from)
{
	dray_list_for_each(&to->p->wants, w, struct want, link)
		if (w->peer == from)
			want_set_peer(w, to);
}

void wants_lost(struct peer *peer, bool was_up, const char *why)
{
	dray_list_for_each(&peer->p->wants, w, struct want, link) {
		if (w->peer != peer)
			continue;
		want_set_peer(w, NULL);
		if (was_up)
			w->failures = 0;
		want_failed(w, *why ? why : "the connection ended");
	}
}

void wants_free(struct peers *p)
{
	dray_list_for_each(&p->wants, w, struct want, link)
		want_free(w);
}

bool peers_segment_ready(struct peers *p, const char *segment, char *reason, size_t n)
{
	const struct want *w = want_find(p, segment);
	const struct peer_fsm *f = w && w->peer ? &w->peer->fsm : NULL;

	if (!f)
		snprintf(reason, n, "not connected: %s", w ? w->why : "not asked for");
	else if (f->state == PEER_STATE_READY)
		snprintf(reason, n, "connected");
	else
		snprintf(reason, n, "%s%s%s", peer_state_name(f->state), *f->why ? ": " : "",
			 f->why);
	return f && f->state == PEER_STATE_READY;
}
