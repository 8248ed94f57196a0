/* SPDX-License-Identifier: Apache-2.0 */
/* Hints, the preferred segment and the environment over the data socket, and SEGMENT_CHANGED. */
#include "agent/control/session/internal.h"
#include "agent/placement/hint/hints.h"
#include "agent/placement/segment/segments.h"
#include "tests/unit/session_fixture.h"

#define TEXT_MAX 256

/* The last arguments of the modules below, and their answers. */
static struct asked {
	unsigned calls;
	uid_t uid;
	char scope[300], segment[300];
	uint32_t score;
	uint64_t ttl_ms;
} asked;

static struct answers {
	int code; /* error with which they refuse */
	struct hint hint;
	struct preferred preferred;
	struct segment_info info; /* of the hint's segment; without a name: unknown */
	const char *variables, *notes;
} answers;

static void note(const char *scope)
{
	asked.calls++;
	snprintf(asked.scope, sizeof(asked.scope), "%s", scope);
}

bool hints_best(struct hints *h, const char *scope, const struct hint_owner *viewer,
		struct hint *ret)
{
	note(scope);
	*ret = answers.hint;
	return answers.hint.segment;
}

int hints_put(struct hints *h, const struct hint_put *put, struct dray_err *reterr)
{
	note(put->scope);
	assert_int_equal(put->source, DMSG_HINT_SOURCE_CLIENT);
	asked.uid = put->uid;
	snprintf(asked.segment, sizeof(asked.segment), "%s", put->segment);
	asked.score = put->score;
	asked.ttl_ms = put->ttl_ms;
	return answers.code ? dray_err_set(reterr, -EINVAL, answers.code, "refused by the test") :
			      0;
}

/* The owner whose hints name segments. */
static const char *namer = "";

bool hints_names_for(const struct hints *h, const char *segment, const struct hint_owner *owner)
{
	assert_int_equal(owner->uid, getuid());
	return !strcmp(owner->tenant, namer) && !strncmp(segment, "named", 5);
}

bool hints_forget_client(struct hints *h, const char *scope, const struct hint_owner *owner)
{
	note(scope);
	asked.uid = owner->uid;
	return !answers.code;
}

void segments_preferred(struct segments *ss, const char *scope, const struct hint_owner *viewer,
			struct preferred *ret)
{
	note(scope);
	*ret = answers.preferred;
}

bool segments_find(struct segments *ss, const char *name, struct segment_info *ret)
{
	*ret = answers.info;
	return answers.info.record.segment && !strcmp(answers.info.record.segment, name);
}

static int env_get(void *arg, const char *profiles, char **ret_variables, char **ret_notes,
		   struct dray_err *reterr)
{
	note(profiles);
	*ret_variables = answers.variables ? strdup(answers.variables) : NULL;
	*ret_notes = answers.notes ? strdup(answers.notes) : NULL;
	return answers.code ? dray_err_set(reterr, -EINVAL, answers.code, "refused by the test") :
			      0;
}

static int setup(void **state)
{
	struct lab *l;

	asked = (struct asked){ 0 };
	answers = (struct answers){ .hint.segment = "", .preferred.name = "" };
	lab_setup_closed(state);
	l = *state;
	l->env_get = env_get;
	lab_start(l);
	return 0;
}

static void assert_text(struct dray_str s, const char *expected)
{
	assert_int_equal(s.n, strlen(expected));
	assert_memory_equal(s.p, expected, s.n);
}

static void ask_hint(struct client *c, struct dray_str scope)
{
	CLIENT_SEND(c, hint_get, &(struct dmsg_hint_get){ scope });
}

static void ask_segment(struct client *c, const char *scope)
{
	CLIENT_SEND(c, segment_get, &(struct dmsg_segment_get){ text(scope) });
}

static void ask_env(struct client *c, const char *profiles)
{
	CLIENT_SEND(c, env_get, &(struct dmsg_env_get){ text(profiles) });
}

