/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The preferred segment of a node survives the agent, whichever change of the database the agent is
 * killed at.
 */
#include "agent/placement/segment/internal.h"

#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/probe_server.h"

#define LIMIT_MS 20000
#define CHANGES_MAX 64

/* --- a database of one segment, which records every version of its content ------------------------- */

struct content {
	char preferred[128];
	char name[128], probe[16], target[PROBE_TARGET_TEXT_MAX], sources[64], reason[256];
	struct state_segment segment; /* its strings are above; name NULL: no row */
};

static struct content contents[CHANGES_MAX];
static unsigned n_contents;

static struct content *change(void)
{
	struct content *c = &contents[n_contents];

	assert_true(n_contents < CHANGES_MAX);
	*c = n_contents ? c[-1] : (struct content){ .preferred = "" };
	n_contents++;
	return c;
}

static void save_segment(const struct state_segment *row)
{
	struct content *c = change();

	c->segment = *row;
	snprintf(c->name, sizeof(c->name), "%s", row->name);
	snprintf(c->probe, sizeof(c->probe), "%s", row->probe);
	snprintf(c->target, sizeof(c->target), "%s", row->target);
	snprintf(c->sources, sizeof(c->sources), "%s", row->sources);
	snprintf(c->reason, sizeof(c->reason), "%s", row->reason);
}

void state_change(struct state *s, enum state_kind kind, bool drop, const union state_row *row)
{
	if (kind == STATE_PREFERRED)
		snprintf(change()->preferred, sizeof(contents->preferred), "%s",
			 row->preferred.name);
	else if (kind == STATE_SEGMENT && drop)
		change()->segment.name = NULL;
	else if (kind == STATE_SEGMENT)
		save_segment(&row->segment);
}

void state_info(struct state *s, struct state_info *ret)
{
	*ret = (struct state_info){ .in_memory = true };
}

bool state_has_unread(struct state *s)
{
	return false;
}

/* --- the number of segments that were ranked, by --wrap ------------------------------------------- */

static size_t n_ranked;

int __real_preferred_rank(const struct preferred_facts *f, struct candidate **ret, size_t *ret_n);
int __wrap_preferred_rank(const struct preferred_facts *f, struct candidate **ret, size_t *ret_n);

int __wrap_preferred_rank(const struct preferred_facts *f, struct candidate **ret, size_t *ret_n)
{
	n_ranked = f->n_segments;
	return __real_preferred_rank(f, ret, ret_n);
}

/* --- how often it was asked whether a segment may go, by --wrap ----------------------------------- */

static unsigned n_examined;

bool __real_segment_may_go(const struct segment *s);
bool __wrap_segment_may_go(const struct segment *s);

bool __wrap_segment_may_go(const struct segment *s)
{
	n_examined++;
	return __real_segment_may_go(s);
}

/* --- an agent ------------------------------------------------------------------------------------- */

/* The placement part of an agent. */
struct agent {
	sd_event *event;
	struct dray_config cfg;
	struct hints *hints;
	struct segments *segments;
	enum dmsg_segment_state seen; /* the last state that was reported */
};

/*
 * The owner of the segment outlives the agents. Its loop never runs, and the kernel accepts
 * connections.
 */
static struct server owner;
static char port[32], automatic[] = "auto", no_agent[] = "", tenant[] = "default";
static char *ports[] = { port };

static void on_changed(void *arg, const struct segment_info *s, enum dmsg_segment_state old)
{
	((struct agent *)arg)->seen = s->state;
}

static void on_preferred(void *arg, const char *old, const char *now, const struct segment_info *s,
			 const char *reason)
{
	assert_string_not_equal(old, now);
}

static const struct segments_upcalls upcalls = { .changed = on_changed, .preferred = on_preferred };

static void configure(struct dray_config *cfg)
{
	cfg->segment.preferred = automatic;
	cfg->store.put_at = no_agent;
	cfg->data.tenant = tenant;
	cfg->segment.ports = (struct dray_strv){ .v = ports, .n = 1 };
	cfg->segment.expiry = 3600 * DRAY_NS_PER_SEC;
	cfg->probe.interval = 10 * DRAY_NS_PER_SEC;
	cfg->probe.timeout = LIMIT_MS * MS;
	cfg->probe.rise = 2;
	cfg->probe.fall = 3;
	cfg->probe.backoff_min = MS;
	cfg->probe.backoff_max = MS;
	cfg->probe.concurrency = 4;
	cfg->limits.segments = 64;
	cfg->limits.hints = 64;
	cfg->limits.hints_per_owner = 64;
	cfg->hint.ttl = 3600 * DRAY_NS_PER_SEC;
}

