/* SPDX-License-Identifier: Apache-2.0 */
/* The peer module: connections, imports, fences, notifications, streams, drain and stop. */
#include "tests/unit/peer_rig.h"

static sd_event *loop(void)
{
	sd_event *e;

	assert_true(sd_event_new(&e) >= 0);
	return e;
}

static void test_import(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = rig_start(e, 2, 20);
	struct rig_import i;
	uint8_t zero[STREAM_KEY_SIZE] = { 0 };
	char text[DRAY_ADDR_TEXT_MAX];

	rig_connect(a, b, &i);
	assert_int_equal(i.length, 4096);
	assert_int_equal(i.access, DMSG_ACCESS_READ);
	assert_int_not_equal(i.grant, 0);
	assert_int_equal(rig_ready(a), 1);
	assert_int_equal(rig_ready(b), 1);
	/* both sides have the same link */
	assert_int_equal(a->ups, 1);
	assert_int_equal(b->ups, 1);
	assert_int_equal(a->link->peer, i.peer);
	assert_memory_equal(a->link->stream_key, b->link->stream_key, STREAM_KEY_SIZE);
	assert_memory_not_equal(a->link->stream_key, zero, STREAM_KEY_SIZE);
	assert_string_equal(dray_addr_show(&a->link->addr, text, sizeof(text)),
			    peers_segment(b->peers));
	assert_string_equal(dray_addr_show(&b->link->addr, text, sizeof(text)),
			    peers_segment(a->peers));
	assert_int_equal(b->link->peer_incarnation, 10);
	assert_memory_equal(b->link->peer_agent_id, a->agent_id, 16);
	assert_true(a->changed > 0);
	rig_kill(a);
	rig_kill(b);
}

static void test_imports_share_a_connection(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = rig_start(e, 2, 20);
	struct rig_import i[20];

	for (unsigned k = 0; k < 20; k++)
		rig_start_import(a, b, &i[k]);
	for (unsigned k = 0; k < 20; k++) {
		assert_true(rig_until(e, i[k].done));
		assert_int_equal(i[k].err.code, 0);
		assert_int_equal(i[k].peer, i[0].peer);
	}
	assert_int_equal(a->ups, 1);
	assert_int_equal(rig_count(a), 1);
	/* an import in the other direction */
	rig_connect(b, a, &i[0]);
	assert_int_equal(b->ups, 1);
	rig_kill(a);
	rig_kill(b);
}

static void test_refused_by_owner(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = rig_start(e, 2, 20);
	struct pmsg_token t = rig_token(b);
	struct rig_import i;

	t.token_id = 666;
	assert_int_equal(rig_import_token(a, &t, peers_segment(b->peers), RIG_DEADLINE, &i), 0);
	assert_true(rig_until(e, i.done));
	assert_int_equal(i.err.code, DRAY_E_TOKEN_INVALID);
	assert_string_equal(i.err.msg, "no such token");
	assert_int_equal(rig_ready(a), 1);
	rig_kill(a);
	rig_kill(b);
}

static void test_bad_tokens(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = rig_start(e, 2, 20);
	struct rig_import i;
	struct pmsg_token t = rig_token(b);

	assert_true(rig_import_token(a, &t, "no segment", RIG_DEADLINE, &i) < 0);
	assert_int_equal(i.err.code, DRAY_E_TOKEN_INVALID);
	assert_true(rig_import_token(a, &t, "[fe80::1]:7411", RIG_DEADLINE, &i) < 0);
	assert_int_equal(i.err.code, DRAY_E_TOKEN_INVALID);
	assert_true(rig_import_token(a, &t, "some.host.example:7411", RIG_DEADLINE, &i) < 0);
	assert_int_equal(i.err.code, DRAY_E_PEER_UNREACHABLE);
	assert_non_null(strstr(i.err.msg, "names are not resolved"));
	/* without a key, any host beyond loopback could answer */
	assert_true(rig_import_token(a, &t, "192.0.2.1:7411", RIG_DEADLINE, &i) < 0);
	assert_int_equal(i.err.code, DRAY_E_PEER_DENIED);
	t = rig_token(a);
	assert_true(rig_import_token(a, &t, peers_segment(a->peers), RIG_DEADLINE, &i) < 0);
	assert_int_equal(i.err.code, DRAY_E_INVALID);
	assert_int_equal(rig_count(a), 0);
	rig_kill(a);
	rig_kill(b);
}

