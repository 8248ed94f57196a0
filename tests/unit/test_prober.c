/* SPDX-License-Identifier: Apache-2.0 */
/* Many targets over time: states, limits, fairness, and callbacks that free their own target. */
#include "tests/unit/probe_server.h"

#include <sys/resource.h>
#include <unistd.h>

#include "agent/placement/probe/prober.h"

#define STATE(name) DMSG_SEGMENT_STATE_##name

struct lab;

struct owner {
	struct lab *l;
	struct watch *w;
	unsigned changes, probed;
	enum dmsg_segment_state states[16]; /* states in the order of their changes */
	char reason[DRAY_ERR_MSG_MAX];      /* of the last change */
	bool free_self;                     /* frees itself at the next change */
	bool free_when_probed;
	struct owner *free_other;
};

struct lab {
	sd_event *event;
	struct dray_config cfg;
	struct prober *p;
	struct server v;
	struct owner owners[64];
	unsigned most_in_flight;
};

static void changed(struct owner *o, enum dmsg_segment_state old, const struct probe_fsm *f)
{
	assert_int_equal(old, o->changes ? o->states[o->changes - 1] : old);
	assert_true(o->changes < DRAY_ARRAY_SIZE(o->states));
	o->states[o->changes++] = f->state;
	assert_true(*f->reason);
	snprintf(o->reason, sizeof(o->reason), "%s", f->reason);
	if (o->free_other)
		o->free_other->w = watch_free(o->free_other->w);
	if (o->free_self)
		o->w = watch_free(o->w);
}

static void probed(void *arg, void *owner, enum dmsg_segment_state old, const struct probe_fsm *f)
{
	struct owner *o = owner;
	struct lab *l = arg;
	bool ended = !f->in_flight;

	assert_ptr_equal(l, o->l);
	assert_true(ended || f->state != old);
	if (ended) {
		o->probed++;
		l->most_in_flight = dray_max(l->most_in_flight, prober_totals(l->p)->in_flight + 1);
	}
	if (f->state != old)
		changed(o, old, f);
	if (ended && o->free_when_probed)
		o->w = watch_free(o->w);
}

static void lab_start(struct lab *l)
{
	struct prober_deps deps = { .cfg = &l->cfg, .probed = probed, .arg = l };
	struct dray_err err = DRAY_ERR_NULL;

	memset(l, 0, sizeof(*l));
	l->event = deps.event = server_loop();
	l->cfg.probe.interval = 40 * MS;
	l->cfg.probe.timeout = 2000 * MS;
	l->cfg.probe.rise = 2;
	l->cfg.probe.fall = 3;
	l->cfg.probe.backoff_min = 5 * MS;
	l->cfg.probe.backoff_max = 20 * MS;
	l->cfg.probe.concurrency = 32;
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(l->owners); i++)
		l->owners[i].l = l;
	assert_int_equal(prober_new(&l->p, &deps, &err), 0);
	server_init(&l->v, l->event, "127.0.0.1:0");
}

static void lab_stop(struct lab *l)
{
	prober_free(l->p);
	server_deinit(&l->v);
	sd_event_unref(l->event);
}

static struct owner *watch(struct lab *l, unsigned i, const char *kind, const char *where)
{
	struct dray_err err = DRAY_ERR_NULL;
	char text[PROBE_TARGET_TEXT_MAX];
	struct probe_target t;

	snprintf(text, sizeof(text), "%s://%s", kind, where);
	assert_int_equal(probe_target_parse(text, &t, &err), 0);
	assert_int_equal(
		prober_watch(l->p, &t, STATE(UNKNOWN), &l->owners[i], &l->owners[i].w, &err), 0);
	assert_true(probe_target_equal(watch_target(l->owners[i].w), &t));
	/* no callback runs inside the call */
	assert_int_equal(l->owners[i].changes, 0);
	return &l->owners[i];
}

static struct probe_fsm info(const struct owner *o)
{
	return *watch_state(o->w);
}

#define until(l, cond) assert_true(server_until((l)->event, 20000, cond))

/* --- states --------------------------------------------------------------------------------------- */