static void restore(struct agent *a, const struct content *c)
{
	struct state_segment row = c->segment;

	segments_restore_preferred(
		a->segments, &(struct state_preferred){ .name = c->preferred,
							.preference = DMSG_PREFERENCE_DETECTED });
	if (!row.name)
		return;
	row.name = c->name;
	row.probe = c->probe;
	row.target = c->target;
	row.sources = c->sources;
	row.reason = c->reason;
	segments_restore(a->segments, &row);
}

/* Starts an agent, until the addresses of the node are known. */
static void agent_open(struct agent *a, const struct content *found)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct nd_links links = { .n_links = 0 };

	memset(a, 0, sizeof(*a));
	configure(&a->cfg);
	a->event = server_loop();
	assert_int_equal(hints_new(&a->hints,
				   &(struct hints_deps){ .event = a->event, .cfg = &a->cfg }, &err),
			 0);
	assert_int_equal(segments_new(&a->segments,
				      &(struct segments_deps){ .event = a->event,
							       .cfg = &a->cfg,
							       .own_segment = "",
							       .hints = a->hints,
							       .up = &upcalls,
							       .arg = a },
				      &err),
			 0);
	assert_int_equal(segments_start(a->segments, &err), 0);
	restore(a, found);
	segments_links_changed(a->segments, &links, "");
}

static void agent_finds(struct agent *a, const struct server *v, enum nd_listener_match match)
{
	struct nd_listener *l = calloc(1, sizeof(*l));

	assert_non_null(l);
	l->family = AF_INET;
	l->port = ntohs(v->addr.in.sin_port);
	l->match = match;
	l->addr.s6_addr[10] = l->addr.s6_addr[11] = 0xff;
	memcpy(&l->addr.s6_addr[12], &v->addr.in.sin_addr, 4);
	segments_listeners_changed(a->segments, &(struct nd_listeners){ .v = l, .n = 1 });
}

static void agent_finds_listener(struct agent *a)
{
	agent_finds(a, &owner, ND_MATCH_LOOPBACK);
}

static const char *agent_preferred(struct agent *a, struct preferred *p)
{
	segments_preferred(a->segments, "", NULL, p);
	return p->name;
}

static void agent_close(struct agent *a)
{
	a->segments = segments_free(a->segments);
	a->hints = hints_free(a->hints);
	a->event = sd_event_unref(a->event);
}

/* Starts an agent on an empty database, until it has found the segment ready. */
static void agent_open_first(struct agent *a)
{
	agent_open(a, &(struct content){ .preferred = "" });
	agent_finds_listener(a);
	assert_true(server_until(a->event, LIMIT_MS, a->seen == DMSG_SEGMENT_STATE_READY));
}

static int set_up(void **state)
{
	n_contents = 0;
	server_init(&owner, server_loop(), "127.0.0.1:0");
	snprintf(port, sizeof(port), "%u", ntohs(owner.addr.in.sin_port));
	return 0;
}

static int tear_down(void **state)
{
	server_deinit(&owner);
	owner.event = sd_event_unref(owner.event);
	return 0;
}

/* --- tests ---------------------------------------------------------------------------------------- */

static void assert_known_after_restart(const struct content *found)
{
	struct preferred p;
	struct agent a;

	agent_open(&a, found);
	assert_string_equal(agent_preferred(&a, &p), owner.where);
	assert_int_equal(p.preference, DMSG_PREFERENCE_DETECTED);
	assert_true(p.flags & DMSG_SEGMENT_FLAG_UNVERIFIED);
	agent_close(&a);
}

/* The decision about the preferred segment is still pending then. */
static void test_stopped_as_soon_as_ready(void **state)
{
	struct agent a;

	agent_open_first(&a);
	agent_close(&a);
	for (unsigned restarts = 0; restarts < 3; restarts++)
		assert_known_after_restart(&contents[n_contents - 1]);
}

static void test_killed_at_any_change(void **state)
{
	unsigned n, ready = 0;
	struct preferred p;
	struct agent a;

	agent_open_first(&a);
	assert_true(server_until(a.event, LIMIT_MS,
				 n_contents && contents[n_contents - 1].segment.name &&
					 *contents[n_contents - 1].preferred));
	assert_string_equal(agent_preferred(&a, &p), owner.where);
	agent_close(&a);
	n = n_contents;
	for (unsigned i = 0; i < n; i++) {
		if (!contents[i].segment.name ||
		    contents[i].segment.state != DMSG_SEGMENT_STATE_READY)
			continue;
		ready++;
		assert_known_after_restart(&contents[i]);
	}
	assert_true(ready);
}

