/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this agent has, as the directory is told. Objects that come and go are entered and removed at once. A listing of all of them, which
 * takes a third of store.directory_expiry, renews the entries before they end; it is fast when entries may be missing: when the
 * directory has just become usable, and after more changes than were kept. How many entries wait for an answer is bounded, and so is
 * what a listing makes in a second.
 *
 * A listing mends no removal that the directory has not got. Some of them are kept for its beginning; entries beyond them end by their
 * time, or by an agent that asks in vain.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/directory/internal.h"
#include "lib/log.h"
#include "lib/time.h"

#define AREA "store"
/* Entries without an answer. */
#define WAITING_MAX 512u
/* Removals that are kept. */
#define MISSED_MAX 4096u
/* Objects of a turn of a listing, and the time between two turns: 10,000 in a second. */
#define TURN 64u
#define PAUSE_NS (6400 * 1000ll)
/* The same while the directory takes no entries, to find out when it does. */
#define REFUSED_PAUSE_NS DRAY_NS_PER_SEC
/* It takes them again when it has refused none for so long. */
#define REFUSED_NS (3 * DRAY_NS_PER_SEC)
/* Between the starts of two listings. */
#define LISTING_MIN_NS (10 * DRAY_NS_PER_SEC)
#define LISTINGS 3

static int64_t expiry_ns(const struct directory *d)
{
	return d->deps.cfg->store.directory_expiry;
}

static void wake_at(struct directory *d, int64_t at_ns)
{
	sd_event_source_set_time(d->entries.timer, (uint64_t)at_ns / 1000);
	sd_event_source_set_enabled(d->entries.timer, SD_EVENT_ONESHOT);
}

static void missed_add(struct entries *e, const struct key_command *k)
{
	if (e->n_missed < MISSED_MAX)
		memcpy(e->missed[e->n_missed++], k->name, NAME_DIGEST);
}

/* --- answers ------------------------------------------------------------------------------------------ */

static void changes_take(struct directory *d);

/* An entry was taken. */
static void taken(struct directory *d)
{
	struct entries *e = &d->entries;

	if (d->state != DIRECTORY_REFUSING || dray_now().ns < e->refused_ns + REFUSED_NS)
		return;
	directory_set(d, DIRECTORY_OK, NULL);
	e->again = true;
}

/* The server that has the key may be known, up, or able to next time. */
static bool is_for_later(const redisReply *r)
{
	return r->type == REDIS_REPLY_ERROR && answer_refusal(r) >= REFUSAL_LOADING;
}

void entry_answer(struct server *s, const struct key_command *k, const redisReply *r)
{
	struct directory *d = s->d;
	struct entries *e = &d->entries;

	if (e->waiting)
		e->waiting--;
	if (k->kind == KEY_REMOVE && (!r || is_for_later(r))) {
		missed_add(e, k);
		/* one that is fast, because the object may be here again */
		e->again = true;
	}
	if (r && r->type != REDIS_REPLY_INTEGER) {
		directory_refused(s, r, true);
		e->again |= is_for_later(r);
	} else if (r && k->kind == KEY_ENTER) {
		taken(d);
	}
	/* also without an answer, because those for the other servers of a cluster go on */
	if (servers_are_up(d) && e->more && e->waiting < WAITING_MAX / 2)
		changes_take(d);
}

/* --- commands ----------------------------------------------------------------------------------------- */

static bool command_of(struct directory *d, const struct store_change *c, struct key_command *ret)
{
	*ret = (struct key_command){ .kind = c->here ? KEY_ENTER : KEY_REMOVE,
				     .n_name = NAME_DIGEST };
	return name_of(&d->names, c->space, c->key.p, c->key.n, ret->name);
}

/* s NULL: the server that has the key is not up. False: it was not sent. */
static bool entry_send(struct server *s, const struct key_command *k)
{
	if (s && !s->making)
		s->making = batch_new(s, NULL, s->d->entries.segment);
	if (!s || !s->making || !batch_add(s->making, k))
		return false;
	s->d->entries.waiting++;
	return true;
}

