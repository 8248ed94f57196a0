/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Probes of Mooncake's handshake daemon. The daemon here follows the description of the protocol
 * and shares no code with the probe: u64 little-endian length of the rest, type byte, JSON; one
 * reply to one request, a half-close, and then it waits for the other side's close.
 */
#include "tests/unit/probe_server.h"

#define LIMIT 1048576

static const char descriptor[] =
	"{\"buffers\":[{\"addr\":140115212083200,\"length\":1048576,\"name\":\"127.0.0.1:16029\"}],"
	"\"name\":\"127.0.0.1:16029\",\"protocol\":\"tcp\",\"tcp_data_port\":16498,"
	"\"tcp_proto_version\":2,\"timestamp\":\"2026-11-20 21:58:47.324326\"}\n";

struct daemon {
	struct server v;
	sd_event *event;
	struct probe_deps deps;
	uint8_t *frame; /* the answer */
};

static void daemon_start(struct daemon *d)
{
	memset(d, 0, sizeof(*d));
	d->event = server_loop();
	d->deps.event = d->event;
	server_init(&d->v, d->event, "127.0.0.1:0");
	d->v.want = 11;
	d->v.half_closes = true;
}

static void daemon_stop(struct daemon *d)
{
	server_deinit(&d->v);
	free(d->frame);
	sd_event_unref(d->event);
}

/* length: as declared in the frame */
static void answer_frame(struct daemon *d, uint64_t length, uint8_t type, const char *body,
			 size_t n)
{
	free(d->frame);
	d->frame = malloc(9 + n);
	assert_non_null(d->frame);
	for (unsigned i = 0; i < 8; i++)
		d->frame[i] = (uint8_t)(length >> (8 * i));
	d->frame[8] = type;
	memcpy(d->frame + 9, body, n);
	d->v.say = d->frame;
	d->v.n_say = 9 + n;
}

static void answer(struct daemon *d, const char *body)
{
	answer_frame(d, strlen(body) + 1, 1, body, strlen(body));
}

static void probe(struct daemon *d, struct outcome *o)
{
	outcome_of(o, &d->deps, "mooncake", d->v.where, "", 5000 * MS);
}

static void test_good(void **state)
{
	static const uint8_t request[] = { 3, 0, 0, 0, 0, 0, 0, 0, 1, '{', '}' };
	struct daemon d;
	struct outcome o;

	daemon_start(&d);
	answer(&d, descriptor);
	probe(&d, &o);
	assert_ready(&o);
	assert_says(o.r.reason, "127.0.0.1:16029 over tcp, 1 buffers");
	/*
	 * the probe sent only that request and closed at once, because the daemon serves one
	 * connection at a time
	 */
	assert_true(server_until(d.event, 5000, d.v.ended == 1));
	assert_int_equal(d.v.n_heard, sizeof(request));
	assert_memory_equal(d.v.heard, request, sizeof(request));
	assert_int_equal(d.v.reset, 0);
	daemon_stop(&d);
}

static void test_the_probe_closes_first(void **state)
{
	struct daemon d;
	struct outcome o;

	/* also if the daemon does not close first */
	daemon_start(&d);
	d.v.half_closes = false;
	answer(&d, descriptor);
	probe(&d, &o);
	assert_ready(&o);
	assert_true(server_until(d.event, 5000, d.v.ended == 1));
	daemon_stop(&d);
}

static void test_single_bytes(void **state)
{
	struct daemon d;
	struct outcome o;

	daemon_start(&d);
	answer(&d, descriptor);
	d.v.chunk = 1;
	probe(&d, &o);
	assert_ready(&o);
	daemon_stop(&d);
}

static void test_no_segment_yet(void **state)
{
	struct daemon d;
	struct outcome o;

	daemon_start(&d);
	answer(&d, "null\n");
	probe(&d, &o);
	assert_not_ready(&o, "no segment yet");
	daemon_stop(&d);
}