static void test_opens_late(void **state)
{
	struct probe_fsm i;
	struct owner *o;
	struct lab l;

	lab_start(&l);
	server_shut(&l.v);
	o = watch(&l, 0, "tcp", l.v.where);
	i = info(o);
	assert_int_equal(i.state, STATE(UNKNOWN));
	assert_string_equal(i.reason, "");
	until(&l, o->probed == 8);
	i = info(o);
	assert_int_equal(i.state, STATE(PROBING));
	assert_says(i.reason, "refused");
	assert_int_equal(i.failed, 8);
	assert_int_equal(i.latency_ns, 0);
	assert_false(i.verified);
	assert_int_equal(o->changes, 1);
	server_open(&l.v);
	until(&l, o->changes == 2);
	i = info(o);
	assert_int_equal(i.state, STATE(READY));
	assert_true(i.verified && i.latency_ns > 0 && i.next_ns < INT64_MAX);
	assert_string_equal(o->reason, "it accepts connections");
	lab_stop(&l);
}

static void test_flaps(void **state)
{
	struct prober_totals t;
	struct owner *o;
	struct lab l;
	unsigned n;

	lab_start(&l);
	o = watch(&l, 0, "tcp", l.v.where);
	until(&l, o->changes == 2);
	/* fewer failures than probe.fall change nothing */
	l.cfg.probe.fall = 50;
	server_shut(&l.v);
	until(&l, info(o).failed >= 3);
	server_open(&l.v);
	n = o->probed;
	until(&l, o->probed >= n + 3);
	assert_int_equal(o->changes, 2);
	l.cfg.probe.fall = 3;
	for (unsigned round = 0; round < 3; round++) {
		server_shut(&l.v);
		until(&l, o->changes == 3 + 2 * round);
		assert_int_equal(o->states[2 + 2 * round], STATE(LOST));
		assert_says(o->reason, "refused");
		n = l.v.accepted;
		server_open(&l.v);
		until(&l, o->changes == 4 + 2 * round);
		assert_int_equal(o->states[3 + 2 * round], STATE(READY));
		/* one success was not enough */
		assert_true(info(o).probes - info(o).failed >= 2);
	}
	t = *prober_totals(l.p);
	assert_int_equal(t.probes, info(o).probes);
	assert_int_equal(t.failures, info(o).failed);
	assert_int_equal(t.watches, 1);
	lab_stop(&l);
}

static void test_never_answers(void **state)
{
	struct owner *o;
	struct lab l;

	lab_start(&l);
	l.cfg.probe.timeout = 20 * MS;
	o = watch(&l, 0, "mooncake", l.v.where);
	until(&l, o->probed == 3);
	assert_int_equal(info(o).state, STATE(PROBING));
	assert_says(info(o).reason, "no reply within");
	assert_true(l.v.most_open == 1);
	lab_stop(&l);
}

static void test_garbage_and_resets(void **state)
{
	struct owner *o;
	struct lab l;

	lab_start(&l);
	l.v.say = "HTTP/1.1 400 Bad Request\r\n\r\n";
	l.v.n_say = 28;
	o = watch(&l, 0, "mooncake", l.v.where);
	until(&l, o->probed == 3);
	assert_says(info(o).reason, "no Mooncake descriptor");
	l.v.resets = true;
	until(&l, o->probed == 6);
	assert_int_equal(o->changes, 1);
	lab_stop(&l);
}

static void test_known(void **state)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct probe_target t;
	struct owner *o;
	struct lab l;

	lab_start(&l);
	o = &l.owners[0];
	assert_int_equal(probe_target_of(l.v.where, PROBE_TCP, &t, &err), 0);
	assert_int_equal(prober_watch(l.p, &t, STATE(READY), o, &o->w, &err), 0);
	assert_int_equal(info(o).state, STATE(READY));
	assert_false(info(o).verified);
	until(&l, o->probed == 1);
	assert_true(info(o).verified);
	assert_int_equal(o->changes, 0);
	lab_stop(&l);
}

