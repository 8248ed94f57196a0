/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/mailbox/mailbox.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/mailbox/share.h"
#include "agent/model/budget.h"
#include "agent/model/handle.h"
#include "agent/process/turn_work.h"
#include "lib/assert.h"
#include "lib/map.h"
#include "lib/time.h"
#include "schema/gen/errors.h"

/* Letters of one session that its worker has: enough to keep the worker busy while this thread does other work. */
#define SENT_MAX 16
/* Letters of sessions that have ended which are freed in one turn of the loop; it takes about 0.4 ms. */
#define UNREAD_PER_TURN 1024

struct mailboxes {
	struct mailboxes_deps deps;
	struct dray_handles handles;
	struct dray_map by_name;   /* open and reserved */
	struct dray_list open;     /* with those that are closing; oldest first */
	struct dray_list reserved; /* the first to expire comes first */
	struct dray_map reservers;
	struct dray_list unread;  /* letters whose session has ended */
	struct turn_work freeing; /* of these */
	struct shares shares;
	struct mailboxes_totals totals; /* without `open` */
};

/* The tenant and the name, each with its NUL. */
struct name_key {
	uint32_t n;
	char text[TENANT_BYTES + DMSG_MAILBOX_NAME_MAX + 1];
};

/* A tenant and uid with reserved names. */
struct reserver {
	struct dray_map_node node; /* in mailboxes->reservers */
	struct share_key key;      /* share_of_owner() */
	struct dray_list list;     /* the oldest reservation comes first */
	uint32_t n;
};

struct mailbox {
	struct dray_list all;        /* in mailboxes->open or ->reserved */
	struct dray_list link;       /* in owner->list, or reserver->list */
	struct dray_map_node node;   /* by key; in no map while it is closing */
	struct mailbox_owner *owner; /* NULL: the name is reserved */
	struct reserver *reserver;   /* if it is */
	dray_handle handle;
	uid_t uid;
	gid_t gid;
	uint32_t capacity, letters;
	uint64_t bytes; /* memory of the letters */
	uint64_t delivered, refused;
	int64_t since_ns; /* opened, or reserved */
	int64_t until_ns; /* end of the reservation */
	bool closing;
	bool gone; /* only its letters are left, the last of which frees it */
	uint64_t close_request;
	const char *tenant, *name; /* in the key */
	struct name_key key;
};

struct letter {
	struct dray_list link; /* in owner->letters or ->sent, or mailboxes->unread */
	struct mailbox *mailbox;
	struct packet *packet; /* NULL: the worker has it */
	uint64_t bytes;
	struct share *agent, *sender, *owner; /* what it counts against */
};

static int on_turn(sd_event_source *source, uint64_t usec, void *arg);

int mailboxes_new(struct mailboxes **ret, const struct mailboxes_deps *deps)
{
	struct mailboxes *m = calloc(1, sizeof(*m));
	int r = 0;

	if (!m)
		return -ENOMEM;
	if (deps->event)
		r = turn_work_init(&m->freeing, deps->event, UNREAD_PER_TURN, on_turn, m);
	if (r < 0) {
		turn_work_deinit(&m->freeing);
		free(m);
		return r;
	}
	m->deps = *deps;
	dray_list_init(&m->unread);
	dray_handles_init(&m->handles, DRAY_HANDLES_MAX, DMSG_HANDLE_KIND_MAILBOX);
	dray_map_init(&m->by_name);
	dray_map_init(&m->reservers);
	dray_list_init(&m->open);
	dray_list_init(&m->reserved);
	shares_init(&m->shares);
	*ret = m;
	return 0;
}

static struct reserver *find_reserver(const struct mailboxes *m, const char *tenant, uid_t uid)
{
	struct share_key key = share_of_owner(tenant, uid);

	return dray_map_entry(dray_map_find(&m->reservers, &key, sizeof(key)), struct reserver,
			      node);
}

/* The reservation is one of its tenant and uid. 0 or -ENOMEM. */
static int reserver_join(struct mailboxes *m, struct mailbox *b)
{
	struct reserver *r = find_reserver(m, b->tenant, b->uid);

	if (!r) {
		r = calloc(1, sizeof(*r));
		if (!r)
			return -ENOMEM;
		r->key = share_of_owner(b->tenant, b->uid);
		dray_list_init(&r->list);
		dray_map_add(&m->reservers, &r->node, &r->key, sizeof(r->key));
	}
	b->reserver = r;
	dray_list_move(&r->list, &b->link);
	r->n++;
	return 0;
}

