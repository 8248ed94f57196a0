/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this agent has, as the directory is told. Objects that come and go are entered and removed at once. A listing of all of them, which
 * takes a third of store.directory_expiry, renews the entries before they end; it is fast when entries may be missing: when the
 * directory has just become usable, and after more changes than were kept. How many entries wait for an answer is bounded, and so is
 * what a listing makes in a second.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "agent/control/directory/internal.h"
#include "lib/log.h"
#include "lib/time.h"

#define AREA "store"
/* Entries without an answer. */
#define WAITING_MAX 512u
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
/* Commands of one entry. */
#define COMMANDS 3

static int64_t expiry_ns(const struct directory *d)
{
	return d->deps.cfg->store.directory_expiry;
}

static int64_t expiry_ms(const struct directory *d)
{
	return expiry_ns(d) / DRAY_NS_PER_MS;
}

static void wake_at(struct directory *d, int64_t at_ns)
{
	sd_event_source_set_time(d->entries.timer, (uint64_t)at_ns / 1000);
	sd_event_source_set_enabled(d->entries.timer, SD_EVENT_ONESHOT);
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

/* The answers to an entry have come. */
static void answered(struct directory *d)
{
	struct entries *e = &d->entries;

	if (e->waiting)
		e->waiting--;
	if (e->more && e->waiting < WAITING_MAX / 2)
		changes_take(d);
}

static void on_added(void *arg, uint32_t i, const redisReply *r)
{
	struct directory *d = arg;

	if (!r)
		return;
	if (r->type != REDIS_REPLY_INTEGER)
		directory_refused(d, r, true);
	else if (i % COMMANDS == 0)
		taken(d);
	if (i % COMMANDS == COMMANDS - 1)
		answered(d);
}

static void on_removed(void *arg, uint32_t i, const redisReply *r)
{
	struct directory *d = arg;

	if (!r)
		return;
	if (r->type != REDIS_REPLY_INTEGER)
		directory_refused(d, r, true);
	answered(d);
}

/* Nobody waits for these: another agent's entry was wrong. */
static void on_forgotten(void *arg, uint32_t i, const redisReply *r)
{
	struct directory *d = arg;

	if (r && r->type != REDIS_REPLY_INTEGER)
		directory_refused(d, r, true);
}

/* --- commands ----------------------------------------------------------------------------------------- */

static struct link_word word(const char *text)
{
	return (struct link_word){ text, strlen(text) };
}

static bool op_ready(struct directory *d, bool adds)
{
	struct entries *e = &d->entries;

	if (e->op && e->op_adds == adds)
		return true;
	e->op = link_begin(d->link, adds ? on_added : on_removed, d);
	e->op_adds = adds;
	return e->op;
}

static void command(struct directory *d, const struct link_word *words, unsigned n)
{
	link_command(d->link, d->entries.op, words, n);
}

/* False: it could not be sent. */
static bool enter(struct directory *d, const struct store_change *c)
{
	struct entries *e = &d->entries;
	struct link_word segment = word(e->segment), name;
	char text[NAME_BYTES];

	name = (struct link_word){ text, name_of(&d->names, c->space, c->key.p, c->key.n, text) };
	if (!name.n || !op_ready(d, c->here))
		return false;
	e->waiting++;
	if (!c->here) {
		command(d, (struct link_word[]){ word("ZREM"), name, segment }, 3);
		d->totals.removed++;
		return true;
	}
	command(d, (struct link_word[]){ word("ZADD"), name, word(e->end_ms), segment }, 4);
	command(d, (struct link_word[]){ word("PEXPIRE"), name, word(e->ttl) }, 3);
	/* entries of agents that have not renewed them */
	command(d,
		(struct link_word[]){ word("ZREMRANGEBYSCORE"), name, word("-inf"),
				      word(e->now_ms) },
		4);
	d->totals.entered++;
	return true;
}

static void on_change(void *arg, const struct store_change *c)
{
	struct directory *d = arg;

	if (!enter(d, c))
		d->entries.again = true;
}

static void commands_begin(struct directory *d)
{
	struct entries *e = &d->entries;
	int64_t now = link_time_ms(d->link);

	e->op = NULL;
	snprintf(e->now_ms, sizeof(e->now_ms), "%" PRId64, now);
	snprintf(e->end_ms, sizeof(e->end_ms), "%" PRId64, now + expiry_ms(d));
}

static void commands_end(struct directory *d)
{
	d->entries.op = NULL;
	link_send(d->link);
}

void directory_forget(struct directory *d, const char *space, struct store_key key,
		      const char *segment)
{
	struct link_op *op;
	char text[NAME_BYTES];
	struct link_word name = { text, name_of(&d->names, space, key.p, key.n, text) };

	d->totals.stale++;
	op = name.n ? link_begin(d->link, on_forgotten, d) : NULL;
	if (!op)
		return;
	link_command(d->link, op, (struct link_word[]){ word("ZREM"), name, word(segment) }, 3);
	link_send(d->link);
}

/* --- changes ------------------------------------------------------------------------------------------ */

static void on_dropped(void *arg, const struct store_change *c)
{
}

static void listing_soon(struct directory *d);

static void changes_take(struct directory *d)
{
	struct entries *e = &d->entries;
	uint64_t lost;

	if (!link_is_up(d->link) || !*e->segment) {
		/* a listing follows when it is */
		store_changes(d->deps.store, UINT32_MAX, on_dropped, NULL, &e->lost);
		return;
	}
	if (e->waiting >= WAITING_MAX) {
		e->more = true;
		return;
	}
	commands_begin(d);
	e->more = store_changes(d->deps.store, WAITING_MAX - e->waiting, on_change, d, &lost);
	commands_end(d);
	e->again |= lost != e->lost;
	e->lost = lost;
	if (e->again && !e->listing)
		listing_soon(d);
}

static void on_changed(void *arg)
{
	changes_take(arg);
}

/* --- listing ------------------------------------------------------------------------------------------ */

/* The next listing begins early. */
static void listing_soon(struct directory *d)
{
	wake_at(d, dray_max(dray_now().ns, d->entries.began_ns + LISTING_MIN_NS));
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
	e->at = (struct store_listing){ .bucket = 0 };
	e->listing = true;
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

	commands_begin(d);
	e->listing = *e->segment && store_list(d->deps.store, &e->at, TURN, on_listed, d);
	commands_end(d);
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
	if (!e->listing)
		return e->again ? dray_max(soon, e->began_ns + LISTING_MIN_NS) :
				  dray_max(soon, e->began_ns + expiry_ns(d) / LISTINGS);
	if (!e->period_ns || !e->expected)
		return soon;
	return dray_max(soon, e->began_ns + (int64_t)((double)e->period_ns * (double)e->listed /
						      (double)e->expected));
}

static int on_timer(sd_event_source *source, uint64_t usec, void *arg)
{
	struct directory *d = arg;
	struct entries *e = &d->entries;

	if (!link_is_up(d->link))
		return 0;
	if (!e->listing)
		listing_begin(d, e->again);
	if (e->waiting < WAITING_MAX)
		listing_turn(d);
	wake_at(d, next_ns(d));
	return 0;
}

void entries_begin(struct directory *d)
{
	d->entries.waiting = 0;
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
	d->entries.waiting = 0;
	sd_event_source_set_enabled(d->entries.timer, SD_EVENT_OFF);
}

int entries_init(struct directory *d)
{
	struct entries *e = &d->entries;
	int r;

	snprintf(e->ttl, sizeof(e->ttl), "%" PRId64, expiry_ms(d));
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
}