/* PUTs go to agents with stores, whatever segments there are. */
static void test_no_store(void **state)
{
	struct preferred p;
	struct agent a;

	agent_open_first(&a);
	segments_preferred(a.segments, "store:kv", NULL, &p);
	assert_string_equal(p.name, "");
	assert_non_null(strstr(p.reason, "has no store"));
	agent_close(&a);
}

/* A client of another tenant names the segment, for a scope of its own. */
static const struct hint_owner other = { "other", 4242 };

static void give_hint_as(struct agent *a, const struct hint_owner *by, const char *scope,
			 const char *segment)
{
	struct dray_err err = DRAY_ERR_NULL;

	assert_int_equal(hints_put(a->hints,
				   &(struct hint_put){ .scope = scope,
						       .segment = segment,
						       .source = DMSG_HINT_SOURCE_CLIENT,
						       .uid = by->uid,
						       .tenant = by->tenant },
				   &err),
			 0);
	segments_hint_changed(a->segments, segment, by, true);
}

static void give_hint(struct agent *a, const char *scope, const char *segment)
{
	give_hint_as(a, &other, scope, segment);
}

static bool is_known(struct agent *a, const char *name)
{
	struct segment_info info;

	return segments_find(a->segments, name, &info);
}

/* The hints of one client leave room for segments of other sources. */
static void test_hints_leave_room(void **state)
{
	struct segments_totals totals;
	struct segment_info info;
	struct agent a;
	char name[32];

	agent_open(&a, &(struct content){ .preferred = "" });
	for (unsigned i = 0; i < 64; i++) {
		snprintf(name, sizeof(name), "192.0.2.%u:1", i);
		give_hint(&a, name, name);
	}
	segments_totals(a.segments, &totals);
	/* half of the half that hints have */
	assert_int_equal(totals.known, 16);
	for (unsigned i = 0; i < 16; i++) {
		snprintf(name, sizeof(name), "10.9.9.%u:1", i);
		segments_peer_changed(a.segments, name, true);
		assert_true(segments_find(a.segments, name, &info));
		assert_string_equal(info.sources, "peer");
	}
	/* they take up no more of what the others leave now */
	segments_peer_changed(a.segments, "192.0.2.0:1", true);
	assert_true(segments_find(a.segments, "192.0.2.0:1", &info));
	assert_string_equal(info.sources, "peer,hint");
	segments_hint_changed(a.segments, "192.0.2.63:1", &other, true);
	assert_false(segments_find(a.segments, "192.0.2.63:1", &info));
	agent_close(&a);
}

/* And for hints of other owners, who can name the same segments. */
static void test_hints_of_owners_leave_room(void **state)
{
	static const struct hint_owner second = { "other", 7 }, third = { "third", 4242 };
	struct agent a;
	char name[32];

	agent_open(&a, &(struct content){ .preferred = "" });
	a.cfg.limits.hints = a.cfg.limits.hints_per_owner = 256;
	for (unsigned i = 0; i < 64; i++) {
		snprintf(name, sizeof(name), "192.0.2.%u:1", i);
		give_hint(&a, name, name);
		assert_int_equal(is_known(&a, name), i < 16);
	}
	/* what the first owner has no room for, the second one has, up to half of the rest */
	for (unsigned i = 0; i < 64; i++) {
		snprintf(name, sizeof(name), "192.0.2.%u:1", i);
		give_hint_as(&a, &second, name, name);
		assert_int_equal(is_known(&a, name), i < 16 + 8);
	}
	give_hint_as(&a, &third, "third", "192.0.2.64:1");
	assert_true(is_known(&a, "192.0.2.64:1"));
	/* the first owner's hints go; the second one's still name the segments, and are charged for them now */
	for (unsigned i = 0; i < 64; i++) {
		snprintf(name, sizeof(name), "192.0.2.%u:1", i);
		assert_true(hints_forget_client(a.hints, name, &other));
		segments_hint_changed(a.segments, name, &other, false);
		assert_int_equal(is_known(&a, name), i < 16 + 8);
	}
	give_hint_as(&a, &second, "more", "192.0.2.65:1");
	assert_false(is_known(&a, "192.0.2.65:1"));
	give_hint(&a, "more", "192.0.2.66:1");
	assert_true(is_known(&a, "192.0.2.66:1"));
	agent_close(&a);
}