static void test_hint(void **state)
{
	struct lab *l = *state;
	struct client *c = client_open(l, "", 0);
	struct dmsg_hint_put put = { .score = 7,
				     .ttl_ms = 1ull << 40,
				     .scope = text("model/llama rank 3 é"),
				     .segment = text("10.0.0.9:50053") };
	struct dmsg_hint_get_reply m;

	CLIENT_SEND(c, hint_put, &put);
	client_expect(c, DMSG_HINT_PUT_REPLY);
	assert_int_equal(c->h.request_id, c->id);
	assert_int_equal(asked.uid, getuid());
	assert_string_equal(asked.scope, "model/llama rank 3 é");
	assert_string_equal(asked.segment, "10.0.0.9:50053");
	assert_int_equal(asked.score, 7);
	assert_int_equal(asked.ttl_ms, 1ull << 40);
	put = (struct dmsg_hint_put){ .scope = text("s") };
	CLIENT_SEND(c, hint_put, &put);
	client_expect(c, DMSG_HINT_PUT_REPLY);
	assert_int_equal(asked.calls, 2);
	assert_string_equal(asked.scope, "s");

	answers.hint = (struct hint){ .source = DMSG_HINT_SOURCE_CLIENT,
				      .score = 8,
				      .left_ms = 12345,
				      .segment = "[fd00::1]:1" };
	ask_hint(c, text("s"));
	CLIENT_REPLY(c, hint_get_reply, DMSG_HINT_GET_REPLY, &m);
	assert_string_equal(asked.scope, "s");
	assert_int_equal(m.source, DMSG_HINT_SOURCE_CLIENT);
	assert_int_equal(m.state, DMSG_SEGMENT_STATE_UNKNOWN);
	assert_int_equal(m.score, 8);
	assert_int_equal(m.left_ms, 12345);
	assert_int_equal(m.flags, DMSG_SEGMENT_FLAG_UNVERIFIED);
	assert_text(m.segment, "[fd00::1]:1");
	/* its segment is known, and the hint ends now */
	answers.hint.left_ms = -1;
	answers.info = (struct segment_info){
		.record = { .segment = "[fd00::1]:1", .verified = true, .local = true },
		.state = DMSG_SEGMENT_STATE_READY
	};
	ask_hint(c, text("s"));
	CLIENT_REPLY(c, hint_get_reply, DMSG_HINT_GET_REPLY, &m);
	assert_int_equal(m.state, DMSG_SEGMENT_STATE_READY);
	assert_int_equal(m.left_ms, 0);
	assert_int_equal(m.flags, DMSG_SEGMENT_FLAG_NODE_LOCAL);
	client_close(c);
}

static void test_segment(void **state)
{
	struct lab *l = *state;
	struct client *c = client_open(l, "", 0);
	struct dmsg_segment_get_reply m;

	ask_segment(c, "");
	CLIENT_REPLY(c, segment_get_reply, DMSG_SEGMENT_GET_REPLY, &m);
	assert_string_equal(asked.scope, "");
	assert_int_equal(m.preference, DMSG_PREFERENCE_NONE);
	assert_text(m.segment, "");
	answers.preferred = (struct preferred){ .preference = DMSG_PREFERENCE_DETECTED,
						.state = DMSG_SEGMENT_STATE_LOST,
						.flags = DMSG_SEGMENT_FLAG_ALL,
						.capacity = 1ull << 50,
						.allocated = 3,
						.name = "node:1",
						.reason = "it is on this node" };
	ask_segment(c, "model");
	CLIENT_REPLY(c, segment_get_reply, DMSG_SEGMENT_GET_REPLY, &m);
	assert_string_equal(asked.scope, "model");
	assert_int_equal(m.preference, DMSG_PREFERENCE_DETECTED);
	assert_int_equal(m.state, DMSG_SEGMENT_STATE_LOST);
	assert_int_equal(m.flags, DMSG_SEGMENT_FLAG_ALL);
	assert_int_equal(m.capacity, 1ull << 50);
	assert_int_equal(m.allocated, 3);
	assert_text(m.segment, "node:1");
	assert_text(m.reason, "it is on this node");
	client_close(c);
}