static void test_descriptors(void **state)
{
	static const struct {
		const char *body, *says; /* NULL: accepted */
	} cases[] = {
		{ "{\"name\":\"h:1\",\"protocol\":\"rdma\",\"buffers\":[]}", NULL },
		{ "{\"name\":\"h:1\",\"protocol\":[\"tcp\",\"rdma\"],\"buffers\":[{},{}]}", NULL },
		/* an efa key has 64 bits */
		{ "{\"name\":\"h:1\",\"protocol\":\"efa\",\"buffers\":[{\"rkey\":[18446744073709551615]}]}",
		  NULL },
		{ "{\"name\":\"h:1\",\"protocol\":\"tcp\",\"buffers\":[],\"more\":{\"x\":[null]}} tail",
		  NULL },
		{ "[1]", "not an object" },
		{ "5", "not an object" },
		{ "\"x\"", "not an object" },
		{ "true", "not an object" },
		{ "{}", "name" },
		{ "{\"name\":{},\"protocol\":\"tcp\",\"buffers\":[]}", "name" },
		{ "{\"name\":\"\",\"protocol\":\"tcp\",\"buffers\":[]}", "name" },
		{ "{\"name\":null,\"protocol\":\"tcp\",\"buffers\":[]}", "name" },
		{ "{\"name\":\"h:1\",\"buffers\":[]}", "protocol" },
		{ "{\"name\":\"h:1\",\"protocol\":[1],\"buffers\":[]}", "protocol" },
		{ "{\"name\":\"h:1\",\"protocol\":[],\"buffers\":[]}", "protocols is empty" },
		{ "{\"name\":\"h:1\",\"protocol\":7,\"buffers\":[]}", "protocol" },
		{ "{\"name\":\"h:1\",\"protocol\":\"tcp\"}", "buffers" },
		{ "{\"name\":\"h:1\",\"protocol\":\"tcp\",\"buffers\":{}}", "buffers" },
		{ "{\"name\":\"h:1\",\"protocol\":\"tcp\",\"buffers\":[{},1]}",
		  "buffer 1 is not an object" },
		{ "{\"name\":\"h:1\",\"protocol\":\"tcp\",\"buffers\":[", "not JSON" },
		{ "{'name':1}", "not JSON" },
		{ "", "not JSON" },
		{ "{\"name\":\"\xff\xfe\",\"protocol\":\"tcp\",\"buffers\":[]}", "not JSON" },
	};
	struct daemon d;
	struct outcome o;

	daemon_start(&d);
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(cases); i++) {
		answer(&d, cases[i].body);
		probe(&d, &o);
		if (!cases[i].says)
			assert_ready(&o);
		else
			assert_not_ready(&o, cases[i].says);
	}
	answer(&d, "{\"name\":\"a\\nb\\u00e9\",\"protocol\":[\"tcp\",\"rdma\"],\"buffers\":[]}");
	probe(&d, &o);
	assert_says(o.r.reason, "segment a?b?? over tcp,rdma, 0 buffers");
	daemon_stop(&d);
}

static void test_long_names(void **state)
{
	char body[1024], name[300];
	struct daemon d;
	struct outcome o;

	daemon_start(&d);
	memset(name, 'n', sizeof(name));
	for (int n = 256; n <= 257; n++) {
		snprintf(body, sizeof(body),
			 "{\"name\":\"%.*s\",\"protocol\":\"tcp\",\"buffers\":[]}", n, name);
		answer(&d, body);
		probe(&d, &o);
		if (n == 256)
			assert_ready(&o);
		else
			assert_not_ready(&o, "more than 256 bytes");
	}
	snprintf(body, sizeof(body), "{\"name\":\"h:1\",\"protocol\":\"%.64s\",\"buffers\":[]}",
		 name);
	answer(&d, body);
	probe(&d, &o);
	assert_not_ready(&o, "more than 63 bytes");
	daemon_stop(&d);
}

static void test_frames(void **state)
{
	size_t n = strlen(descriptor);
	struct daemon d;
	struct outcome o;

	daemon_start(&d);
	/* a type other than the request's, as in an untyped reply or a notification */
	answer_frame(&d, n + 1, 2, descriptor, n);
	probe(&d, &o);
	assert_not_ready(&o, "its type is 2");
	answer_frame(&d, n + 1, '{', descriptor, n);
	probe(&d, &o);
	assert_not_ready(&o, "its type is 123");
	answer_frame(&d, 0, 1, descriptor, n);
	probe(&d, &o);
	assert_not_ready(&o, "empty frame");
	answer_frame(&d, UINT64_MAX, 1, descriptor, n);
	probe(&d, &o);
	assert_not_ready(&o, "18446744073709551615 bytes");
	answer_frame(&d, 1, 1, descriptor, 0);
	probe(&d, &o);
	assert_not_ready(&o, "not JSON");
	daemon_stop(&d);
}

/* Makes a descriptor of exactly n bytes. */
static char *large(size_t n)
{
	static const char head[] = "{\"name\":\"h:1\",\"protocol\":\"tcp\",\"buffers\":[";
	static const char one[] = "{\"addr\":140115212083200,\"length\":1048576,\"name\":\"h:1\"},";
	static const char tail[] = "{}],\"pad\":\"";
	char *s = malloc(n + 1), *p = s;

	assert_non_null(s);
	p = mempcpy(p, head, sizeof(head) - 1);
	while ((size_t)(p - s) + sizeof(one) + sizeof(tail) + 2 < n)
		p = mempcpy(p, one, sizeof(one) - 1);
	p = mempcpy(p, tail, sizeof(tail) - 1);
	while ((size_t)(p - s) < n - 2)
		*p++ = 'x';
	mempcpy(p, "\"}", 3);
	return s;
}