static void test_localhost(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = rig_start(e, 2, 20);
	struct pmsg_token t = rig_token(b);
	struct rig_import i;
	char segment[64];

	snprintf(segment, sizeof(segment), "localhost%s", strchr(peers_segment(b->peers), ':'));
	assert_int_equal(rig_import_token(a, &t, segment, RIG_DEADLINE, &i), 0);
	assert_true(rig_until(e, i.done));
	assert_int_equal(i.err.code, 0);
	rig_kill(a);
	rig_kill(b);
}

static void test_no_listener(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = rig_start(e, 2, 20);
	struct pmsg_token t = rig_token(b);
	char segment[64];
	struct rig_import i;
	int64_t began = rig_now();

	snprintf(segment, sizeof(segment), "%s", peers_segment(b->peers));
	rig_kill(b);
	assert_int_equal(rig_import_token(a, &t, segment, 200, &i), 0);
	assert_true(rig_until(e, i.done));
	assert_int_equal(i.err.code, DRAY_E_PEER_UNREACHABLE);
	/* a client must not find out what listens there */
	assert_null(strstr(i.err.msg, "refused"));
	assert_true(i.at_ns - began >= 200 * MS);
	rig_in_time(i.at_ns - began < 400 * MS);
	/* no activity remains */
	assert_true(rig_until(e, rig_count(a) == 0));
	rig_kill(a);
}

/*
 * The address of the owner refuses connections. An import without a limit of its own ends after one attempt, and other
 * imports keep trying. The back-off is so long that none but the attempts of the former can succeed.
 */
static void test_refused_connection(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_new(e, 1, 10), *b = rig_start(e, 2, 20);
	struct pmsg_token t = rig_token(b);
	char segment[64], *listen[] = { segment };
	struct rig_import patient, before, i;

	a->cfg.peer.backoff_min = a->cfg.peer.backoff_max = 1000000 * MS;
	rig_started(a);
	snprintf(segment, sizeof(segment), "%s", peers_segment(b->peers));
	rig_kill(b);
	assert_int_equal(rig_import_token(a, &t, segment, 0, &i), 0);
	assert_true(rig_until(e, i.done));
	assert_int_equal(i.err.code, DRAY_E_PEER_UNREACHABLE);
	assert_non_null(strstr(i.err.msg, segment));
	/* a client must not find out what listens there */
	assert_null(strstr(i.err.msg, "refused"));
	assert_true(rig_until(e, rig_count(a) == 0));

	assert_int_equal(rig_import_token(a, &t, segment, RIG_DEADLINE, &patient), 0);
	/* ends before the default limit */
	assert_int_equal(rig_import_token(a, &t, segment, PEER_IMPORT_TIMEOUT_NS / MS / 2, &before),
			 0);
	for (unsigned k = 0; k < 3; k++) {
		assert_int_equal(rig_import_token(a, &t, segment, 0, &i), 0);
		assert_true(rig_until(e, i.done));
		assert_int_equal(i.err.code, DRAY_E_PEER_UNREACHABLE);
		assert_int_equal(before.done + patient.done, 0);
	}
	peer_import_cancel(a->peers, before.id);
	b = rig_new(e, 2, 20);
	b->cfg.peer.listen = (struct dray_strv){ listen, 1 };
	rig_started(b);
	assert_int_equal(rig_import_token(a, &t, segment, 0, &i), 0);
	assert_true(rig_until(e, i.done && patient.done));
	assert_int_equal(i.err.code, 0);
	assert_int_equal(patient.err.code, 0);
	rig_kill(a);
	rig_kill(b);
}

/* An address that accepts the connection and closes it has not refused it: the attempt is repeated. */
static void test_closed_is_not_refused(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10);
	struct pmsg_token t = rig_token(a);
	struct dray_addr addr = { .in = { .sin_family = AF_INET,
					  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) },
				  .len = sizeof(addr.in) };
	char segment[DRAY_ADDR_TEXT_MAX];
	struct rig_import i;
	int taken, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	assert_int_equal(bind(fd, &addr.sa, addr.len), 0);
	assert_int_equal(listen(fd, 4), 0);
	assert_int_equal(getsockname(fd, &addr.sa, &addr.len), 0);
	dray_addr_show(&addr, segment, sizeof(segment));
	t.agent_id[0] ^= 1;
	assert_int_equal(rig_import_token(a, &t, segment, 0, &i), 0);
	for (unsigned k = 0; k < 3; k++) {
		assert_true(rig_until(e, (taken = accept(fd, NULL, NULL)) >= 0));
		assert_int_equal(i.done, 0);
		close(taken);
	}
	/* now it refuses */
	close(fd);
	assert_true(rig_until(e, i.done));
	assert_int_equal(i.err.code, DRAY_E_PEER_UNREACHABLE);
	/* a client must not find out what listens there */
	assert_null(strstr(i.err.msg, "refused"));
	rig_kill(a);
}

