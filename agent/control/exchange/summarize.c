/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The summary of this agent's store, for the peers that want it: a filter of all its objects of name spaces with a name. A peer gets its
 * bytes piece by piece, then the objects that have come since; each message waits for the answer to the last one, so that a slow
 * peer holds nothing up. Objects that go stay in the filter until it is made anew, which costs the peers lookups in vain.
 *
 * A new filter is made by a listing of all objects, some in each turn, while the old one is in use. Objects that come meanwhile are
 * added to both. When changes of the store were lost, there is no filter until a new one is made, and peers ask for all keys.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/exchange/internal.h"
#include "lib/random.h"
#include "lib/time.h"
#include "lib/wire.h"
#include "schema/gen/errors.h"

/* Bytes of the filter in one message. */
#define PIECE 32768u
/* Objects in one message. */
#define OBJECTS_MAX 1024u
/* Of the objects that came last, for peers that have the filter without them. */
#define RECENT_MAX 16384u
/* Changes of one turn; objects of a turn of the listing; time until the next turn. */
#define CHANGES_MAX 1024u
#define TURN 256u
#define PAUSE_NS (5 * DRAY_NS_PER_MS)
/* Between the starts of two listings. */
#define LISTING_MIN_NS (5 * DRAY_NS_PER_SEC)
/* Objects that may go before a new filter is made. */
#define GONE_MIN 4096u

struct watcher {
	struct dray_map_node by_peer;
	struct summarizer *s;
	dray_handle peer;
	uint64_t generation; /* of the filter that it gets; 0: it begins */
	uint64_t at;         /* bytes of the filter that it has */
	uint64_t recent;     /* objects that came, of all, that it has */
	bool told;           /* that there is no filter */
	bool busy;           /* a message has no answer yet */
	bool gone;           /* freed with the answer */
};

struct summarizer {
	struct exchange *x;
	sd_event_source *timer;
	struct dray_map watchers;
	struct filter now, next; /* what peers get, and what is being made */
	struct store_listing at;
	bool listing;               /* `next` is being made */
	bool more;                  /* changes wait */
	bool broken;                /* `now` and `next` lack objects */
	bool again;                 /* a watcher waits for memory */
	uint64_t generation;        /* the salt of `now` */
	uint64_t n, n_next, n_gone; /* objects added to each, and gone from `now` */
	uint64_t lost;              /* changes, as store_changes() counts them */
	int64_t began_ns;           /* the last listing; 0: there was none */
	struct filter_digest *recent;
	uint64_t n_recent;
};

bool digest_of(struct names *names, const char *space, struct store_key key,
	       struct filter_digest *ret)
{
	uint8_t digest[EVP_MAX_MD_SIZE];

	if (!name_digest(names, space, key.p, key.n, digest))
		return false;
	ret->a = dray_le_get64(digest);
	ret->b = dray_le_get64(digest + 8);
	return true;
}

/* --- peers ------------------------------------------------------------------------------------------- */

static void watcher_free(struct watcher *w)
{
	struct summarizer *s = w->s;

	dray_map_del(&s->watchers, &w->by_peer);
	free(w);
	if (s->watchers.n)
		return;
	filter_deinit(&s->now);
	filter_deinit(&s->next);
	s->listing = false;
}

static void go_on(struct watcher *w);
static void schedule(struct summarizer *s);

static void sent(void *arg, uint32_t code, const union pmsg_body *reply)
{
	struct watcher *w = arg;
	struct summarizer *s = w->s;

	w->busy = false;
	/* it is lost, or does not want more: it asks for all keys then */
	if (w->gone || (code && code != DRAY_E_TIMEOUT)) {
		watcher_free(w);
		return;
	}
	/* what it has is not known */
	if (code)
		w->generation = 0;
	go_on(w);
	if (s->again)
		schedule(s);
}

/* The objects that came since. Their number. */
static uint32_t recent_put(struct watcher *w, uint8_t *buf)
{
	const struct summarizer *s = w->s;
	uint32_t n = 0;

	for (; w->recent < s->n_recent && n < OBJECTS_MAX; w->recent++) {
		const struct filter_digest *d = &s->recent[w->recent % RECENT_MAX];
		struct pmsg_store_digest wire = { d->a, d->b };

		pmsg_store_digest_put(buf + (size_t)n++ * PMSG_STORE_DIGEST_SIZE, &wire);
	}
	return n;
}