static void on_change(void *arg, const struct store_change *c)
{
	struct directory *d = arg;
	struct key_command k;
	bool named = command_of(d, c, &k);
	struct server *s = named ? server_of(d, &k) : NULL;

	if (entry_send(s, &k)) {
		d->totals.entered += c->here;
		d->totals.removed += !c->here;
		return;
	}
	if (named && !c->here)
		missed_add(&d->entries, &k);
	/* when the server is up, a listing follows */
	d->entries.again |= !named || s;
}

/* The removals that were missed. True: some wait for the answers to others. */
static bool missed_send(struct directory *d)
{
	struct entries *e = &d->entries;
	uint32_t i, kept = 0;

	for (i = 0; i < e->n_missed && e->waiting < WAITING_MAX; i++) {
		struct key_command k = { .kind = KEY_REMOVE, .n_name = NAME_DIGEST };

		memcpy(k.name, e->missed[i], NAME_DIGEST);
		if (!entry_send(server_of(d, &k), &k))
			memmove(e->missed[kept++], k.name, NAME_DIGEST);
	}
	memmove(e->missed[kept], e->missed[i], (e->n_missed - i) * sizeof(e->missed[0]));
	e->n_missed -= i - kept;
	return e->n_missed > kept;
}

void directory_forget(struct directory *d, const char *space, struct store_key key,
		      int64_t until_ms)
{
	struct key_command k = { .kind = KEY_FORGET, .n_name = NAME_DIGEST, .until_ms = until_ms };
	struct server *s = NULL;
	struct batch *b;

	d->totals.stale++;
	if (until_ms && name_of(&d->names, space, key.p, key.n, k.name))
		s = server_of(d, &k);
	b = s ? batch_new(s, NULL, "") : NULL;
	if (b && batch_add(b, &k))
		batch_send(b);
}

/* --- changes ------------------------------------------------------------------------------------------ */

/* While it is not told. */
static void on_missed(void *arg, const struct store_change *c)
{
	struct directory *d = arg;
	struct key_command k;

	if (*d->entries.segment && !c->here && command_of(d, c, &k))
		missed_add(&d->entries, &k);
}

static void listing_soon(struct directory *d);

/* A listing enters what may be missing; one that is not fast renews what is there. */
static bool is_fast(const struct entries *e)
{
	return e->listing && !e->period_ns;
}

static void changes_take(struct directory *d)
{
	struct entries *e = &d->entries;
	uint64_t lost;

	if (!servers_are_up(d) || !*e->segment) {
		/* a listing follows when it is */
		store_changes(d->deps.store, UINT32_MAX, on_missed, d, &e->lost);
		return;
	}
	if (e->waiting >= WAITING_MAX) {
		e->more = true;
		return;
	}
	e->more = store_changes(d->deps.store, WAITING_MAX - e->waiting, on_change, d, &lost);
	batches_send(d);
	e->again |= lost != e->lost;
	e->lost = lost;
	if (e->again && !is_fast(e))
		listing_soon(d);
}

static void on_changed(void *arg)
{
	changes_take(arg);
}

/* --- listing ------------------------------------------------------------------------------------------ */

/* When the next listing begins, which is early if entries may be missing. */
static int64_t listing_ns(const struct directory *d)
{
	int64_t period = expiry_ns(d) / LISTINGS;

	return d->entries.began_ns + (d->entries.again ? dray_min(period, LISTING_MIN_NS) : period);
}

static void listing_soon(struct directory *d)
{
	wake_at(d, dray_max(dray_now().ns, listing_ns(d)));
}