static void test_owner_starts_late(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = rig_start(e, 2, 20);
	struct pmsg_token t = rig_token(b);
	char segment[64], *listen[] = { segment };
	struct rig_import i;

	snprintf(segment, sizeof(segment), "%s", peers_segment(b->peers));
	rig_kill(b);
	assert_int_equal(rig_import_token(a, &t, segment, RIG_DEADLINE, &i), 0);
	rig_for(e, 100);
	assert_int_equal(i.done, 0);
	b = rig_new(e, 2, 20);
	b->cfg.peer.listen = (struct dray_strv){ listen, 1 };
	rig_started(b);
	assert_true(rig_until(e, i.done));
	assert_int_equal(i.err.code, 0);
	rig_kill(a);
	rig_kill(b);
}

static void test_cancel(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = rig_start(e, 2, 20);
	struct rig_import i, j;

	/* before anything was sent */
	rig_start_import(a, b, &i);
	peer_import_cancel(a->peers, i.id);
	assert_true(rig_until(e, rig_count(a) == 0));
	assert_int_equal(i.done, 0);
	/* while the answer is on its way: the grant is released */
	rig_connect(a, b, &j);
	rig_start_import(a, b, &i);
	peer_import_cancel(a->peers, i.id);
	assert_true(rig_until(e, b->released == 1));
	assert_int_equal(i.done, 0);
	assert_int_equal(b->released_grant, 2);
	/* an import that has ended cannot be cancelled */
	peer_import_cancel(a->peers, j.id);
	peer_import_cancel(a->peers, 12345);
	rig_kill(a);
	rig_kill(b);
}

static void test_release(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = rig_start(e, 2, 20);
	struct rig_import i;

	rig_connect(a, b, &i);
	peer_release(a->peers, i.peer, i.grant, PMSG_RELEASE_HOW_USED);
	peer_release(a->peers, i.peer, i.grant, PMSG_RELEASE_HOW_USED);
	peer_release(a->peers, 4711, i.grant, PMSG_RELEASE_HOW_USED);
	assert_true(rig_until(e, b->released));
	rig_for(e, 50);
	assert_int_equal(b->released, 1);
	assert_int_equal(b->released_grant, i.grant);
	rig_kill(a);
	rig_kill(b);
}

/* --- fences --------------------------------------------------------------------------------------- */

static void test_fence(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = rig_start(e, 2, 20);
	struct rig_import i;

	rig_connect(a, b, &i);
	a->answer_fences = false;
	peers_fence(b->peers, b->link->peer, i.grant, DRAY_E_REVOKED);
	assert_int_equal(b->fenced, 0);
	assert_true(rig_until(e, a->fences_seen));
	assert_int_equal(a->fence_grant, i.grant);
	rig_for(e, 30);
	assert_int_equal(b->fenced, 0);
	peers_fence_ack(a->peers, a->fenced_peer, i.grant);
	assert_true(rig_until(e, b->fenced));
	assert_int_equal(b->fenced_grant, i.grant);
	/* a fence for a released grant is acknowledged without a request */
	peers_fence(b->peers, b->link->peer, i.grant, DRAY_E_REVOKED);
	assert_true(rig_until(e, b->fenced == 2));
	assert_int_equal(a->fences_seen, 1);
	/* the connection stays */
	assert_int_equal(rig_ready(b), 1);
	rig_kill(a);
	rig_kill(b);
}

/* That of a lease of a store goes to the module for it, at both ends. */
static void test_fence_of_a_store(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = rig_start(e, 2, 20);
	struct rig_import i;

	rig_connect(a, b, &i);
	peers_fence(b->peers, b->link->peer, RIG_STORED, DRAY_E_REVOKED);
	assert_true(rig_until(e, a->store_fences));
	rig_for(e, 30);
	assert_int_equal(b->store_fenced, 0);
	assert_int_equal(a->fences_seen, 0);
	peers_fence_ack(a->peers, a->store_fence_peer, RIG_STORED);
	assert_true(rig_until(e, b->store_fenced));
	assert_int_equal(b->fenced, 0);
	rig_kill(a);
	rig_kill(b);
}

