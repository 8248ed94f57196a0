/* SPDX-License-Identifier: Apache-2.0 */
/* libdray: hints, the preferred segment, the environment, changes of segments; old agents. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/assert.h"
#include "lib/cleanup.h"
#include "schema/gen/errors.h"
#include "tests/unit/client_rig.h"
#include "tests/unit/cm.h"

#define REPLY_BYTES (DMSG_HEADER_SIZE + DMSG_ENV_GET_REPLY_BODY_MAX)

/* The last request to the fake; read it after fake_do() or after an answer. */
static struct {
	char scope[300], segment[300];
	uint32_t score;
	uint64_t ttl_ms;
} asked;

/* The fake's answers. */
static struct dmsg_env_get_reply env;
static struct dmsg_segment_get_reply preferred;

static struct dray_str text(const char *s)
{
	return (struct dray_str){ s, (uint32_t)strlen(s) };
}

static struct dray_blob blob(const void *p, size_t n)
{
	return (struct dray_blob){ p, (uint32_t)n };
}

static void note(char *to, size_t cap, struct dray_str s)
{
	snprintf(to, cap, "%.*s", (int)s.n, s.p);
}

static int answer_put(uint8_t *buf, const struct dmsg_header *h, const uint8_t *body)
{
	struct dmsg_hint_put m;

	dray_assert(dmsg_hint_put_decode(body, h->length, &m, NULL) == 0);
	note(asked.scope, sizeof(asked.scope), m.scope);
	note(asked.segment, sizeof(asked.segment), m.segment);
	asked.score = m.score;
	asked.ttl_ms = m.ttl_ms;
	return dmsg_hint_put_reply_encode(buf, REPLY_BYTES, h->request_id,
					  &(struct dmsg_hint_put_reply){});
}

static int answer_hint(uint8_t *buf, const struct dmsg_header *h, const uint8_t *body)
{
	struct dmsg_hint_get m;
	struct dmsg_hint_get_reply reply = { .source = 77, /* of a later version */
					     .state = DMSG_SEGMENT_STATE_LOST,
					     .score = 3,
					     .left_ms = 1ull << 40,
					     .flags = DMSG_SEGMENT_FLAG_NODE_LOCAL,
					     .segment = text("[fd00::1]:50053") };

	dray_assert(dmsg_hint_get_decode(body, h->length, &m, NULL) == 0);
	note(asked.scope, sizeof(asked.scope), m.scope);
	return dmsg_hint_get_reply_encode(buf, REPLY_BYTES, h->request_id, &reply);
}

static bool answers(struct fake *f, const struct dmsg_header *h, const uint8_t *body,
		    struct dray_fds *fds)
{
	uint8_t *buf dray_auto_free = malloc(REPLY_BYTES);
	struct dmsg_segment_get s;
	struct dmsg_env_get e;
	int n;

	dray_assert(buf);
	switch (h->type) {
	case DMSG_HINT_GET:
		n = answer_hint(buf, h, body);
		break;
	case DMSG_HINT_PUT:
		n = answer_put(buf, h, body);
		break;
	case DMSG_SEGMENT_GET:
		dray_assert(dmsg_segment_get_decode(body, h->length, &s, NULL) == 0);
		note(asked.scope, sizeof(asked.scope), s.scope);
		n = dmsg_segment_get_reply_encode(buf, REPLY_BYTES, h->request_id, &preferred);
		break;
	case DMSG_ENV_GET:
		dray_assert(dmsg_env_get_decode(body, h->length, &e, NULL) == 0);
		note(asked.scope, sizeof(asked.scope), e.profiles);
		n = dmsg_env_get_reply_encode(buf, REPLY_BYTES, h->request_id, &env);
		break;
	default:
		return false;
	}
	fake_send(f, n, buf);
	return true;
}

static int setup(void **state)
{
	memset(&asked, 0, sizeof(asked));
	memset(&env, 0, sizeof(env));
	preferred = (struct dmsg_segment_get_reply){ .reason = text("nothing is known") };
	client_setup(state);
	client_fake.hook = answers;
	return 0;
}