/* A hint that found no room is remembered until there is some. */
static void test_hints_wait_for_room(void **state)
{
	struct segment_info info;
	struct agent a;
	char name[32];

	agent_open(&a, &(struct content){ .preferred = "" });
	for (unsigned i = 0; i < 17; i++) {
		snprintf(name, sizeof(name), "192.0.2.%u:1", i);
		give_hint(&a, name, name);
	}
	assert_false(segments_find(a.segments, name, &info));
	a.cfg.segment.expiry = 0;
	assert_int_equal(hints_forget(a.hints, "192.0.2.7:1", NULL, false), 1);
	segments_hint_changed(a.segments, "192.0.2.7:1", &other, false);
	assert_true(sd_event_source_set_time(a.segments->sweep, 0) >= 0);
	assert_true(server_until(a.event, LIMIT_MS, segments_find(a.segments, name, &info)));
	assert_string_equal(info.sources, "hint");
	assert_false(segments_find(a.segments, "192.0.2.7:1", &info));
	agent_close(&a);
}

/* Of the names NETWORK.0.1 to NETWORK.0.n, from number `first` on. */
static char **names_make(const char *network, unsigned first, unsigned n)
{
	char **v = calloc(n, sizeof(*v)), name[32];

	assert_non_null(v);
	for (unsigned i = 0; i < n; i++) {
		snprintf(name, sizeof(name), "%s.%u.%u:1", network, (first + i) / 250,
			 (first + i) % 250 + 1);
		v[i] = strdup(name);
		assert_non_null(v[i]);
	}
	return v;
}

static void names_free(char **v, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		free(v[i]);
	free(v);
}

/* Above the limit each one costs the same, however many there are that have to stay; one that need not goes first. */
static void test_many_above_the_limit(void **state)
{
	enum { N = 1000 };
	char **v = names_make("198.18", 0, N);
	struct segments_totals totals;
	struct agent a;

	agent_open(&a, &(struct content){ .preferred = "" });
	give_hint(&a, "model", "192.0.2.1:1");
	a.cfg.segment.known = (struct dray_strv){ .v = v, .n = N };
	n_examined = 0;
	segments_reload(a.segments);
	segments_totals(a.segments, &totals);
	assert_int_equal(totals.known, N + 1);
	assert_true(n_examined < 16 * N);
	/* nor does one that a hint names make room */
	assert_true(is_known(&a, "192.0.2.1:1"));
	/* those that the configuration does not name any more make room */
	names_free(v, N);
	v = names_make("198.18", N, 1);
	a.cfg.segment.known = (struct dray_strv){ .v = v, .n = 1 };
	segments_reload(a.segments);
	segments_totals(a.segments, &totals);
	assert_int_equal(totals.known, N + 2);
	names_free(v, 1);
	v = names_make("198.18", N + 1, 1);
	a.cfg.segment.known.v = v;
	segments_reload(a.segments);
	segments_totals(a.segments, &totals);
	assert_int_equal(totals.known, N + 2);
	assert_false(is_known(&a, "198.18.0.1:1"));
	names_free(v, 1);
	agent_close(&a);
}

/* However many segments hints name, the choice examines those that can be chosen. */
static void test_hints_for_other_scopes_cost_nothing(void **state)
{
	struct preferred p;
	size_t before = 0;
	struct agent a;
	char name[32];

	agent_open_first(&a);
	a.cfg.limits.segments = a.cfg.limits.hints = a.cfg.limits.hints_per_owner = 2048;
	for (unsigned i = 0; i < 400; i++) {
		/* on this node, and elsewhere */
		snprintf(name, sizeof(name), "%s.2.%u:1", i % 2 ? "127.0" : "192.0", i / 2 + 1);
		give_hint(&a, name, name);
		if (i == 16)
			assert_string_equal(agent_preferred(&a, &p), owner.where);
		if (i == 16)
			before = n_ranked;
	}
	assert_string_equal(agent_preferred(&a, &p), owner.where);
	assert_int_equal(n_ranked, before);
	assert_true(n_ranked < 16);
	/* the hints of the scope that is asked for are examined */
	segments_preferred(a.segments, name, &other, &p);
	assert_string_equal(p.name, name);
	assert_int_equal(n_ranked, before + 1);
	agent_close(&a);
}