/* A release that crosses a fence counts as its acknowledgement. */
static void test_fence_and_release(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = rig_start(e, 2, 20);
	struct rig_import i;

	rig_connect(a, b, &i);
	a->answer_fences = false;
	peers_fence(b->peers, b->link->peer, i.grant, DRAY_E_REVOKED);
	assert_true(rig_until(e, a->fences_seen));
	peer_release(a->peers, i.peer, i.grant, PMSG_RELEASE_HOW_USED);
	assert_true(rig_until(e, b->fenced && b->released));
	rig_kill(a);
	rig_kill(b);
}

static void test_fence_times_out(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start_prompt(e, 1, 10), *b = rig_start_prompt(e, 2, 20);
	struct rig_import i;
	dray_handle peer;
	int64_t began;

	rig_connect(a, b, &i);
	a->answer_fences = false;
	peer = b->link->peer;
	began = rig_now();
	peers_fence(b->peers, peer, i.grant, DRAY_E_REVOKED);
	assert_true(rig_until(e, b->lost));
	assert_true(rig_now() - began >= 150 * MS);
	rig_in_time(rig_now() - began < 300 * MS);
	assert_int_equal(b->lost_peer, peer);
	assert_int_equal(b->lost_code, DRAY_E_PEER_LOST);
	assert_int_equal(b->gone, 1);
	assert_true(rig_until(e, a->lost));
	/* a fence for a peer that is gone */
	peers_fence(b->peers, peer, 77, DRAY_E_REVOKED);
	assert_int_equal(b->fenced, 1);
	assert_int_equal(b->fenced_grant, 77);
	rig_kill(a);
	rig_kill(b);
}

/* --- notifications -------------------------------------------------------------------------------- */

struct answer {
	unsigned done;
	uint32_t code;
};

static void answered(void *arg, uint32_t code, const union pmsg_body *reply)
{
	struct answer *n = arg;

	n->done++;
	n->code = code;
}

static int notify(struct rig *rig, dray_handle peer, uint64_t grant, uint64_t tag, const char *text,
		  struct answer *n, struct dray_err *err)
{
	*n = (struct answer){ 0 };
	*err = DRAY_ERR_NULL;
	return peer_notify(rig->peers, peer,
			   &(struct pmsg_notify){
				   .grant = grant,
				   .id = tag + 1000,
				   .tag = tag,
				   .payload = { (const uint8_t *)text, (uint32_t)strlen(text) } },
			   answered, n, err);
}

static void test_notify(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = rig_start(e, 2, 20);
	static uint8_t large[5000];
	struct dray_err err;
	struct rig_import i;
	struct answer n;

	rig_connect(a, b, &i);
	assert_int_equal(notify(a, i.peer, i.grant, 5, "blocks are there", &n, &err), 0);
	assert_int_equal(n.done, 0);
	assert_true(rig_until(e, n.done));
	assert_int_equal(n.code, 0);
	assert_int_equal(b->notified, 1);
	assert_int_equal(b->notify_tag, 5);
	assert_string_equal(b->notify_payload, "blocks are there");

	b->notify_answer = DRAY_E_NOTIFY_REFUSED;
	assert_int_equal(notify(a, i.peer, i.grant, 6, "", &n, &err), 0);
	assert_true(rig_until(e, n.done));
	assert_int_equal(n.code, DRAY_E_NOTIFY_REFUSED);

	/* an unknown grant, an unknown peer, a payload that is too large */
	assert_int_equal(notify(a, i.peer, 999, 7, "", &n, &err), 0);
	assert_true(rig_until(e, n.done));
	assert_int_equal(n.code, DRAY_E_REVOKED);
	assert_true(notify(a, 4711, i.grant, 7, "", &n, &err) < 0);
	assert_int_equal(err.code, DRAY_E_PEER_LOST);
	assert_true(peer_notify(a->peers, i.peer,
				&(struct pmsg_notify){ i.grant, 1, 1, { large, sizeof(large) } },
				answered, &n, &err) < 0);
	rig_kill(a);
	rig_kill(b);
}