static void hints(void **state)
{
	struct dray *d = client_connect(0);
	struct dray_hint hint;

	assert_int_equal(dray_hint_put(d, "rank é", "10.0.0.9:50053", 7, 1ull << 40), 0);
	assert_string_equal(asked.scope, "rank é");
	assert_string_equal(asked.segment, "10.0.0.9:50053");
	assert_int_equal(asked.score, 7);
	assert_int_equal(asked.ttl_ms, 1ull << 40);
	assert_int_equal(dray_hint_put(d, NULL, NULL, 0, 0), 0);
	assert_string_equal(asked.scope, "");
	assert_string_equal(asked.segment, "");
	assert_int_equal(dray_hint_get(d, "model", &hint), 0);
	assert_string_equal(asked.scope, "model");
	assert_string_equal(hint.segment, "[fd00::1]:50053");
	assert_int_equal(hint.source, 77);
	assert_int_equal(hint.state, DRAY_SEGMENT_LOST);
	assert_int_equal(hint.flags, DRAY_SEGMENT_NODE_LOCAL);
	assert_int_equal(hint.score, 3);
	assert_int_equal(hint.left_ms, 1ull << 40);
	dray_disconnect(d);
}

static void preferred_segment(void **state)
{
	struct dray *d = client_connect(DRAY_OPTION_NO_RING);
	struct dray_segment s;

	assert_int_equal(dray_segment_get(d, "", &s), 0);
	assert_int_equal(s.preference, DRAY_PREFERENCE_NONE);
	assert_string_equal(s.segment, "");
	assert_string_equal(s.reason, "nothing is known");
	preferred = (struct dmsg_segment_get_reply){ .preference = DMSG_PREFERENCE_DETECTED,
						     .state = DMSG_SEGMENT_STATE_READY,
						     .flags = DMSG_SEGMENT_FLAG_ALL,
						     .capacity = 1ull << 45,
						     .allocated = 9,
						     .segment = text("node:1"),
						     .reason = text("it is here") };
	assert_int_equal(dray_segment_get(d, "model", &s), 0);
	assert_string_equal(asked.scope, "model");
	assert_int_equal(s.preference, DRAY_PREFERENCE_DETECTED);
	assert_int_equal(s.state, DRAY_SEGMENT_READY);
	assert_int_equal(s.flags, 7);
	assert_int_equal(s.capacity, 1ull << 45);
	assert_int_equal(s.allocated, 9);
	assert_string_equal(s.segment, "node:1");
	assert_string_equal(s.reason, "it is here");
	dray_disconnect(d);
}

static void environment(void **state)
{
	struct dray *d = client_connect(0);
	char *longest = malloc(65537);
	struct dray_env e;

	assert_int_equal(dray_env_get(d, NULL, &e), 0);
	assert_string_equal(asked.scope, "");
	assert_string_equal(e.variables, "");
	assert_string_equal(e.notes, "");
	env.variables = blob("A=1\nB=\xff\n", 8);
	env.notes = blob("C: none\n", 8);
	assert_int_equal(dray_env_get(d, "vllm,ucx", &e), 0);
	assert_string_equal(asked.scope, "vllm,ucx");
	assert_string_equal(e.variables, "A=1\nB=\xff\n");
	assert_int_equal(e.variables_length, 8);
	assert_string_equal(e.notes, "C: none\n");
	assert_int_equal(e.notes_length, 8);
	assert_non_null(longest);
	memset(longest, 'x', 65536);
	longest[65535] = '\n';
	longest[65536] = '\0';
	env.variables = env.notes = blob(longest, 65536);
	assert_int_equal(dray_env_get(d, "", &e), 0);
	assert_string_equal(e.variables, longest);
	assert_int_equal(e.notes_length, 65536);
	dray_disconnect(d);
	free(longest);
}