static void reserver_leave(struct mailboxes *m, struct reserver *r)
{
	if (--r->n)
		return;
	dray_map_del(&m->reservers, &r->node);
	free(r);
}

static void mailbox_free(struct mailboxes *m, struct mailbox *b)
{
	if (b->owner)
		budget_put(b->owner->budget, RESOURCE_MAILBOXES, 1);
	dray_map_del(&m->by_name, &b->node);
	dray_list_del(&b->all);
	dray_list_del(&b->link);
	if (b->reserver)
		reserver_leave(m, b->reserver);
	dray_handles_del(&m->handles, b->handle);
	b->gone = true;
	if (!b->letters)
		free(b);
}

static void letter_end(struct mailboxes *m, struct letter *l);

struct mailboxes *mailboxes_free(struct mailboxes *m)
{
	if (!m)
		return NULL;
	dray_assert(dray_list_empty(&m->open));
	turn_work_deinit(&m->freeing);
	dray_list_for_each(&m->unread, l, struct letter, link)
		letter_end(m, l);
	dray_list_for_each(&m->reserved, b, struct mailbox, all)
		mailbox_free(m, b);
	dray_handles_deinit(&m->handles);
	dray_map_deinit(&m->by_name);
	dray_map_deinit(&m->reservers);
	shares_deinit(&m->shares);
	free(m);
	return NULL;
}

void mailbox_owner_init(struct mailbox_owner *o, dray_handle session, const char *tenant, uid_t uid,
			gid_t gid, const char *name, struct budget_account *budget)
{
	*o = (struct mailbox_owner){ .session = session,
				     .tenant = tenant,
				     .uid = uid,
				     .gid = gid,
				     .name = name,
				     .budget = budget };
	dray_list_init(&o->list);
	dray_list_init(&o->letters);
	dray_list_init(&o->sent);
}

/* --- names -------------------------------------------------------------------------------------------- */

static struct name_key name_key(struct dray_str tenant, struct dray_str name)
{
	struct name_key key = { .n = tenant.n + 1 + name.n };

	memcpy(key.text, tenant.p, tenant.n);
	memcpy(key.text + tenant.n + 1, name.p, name.n);
	return key;
}

static struct dray_str tenant_of(const struct mailbox_owner *o)
{
	return (struct dray_str){ o->tenant, (uint32_t)strlen(o->tenant) };
}

static bool is_owner(const struct mailbox *b, const struct mailbox_owner *o)
{
	return b->uid == o->uid && !strcmp(b->tenant, o->tenant);
}

static struct mailbox *find_name(const struct mailboxes *m, const struct name_key *key)
{
	return dray_map_entry(dray_map_find(&m->by_name, key->text, key->n), struct mailbox, node);
}

/* Frees reservations that have expired. */
static void purge(struct mailboxes *m, int64_t now)
{
	struct mailbox *b;

	while ((b = dray_list_first(&m->reserved, struct mailbox, all)) && b->until_ns <= now)
		mailbox_free(m, b);
}

/* The name is free for this owner afterwards. */
static int claim_name(struct mailboxes *m, const struct mailbox_owner *o,
		      const struct name_key *key, int64_t now, struct dray_err *reterr)
{
	struct mailbox *b = find_name(m, key);

	if (!b)
		return 0;
	if (b->owner)
		return dray_err_set(
			reterr, -EEXIST, DRAY_E_EXISTS,
			"mailbox %s is open in session %" PRIu64
			" (%.64s) of uid %u; choose another name, or close that session",
			b->name, b->owner->session,
			*b->owner->name ? b->owner->name : "without a name", b->uid);
	if (!is_owner(b, o))
		return dray_err_set(reterr, -EEXIST, DRAY_E_EXISTS,
				    "mailbox %s is reserved for uid %u for %lld s, because its "
				    "session ended (mailbox.reserve); choose another name, or wait",
				    b->name, b->uid,
				    (b->until_ns - now + DRAY_NS_PER_SEC - 1) / DRAY_NS_PER_SEC);
	mailbox_free(m, b);
	return 0;
}