static void test_many_notifications(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = rig_start(e, 2, 20);
	static uint8_t payload[4096];
	unsigned sent = 0, refused = 0;
	struct answer n = { 0 };
	struct dray_err err;
	struct rig_import i;

	rig_connect(a, b, &i);
	for (unsigned k = 0; k < 3000; k++) {
		err = DRAY_ERR_NULL;
		if (peer_notify(a->peers, i.peer,
				&(struct pmsg_notify){ i.grant, k, k, { payload, sizeof(payload) } },
				answered, &n, &err) == 0)
			sent++;
		else
			refused += err.code == DRAY_E_BUSY;
	}
	/* the limit gives a typed error, and accepted notifications arrive */
	assert_true(refused > 0 && sent + refused == 3000);
	assert_true(rig_until(e, n.done == sent));
	assert_int_equal(b->notified, sent);
	assert_int_equal(n.code, 0);
	rig_kill(a);
	rig_kill(b);
}

static void test_notify_lost(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = rig_start(e, 2, 20);
	struct dray_err err;
	struct rig_import i;
	struct answer n;

	rig_connect(a, b, &i);
	assert_int_equal(notify(a, i.peer, i.grant, 5, "x", &n, &err), 0);
	rig_kill(b);
	assert_true(rig_until(e, n.done));
	assert_int_equal(n.done, 1);
	assert_int_equal(n.code, DRAY_E_PEER_LOST);
	assert_int_equal(a->lost, 1);
	rig_kill(a);
}

/* --- drain and stop ------------------------------------------------------------------------------- */

static void first_state(void *arg, const struct dray_dbus_peer *info)
{
	const char **ret = arg;

	assert_int_equal(strlen(info->agent_id), info->incarnation ? 32 : 0);
	*ret = info->state;
}

static const char *state_of(struct rig *rig)
{
	const char *s = "none";

	peers_each(rig->peers, first_state, &s);
	return s;
}

static void test_drain(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = rig_start(e, 2, 20), *c = rig_start(e, 3, 30);
	struct rig_import i;

	rig_connect(a, b, &i);
	peers_drain(b->peers, 1000);
	assert_true(rig_until(e, !strcmp(state_of(a), "draining")));
	rig_start_import(a, b, &i);
	assert_true(rig_until(e, i.done));
	assert_int_equal(i.err.code, DRAY_E_DRAINING);
	/* a peer that connects now is notified at once */
	rig_start_import(c, b, &i);
	assert_true(rig_until(e, i.done));
	assert_int_equal(i.err.code, DRAY_E_DRAINING);
	assert_string_equal(state_of(c), "draining");
	peers_resume(b->peers);
	assert_true(rig_until(e, !strcmp(state_of(a), "ready") && !strcmp(state_of(c), "ready")));
	rig_connect(a, b, &i);
	rig_kill(a);
	rig_kill(b);
	rig_kill(c);
}

/* A peer that repeats that it drains: nothing happens again. */
static void test_drain_repeated(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10);
	struct puppet p;

	puppet_join(&p, a, 7, 70);
	for (unsigned k = 0; k < 3; k++)
		puppet_say(&p, draining, 0, { 1000 });
	puppet_say(&p, bye, 0, { DRAY_OK });
	assert_true(rig_until(e, a->lost));
	assert_int_equal(a->draining, 1);
	puppet_end(&p);
	rig_kill(a);
}

static void count(void *arg)
{
	(*(unsigned *)arg)++;
}

static void test_stop(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = rig_start(e, 2, 20), *c = rig_start(e, 3, 30);
	struct pmsg_token t = rig_token(c);
	struct rig_import i, j, k;
	unsigned stopped = 0;
	char segment[64];

	rig_connect(a, b, &i);
	/* a peer whose connection is not established yet */
	snprintf(segment, sizeof(segment), "%s", peers_segment(c->peers));
	rig_kill(c);
	assert_int_equal(rig_import_token(a, &t, segment, RIG_DEADLINE, &j), 0);
	a->hold_downs = true;
	peers_stop(a->peers, count, &stopped);
	assert_int_equal(a->lost, 0);
	assert_true(rig_until(e, a->lost && j.done));
	assert_int_not_equal(j.err.code, 0);
	assert_true(rig_until(e, b->lost));
	assert_int_equal(b->lost_code, DRAY_E_PEER_LOST);
	assert_int_equal(b->gone, 1);
	rig_for(e, 50);
	/* not before the workers have released the links */
	assert_int_equal(stopped, 0);
	a->hold_downs = false;
	sd_event_source_set_enabled(a->downs_event, SD_EVENT_ONESHOT);
	assert_true(rig_until(e, stopped));
	rig_for(e, 20);
	assert_int_equal(stopped, 1);
	t = rig_token(b);
	assert_true(rig_import_token(a, &t, peers_segment(b->peers), RIG_DEADLINE, &k) < 0);
	rig_kill(a);
	rig_kill(b);
}