/* False: it has all that there is. */
static bool next_message(struct watcher *w, struct pmsg_store_summary *m, uint8_t *buf)
{
	struct summarizer *s = w->s;
	uint64_t bytes = s->now.bits / 8;

	if (w->generation != s->generation ||
	    (w->at == bytes && s->n_recent - w->recent > RECENT_MAX)) {
		w->generation = s->generation;
		w->at = 0;
		w->recent = s->n_recent;
		w->told = false;
	}
	*m = (struct pmsg_store_summary){ .generation = s->generation, .bits = s->now.bits };
	if (!bytes) {
		if (w->told)
			return false;
		w->told = true;
	} else if (w->at < bytes) {
		m->offset = w->at;
		m->bytes = (struct dray_blob){ s->now.bytes + w->at,
					       (uint32_t)dray_min((uint64_t)PIECE, bytes - w->at) };
		w->at += m->bytes.n;
	} else {
		m->digests = (struct dray_vec){ buf, recent_put(w, buf) };
		if (!m->digests.n)
			return false;
	}
	return true;
}

static void go_on(struct watcher *w)
{
	uint8_t buf[OBJECTS_MAX * PMSG_STORE_DIGEST_SIZE];
	union pmsg_body m;
	int r;

	if (w->busy || w->gone || !next_message(w, &m.store_summary, buf))
		return;
	w->busy = true;
	r = peers_request(w->s->x->deps.peers, w->peer, PMSG_STORE_SUMMARY, &m, sent, w);
	if (r == -ENOMEM) {
		/* the peer uses what it has: all comes again */
		w->busy = false;
		w->generation = 0;
		w->s->again = true;
	} else if (r < 0) {
		watcher_free(w);
	}
}

static void all_go_on(struct summarizer *s)
{
	dray_map_for_each(&s->watchers, w, struct watcher, by_peer)
		go_on(w);
}

static struct watcher *watcher_find(struct summarizer *s, dray_handle peer)
{
	return dray_map_entry(dray_map_find(&s->watchers, &peer, sizeof(peer)), struct watcher,
			      by_peer);
}

/* --- the filter --------------------------------------------------------------------------------------- */

static void wake_at(struct summarizer *s, int64_t at_ns)
{
	sd_event_source_set_time(s->timer, (uint64_t)at_ns / 1000);
	sd_event_source_set_enabled(s->timer, SD_EVENT_ONESHOT);
}

static bool is_worn(const struct summarizer *s)
{
	bool full = s->n > s->now.bits / FILTER_FULL && s->now.bits < FILTER_BITS_MAX;

	return !s->now.bits || full || s->n_gone > dray_max(s->n / 2, (uint64_t)GONE_MIN);
}

static void schedule(struct summarizer *s)
{
	int64_t now = dray_now().ns;

	if (s->listing || s->more || s->again)
		wake_at(s, now + PAUSE_NS);
	else if (s->watchers.n && is_worn(s))
		wake_at(s, s->began_ns ? dray_max(now, s->began_ns + LISTING_MIN_NS) : now);
}

/* Never 0. */
static uint64_t new_generation(void)
{
	return dray_random() | 1;
}

/* Objects are missing in both: peers ask for all keys until there is a new one. */
static void give_up(struct summarizer *s)
{
	filter_deinit(&s->now);
	filter_deinit(&s->next);
	s->listing = s->broken = false;
	s->generation = new_generation();
}

static void on_change(void *arg, const struct store_change *c)
{
	struct summarizer *s = arg;
	struct filter_digest d;

	if (!c->here) {
		s->n_gone++;
		return;
	}
	if (!digest_of(&s->x->names, c->space, c->key, &d)) {
		s->broken = true;
		return;
	}
	s->n++;
	s->recent[s->n_recent++ % RECENT_MAX] = d;
	if (s->now.bits)
		filter_add(&s->now, d);
	if (!s->listing)
		return;
	filter_add(&s->next, d);
	s->n_next++;
}

static void on_unwanted(void *arg, const struct store_change *c)
{
}

static void take_changes(struct summarizer *s)
{
	bool wanted = s->watchers.n;
	uint64_t lost;
	uint32_t n = store_changes(s->x->deps.store, CHANGES_MAX, wanted ? on_change : on_unwanted,
				   s, &lost);

	s->more = n == CHANGES_MAX;
	s->broken |= lost != s->lost;
	s->lost = lost;
	if (s->broken)
		give_up(s);
	s->again = false;
	all_go_on(s);
	schedule(s);
}