static void test_env(void **state)
{
	struct lab *l = *state;
	struct client *c = client_open(l, "", 0);
	struct dmsg_env_get_reply m;
	char *longest = malloc(PLACEMENT_ENV_MAX + 2);
	struct session *s = session_get(l->sessions, c->hello.session);

	ask_env(c, "");
	CLIENT_REPLY(c, env_get_reply, DMSG_ENV_GET_REPLY, &m);
	assert_int_equal(m.variables.n, 0);
	assert_int_equal(m.notes.n, 0);
	answers.variables = "A=1\nB=\xff\xfe\n";
	answers.notes = "C: none\n";
	ask_env(c, "vllm,ucx");
	CLIENT_REPLY(c, env_get_reply, DMSG_ENV_GET_REPLY, &m);
	assert_string_equal(asked.scope, "vllm,ucx");
	assert_int_equal(m.variables.n, strlen(answers.variables));
	assert_memory_equal(m.variables.p, answers.variables, m.variables.n);
	assert_int_equal(m.notes.n, strlen(answers.notes));
	assert_memory_equal(m.notes.p, answers.notes, m.notes.n);

	assert_non_null(longest);
	memset(longest, 'x', PLACEMENT_ENV_MAX + 1);
	longest[PLACEMENT_ENV_MAX + 1] = 0;
	answers.notes = longest;
	ask_env(c, "");
	client_expect_error(c, c->id, DRAY_E_TOO_LARGE);
	answers.notes = longest + 1;
	answers.variables = longest;
	ask_env(c, "");
	client_expect_error(c, c->id, DRAY_E_TOO_LARGE);
	answers.variables = longest + 1;
	ask_env(c, "");
	CLIENT_REPLY(c, env_get_reply, DMSG_ENV_GET_REPLY, &m);
	assert_int_equal(m.variables.n, PLACEMENT_ENV_MAX);
	assert_int_equal(m.notes.n, PLACEMENT_ENV_MAX);
	/* a kernel with a lower limit of message sizes */
	assert_true(s->message_max >= DMSG_HEADER_SIZE + DMSG_ENV_GET_REPLY_BODY_MAX);
	s->message_max = DMSG_HEADER_SIZE + DMSG_ENV_GET_REPLY_BODY_MAX - 1;
	ask_env(c, "");
	client_expect_error(c, c->id, DRAY_E_TOO_LARGE);
	free(longest);
	client_close(c);
}

/* Refusals of the upcalls, and answers that are not allowed. */
static void test_refused(void **state)
{
	struct lab *l = *state;
	struct client *c = client_open(l, "", 0);
	char longer[TEXT_MAX + 2];

	answers.hint.segment = NULL;
	ask_hint(c, text("x"));
	client_expect_error(c, c->id, DRAY_E_NOT_FOUND);
	answers.code = DRAY_E_QUOTA;
	CLIENT_SEND(c, hint_put,
		    (&(struct dmsg_hint_put){ .scope = text("x"), .segment = text("a:1") }));
	client_expect_error(c, c->id, DRAY_E_QUOTA);
	CLIENT_SEND(c, hint_put, (&(struct dmsg_hint_put){ .scope = text("x") }));
	client_expect_error(c, c->id, DRAY_E_NOT_FOUND);
	answers.code = DRAY_E_INVALID;
	answers.variables = "freed=all the same\n";
	ask_env(c, "nothing");
	client_expect_error(c, c->id, DRAY_E_INVALID);
	assert_int_equal(asked.calls, 4);

	memset(longer, 's', sizeof(longer) - 1);
	longer[sizeof(longer) - 1] = 0;
	answers = (struct answers){ .hint.segment = longer, .preferred.name = longer };
	ask_hint(c, text(""));
	client_expect_error(c, c->id, DRAY_E_INTERNAL);
	ask_segment(c, "");
	client_expect_error(c, c->id, DRAY_E_INTERNAL);
	client_close(c);
}

/* Sends an encoded message with its last bytes replaced by some that the encoder would refuse. */
static void send_patched(struct client *c, int n, const char *bad, size_t bad_n)
{
	assert_true(n > 0);
	memcpy(c->buf + n - bad_n, bad, bad_n);
	client_send_raw(c, c->buf, (size_t)n, NULL, 0);
	client_expect_error(c, 9, DRAY_E_INVALID);
}

static void refuse_text(struct client *c, const char *bad, size_t n)
{
	struct dray_str good = { "xxxxxx", (uint32_t)n };
	size_t cap = sizeof(c->buf);

	send_patched(c, dmsg_hint_get_encode(c->buf, cap, 9, &(struct dmsg_hint_get){ good }), bad,
		     n);
	send_patched(c, dmsg_segment_get_encode(c->buf, cap, 9, &(struct dmsg_segment_get){ good }),
		     bad, n);
	send_patched(c, dmsg_env_get_encode(c->buf, cap, 9, &(struct dmsg_env_get){ good }), bad,
		     n);
	send_patched(
		c, dmsg_hint_put_encode(c->buf, cap, 9, &(struct dmsg_hint_put){ .segment = good }),
		bad, n);
}