/* Counts one more, and makes room for it. A reservation gives way to a mailbox of its own owner, at the agent's limit to any. */
static int take_quota(struct mailboxes *m, struct mailbox_owner *o, struct dray_err *reterr)
{
	uint64_t own_max = budget_limit(o->budget, RESOURCE_MAILBOXES);
	uint64_t own = budget_used(o->budget, RESOURCE_MAILBOXES);
	struct reserver *reserver = find_reserver(m, o->tenant, o->uid);
	struct mailbox *oldest;
	int r = budget_take(o->budget, RESOURCE_MAILBOXES, 1, reterr);

	if (r < 0)
		return r;
	if (reserver && own + reserver->n >= own_max)
		mailbox_free(m, dray_list_first(&reserver->list, struct mailbox, link));
	if (m->by_name.n >= (uint64_t)m->deps.cfg->limits.mailboxes) {
		oldest = dray_list_first(&m->reserved, struct mailbox, all);
		if (oldest)
			mailbox_free(m, oldest);
	}
	return 0;
}

int mailbox_open(struct mailboxes *m, struct mailbox_owner *o, struct dray_str name,
		 uint32_t capacity, dray_handle *ret, uint32_t *ret_capacity,
		 struct dray_err *reterr)
{
	uint32_t max = (uint32_t)m->deps.cfg->limits.letters_per_mailbox;
	int64_t now = dray_now().ns;
	struct name_key key;
	struct mailbox *b;
	int r;

	if (!name.n)
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "the mailbox has no name; give it one of 1 to %d bytes",
				    DMSG_MAILBOX_NAME_MAX);
	if (capacity > max)
		return dray_err_set(reterr, -ENOSPC, DRAY_E_QUOTA,
				    "%" PRIu32
				    " letters are more than limits.letters_per_mailbox = %" PRIu32
				    "; ask for less, or raise it",
				    capacity, max);
	purge(m, now);
	key = name_key(tenant_of(o), name);
	r = claim_name(m, o, &key, now, reterr);
	if (r >= 0)
		r = take_quota(m, o, reterr);
	if (r < 0)
		return r;
	b = calloc(1, sizeof(*b));
	if (!b || dray_handles_add(&m->handles, b, &b->handle) < 0) {
		free(b);
		budget_put(o->budget, RESOURCE_MAILBOXES, 1);
		return -ENOMEM;
	}
	b->owner = o;
	b->uid = o->uid;
	b->gid = o->gid;
	b->capacity = capacity ? capacity : max;
	b->since_ns = now;
	b->key = key;
	b->tenant = b->key.text;
	b->name = b->key.text + strlen(b->tenant) + 1;
	dray_map_add(&m->by_name, &b->node, b->key.text, b->key.n);
	dray_list_add(&m->open, &b->all);
	dray_list_add(&o->list, &b->link);
	*ret = b->handle;
	*ret_capacity = b->capacity;
	return 0;
}

static void check_closed(struct mailboxes *m, struct mailbox *b)
{
	dray_handle session = b->owner->session;
	uint64_t request_id = b->close_request;

	if (!b->closing || b->letters)
		return;
	mailbox_free(m, b);
	m->deps.up->closed(*m->deps.sessions, session, request_id);
}

int mailbox_close(struct mailboxes *m, const struct mailbox_owner *o, dray_handle handle,
		  uint64_t request_id, struct dray_err *reterr)
{
	struct mailbox *b = dray_handles_get(&m->handles, handle);

	if (!b || b->owner != o || b->closing)
		return handle_refuse(reterr, handle, DMSG_HANDLE_KIND_MAILBOX, "in this session");
	b->closing = true;
	b->close_request = request_id;
	dray_map_del(&m->by_name, &b->node);
	check_closed(m, b);
	return 0;
}

/* The session is gone: only the name stays, for some time. */
static void reserve(struct mailboxes *m, struct mailbox *b)
{
	int64_t now = dray_now().ns, time = m->deps.cfg->mailbox.reserve;
	struct dray_list *at;

	if (b->closing || !time || reserver_join(m, b) < 0) {
		mailbox_free(m, b);
		return;
	}
	dray_handles_del(&m->handles, b->handle);
	b->handle = 0;
	budget_put(b->owner->budget, RESOURCE_MAILBOXES, 1);
	b->owner = NULL;
	b->since_ns = now;
	b->until_ns = now + time;
	dray_list_del(&b->all);
	/* sorted by the end, also after a change of mailbox.reserve; without one, it is the last */
	at = m->reserved.prev;
	while (at != &m->reserved &&
	       dray_list_entry(at, struct mailbox, all)->until_ns > b->until_ns)
		at = at->prev;
	dray_list_add_after(at, &b->all);
}