static void test_fails_at_once(void **state)
{
	struct owner *o;
	struct lab l;

	/* without a resolver, a probe of a name fails inside probe_start() */
	lab_start(&l);
	for (unsigned i = 0; i < 64; i++)
		watch(&l, i, "tcp", "some.name.example:5");
	o = &l.owners[63];
	until(&l, o->probed == 3);
	assert_int_equal(info(o).state, STATE(PROBING));
	assert_says(info(o).reason, "names are not resolved");
	/* a watch that its own callback frees */
	o->free_when_probed = true;
	l.owners[7].free_other = &l.owners[8];
	l.owners[7].free_when_probed = true;
	until(&l, !o->w && !l.owners[7].w);
	lab_stop(&l);
}

/* What the agent lacks says nothing of the target, which stays ready. */
static void test_no_descriptors(void **state)
{
	struct rlimit before, none;
	struct prober_totals t;
	struct owner *o;
	struct lab l;
	unsigned n;

	lab_start(&l);
	o = watch(&l, 0, "tcp", l.v.where);
	until(&l, o->changes == 2);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	none = (struct rlimit){ .rlim_cur = 3, .rlim_max = before.rlim_max };
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	n = o->probed;
	until(&l, o->probed >= n + 8);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	assert_says(info(o).reason, "Too many open files");
	assert_int_equal(info(o).state, STATE(READY));
	assert_int_equal(info(o).failed, 0);
	t = *prober_totals(l.p);
	assert_int_equal(t.failures, 0);
	assert_int_equal(t.in_flight, 0);
	n = l.v.accepted;
	until(&l, l.v.accepted > n && !info(o).in_flight);
	assert_string_equal(info(o).reason, "it accepts connections");
	assert_int_equal(o->changes, 2);
	lab_stop(&l);
}

/* --- limits --------------------------------------------------------------------------------------- */

/* Watches of one port at many addresses, which accept connections and stay silent. */
static void watch_many(struct lab *l, unsigned n)
{
	char where[64];

	server_shut(&l->v);
	assert_int_equal(dray_addr_parse("0.0.0.0:0", &l->v.addr), 0);
	server_open(&l->v);
	for (unsigned i = 0; i < n; i++) {
		snprintf(where, sizeof(where), "127.0.1.%u:%u", i + 1, dray_addr_port(&l->v.addr));
		watch(l, i, "mooncake", where);
	}
}

static void test_concurrency(void **state)
{
	struct prober_totals t;
	struct lab l;

	lab_start(&l);
	l.cfg.probe.timeout = 10 * MS;
	l.cfg.probe.concurrency = 4;
	watch_many(&l, 40);
	/* every target gets its turn, though there is never room for all that are due */
	for (unsigned i = 0; i < 40; i++)
		until(&l, l.owners[i].probed >= 4);
	for (unsigned i = 0; i < 40; i++)
		assert_true(l.owners[i].probed <= 9);
	assert_int_equal(l.most_in_flight, 4);
	/* a new limit applies to later probes */
	l.cfg.probe.concurrency = 9;
	until(&l, l.most_in_flight == 9);
	l.cfg.probe.concurrency = 2;
	until(&l, (t = *prober_totals(l.p), t.in_flight <= 2));
	l.most_in_flight = l.owners[20].probed = 0;
	until(&l, l.owners[20].probed > 1);
	assert_int_equal(l.most_in_flight, 2);
	lab_stop(&l);
}

static void test_one_of_each_host(void **state)
{
	struct lab l;

	lab_start(&l);
	l.cfg.probe.timeout = 10 * MS;
	for (unsigned i = 0; i < 5; i++)
		watch(&l, i, i == 4 ? "tcp" : "mooncake", l.v.where);
	for (unsigned i = 0; i < 5; i++)
		until(&l, l.owners[i].probed >= 3);
	assert_int_equal(l.most_in_flight, 1);
	/* frees the watches that wait for the host, and the one in flight */
	for (unsigned i = 0; i < 4; i++)
		l.owners[i].w = watch_free(l.owners[i].w);
	l.owners[4].probed = 0;
	until(&l, l.owners[4].probed >= 3);
	lab_stop(&l);
}

