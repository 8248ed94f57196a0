/* SPDX-License-Identifier: Apache-2.0 */
/* Probes between agents: both sides, over real TLS, and agents whose answers the test chooses. */
#include "tests/unit/peer_rig.h"

#include <fcntl.h>

#include "agent/placement/probe/peer_probe.h"

struct asked {
	unsigned done;
	struct dray_err err;
	struct peer_probe_result r;
	struct peer_probe *probe;
};

static void answered(void *arg, const struct dray_err *err, const struct peer_probe_result *r)
{
	struct asked *a = arg;

	a->done++;
	a->err = *err;
	a->r = *r;
	a->probe = peer_probes.free(a->probe);
}

static int try_ask(struct rig *rig, const char *where, struct asked *a)
{
	struct dray_addr addr;
	int r;

	memset(a, 0, sizeof(*a));
	assert_int_equal(dray_addr_parse(where, &addr), 0);
	r = peer_probes.start(&a->probe, rig->peers, &addr, answered, a, &a->err);
	assert_int_equal(a->done, 0);
	return r;
}

static void ask(struct rig *rig, const char *where, struct asked *a)
{
	if (try_ask(rig, where, a) < 0)
		fail_msg("%s", a->err.msg);
	assert_true(rig_until(rig->event, a->done));
	assert_int_equal(a->done, 1);
	assert_int_equal(rig->peers->n_probes, 0);
}

static sd_event *loop(void)
{
	sd_event *e;

	assert_true(sd_event_new(&e) >= 0);
	return e;
}

/* Checks that nothing of a probe remains, and that neither side has or has lost a peer. */
static void assert_no_trace(struct rig *rig)
{
	assert_true(rig_until(rig->event, !rig->peers->n_incoming));
	assert_int_equal(rig_count(rig), 0);
	assert_int_equal(rig->changed, 0);
	assert_int_equal(rig->ups, 0);
	assert_int_equal(rig->lost, 0);
	assert_int_equal(peers_totals(rig->peers).lost, 0);
	assert_int_equal(peers_totals(rig->peers).incoming_refused, 0);
}

static void test_running(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = rig_start(e, 2, 20);
	struct asked q;

	ask(a, peers_segment(b->peers), &q);
	assert_int_equal(q.err.code, 0);
	assert_true(q.r.known && q.r.told_state && !q.r.self);
	assert_memory_equal(q.r.agent_id, b->agent_id, 16);
	assert_int_equal(q.r.incarnation, 20);
	assert_string_equal(q.r.segment, peers_segment(b->peers));
	assert_string_equal(q.r.version, DRAY_VERSION);
	assert_no_trace(a);
	assert_no_trace(b);
	rig_kill(a);
	rig_kill(b);
}

static void test_beside_a_peer(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = rig_start(e, 2, 20);
	struct rig_import i;
	struct asked q;

	rig_connect(a, b, &i);
	ask(a, peers_segment(b->peers), &q);
	assert_int_equal(q.err.code, 0);
	ask(b, peers_segment(a->peers), &q);
	assert_int_equal(q.err.code, 0);
	/* the existing connection is not affected */
	assert_int_equal(rig_ready(a), 1);
	assert_int_equal(rig_ready(b), 1);
	assert_int_equal(a->ups, 1);
	assert_int_equal(b->lost, 0);
	rig_connect(a, b, &i);
	rig_kill(a);
	rig_kill(b);
}

static void test_draining(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = rig_start(e, 2, 20);
	struct asked q;

	peers_drain(b->peers, 60000);
	ask(a, peers_segment(b->peers), &q);
	assert_int_equal(q.err.code, DRAY_E_DRAINING);
	assert_string_equal(q.err.msg, "draining");
	assert_true(q.r.known && q.r.told_state);
	peers_resume(b->peers);
	ask(a, peers_segment(b->peers), &q);
	assert_int_equal(q.err.code, 0);
	rig_kill(a);
	rig_kill(b);
}

static void test_self(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *twin = rig_start(e, 1, 11);
	struct asked q;

	ask(a, peers_segment(a->peers), &q);
	assert_int_equal(q.err.code, 0);
	assert_true(q.r.self);
	/* another agent with the same id */
	ask(a, peers_segment(twin->peers), &q);
	assert_int_equal(q.err.code, DRAY_E_IDENTITY);
	assert_non_null(strstr(q.err.msg, "state directory"));
	assert_false(q.r.self);
	rig_kill(a);
	rig_kill(twin);
}