/* --- letters ------------------------------------------------------------------------------------------ */

/* It was sent, or never will be. */
static void letter_end(struct mailboxes *m, struct letter *l)
{
	struct mailbox *b = l->mailbox;

	share_put(&m->shares, l->agent, 1);
	share_put(&m->shares, l->sender, 1);
	share_put(&m->shares, l->owner, l->bytes);
	b->letters--;
	b->bytes -= l->bytes;
	m->totals.letters--;
	m->totals.bytes -= l->bytes;
	dray_list_del(&l->link);
	packet_free(l->packet);
	free(l);
	if (b->gone && !b->letters)
		free(b);
}

static void free_unread(struct mailboxes *m)
{
	struct letter *l;

	while (turn_work_has_room(&m->freeing) &&
	       (l = dray_list_first(&m->unread, struct letter, link))) {
		m->freeing.done++;
		letter_end(m, l);
	}
	if (!dray_list_empty(&m->unread))
		turn_work_go_on(&m->freeing);
}

static int on_turn(sd_event_source *source, uint64_t usec, void *arg)
{
	free_unread(arg);
	return 0;
}

void mailbox_owner_end(struct mailboxes *m, struct mailbox_owner *o)
{
	dray_list_splice(&m->unread, &o->sent);
	dray_list_splice(&m->unread, &o->letters);
	o->n_sent = 0;
	dray_list_for_each(&o->list, b, struct mailbox, link)
		reserve(m, b);
	free_unread(m);
}

static void send_letters(struct mailboxes *m, struct mailbox_owner *o)
{
	struct letter *l;

	while (o->n_sent < SENT_MAX && (l = dray_list_first(&o->letters, struct letter, link))) {
		dray_list_move(&o->sent, &l->link);
		o->n_sent++;
		m->deps.up->send(*m->deps.sessions, o->session, dray_take(l->packet));
	}
}

void mailboxes_handle_sent(struct mailboxes *m, struct mailbox_owner *o)
{
	struct letter *l = dray_list_first(&o->sent, struct letter, link);
	struct mailbox *b;

	dray_assert(l);
	b = l->mailbox;
	o->n_sent--;
	letter_end(m, l);
	send_letters(m, o);
	check_closed(m, b);
}

/* The letter as the event for its reader. */
static struct packet *packet_of(const struct mailbox *b, const struct mailbox_sender *from,
				struct dray_blob payload)
{
	uint32_t cap = DMSG_HEADER_SIZE + DMSG_LETTER_MIN + payload.n;
	struct packet *p = packet_new(cap, 0);
	struct dmsg_letter event = { .mailbox = b->handle,
				     .incarnation = from->incarnation,
				     .uid = from->uid,
				     .gid = from->gid,
				     .payload = payload };
	int n;

	if (!p)
		return NULL;
	memcpy(event.agent_id, from->agent_id, sizeof(event.agent_id));
	n = dmsg_letter_encode(p->data, cap, 0, &event);
	dray_assert(n > 0);
	p->length = (uint32_t)n;
	p->report = PACKET_REPORT_LETTER;
	return p;
}

/* Takes the letter's places of its sender and its owner; it must be freed by letter_end(). */
static struct letter *letter_new(struct mailboxes *m, struct mailbox *b,
				 const struct mailbox_sender *from, struct packet *packet,
				 uint64_t bytes)
{
	struct letter *l = calloc(1, sizeof(*l));

	if (!l)
		return NULL;
	l->mailbox = b;
	l->bytes = bytes;
	l->agent = share_take(&m->shares, share_of_agent(b->handle, from->agent_id), 1);
	l->sender =
		share_take(&m->shares, share_of_sender(b->handle, from->agent_id, from->uid), 1);
	l->owner = share_take(&m->shares, share_of_owner(b->tenant, b->uid), bytes);
	b->letters++;
	b->bytes += bytes;
	m->totals.letters++;
	m->totals.bytes += bytes;
	dray_list_init(&l->link);
	if (!l->agent || !l->sender || !l->owner) {
		letter_end(m, l);
		return NULL;
	}
	l->packet = packet;
	return l;
}