static void test_text(void **state)
{
	struct lab *l = *state;
	struct client *c = client_open(l, "", 0);
	char longest[TEXT_MAX + 1];
	static const char *const bad[] = { "\xff", "a\nb", "\x7f", "\xed\xa0\x80", "\xc0\x80" };

	answers.hint.segment = "a:1";
	memset(longest, 's', TEXT_MAX);
	longest[TEXT_MAX] = 0;
	ask_hint(c, text(longest));
	client_expect(c, DMSG_HINT_GET_REPLY);
	assert_string_equal(asked.scope, longest);
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(bad); i++)
		refuse_text(c, bad[i], strlen(bad[i]));
	refuse_text(c, "a\0b", 3);
	assert_int_equal(asked.calls, 1);
	client_close(c);
}

/* Truncated at every length, and with descriptors that the message does not need. */
static void test_malformed(void **state)
{
	struct lab *l = *state;
	struct client *c = client_open(l, "", 0);
	uint8_t buf[1024];
	int fd = memory_fd(PAGE, 0), n = 0;

	for (unsigned type = 0; type < 4; type++) {
		if (type == 0)
			n = dmsg_hint_get_encode(buf, sizeof(buf), 1,
						 &(struct dmsg_hint_get){ text("scope") });
		else if (type == 1)
			n = dmsg_hint_put_encode(buf, sizeof(buf), 1,
						 &(struct dmsg_hint_put){ .scope = text("scope"),
									  .segment = text("a:1") });
		else if (type == 2)
			n = dmsg_segment_get_encode(buf, sizeof(buf), 1,
						    &(struct dmsg_segment_get){ text("scope") });
		else
			n = dmsg_env_get_encode(buf, sizeof(buf), 1,
						&(struct dmsg_env_get){ text("vllm") });
		client_send_raw(c, buf, (size_t)n, &fd, 1);
		client_expect_error(c, 1, DRAY_E_FD_COUNT);
		for (uint32_t cut = 0; cut < (uint32_t)n - DMSG_HEADER_SIZE; cut++) {
			dray_le_put32(buf + 12, cut);
			client_send_raw(c, buf, DMSG_HEADER_SIZE + cut, NULL, 0);
			client_expect_error(c, 1, DRAY_E_TRUNCATED);
		}
	}
	assert_int_equal(asked.calls, 0);
	close(fd);
	client_close(c);
}

static void test_draining(void **state)
{
	struct lab *l = *state;
	struct client *c = client_open(l, "", DMSG_HELLO_FLAG_SEGMENTS);

	sessions_drain(l->sessions, 1000);
	client_expect(c, DMSG_DRAINING);
	ask_hint(c, text(""));
	client_expect(c, DMSG_HINT_GET_REPLY);
	CLIENT_SEND(c, hint_put, (&(struct dmsg_hint_put){ .segment = text("a:1") }));
	client_expect(c, DMSG_HINT_PUT_REPLY);
	ask_segment(c, "");
	client_expect(c, DMSG_SEGMENT_GET_REPLY);
	ask_env(c, "");
	client_expect(c, DMSG_ENV_GET_REPLY);
	sessions_segment_changed(l->sessions,
				 &(struct dmsg_segment_changed){ .segment = text("a:1") }, false);
	client_expect(c, DMSG_SEGMENT_CHANGED);
	client_close(c);
}

/* --- events ----------------------------------------------------------------------------------- */

static void changed_for(struct lab *l, const char *segment, uint16_t new, uint32_t flags,
			const char *reason, bool of_clients)
{
	sessions_segment_changed(l->sessions,
				 &(struct dmsg_segment_changed){ .old = DMSG_SEGMENT_STATE_UNKNOWN,
								 .new = new,
								 .flags = flags,
								 .segment = text(segment),
								 .reason = text(reason) },
				 of_clients);
}

static void changed(struct lab *l, const char *segment, uint16_t new, uint32_t flags,
		    const char *reason)
{
	changed_for(l, segment, new, flags, reason, false);
}

static struct dmsg_segment_changed event_of(struct client *c)
{
	struct dmsg_segment_changed m;

	CLIENT_RECV(c, segment_changed, DMSG_SEGMENT_CHANGED, &m);
	assert_int_equal(c->h.request_id, 0);
	return m;
}