static void on_changed(void *arg)
{
	take_changes(arg);
}

static void listing_begin(struct summarizer *s)
{
	s->began_ns = dray_now().ns;
	if (filter_init(&s->next, filter_bits_for(store_listed(s->x->deps.store)),
			new_generation()) < 0)
		return;
	s->at = (struct store_listing){ .group = 0 };
	s->listing = true;
	s->n_next = 0;
}

static void on_listed(void *arg, const struct store_change *c)
{
	struct summarizer *s = arg;
	struct filter_digest d;

	if (digest_of(&s->x->names, c->space, c->key, &d))
		filter_add(&s->next, d);
	else
		s->broken = true;
	s->n_next++;
}

static void listing_turn(struct summarizer *s)
{
	s->listing = store_list(s->x->deps.store, &s->at, TURN, on_listed, s);
	if (s->listing)
		return;
	filter_deinit(&s->now);
	s->now = s->next;
	s->next = (struct filter){ .bits = 0 };
	s->n = s->n_next;
	s->n_gone = 0;
	s->generation = s->now.salt;
}

static int on_timer(sd_event_source *source, uint64_t usec, void *arg)
{
	struct summarizer *s = arg;

	if (!s->listing && s->watchers.n && is_worn(s) &&
	    (!s->began_ns || dray_now().ns >= s->began_ns + LISTING_MIN_NS))
		listing_begin(s);
	if (s->listing)
		listing_turn(s);
	take_changes(s);
	return 0;
}

/* --- for the exchange ----------------------------------------------------------------------------------- */

void exchange_watch(struct exchange *x, dray_handle peer, uint64_t request_id)
{
	struct summarizer *s = x->summarizer;
	struct watcher *w = s ? watcher_find(s, peer) : NULL;

	if (!s) {
		peers_refuse(
			x->deps.peers, peer, request_id, DRAY_E_UNSUPPORTED,
			"its store makes no summaries: set store.summaries and store.lend there");
		return;
	}
	if (!w)
		w = calloc(1, sizeof(*w));
	if (!w) {
		peers_refuse(x->deps.peers, peer, request_id, DRAY_E_NO_MEMORY,
			     "no memory for summaries");
		return;
	}
	w->generation = 0;
	if (!w->s) {
		w->s = s;
		w->peer = peer;
		dray_map_add(&s->watchers, &w->by_peer, &w->peer, sizeof(w->peer));
	}
	peers_send(x->deps.peers, peer, PMSG_STORE_WATCH_REPLY, request_id, NULL);
	/* else it begins when there is a filter */
	if (s->now.bits)
		go_on(w);
	schedule(s);
}

void summarizer_peer_gone(struct summarizer *s, dray_handle peer)
{
	struct watcher *w = s ? watcher_find(s, peer) : NULL;

	if (!w)
		return;
	w->gone = true;
	if (!w->busy)
		watcher_free(w);
}

uint64_t summarizer_bytes(const struct summarizer *s)
{
	return s ? (s->now.bits + s->next.bits) / 8 : 0;
}

int summarizer_new(struct exchange *x)
{
	struct summarizer *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return -ENOMEM;
	x->summarizer = s;
	s->x = x;
	s->generation = new_generation();
	dray_map_init(&s->watchers);
	s->recent = calloc(RECENT_MAX, sizeof(*s->recent));
	if (!s->recent)
		return -ENOMEM;
	r = sd_event_add_time(x->deps.event, &s->timer, CLOCK_MONOTONIC, 0, 1000, on_timer, s);
	if (r >= 0)
		r = sd_event_source_set_enabled(s->timer, SD_EVENT_OFF);
	return r < 0 ? r : store_watch(x->deps.store, on_changed, s);
}

struct summarizer *summarizer_free(struct summarizer *s)
{
	if (!s)
		return NULL;
	dray_map_for_each(&s->watchers, w, struct watcher, by_peer) {
		w->busy = false;
		watcher_free(w);
	}
	dray_map_deinit(&s->watchers);
	filter_deinit(&s->now);
	filter_deinit(&s->next);
	sd_event_source_disable_unref(s->timer);
	free(s->recent);
	free(s);
	return NULL;
}