/* A segment of this node that only a hint names is preferred by those who see the hint, for its scope. */
static void test_hint_chooses_for_its_owner_only(void **state)
{
	struct preferred p;
	struct agent a;

	agent_open(&a, &(struct content){ .preferred = "" });
	give_hint(&a, "model", owner.where);
	assert_true(server_until(a.event, LIMIT_MS, a.seen == DMSG_SEGMENT_STATE_READY));
	assert_string_equal(agent_preferred(&a, &p), "");
	segments_preferred(a.segments, "model", &other, &p);
	assert_string_equal(p.name, owner.where);
	assert_int_equal(p.preference, DMSG_PREFERENCE_HINT);
	segments_preferred(a.segments, "model", &(struct hint_owner){ "another", other.uid }, &p);
	assert_string_equal(p.name, "");
	agent_close(&a);
}

/* A listener that has no room for further connections: attempts to connect wait. */
static int full_listener(struct dray_addr *addr, int clients[static 2])
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_int_equal(dray_addr_parse("0.0.0.0:0", addr), 0);
	assert_int_equal(bind(fd, &addr->sa, addr->len), 0);
	assert_int_equal(listen(fd, 0), 0);
	assert_int_equal(getsockname(fd, &addr->sa, &addr->len), 0);
	for (unsigned i = 0; i < 2; i++) {
		clients[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		(void)connect(clients[i], &addr->sa, addr->len);
	}
	return fd;
}

/* Until the first one is probed. */
static void give_dead_hints(struct agent *a, const struct dray_addr *addr)
{
	struct segments_totals totals;
	char name[32];

	for (unsigned i = 1; i <= 8; i++) {
		snprintf(name, sizeof(name), "127.0.1.%u:%u", i, dray_addr_port(addr));
		give_hint(a, name, name);
	}
	assert_true(server_until(a->event, LIMIT_MS,
				 (segments_totals(a->segments, &totals), totals.probes_in_flight)));
}

/* Segment owner.where becomes ready beside hints that name what does not answer. name_it: says so. */
static void ready_beside_dead_hints(void (*name_it)(struct agent *a))
{
	struct dray_addr addr;
	int clients[2], fd = full_listener(&addr, clients);
	struct agent a;

	agent_open(&a, &(struct content){ .preferred = "" });
	a.cfg.probe.concurrency = 2;
	give_dead_hints(&a, &addr);
	name_it(&a);
	assert_true(server_until(a.event, LIMIT_MS, a.seen == DMSG_SEGMENT_STATE_READY));
	agent_close(&a);
	close(clients[0]);
	close(clients[1]);
	close(fd);
}

/* They leave places for probes of other segments. */
static void test_dead_hints_delay_no_listener(void **state)
{
	ready_beside_dead_hints(agent_finds_listener);
}

static void give_administrators_hint(struct agent *a)
{
	struct dray_err err = DRAY_ERR_NULL;

	assert_int_equal(hints_put(a->hints,
				   &(struct hint_put){ .scope = "",
						       .segment = owner.where,
						       .source = DMSG_HINT_SOURCE_EXPLICIT },
				   &err),
			 0);
	segments_hint_changed(a->segments, owner.where, &(struct hint_owner){ "", 0 }, true);
}

/* The segment that an administrator's hint makes the preferred one of the node is no less important than others. */
static void test_dead_hints_delay_no_preferred(void **state)
{
	ready_beside_dead_hints(give_administrators_hint);
}

/* A listener on all addresses is no segment under the name that a hint gives it, but says how that name is probed. */
static void test_hint_names_no_listener(void **state)
{
	struct segment_info info;
	struct server wild;
	struct agent a;
	char target[64];

	server_init(&wild, owner.event, "0.0.0.0:0");
	snprintf(port, sizeof(port), "%u:1", ntohs(wild.addr.in.sin_port));
	snprintf(target, sizeof(target), "tcp://127.0.0.1:%u", ntohs(wild.addr.in.sin_port));
	agent_open(&a, &(struct content){ .preferred = "" });
	give_hint(&a, "model", "127.0.0.10:1");
	agent_finds(&a, &wild, ND_MATCH_WILDCARD);
	assert_true(segments_find(a.segments, "127.0.0.10:1", &info));
	assert_string_equal(info.sources, "hint");
	assert_string_equal(info.target, target);
	assert_true(segments_find(a.segments, "127.0.0.1:1", &info));
	assert_string_equal(info.sources, "listener");
	assert_string_equal(info.target, target);
	agent_close(&a);
	server_deinit(&wild);
}