static uint32_t waiting(struct lab *l)
{
	return l->sessions->segment_changes.by_name.n;
}

static void test_events(void **state)
{
	struct lab *l = *state;
	struct client *silent = client_open(l, "", DMSG_HELLO_FLAG_NOTIFICATIONS), *c, *late;
	struct dmsg_segment_changed m;
	char reason[300];

	/* no session listens, so nothing is kept */
	changed(l, "before:1", DMSG_SEGMENT_STATE_READY, 0, "r");
	assert_int_equal(waiting(l), 0);
	c = client_open(l, "", DMSG_HELLO_FLAG_SEGMENTS);
	/* a reason is truncated between characters: these have two bytes each, after one of one byte */
	for (size_t i = 1; i < sizeof(reason) - 1; i += 2)
		memcpy(reason + i, "é", 2);
	reason[0] = 'x';
	reason[sizeof(reason) - 1] = 0;
	changed(l, "a:1", DMSG_SEGMENT_STATE_LOST,
		DMSG_SEGMENT_FLAG_NODE_LOCAL | DMSG_SEGMENT_FLAG_PREFERRED, reason);
	m = event_of(c);
	assert_int_equal(m.old, DMSG_SEGMENT_STATE_UNKNOWN);
	assert_int_equal(m.new, DMSG_SEGMENT_STATE_LOST);
	assert_int_equal(m.flags, DMSG_SEGMENT_FLAG_NODE_LOCAL | DMSG_SEGMENT_FLAG_PREFERRED);
	assert_text(m.segment, "a:1");
	assert_int_equal(m.reason.n, 255);
	assert_memory_equal(m.reason.p, reason, 255);
	/* a later session gets later changes; the empty segment counts like any other */
	late = client_open(l, "", DMSG_HELLO_FLAG_SEGMENTS);
	changed(l, "", DMSG_SEGMENT_STATE_UNKNOWN, DMSG_SEGMENT_FLAG_PREFERRED, "");
	m = event_of(late);
	assert_text(m.segment, "");
	assert_int_equal(m.flags, DMSG_SEGMENT_FLAG_PREFERRED);
	assert_text(event_of(c).segment, "");
	lab_until(l, waiting(l) == 0);
	/* the other session got no event: its next message is its own answer */
	ask_segment(silent, "");
	client_expect(silent, DMSG_SEGMENT_GET_REPLY);
	client_close(silent);
	client_close(late);
	client_close(c);
}

/* Segments that only hints of clients name: their owners get the changes, and nobody else. */
static void test_events_of_clients(void **state)
{
	struct lab *l = *state;
	struct client *c = client_open(l, "", DMSG_HELLO_FLAG_SEGMENTS);

	namer = "another-tenant";
	for (unsigned i = 0; i < 40; i++)
		changed_for(l, "named:1", DMSG_SEGMENT_STATE_READY, 0, "", true);
	assert_int_equal(waiting(l), 0);
	changed(l, "a:1", DMSG_SEGMENT_STATE_READY, 0, "");
	assert_text(event_of(c).segment, "a:1");
	namer = l->sessions->sockets[0].tenant;
	changed_for(l, "other:1", DMSG_SEGMENT_STATE_READY, 0, "", true);
	changed_for(l, "named:1", DMSG_SEGMENT_STATE_LOST, 0, "", true);
	changed(l, "b:1", DMSG_SEGMENT_STATE_READY, 0, "");
	assert_text(event_of(c).segment, "named:1");
	assert_text(event_of(c).segment, "b:1");
	lab_until(l, waiting(l) == 0);
	client_close(c);
}

#define SEGMENTS 3000u
#define ROUNDS 7u

static const char *name_of(unsigned i)
{
	static char name[64];

	snprintf(name, sizeof(name), "segment-with-a-long-name-%u.example:50053", i);
	return name;
}

/*
 * Reads until the last change, and stores the last state of each segment in seen. Returns the
 * number of messages.
 */
static unsigned read_all(struct client *c, uint32_t *seen, uint32_t n)
{
	for (unsigned messages = 1;; messages++) {
		struct dmsg_segment_changed m = event_of(c);
		char name[TEXT_MAX + 1];
		unsigned i;

		snprintf(name, sizeof(name), "%.*s", (int)m.segment.n, m.segment.p);
		if (!strcmp(name, "end:1"))
			return messages;
		assert_int_equal(sscanf(name, "segment-with-a-long-name-%u.", &i), 1);
		assert_true(i < n);
		/* states arrive in order */
		assert_true(m.flags >= seen[i]);
		seen[i] = m.flags;
	}
}