/* The address of this agent may have changed. */
static void segment_take(struct directory *d)
{
	struct entries *e = &d->entries;
	struct dray_addr a;

	*e->segment = '\0';
	if (!d->deps.cfg->store.lend)
		return;
	if (dray_addr_parse(d->deps.segment, &a) == 0)
		dray_addr_show(&a, e->segment, sizeof(e->segment));
	else if (!e->warned)
		log_warning(
			AREA,
			"objects of this agent are not entered into the directory: \"%s\" is no "
			"address with which others can find it; set peer.listen or "
			"peer.advertise to one",
			d->deps.segment);
	e->warned |= !*e->segment;
}

static void listing_begin(struct directory *d, bool fast)
{
	struct entries *e = &d->entries;

	segment_take(d);
	e->at = (struct store_listing){ .group = 0 };
	e->listing = e->begins = true;
	e->again = false;
	e->listed = 0;
	e->expected = store_listed(d->deps.store);
	e->began_ns = dray_now().ns;
	e->period_ns = fast ? 0 : expiry_ns(d) / LISTINGS;
}

static void on_listed(void *arg, const struct store_change *c)
{
	struct directory *d = arg;

	d->entries.listed++;
	on_change(d, c);
}

static void listing_turn(struct directory *d)
{
	struct entries *e = &d->entries;

	/* before its entries, because these objects may be here again */
	e->begins = e->begins && *e->segment && missed_send(d);
	if (e->begins) {
		batches_send(d);
		return;
	}
	e->listing = *e->segment && store_list(d->deps.store, &e->at, TURN, on_listed, d);
	batches_send(d);
	/* nothing is left that it could refuse */
	if (!e->listing && !e->listed)
		taken(d);
}

/* When the next turn is, or the next listing. */
static int64_t next_ns(const struct directory *d)
{
	const struct entries *e = &d->entries;
	int64_t now = dray_now().ns, soon = now + PAUSE_NS;

	if (d->state == DIRECTORY_REFUSING)
		return now + REFUSED_PAUSE_NS;
	if (!e->listing || (e->again && !is_fast(e)))
		return dray_max(soon, listing_ns(d));
	if (!e->period_ns || !e->expected)
		return soon;
	return dray_max(soon, e->began_ns + (int64_t)((double)e->period_ns * (double)e->listed /
						      (double)e->expected));
}

static int on_timer(sd_event_source *source, uint64_t usec, void *arg)
{
	struct directory *d = arg;
	struct entries *e = &d->entries;

	if (!servers_are_up(d))
		return 0;
	/* those that waited when the last connection ended */
	if (e->more && !e->waiting)
		changes_take(d);
	if (!e->listing || (e->again && !is_fast(e) && dray_now().ns >= listing_ns(d)))
		listing_begin(d, e->again);
	if (e->waiting < WAITING_MAX)
		listing_turn(d);
	wake_at(d, next_ns(d));
	return 0;
}

void entries_begin(struct directory *d)
{
	listing_begin(d, true);
	wake_at(d, dray_now().ns);
}

void entries_refused(struct directory *d)
{
	d->entries.refused_ns = dray_now().ns;
	/* further entries find out when it takes them again */
	if (d->state != DIRECTORY_REFUSING)
		wake_at(d, dray_now().ns + REFUSED_PAUSE_NS);
}

void entries_pause(struct directory *d)
{
	sd_event_source_set_enabled(d->entries.timer, SD_EVENT_OFF);
}

int entries_init(struct directory *d)
{
	struct entries *e = &d->entries;
	int r;

	e->missed = calloc(MISSED_MAX, sizeof(e->missed[0]));
	if (!e->missed)
		return -ENOMEM;
	r = sd_event_add_time(d->deps.event, &e->timer, CLOCK_MONOTONIC, 0, 1000, on_timer, d);
	if (r >= 0)
		r = sd_event_source_set_enabled(e->timer, SD_EVENT_OFF);
	if (r >= 0)
		r = store_watch(d->deps.store, on_changed, d);
	return r;
}

void entries_deinit(struct directory *d)
{
	d->entries.timer = sd_event_source_disable_unref(d->entries.timer);
	free(d->entries.missed);
}