static void until_state(struct agent *a, const char *name, enum dmsg_segment_state state)
{
	struct segment_info info;

	assert_true(server_until(a->event, LIMIT_MS,
				 (assert_true(segments_find(a->segments, name, &info)),
				  info.state == state)));
}

/* The same for a hint that is given when the listener is known. */
static void test_hint_finds_its_listener(void **state)
{
	/* where the name of a host is this node is known later */
	static const char name[] = "127.0.0.10:1", host[] = "localhost:1";
	struct preferred p;
	struct server wild;
	struct agent a;

	server_init(&wild, owner.event, "0.0.0.0:0");
	snprintf(port, sizeof(port), "%u:1", ntohs(wild.addr.in.sin_port));
	agent_open(&a, &(struct content){ .preferred = "" });
	a.cfg.probe.interval = a.cfg.probe.backoff_max = 3600 * DRAY_NS_PER_SEC;
	a.cfg.probe.backoff_min = a.cfg.probe.backoff_max;
	a.cfg.probe.rise = a.cfg.probe.fall = 1;
	agent_finds(&a, &wild, ND_MATCH_WILDCARD);
	/* after the decision that looks at listeners again, because one is ready */
	assert_true(server_until(a.event, LIMIT_MS,
				 a.segments->decided_ns && !a.segments->renamed &&
					 !strcmp(agent_preferred(&a, &p), "127.0.0.1:1")));
	give_hint(&a, "model", name);
	give_hint(&a, "other", host);
	until_state(&a, name, DMSG_SEGMENT_STATE_READY);
	until_state(&a, host, DMSG_SEGMENT_STATE_READY);
	/* it follows it, too */
	server_shut(&wild);
	segments_listeners_changed(a.segments, &(struct nd_listeners){ .n = 0 });
	until_state(&a, name, DMSG_SEGMENT_STATE_LOST);
	until_state(&a, host, DMSG_SEGMENT_STATE_LOST);
	agent_close(&a);
	server_deinit(&wild);
}

/* What a hint names is probed as its listener is, and at once when that closes or opens. */
static void test_hint_follows_its_listener(void **state)
{
	static const char name[] = "127.0.0.10:1";
	struct segment_info info;
	struct server wild;
	struct agent a;
	char target[64];

	server_init(&wild, owner.event, "0.0.0.0:0");
	snprintf(port, sizeof(port), "%u:1", ntohs(wild.addr.in.sin_port));
	agent_open(&a, &(struct content){ .preferred = "" });
	a.cfg.probe.interval = a.cfg.probe.backoff_max = 3600 * DRAY_NS_PER_SEC;
	a.cfg.probe.backoff_min = a.cfg.probe.backoff_max;
	a.cfg.probe.rise = a.cfg.probe.fall = 1;
	give_hint(&a, "model", name);
	agent_finds(&a, &wild, ND_MATCH_WILDCARD);
	until_state(&a, name, DMSG_SEGMENT_STATE_READY);
	server_shut(&wild);
	segments_listeners_changed(a.segments, &(struct nd_listeners){ .n = 0 });
	until_state(&a, name, DMSG_SEGMENT_STATE_LOST);
	server_open(&wild);
	agent_finds(&a, &wild, ND_MATCH_WILDCARD);
	until_state(&a, name, DMSG_SEGMENT_STATE_READY);
	snprintf(port, sizeof(port), "%u:1 mooncake", ntohs(wild.addr.in.sin_port));
	segments_reload(a.segments);
	assert_true(segments_find(a.segments, name, &info));
	assert_string_equal(info.sources, "hint");
	snprintf(target, sizeof(target), "mooncake://127.0.0.1:%u", ntohs(wild.addr.in.sin_port));
	assert_string_equal(info.target, target);
	agent_close(&a);
	server_deinit(&wild);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_stopped_as_soon_as_ready, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_killed_at_any_change, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_no_store, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_hint_chooses_for_its_owner_only, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(test_hints_leave_room, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_hints_of_owners_leave_room, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_hints_wait_for_room, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_hint_names_no_listener, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_hint_follows_its_listener, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_hint_finds_its_listener, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_dead_hints_delay_no_listener, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(test_dead_hints_delay_no_preferred, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(test_many_above_the_limit, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_hints_for_other_scopes_cost_nothing, set_up,
						tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