static void invalid_environment(void **state)
{
	static const struct dray_blob bad[] = { { (const uint8_t *)"A=1", 3 },
						{ (const uint8_t *)"A=1\0\n", 5 } };
	struct dray *d = client_connect(0);
	struct dray_env e;

	for (size_t i = 0; i < 2 * DRAY_ARRAY_SIZE(bad); i++) {
		env = (struct dmsg_env_get_reply){ 0 };
		*(i % 2 ? &env.notes : &env.variables) = bad[i / 2];
		assert_int_equal(dray_env_get(d, "", &e), -DRAY_E_PROTOCOL);
		assert_non_null(strstr(dray_last_error(d), "ENV_GET"));
		client_event(d, DRAY_EVENT_LOST);
		client_event(d, DRAY_EVENT_RESTORED);
	}
	dray_disconnect(d);
}

static void text_is_checked(void **state)
{
	struct dray *d = client_connect(0);
	struct dray_segment s;
	struct dray_hint h;
	struct dray_env e;
	char longer[258];

	memset(longer, 's', 257);
	longer[257] = '\0';
	assert_int_equal(dray_hint_get(d, longer, &h), -DRAY_E_TOO_LARGE);
	assert_non_null(strstr(dray_last_error(d), "the scope has 257 bytes"));
	assert_int_equal(dray_segment_get(d, longer, &s), -DRAY_E_TOO_LARGE);
	assert_int_equal(dray_env_get(d, longer, &e), -DRAY_E_TOO_LARGE);
	assert_non_null(strstr(dray_last_error(d), "profiles"));
	assert_int_equal(dray_hint_put(d, longer, "a:1", 0, 0), -DRAY_E_TOO_LARGE);
	assert_int_equal(dray_hint_put(d, "", longer, 0, 0), -DRAY_E_TOO_LARGE);
	assert_non_null(strstr(dray_last_error(d), "the segment has 257 bytes"));
	assert_int_equal(dray_hint_put(d, "", "", 0, 0), -DRAY_E_INVALID);
	assert_int_equal(fake_count(&client_fake, DMSG_HINT_PUT), 0);
	assert_int_equal(fake_count(&client_fake, DMSG_HINT_GET), 0);
	/* the longest allowed one */
	assert_int_equal(dray_hint_get(d, longer + 1, &h), 0);
	assert_string_equal(asked.scope, longer + 1);
	dray_disconnect(d);
}

static bool refuses(struct fake *f, const struct dmsg_header *h, const uint8_t *body,
		    struct dray_fds *fds)
{
	if (h->type < DMSG_HINT_GET || h->type > DMSG_ENV_GET)
		return false;
	fake_send_error(f, h->request_id, DRAY_E_NOT_FOUND, "no hint is known for x");
	return true;
}

/* Closes the connection at the first request. */
static bool goes_away(struct fake *f, const struct dmsg_header *h, const uint8_t *body,
		      struct dray_fds *fds)
{
	if (h->type != DMSG_HINT_GET)
		return false;
	client_restart(f, NULL);
	return true;
}

static uint64_t unanswered;

static bool keeps_silent(struct fake *f, const struct dmsg_header *h, const uint8_t *body,
			 struct dray_fds *fds)
{
	if (h->type != DMSG_HINT_GET)
		return answers(f, h, body, fds);
	unanswered = h->request_id;
	return true;
}

static void answer_late(struct fake *f, void *arg)
{
	struct dmsg_header h = { .type = DMSG_HINT_GET, .request_id = unanswered };
	uint8_t body[DMSG_HEADER_SIZE + DMSG_HINT_GET_BODY_MAX];

	h.length =
		(uint32_t)dmsg_hint_get_encode(body, sizeof(body), 1, &(struct dmsg_hint_get){}) -
		DMSG_HEADER_SIZE;
	dray_assert(answers(f, &h, body + DMSG_HEADER_SIZE, NULL));
}