static void test_no_listener(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = rig_start(e, 2, 20);
	char segment[64];
	struct asked q;

	snprintf(segment, sizeof(segment), "%s", peers_segment(b->peers));
	rig_kill(b);
	ask(a, segment, &q);
	assert_int_equal(q.err.code, DRAY_E_PEER_UNREACHABLE);
	assert_non_null(strstr(q.err.msg, "refused"));
	assert_false(q.r.known);
	rig_kill(a);
}

static void test_cancel(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10), *b = rig_start(e, 2, 20);
	struct asked q, r;

	/* after each number of turns of the loop, so at every stage */
	for (unsigned turns = 0; turns < 12; turns++) {
		assert_int_equal(try_ask(a, peers_segment(b->peers), &q), 0);
		for (unsigned i = 0; i < turns && !q.done; i++)
			rig_turn(e);
		q.probe = peer_probes.free(q.probe);
		ask(a, peers_segment(b->peers), &r);
		assert_int_equal(r.err.code, 0);
		assert_true(q.done <= 1);
	}
	assert_true(rig_until(e, !b->peers->n_incoming));
	rig_kill(a);
	rig_kill(b);
}

/* --- keys ----------------------------------------------------------------------------------------- */

static void write_key(const char *path, char fill)
{
	char text[33];
	int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	memset(text, fill, 32);
	text[32] = '\n';
	assert_int_equal(write(fd, text, sizeof(text)), sizeof(text));
	close(fd);
}

static struct rig *start_keyed(sd_event *e, uint8_t n, char *key)
{
	struct rig *rig = rig_new(e, n, 10u + n);

	rig->cfg.peer.key_file = key;
	return rig_started(rig);
}

static void test_keys(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	char dir[] = "/tmp/dray-probe-XXXXXX", one[64], other[64];
	struct rig *a, *same, *wrong, *none;
	struct asked q;

	assert_non_null(mkdtemp(dir));
	snprintf(one, sizeof(one), "%s/one", dir);
	snprintf(other, sizeof(other), "%s/other", dir);
	write_key(one, '1');
	write_key(other, '2');
	a = start_keyed(e, 1, one);
	same = start_keyed(e, 2, one);
	wrong = start_keyed(e, 3, other);
	none = rig_start(e, 4, 40);

	ask(a, peers_segment(same->peers), &q);
	assert_int_equal(q.err.code, 0);
	ask(a, peers_segment(wrong->peers), &q);
	assert_int_equal(q.err.code, DRAY_E_PEER_DENIED);
	assert_non_null(strstr(q.err.msg, "both agents need the same peer.key_file"));
	assert_false(q.r.known);
	ask(a, peers_segment(none->peers), &q);
	assert_int_equal(q.err.code, DRAY_E_PEER_DENIED);
	ask(none, peers_segment(a->peers), &q);
	assert_int_equal(q.err.code, DRAY_E_PEER_DENIED);
	/* without a key, an answer from another host would prove nothing */
	assert_int_equal(try_ask(none, "192.0.2.1:7411", &q), -EPERM);
	assert_int_equal(q.err.code, DRAY_E_PEER_DENIED);
	assert_non_null(strstr(q.err.msg, "peer.key_file, or peer.allow_insecure"));

	rig_kill(a);
	rig_kill(same);
	rig_kill(wrong);
	rig_kill(none);
	unlink(one);
	unlink(other);
	rmdir(dir);
}

/* --- agents whose answers the test chooses -------------------------------------------------------- */

/* Listens, and serves one connection by TLS. */
struct host {
	struct tls *tls;
	struct conn *conn;
	sd_event_source *io;
	sd_event *event;
	int fd;
	char where[DRAY_ADDR_TEXT_MAX];
	uint8_t minor;              /* in its HELLO */
	uint8_t major_min;          /* lowest version that it speaks */
	uint64_t other_incarnation; /* in its reply; 0: the same */
	uint16_t answer;            /* type of the answer to PROBE; 0: closes the connection */
	uint16_t probe_state;
	unsigned probes, hellos;
};

#define HOST_ID 9
#define HOST_INCARNATION 90

static void host_secured(struct conn *c)
{
	struct pmsg_hello m = puppet_hello(HOST_ID, HOST_INCARNATION);
	struct host *h = c->owner;
	uint8_t buf[512];
	int n;

	m.major_min = m.major_max = h->major_min;
	n = pmsg_hello_encode(buf, sizeof(buf), 0, &m);
	assert_true(n > 0);
	buf[5] = h->minor;
	conn_send(c, buf, (size_t)n);
}