static void test_idle(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_new(e, 1, 10), *b = rig_start(e, 2, 20);
	struct rig_import i;

	a->cfg.peer.idle_timeout = 200 * MS;
	rig_started(a);
	rig_connect(a, b, &i);
	rig_for(e, 500);
	assert_int_equal(rig_ready(a), 1);
	/* the peer uses the store of this agent alone */
	a->store_used = true;
	peer_release(a->peers, i.peer, i.grant, PMSG_RELEASE_HOW_USED);
	rig_for(e, 500);
	assert_int_equal(rig_ready(a), 1);
	a->store_used = false;
	assert_true(rig_until(e, rig_count(a) == 0 && rig_count(b) == 0));
	/* this is not a loss, and the peer connects again when needed */
	assert_int_equal(peers_totals(a->peers).lost, 0);
	assert_int_equal(peers_totals(b->peers).lost, 0);
	rig_connect(a, b, &i);
	rig_kill(a);
	rig_kill(b);
}

/* An import crosses the BYE of an idle owner: it is sent again over a new connection. */
static void test_import_crosses_bye(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = rig_start(e, 2, 20);
	struct rig_import i;

	rig_connect(a, b, &i);
	rig_start_import(a, b, &i);
	dray_list_for_each(&b->peers->all, peer, struct peer, all_link)
		peer_event_why(peer, PEER_EVENT_CLOSE, dray_err_of(DRAY_OK, "not in use"));
	assert_true(rig_until(e, i.done));
	assert_int_equal(i.err.code, 0);
	assert_int_equal(a->lost, 1);
	assert_int_equal(a->ups, 2);
	rig_kill(a);
	rig_kill(b);
}

/* The workers keep a closed peer under its index until they release the link; a new peer must not get that index. */
static void test_index_is_not_reused_before_release(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = rig_start(e, 2, 20);
	struct rig_import i, again, last;

	rig_connect(a, b, &i);
	a->hold_downs = true;
	dray_list_for_each(&b->peers->all, peer, struct peer, all_link)
		peer_event_why(peer, PEER_EVENT_CLOSE, dray_err_of(DRAY_E_PEER_LOST, "lost"));
	assert_true(rig_until(e, a->lost == 1));
	rig_connect(a, b, &again);
	assert_int_not_equal(dray_handle_index(again.peer), dray_handle_index(i.peer));
	a->hold_downs = false;
	sd_event_source_set_enabled(a->downs_event, SD_EVENT_ONESHOT);
	assert_true(rig_until(e, a->downs_done == 1));
	dray_list_for_each(&b->peers->all, other, struct peer, all_link)
		peer_event_why(other, PEER_EVENT_CLOSE, dray_err_of(DRAY_E_PEER_LOST, "lost"));
	assert_true(rig_until(e, a->downs_done == 2));
	rig_for(e, 20);
	rig_connect(a, b, &last);
	assert_true(dray_handle_index(last.peer) <= dray_handle_index(again.peer));
	rig_kill(a);
	rig_kill(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_import),
		cmocka_unit_test(test_imports_share_a_connection),
		cmocka_unit_test(test_refused_by_owner),
		cmocka_unit_test(test_bad_tokens),
		cmocka_unit_test(test_localhost),
		rig_timed_test(test_no_listener),
		cmocka_unit_test(test_refused_connection),
		cmocka_unit_test(test_closed_is_not_refused),
		cmocka_unit_test(test_owner_starts_late),
		cmocka_unit_test(test_cancel),
		cmocka_unit_test(test_release),
		cmocka_unit_test(test_fence),
		cmocka_unit_test(test_fence_of_a_store),
		cmocka_unit_test(test_fence_and_release),
		rig_timed_test(test_fence_times_out),
		cmocka_unit_test(test_notify),
		cmocka_unit_test(test_many_notifications),
		cmocka_unit_test(test_notify_lost),
		cmocka_unit_test(test_drain),
		cmocka_unit_test(test_drain_repeated),
		cmocka_unit_test(test_stop),
		cmocka_unit_test(test_idle),
		cmocka_unit_test(test_import_crosses_bye),
		cmocka_unit_test(test_index_is_not_reused_before_release),
	};

	dray_log_setup(getenv("DRAY_TEST_LOG") ? DRAY_LOG_DEBUG : DRAY_LOG_ERROR,
		       DRAY_LOG_FORMAT_TEXT);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