static void failed_requests(void **state)
{
	struct dray_options o = client_options();
	struct dray_hint h = { .score = 99 };
	struct dray_segment s;
	struct dray *d;

	client_fake.hook = refuses;
	d = client_connect(0);
	assert_int_equal(dray_hint_get(d, "x", &h), -DRAY_E_NOT_FOUND);
	assert_string_equal(dray_last_error(d), "no hint is known for x");
	assert_int_equal(h.score, 99);
	assert_int_equal(dray_hint_put(d, "x", NULL, 0, 0), -DRAY_E_NOT_FOUND);
	dray_disconnect(d);
	client_fake.hook = keeps_silent;
	o.request_ms = 30;
	assert_int_equal(dray_connect(&o, &d, NULL, 0), 0);
	assert_int_equal(dray_hint_get(d, "x", &h), -DRAY_E_TIMEOUT);
	/* a late answer has no caller and does no harm */
	fake_do(&client_fake, answer_late, NULL);
	assert_int_equal(dray_process(d, 0), 0);
	dray_disconnect(d);
	d = client_connect(0);
	client_fake.hook = goes_away;
	assert_int_equal(dray_hint_get(d, "x", &h), -DRAY_E_AGENT_RESTARTED);
	/* the call waits for the new session */
	client_fake.hook = answers;
	assert_int_equal(dray_segment_get(d, "x", &s), 0);
	dray_disconnect(d);
}

static void send_change(struct fake *f, void *arg)
{
	uint8_t buf[DMSG_HEADER_SIZE + DMSG_SEGMENT_CHANGED_BODY_MAX];

	fake_send(f, dmsg_segment_changed_encode(buf, sizeof(buf), 0, arg), buf);
}

static void send_bad_change(struct fake *f, void *arg)
{
	struct dmsg_segment_changed m = { .segment = text("a:1") };
	uint8_t buf[DMSG_HEADER_SIZE + DMSG_SEGMENT_CHANGED_BODY_MAX];
	int n = dmsg_segment_changed_encode(buf, sizeof(buf), 0, &m);

	buf[DMSG_HEADER_SIZE + 12] = 0xff;
	fake_send(f, n, buf);
}

static int segments_of(struct dray *d)
{
	struct dray_info info;

	assert_int_equal(dray_get_info(d, &info), 0);
	assert_true(info.connected);
	return info.segments;
}

static void changes(void **state)
{
	struct dray *d = client_connect(DRAY_OPTION_SEGMENTS | DRAY_OPTION_NOTIFICATIONS);
	struct dmsg_segment_changed m = { .old = DMSG_SEGMENT_STATE_READY,
					  .new = DMSG_SEGMENT_STATE_LOST,
					  .flags = DMSG_SEGMENT_FLAG_NODE_LOCAL,
					  .segment = text("node:1"),
					  .reason = text("connection refused") };
	struct dray_event e;

	assert_int_equal(segments_of(d), 1);
	assert_int_equal(client_fake.last_hello_flags,
			 DMSG_HELLO_FLAG_PIDFD | DMSG_HELLO_FLAG_NOTIFICATIONS |
				 DMSG_HELLO_FLAG_SEGMENTS | DMSG_HELLO_FLAG_AGENT_PIDFD);
	fake_do(&client_fake, send_change, &m);
	e = client_event(d, DRAY_EVENT_SEGMENT);
	assert_string_equal(e.segment, "node:1");
	assert_string_equal(e.message, "connection refused");
	assert_int_equal(e.segment_old, DRAY_SEGMENT_READY);
	assert_int_equal(e.segment_state, DRAY_SEGMENT_LOST);
	assert_int_equal(e.segment_flags, DRAY_SEGMENT_NODE_LOCAL);
	assert_int_equal(e.length, 0);
	m = (struct dmsg_segment_changed){ .flags = DMSG_SEGMENT_FLAG_PREFERRED };
	fake_do(&client_fake, send_change, &m);
	e = client_event(d, DRAY_EVENT_SEGMENT);
	assert_string_equal(e.segment, "");
	assert_string_equal(e.message, "");
	assert_int_equal(e.segment_flags, DRAY_SEGMENT_PREFERRED);
	/* requested again after a reconnect */
	fake_do(&client_fake, client_restart, NULL);
	e = client_event(d, DRAY_EVENT_LOST);
	assert_string_equal(e.segment, "");
	client_event(d, DRAY_EVENT_RESTORED);
	assert_true(client_fake.last_hello_flags & DMSG_HELLO_FLAG_SEGMENTS);
	assert_int_equal(segments_of(d), 1);
	assert_int_equal(fake_count(&client_fake, DMSG_HELLO), 2);
	fake_do(&client_fake, send_bad_change, NULL);
	e = client_event(d, DRAY_EVENT_LOST);
	assert_int_equal(e.code, -DRAY_E_PROTOCOL);
	client_event(d, DRAY_EVENT_RESTORED);
	dray_disconnect(d);
	d = client_connect(0);
	assert_int_equal(segments_of(d), 0);
	assert_false(client_fake.last_hello_flags & DMSG_HELLO_FLAG_SEGMENTS);
	dray_disconnect(d);
}