/* The next of a host is freed before its probe begins. */
static void test_next_of_host_goes(void **state)
{
	struct lab l;

	lab_start(&l);
	for (unsigned i = 0; i < 3; i++)
		watch(&l, i, "mooncake", l.v.where);
	until(&l, l.v.open == 1);
	/* its probe ends, and the next one is freed in the same turn */
	l.owners[0].w = watch_free(l.owners[0].w);
	l.owners[1].w = watch_free(l.owners[1].w);
	until(&l, l.v.accepted == 2);
	assert_true(info(&l.owners[2]).in_flight);
	lab_stop(&l);
}

static void test_silent_hosts_delay_no_others(void **state)
{
	struct server good;
	struct owner *o;
	struct lab l;

	lab_start(&l);
	l.cfg.probe.timeout = 600000 * MS;
	server_init(&good, l.event, "127.0.0.1:0");
	watch_many(&l, 20);
	until(&l, l.v.open == 20);
	o = watch(&l, 20, "tcp", good.where);
	until(&l, o->probed >= 5);
	assert_int_equal(info(o).failed, 0);
	server_deinit(&good);
	lab_stop(&l);
}

/* Minor watches of silent hosts hold half of the places. */
static void test_minor_ones_leave_places(void **state)
{
	struct server good;
	struct owner *o;
	struct lab l;

	lab_start(&l);
	l.cfg.probe.timeout = 600000 * MS;
	l.cfg.probe.concurrency = 2;
	server_init(&good, l.event, "127.0.0.1:0");
	watch_many(&l, 20);
	for (unsigned i = 0; i < 20; i++)
		watch_set_minor(l.owners[i].w, true);
	until(&l, l.v.open == 1);
	o = watch(&l, 20, "tcp", good.where);
	until(&l, o->probed >= 5);
	assert_int_equal(info(o).failed, 0);
	assert_int_equal(l.v.accepted, 1);
	/* one that is not minor any more takes the other place, or frees its own */
	watch_set_minor(l.owners[0].w, false);
	watch_set_minor(l.owners[1].w, false);
	until(&l, l.v.open == 2);
	assert_int_equal(prober_totals(l.p)->in_flight, 2);
	for (unsigned i = 0; i < 20; i++)
		l.owners[i].w = watch_free(l.owners[i].w);
	o->probed = 0;
	until(&l, o->probed >= 1);
	server_deinit(&good);
	lab_stop(&l);
}

/* Of one host, those that are not minor go first. */
static void test_minor_ones_of_a_host_wait(void **state)
{
	struct owner *o;
	struct lab l;

	lab_start(&l);
	l.cfg.probe.timeout = 600000 * MS;
	for (unsigned i = 0; i < 6; i++) {
		watch(&l, i, "mooncake", l.v.where);
		watch_set_minor(l.owners[i].w, true);
	}
	until(&l, l.v.open == 1);
	/* one is in flight, and the others are in the queue */
	watch_set_minor(l.owners[5].w, false);
	watch(&l, 6, "mooncake", l.v.where);
	for (unsigned n = 0; n < 3; n++) {
		o = &l.owners[(unsigned[]){ 0, 5, 6 }[n]];
		until(&l, info(o).in_flight);
		/* the next of the host is minor when its probe ends, and not later */
		if (n == 1)
			watch_set_minor(l.owners[6].w, true);
		o->w = watch_free(o->w);
		if (n == 1)
			watch_set_minor(l.owners[6].w, false);
	}
	lab_stop(&l);
}

/* --- when ----------------------------------------------------------------------------------------- */

static void test_now(void **state)
{
	struct owner *o;
	struct lab l;

	lab_start(&l);
	l.cfg.probe.interval = 3600000 * MS;
	l.cfg.probe.backoff_min = l.cfg.probe.backoff_max = 3600000 * MS;
	server_shut(&l.v);
	o = watch(&l, 0, "tcp", l.v.where);
	until(&l, o->probed == 1);
	/* the probe sees that the port is open */
	server_open(&l.v);
	watch_now(o->w);
	assert_int_equal(o->probed, 1);
	until(&l, o->probed == 2);
	assert_int_equal(info(o).state, STATE(READY));
	/* the configuration has a shorter interval */
	l.cfg.probe.interval = 20 * MS;
	prober_reconfigured(l.p);
	until(&l, o->probed >= 5);
	lab_stop(&l);
}