/* 0, or -ENOSPC with reterr: the mailbox, a share of it, or the memory for letters is full. */
static int check_room(const struct mailboxes *m, const struct mailbox *b,
		      const struct mailbox_sender *from, uint64_t bytes, struct dray_err *reterr)
{
	uint64_t free = b->capacity - b->letters;
	uint64_t agent = share_held(&m->shares, share_of_agent(b->handle, from->agent_id));
	uint64_t sender =
		share_held(&m->shares, share_of_sender(b->handle, from->agent_id, from->uid));
	uint64_t memory = (uint64_t)m->deps.cfg->limits.letter_bytes;
	uint64_t owner = share_held(&m->shares, share_of_owner(b->tenant, b->uid));

	if (!dray_share_fits(free, agent, 1) ||
	    !dray_share_fits(free - dray_min(agent, free), sender, 1))
		return dray_err_set(reterr, -ENOSPC, DRAY_E_MAILBOX_FULL,
				    "mailbox %s has %" PRIu32 " of %" PRIu32 " letters, %" PRIu64
				    " of this agent and %" PRIu64
				    " of this uid; post again when its owner has read some",
				    b->name, b->letters, b->capacity, agent, sender);
	if (!dray_share_fits(memory - dray_min(m->totals.bytes, memory), owner, bytes))
		return dray_err_set(reterr, -ENOSPC, DRAY_E_MAILBOX_FULL,
				    "letters of all mailboxes have %" PRIu64 " bytes, %" PRIu64
				    " of them in those of uid %u (limits.letter_bytes = %" PRIu64
				    "); post again when their owners have read some",
				    m->totals.bytes, owner, b->uid, memory);
	return 0;
}

static int deliver(struct mailboxes *m, struct mailbox *b, const struct mailbox_sender *from,
		   struct dray_blob payload, struct dray_err *reterr)
{
	uint64_t bytes = sizeof(struct letter) + sizeof(struct packet) + DMSG_HEADER_SIZE +
			 DMSG_LETTER_MIN + payload.n;
	int r = check_room(m, b, from, bytes, reterr);
	struct packet *p;
	struct letter *l;

	if (r < 0) {
		b->refused++;
		return r;
	}
	p = packet_of(b, from, payload);
	l = p ? letter_new(m, b, from, p, bytes) : NULL;
	if (!l) {
		packet_free(p);
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a letter");
	}
	b->delivered++;
	dray_list_add(&b->owner->letters, &l->link);
	send_letters(m, b->owner);
	return 0;
}

int mailbox_deliver(struct mailboxes *m, const struct mailbox_sender *from, struct dray_str name,
		    struct dray_blob payload, struct dray_err *reterr)
{
	struct name_key key = name_key(from->tenant, name);
	struct mailbox *b = find_name(m, &key);
	int r;

	if (!b || !b->owner)
		r = dray_err_set(
			reterr, -ENOENT, DRAY_E_NOT_FOUND,
			"no mailbox %.*s is open at this agent for tenant %.*s%s; its owner must open it first",
			(int)name.n, name.p, (int)from->tenant.n, from->tenant.p,
			b ? ": its session has ended" : "");
	else
		r = deliver(m, b, from, payload, reterr);
	m->totals.delivered += r >= 0;
	m->totals.refused += r < 0;
	return r;
}

/* --- for operators ------------------------------------------------------------------------------------ */

static void describe(const struct mailbox *b, int64_t now,
		     void (*fn)(void *arg, const struct dray_dbus_mailbox *b), void *arg)
{
	fn(arg, &(struct dray_dbus_mailbox){
			.mailbox = b->handle,
			.name = b->name,
			.tenant = b->tenant,
			.session = b->owner ? b->owner->session : 0,
			.uid = b->uid,
			.gid = b->gid,
			.state = !b->owner  ? "reserved" :
				 b->closing ? "closing" :
					      "open",
			.letters = b->letters,
			.capacity = b->capacity,
			.bytes = b->bytes,
			.delivered = b->delivered,
			.refused = b->refused,
			.age_ns = dray_span(now - b->since_ns),
		});
}

void mailboxes_each(struct mailboxes *m, void (*fn)(void *arg, const struct dray_dbus_mailbox *b),
		    void *arg)
{
	int64_t now = dray_now().ns;

	purge(m, now);
	dray_list_for_each(&m->open, b, struct mailbox, all)
		describe(b, now, fn, arg);
	dray_list_for_each(&m->reserved, r, struct mailbox, all)
		describe(r, now, fn, arg);
}

struct mailboxes_totals mailboxes_totals(const struct mailboxes *m)
{
	struct mailboxes_totals t = m->totals;

	t.open = m->handles.count;
	return t;
}