static void answers_come_as_completions(void **state)
{
	static const enum dray_request requests[] = { DRAY_REQUEST_HINT_PUT, DRAY_REQUEST_HINT_GET,
						      DRAY_REQUEST_SEGMENT_GET,
						      DRAY_REQUEST_ENV_GET };
	struct dray *d = client_connect(0);
	struct dray_completion c;
	uint64_t ids[4];

	assert_int_equal(dray_hint_put_start(d, "model", "node:1", 3, 1000, &ids[0], &ids[0]), 0);
	assert_int_equal(dray_hint_get_start(d, "model", &ids[1], &ids[1]), 0);
	assert_int_equal(dray_segment_get_start(d, "", &ids[2], &ids[2]), 0);
	assert_int_equal(dray_env_get_start(d, NULL, &ids[3], &ids[3]), 0);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(dray_wait(d, ids[i], -1, &c), 0);
		assert_int_equal(c.status, 0);
		assert_int_equal(c.request, requests[i]);
		assert_ptr_equal(c.arg, &ids[i]);
		assert_int_equal(!c.hint, i != 1);
		assert_int_equal(!c.segment, i != 2);
		assert_int_equal(!c.env, i != 3);
		assert_null(c.token);
	}
	dray_disconnect(d);
}

static void upgrade(struct fake *f, void *arg)
{
	f->is_old = !f->is_old;
	client_restart(f, NULL);
}