static void test_limit(void **state)
{
	dray_auto_free char *body = large(LIMIT - 1);
	struct daemon d;
	struct outcome o;

	daemon_start(&d);
	/* the largest frame that engines read, complete and in pieces */
	answer_frame(&d, LIMIT, 1, body, LIMIT - 1);
	probe(&d, &o);
	assert_ready(&o);
	assert_true(strtoul(strstr(o.r.reason, "tcp, ") + 5, NULL, 10) > 15000);
	d.v.chunk = 5000;
	probe(&d, &o);
	assert_ready(&o);
	d.v.chunk = 0;
	/* one byte more: only the head is read */
	answer_frame(&d, LIMIT + 1, 1, body, 0);
	probe(&d, &o);
	assert_not_ready(&o, "1048577 bytes, more than the 1048576");
	daemon_stop(&d);
}

/* Replies that are small on the wire and large in memory. */
static void test_small_replies_with_many_values(void **state)
{
	static const char *const pieces[] = { "{},", "[],", "0,", "[[],{}]," };
	struct daemon d;
	struct outcome o;

	daemon_start(&d);
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(pieces); i++) {
		size_t n = 200000, piece = strlen(pieces[i]), k = 1;
		dray_auto_free char *body = malloc(n);

		assert_non_null(body);
		body[0] = '[';
		for (; k + piece + 2 < n; k += piece)
			memcpy(body + k, pieces[i], piece);
		body[k++] = '1';
		body[k++] = ']';
		answer_frame(&d, k + 1, 1, body, k);
		probe(&d, &o);
		assert_not_ready(&o, "more JSON values");
	}
	daemon_stop(&d);
}

static void test_ends_early(void **state)
{
	struct daemon d;
	struct outcome o;

	daemon_start(&d);
	d.v.closes = true;
	probe(&d, &o);
	assert_false(o.r.ok);
	d.v.closes = false;
	d.v.resets = true;
	probe(&d, &o);
	assert_false(o.r.ok);
	d.v.resets = false;
	/* in the head, after the head, in the body */
	answer(&d, descriptor);
	d.v.closes_after = true;
	for (size_t n = 1; n < 30; n += 4) {
		d.v.n_say = n;
		probe(&d, &o);
		assert_not_ready(&o, "bytes into its reply");
	}
	/* a daemon that does not understand the request closes the connection */
	d.v.n_say = 0;
	probe(&d, &o);
	assert_not_ready(&o, "without a reply");
	daemon_stop(&d);
}

static void test_others_on_the_port(void **state)
{
	static const char *const banners[] = {
		"SSH-2.0-OpenSSH_9.2p1\r\n",
		"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
		"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
	};
	struct daemon d;
	struct outcome o;

	daemon_start(&d);
	d.v.want = 0;
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(banners); i++) {
		d.v.say = banners[i];
		d.v.n_say = i == 2 ? 11 : strlen(banners[i]);
		probe(&d, &o);
		assert_not_ready(&o, "no Mooncake descriptor: it declares");
	}
	daemon_stop(&d);
}

static void test_silence(void **state)
{
	struct daemon d;
	struct outcome o;

	daemon_start(&d);
	/* a server that stays silent, also after some bytes, costs only the time limit */
	outcome_of(&o, &d.deps, "mooncake", d.v.where, "", 50 * MS);
	assert_not_ready(&o, "no reply within");
	assert_true(o.r.latency_ns >= 50 * MS);
	assert_true(server_until(d.event, 5000, d.v.ended == 1));
	answer_frame(&d, 100, 1, "{\"name\":", 8);
	d.v.half_closes = false;
	outcome_of(&o, &d.deps, "mooncake", d.v.where, "", 50 * MS);
	assert_not_ready(&o, "no reply within");
	assert_true(server_until(d.event, 5000, d.v.ended == 2));
	/*
	 * a connection that is not accepted has sent its request already, so the daemon need not
	 * wait for it later
	 */
	server_ignore(&d.v, true);
	outcome_of(&o, &d.deps, "mooncake", d.v.where, "", 50 * MS);
	assert_not_ready(&o, "no reply within");
	server_ignore(&d.v, false);
	assert_true(server_until(d.event, 5000, d.v.open == 0 && d.v.accepted == 3));
	assert_int_equal(d.v.n_heard, 11);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_good),
		cmocka_unit_test(test_the_probe_closes_first),
		cmocka_unit_test(test_single_bytes),
		cmocka_unit_test(test_no_segment_yet),
		cmocka_unit_test(test_descriptors),
		cmocka_unit_test(test_long_names),
		cmocka_unit_test(test_frames),
		cmocka_unit_test(test_limit),
		cmocka_unit_test(test_small_replies_with_many_values),
		cmocka_unit_test(test_ends_early),
		cmocka_unit_test(test_others_on_the_port),
		cmocka_unit_test(test_silence),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