/*
 * A session that does not read costs a fixed amount of memory, delays no other session, and gets
 * the last states.
 */
static void test_reader_that_does_not_read(void **state)
{
	struct lab *l = *state;
	struct client *slow = client_open(l, "", DMSG_HELLO_FLAG_SEGMENTS);
	struct client *fast = client_open(l, "", DMSG_HELLO_FLAG_SEGMENTS);
	uint32_t *seen = calloc(SEGMENTS, sizeof(*seen)), reads;

	assert_non_null(seen);
	for (uint32_t round = 1; round <= ROUNDS; round++) {
		for (unsigned i = 0; i < SEGMENTS; i++) {
			changed(l, name_of(i), DMSG_SEGMENT_STATE_READY, round, "why");
			assert_true(waiting(l) <= SEGMENTS + 1);
			if (round == 1)
				assert_text(event_of(fast).segment, name_of(i));
		}
		if (round == 1) {
			changed(l, "end:1", 0, 0, "");
			assert_text(event_of(fast).segment, "end:1");
			client_close(fast);
		}
	}
	/* far more than the socket holds */
	assert_true(waiting(l) > SEGMENTS / 2);
	changed(l, "end:1", 0, 0, "");
	reads = read_all(slow, seen, SEGMENTS);
	assert_true(reads < 2 * SEGMENTS);
	for (unsigned i = 0; i < SEGMENTS; i++)
		assert_int_equal(seen[i], ROUNDS);
	lab_until(l, waiting(l) == 0);
	/* later changes arrive at once */
	changed(l, "fresh:1", DMSG_SEGMENT_STATE_PROBING, 0, "");
	assert_text(event_of(slow).segment, "fresh:1");
	free(seen);
	client_close(slow);
}

static void test_events_limit(void **state)
{
	struct lab *l = *state;
	struct client *c = client_open(l, "", DMSG_HELLO_FLAG_SEGMENTS);
	struct dmsg_segment_changed m;
	uint32_t seen[SEGMENTS] = { 0 };

	l->cfg->limits.segments = 50;
	for (unsigned i = 0; i < SEGMENTS; i++) {
		changed(l, name_of(i), DMSG_SEGMENT_STATE_READY, 1, "why");
		assert_true(waiting(l) <= 50);
	}
	assert_int_equal(waiting(l), 50);
	changed(l, "end:1", 0, 0, "");
	m = event_of(c);
	assert_text(m.segment, name_of(0));
	assert_true(read_all(c, seen, SEGMENTS) < SEGMENTS - 1);
	for (unsigned i = SEGMENTS - 49; i < SEGMENTS; i++)
		assert_int_equal(seen[i], 1);
	client_close(c);
}

/* The events of a session that closes are freed. */
static void test_reader_that_closes(void **state)
{
	struct lab *l = *state;
	struct client *c = client_open(l, "", DMSG_HELLO_FLAG_SEGMENTS);

	for (unsigned i = 0; i < SEGMENTS; i++)
		changed(l, name_of(i), DMSG_SEGMENT_STATE_READY, 0, "why");
	assert_true(waiting(l) > 0);
	client_close(c);
	lab_until(l, waiting(l) == 0);
	/* likewise if the sessions end first */
	c = client_open(l, "", DMSG_HELLO_FLAG_SEGMENTS);
	for (unsigned i = 0; i < SEGMENTS; i++)
		changed(l, name_of(i), DMSG_SEGMENT_STATE_READY, 0, "why");
	lab_stop(l);
	client_close(c);
}

int main(void)
{
#define T(t) cmocka_unit_test_setup_teardown(t, setup, lab_teardown)
	const struct CMUnitTest tests[] = {
		T(test_hint),
		T(test_segment),
		T(test_env),
		T(test_refused),
		T(test_text),
		T(test_malformed),
		T(test_draining),
		T(test_events),
		T(test_events_of_clients),
		T(test_reader_that_does_not_read),
		T(test_events_limit),
		T(test_reader_that_closes),
	};

	return cmocka_run_group_tests_name("session_placement", tests, NULL, NULL);
}