static void old_agent(void **state)
{
	struct dray_segment s;
	struct dray_memory memory;
	struct dray_token token;
	struct dray_hint h;
	struct dray_env e;
	dray_region region;
	struct dray *d;

	client_fake.is_old = true;
	d = client_connect(DRAY_OPTION_SEGMENTS);
	/* once with the flag, once without */
	assert_int_equal(fake_count(&client_fake, DMSG_HELLO), 2);
	assert_int_equal(segments_of(d), 0);
	assert_string_equal(dray_last_error(d), "");
	assert_int_equal(dray_process(d, 0), 0);
	assert_int_equal(dray_hint_get(d, "x", &h), -DRAY_E_UNSUPPORTED);
	assert_non_null(strstr(dray_last_error(d), "the agent is too old"));
	assert_int_equal(dray_hint_put(d, "x", "a:1", 0, 0), -DRAY_E_UNSUPPORTED);
	assert_int_equal(dray_segment_get(d, "x", &s), -DRAY_E_UNSUPPORTED);
	assert_int_equal(dray_env_get(d, "", &e), -DRAY_E_UNSUPPORTED);
	assert_int_equal(fake_count(&client_fake, DMSG_HINT_GET), 0);
	assert_int_equal(dray_memory_alloc(4096, 0, &memory), 0);
	assert_int_equal(dray_region_add_memory(d, &memory, DRAY_READ, &region), 0);
	assert_int_equal(dray_region_export_mooncake(d, region, NULL, 4096, &token),
			 -DRAY_E_UNSUPPORTED);
	assert_non_null(strstr(dray_last_error(d), "too old for exports to Mooncake"));
	assert_int_equal(fake_count(&client_fake, DMSG_REGION_EXPORT), 0);
	dray_memory_free(&memory);
	/* the library looks for the new version at the next session */
	fake_do(&client_fake, client_restart, NULL);
	client_event(d, DRAY_EVENT_LOST);
	client_event(d, DRAY_EVENT_RESTORED);
	assert_int_equal(fake_count(&client_fake, DMSG_HELLO), 4);
	assert_int_equal(segments_of(d), 0);
	fake_do(&client_fake, upgrade, NULL);
	client_event(d, DRAY_EVENT_LOST);
	client_event(d, DRAY_EVENT_RESTORED);
	assert_int_equal(fake_count(&client_fake, DMSG_HELLO), 5);
	assert_int_equal(segments_of(d), 1);
	assert_int_equal(dray_hint_get(d, "x", &h), 0);
	fake_do(&client_fake, upgrade, NULL);
	client_event(d, DRAY_EVENT_LOST);
	client_event(d, DRAY_EVENT_RESTORED);
	assert_int_equal(fake_count(&client_fake, DMSG_HELLO), 7);
	assert_int_equal(segments_of(d), 0);
	dray_disconnect(d);
}

static bool supports_nothing(struct fake *f, const struct dmsg_header *h, const uint8_t *body,
			     struct dray_fds *fds)
{
	f->hellos++;
	fake_send_error(f, h->request_id, DRAY_E_UNSUPPORTED, "nothing is supported");
	fake_hang_up(f);
	return true;
}

/* Refuses and removes the socket, so that the next attempt finds no agent. */
static bool leaves(struct fake *f, const struct dmsg_header *h, const uint8_t *body,
		   struct dray_fds *fds)
{
	unlink(f->path);
	return supports_nothing(f, h, body, fds);
}

static void refused_twice(void **state)
{
	struct dray_options o = client_options();
	char why[200];
	struct dray *d = NULL;

	o.flags = DRAY_OPTION_SEGMENTS;
	client_fake.is_old = true;
	client_fake.hook = supports_nothing;
	assert_int_equal(dray_connect(&o, &d, why, sizeof(why)), -DRAY_E_UNSUPPORTED);
	assert_string_equal(why, "nothing is supported");
	assert_int_equal(fake_count(&client_fake, DMSG_HELLO), 2);
	client_fake.hook = leaves;
	assert_int_equal(dray_connect(&o, &d, why, sizeof(why)), -DRAY_E_PEER_UNREACHABLE);
	assert_int_equal(fake_count(&client_fake, DMSG_HELLO), 3);
	assert_null(d);
}

static void a_child_cannot_use_the_session(void **state)
{
	struct dray *d = client_connect(0);
	int status;
	pid_t pid = fork();

	if (!pid) {
		struct dray_segment s;
		struct dray_hint h;
		struct dray_env e;
		int bad = 0;

		bad += dray_hint_get(d, "", &h) != -DRAY_E_OUT_OF_ORDER;
		bad += dray_hint_put(d, "", "a:1", 0, 0) != -DRAY_E_OUT_OF_ORDER;
		bad += dray_segment_get(d, "", &s) != -DRAY_E_OUT_OF_ORDER;
		bad += dray_env_get(d, "", &e) != -DRAY_E_OUT_OF_ORDER;
		dray_disconnect(d);
		_exit(bad);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	dray_disconnect(d);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, client_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(answers_come_as_completions),
		TEST(hints),
		TEST(preferred_segment),
		TEST(environment),
		TEST(invalid_environment),
		TEST(text_is_checked),
		TEST(failed_requests),
		TEST(changes),
		TEST(old_agent),
		TEST(refused_twice),
		TEST(a_child_cannot_use_the_session),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