static void test_after_a_pause(void **state)
{
	struct timespec pause = { .tv_sec = 1, .tv_nsec = 300 * MS };
	struct prober_totals t, u;
	struct lab l;
	char where[64];

	lab_start(&l);
	l.cfg.probe.interval = 200 * MS;
	server_shut(&l.v);
	assert_int_equal(dray_addr_parse("0.0.0.0:0", &l.v.addr), 0);
	server_open(&l.v);
	for (unsigned i = 0; i < 64; i++) {
		snprintf(where, sizeof(where), "127.0.1.%u:%u", i + 1, dray_addr_port(&l.v.addr));
		watch(&l, i, "tcp", where);
	}
	for (unsigned i = 0; i < 64; i++)
		until(&l, l.owners[i].probed >= 2);
	until(&l, (t = *prober_totals(l.p), t.in_flight == 0));
	/* the process is stopped, and all probes are overdue when it continues */
	assert_int_equal(nanosleep(&pause, NULL), 0);
	/* spread over a time so long that few are due in these turns, even on a busy machine */
	l.cfg.probe.interval = 60000 * MS;
	for (unsigned i = 0; i < 8; i++)
		assert_true(sd_event_run(l.event, 0) >= 0);
	u = *prober_totals(l.p);
	assert_true(u.in_flight + u.probes - t.probes < 16);
	/* postponed, not dropped */
	l.cfg.probe.interval = 200 * MS;
	prober_reconfigured(l.p);
	for (unsigned i = 0; i < 64; i++)
		l.owners[i].probed = 0;
	for (unsigned i = 0; i < 64; i++)
		until(&l, l.owners[i].probed);
	lab_stop(&l);
}

/* --- frees in callbacks --------------------------------------------------------------------------- */

static void test_free_in_callbacks(void **state)
{
	struct prober_totals t;
	struct lab l;

	lab_start(&l);
	for (unsigned i = 0; i < 30; i++) {
		struct owner *o = watch(&l, i, i % 2 ? "tcp" : "mooncake", l.v.where);

		o->free_self = i % 3 == 0;
		o->free_when_probed = i % 3 == 1;
		if (i % 3 == 2)
			o->free_other = &l.owners[i - 1];
	}
	l.cfg.probe.timeout = 10 * MS;
	for (unsigned i = 0; i < 30; i++)
		until(&l, !l.owners[i].w || i % 3 == 2);
	for (unsigned i = 2; i < 30; i += 3)
		until(&l, l.owners[i].probed >= 2);
	t = *prober_totals(l.p);
	assert_int_equal(t.watches, 10);
	for (unsigned i = 2; i < 30; i += 3)
		l.owners[i].w = watch_free(l.owners[i].w);
	t = *prober_totals(l.p);
	assert_int_equal(t.watches, 0);
	assert_int_equal(t.in_flight, 0);
	assert_null(watch_free(NULL));
	until(&l, !l.v.open);
	lab_stop(&l);
}

static void test_end_under_way(void **state)
{
	struct lab l;

	lab_start(&l);
	watch_many(&l, 20);
	until(&l, l.v.open == 20);
	l.p = prober_free(l.p);
	/* every connection is closed, and no callback runs */
	until(&l, !l.v.open);
	for (unsigned i = 0; i < 20; i++)
		assert_int_equal(l.owners[i].probed, 0);
	lab_stop(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_opens_late),
		cmocka_unit_test(test_flaps),
		cmocka_unit_test(test_never_answers),
		cmocka_unit_test(test_garbage_and_resets),
		cmocka_unit_test(test_known),
		cmocka_unit_test(test_fails_at_once),
		cmocka_unit_test(test_no_descriptors),
		cmocka_unit_test(test_concurrency),
		cmocka_unit_test(test_one_of_each_host),
		cmocka_unit_test(test_next_of_host_goes),
		cmocka_unit_test(test_silent_hosts_delay_no_others),
		cmocka_unit_test(test_minor_ones_leave_places),
		cmocka_unit_test(test_minor_ones_of_a_host_wait),
		cmocka_unit_test(test_now),
		cmocka_unit_test(test_after_a_pause),
		cmocka_unit_test(test_free_in_callbacks),
		cmocka_unit_test(test_end_under_way),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