static void host_say(struct host *h, uint16_t type, uint64_t id)
{
	uint8_t buf[1024];
	int n = 0;

	if (type == PMSG_PROBE_REPLY) {
		struct pmsg_probe_reply m = { .major_min = h->major_min,
					      .major_max = h->major_min,
					      .state = h->probe_state,
					      .incarnation = h->other_incarnation ?
								     h->other_incarnation :
								     HOST_INCARNATION,
					      .segment = { "seg\nment:1", 10 },
					      .version = { "9.9", 3 } };

		m.agent_id[15] = HOST_ID;
		n = pmsg_probe_reply_encode(buf, sizeof(buf), id, &m);
	} else if (type == PMSG_ERROR) {
		struct pmsg_error m = { DRAY_E_UNKNOWN_TYPE, { "what is\nthat?", 13 } };

		n = pmsg_error_encode(buf, sizeof(buf), id, &m);
	} else if (type == PMSG_READY) {
		struct pmsg_ready m = {};

		n = pmsg_ready_encode(buf, sizeof(buf), 0, &m);
	}
	assert_true(n > 0);
	conn_send(h->conn, buf, (size_t)n);
}

static void host_message(struct conn *c, const struct pmsg_header *head, const uint8_t *body)
{
	struct host *h = c->owner;

	h->hellos += head->type == PMSG_HELLO;
	if (head->type != PMSG_PROBE)
		return;
	h->probes++;
	if (h->answer)
		host_say(h, h->answer, head->request_id);
	else
		h->conn = conn_free(h->conn);
}

static void host_failed(struct conn *c, const struct dray_err *why)
{
	struct host *h = c->owner;

	h->conn = conn_free(h->conn);
}

static const struct conn_ops host_ops = {
	.secured = host_secured,
	.message = host_message,
	.failed = host_failed,
};

static int host_accept(sd_event_source *s, int fd, uint32_t revents, void *userdata)
{
	struct host *h = userdata;
	struct dray_err err = DRAY_ERR_NULL;
	int got = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

	assert_true(got >= 0);
	h->conn = conn_free(h->conn);
	assert_int_equal(conn_accept(&h->conn, h->event, h->tls, got, &host_ops, h, &err), 0);
	return 0;
}

static void host_start(struct host *h, sd_event *e)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct dray_addr a;

	*h = (struct host){ .event = e,
			    .minor = PMSG_MINOR,
			    .major_min = PMSG_MAJOR,
			    .answer = PMSG_PROBE_REPLY,
			    .probe_state = PMSG_PROBE_STATE_RUNNING };
	assert_int_equal(tls_new(&h->tls, NULL, NULL, &err), 0);
	assert_int_equal(dray_addr_parse("127.0.0.1:0", &a), 0);
	h->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	assert_true(h->fd >= 0 && bind(h->fd, &a.sa, a.len) == 0 && listen(h->fd, 8) == 0);
	assert_int_equal(getsockname(h->fd, &a.sa, &a.len), 0);
	dray_addr_show(&a, h->where, sizeof(h->where));
	assert_true(sd_event_add_io(e, &h->io, h->fd, EPOLLIN, host_accept, h) >= 0);
}

static void host_stop(struct host *h)
{
	conn_free(h->conn);
	sd_event_source_disable_unref(h->io);
	close(h->fd);
	tls_free(h->tls);
}

static void test_older_release(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10);
	struct host h;
	struct asked q;

	host_start(&h, e);
	for (h.minor = 0; h.minor < 2; h.minor++) {
		ask(a, h.where, &q);
		/* the agent answers, and gets no message that it does not know */
		assert_int_equal(q.err.code, 0);
		assert_true(q.r.known && !q.r.told_state);
		assert_string_equal(q.r.version, "test");
		assert_int_equal(h.probes, 0);
	}
	/* a later release without probes answers with an error */
	h.minor = 77;
	h.answer = PMSG_ERROR;
	ask(a, h.where, &q);
	assert_int_equal(q.err.code, DRAY_E_UNKNOWN_TYPE);
	assert_string_equal(q.err.msg, "the peer refuses: what is?that?");
	assert_int_equal(h.probes, 1);
	/* and our identity was never sent */
	assert_int_equal(h.hellos, 0);
	host_stop(&h);
	rig_kill(a);
}

static void test_invalid_answers(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10);
	struct host h;
	struct asked q;

	host_start(&h, e);
	ask(a, h.where, &q);
	assert_int_equal(q.err.code, 0);
	assert_string_equal(q.r.segment, "seg?ment:1");
	h.probe_state = 3;
	ask(a, h.where, &q);
	assert_int_equal(q.err.code, DRAY_E_UNSUPPORTED);
	h.probe_state = PMSG_PROBE_STATE_RUNNING;
	h.other_incarnation = 91;
	ask(a, h.where, &q);
	assert_int_equal(q.err.code, DRAY_E_PROTOCOL);
	h.other_incarnation = 0;
	h.answer = PMSG_READY;
	ask(a, h.where, &q);
	assert_int_equal(q.err.code, DRAY_E_PROTOCOL);
	assert_non_null(strstr(q.err.msg, "ready"));
	h.answer = 0;
	ask(a, h.where, &q);
	assert_int_equal(q.err.code, DRAY_E_PEER_LOST);
	assert_true(q.r.known);
	h.major_min = PMSG_MAJOR + 1;
	ask(a, h.where, &q);
	assert_int_equal(q.err.code, DRAY_E_VERSION);
	host_stop(&h);
	rig_kill(a);
}

/* --- servers that are not agents ------------------------------------------------------------------ */

struct server {
	const char *says; /* NULL: closes at once */
	int fd, conn;
};

static int server_accept(sd_event_source *s, int fd, uint32_t revents, void *userdata)
{
	struct server *v = userdata;

	dray_close(v->conn);
	v->conn = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	assert_true(v->conn >= 0);
	if (v->says)
		assert_true(send(v->conn, v->says, strlen(v->says), MSG_NOSIGNAL) > 0);
	else
		v->conn = dray_close(v->conn);
	return 0;
}

static void test_no_agent(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *a = rig_start(e, 1, 10);
	struct server v = { .says = "SSH-2.0-OpenSSH_9.2p1\r\n", .conn = -1 };
	char where[DRAY_ADDR_TEXT_MAX];
	sd_event_source *io;
	struct dray_addr addr;
	struct asked q;

	assert_int_equal(dray_addr_parse("127.0.0.1:0", &addr), 0);
	v.fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	assert_true(bind(v.fd, &addr.sa, addr.len) == 0 && listen(v.fd, 8) == 0);
	assert_int_equal(getsockname(v.fd, &addr.sa, &addr.len), 0);
	dray_addr_show(&addr, where, sizeof(where));
	assert_true(sd_event_add_io(e, &io, v.fd, EPOLLIN, server_accept, &v) >= 0);

	ask(a, where, &q);
	assert_int_equal(q.err.code, DRAY_E_PEER_UNREACHABLE);
	assert_non_null(strstr(q.err.msg, "does not speak TLS"));
	v.says = NULL;
	ask(a, where, &q);
	assert_int_equal(q.err.code, DRAY_E_PEER_UNREACHABLE);

	sd_event_source_disable_unref(io);
	dray_close(v.conn);
	dray_close(v.fd);
	rig_kill(a);
}

/* --- violations by the probing side --------------------------------------------------------------- */

static void test_hello_after_probe(void **state)
{
	dray_auto(sd_event_unref) sd_event *e = loop();
	struct rig *b = rig_start(e, 2, 20);
	struct puppet p;

	/* a probe ends the connection: later messages are not read */
	puppet_dial(&p, b);
	puppet_say(&p, probe, 5, {});
	puppet_say_hello(&p, 7, 70);
	assert_true(rig_until(e, p.failed));
	assert_int_equal(puppet_id_of(&p, PMSG_PROBE_REPLY), 5);
	assert_false(puppet_got(&p, PMSG_READY));
	assert_int_equal(rig_count(b), 0);
	puppet_end(&p);

	/* and a peer must not send PROBE */
	puppet_join(&p, b, 7, 70);
	puppet_say(&p, probe, 6, {});
	assert_true(rig_until(e, puppet_got(&p, PMSG_ERROR)));
	assert_int_equal(p.error, DRAY_E_UNKNOWN_TYPE);
	assert_int_equal(rig_ready(b), 1);
	puppet_end(&p);
	rig_kill(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_running),
		cmocka_unit_test(test_beside_a_peer),
		cmocka_unit_test(test_draining),
		cmocka_unit_test(test_self),
		cmocka_unit_test(test_no_listener),
		cmocka_unit_test(test_cancel),
		cmocka_unit_test(test_keys),
		cmocka_unit_test(test_older_release),
		cmocka_unit_test(test_invalid_answers),
		cmocka_unit_test(test_no_agent),
		cmocka_unit_test(test_hello_after_probe),
	};

	dray_log_setup(getenv("DRAY_TEST_LOG") ? DRAY_LOG_DEBUG : DRAY_LOG_ERROR,
		       DRAY_LOG_FORMAT_TEXT);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
