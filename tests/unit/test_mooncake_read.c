/* SPDX-License-Identifier: Apache-2.0 */
/* What engines with Mooncake say about their devices and keys, and answer to requests for queue pairs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/mooncake/connection.h"
#include "agent/control/mooncake/descriptor_read.h"
#include "agent/control/mooncake/gid.h"
#include "lib/cleanup.h"
#include "schema/gen/errors.h"
#include "tests/unit/cm.h"

#define GID "00:00:00:00:00:00:00:00:00:00:ff:ff:0a:5a:00:0"
#define NO_GID "00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:00"

static struct dray_err err;

static int read_text(const char *text, struct mooncake_descriptor *d)
{
	err = DRAY_ERR_NULL;
	return mooncake_descriptor_read(text, strlen(text), d, &err);
}

/* Devices that do not work are left out, and with them their keys; a buffer without keys, and what another one has, too. */
static void test_descriptor(void **state)
{
	static const char text[] =
		"{\"name\":\"10.0.0.1:15000\",\"protocol\":\"rdma\",\"tcp_data_port\":0,"
		"\"rdma_server_name\":\"10.9.0.1:15000\",\"devices\":["
		"{\"name\":\"dead\",\"lid\":0,\"gid\":\"" NO_GID "\"},"
		"{\"name\":\"m1\",\"lid\":0,\"gid\":\"" GID "1\"},"
		"{\"name\":\"out\",\"lid\":0,\"gid\":\"" GID "2\"},"
		"{\"name\":\"m3\",\"lid\":7,\"gid\":\"" GID "3\"}],\"buffers\":["
		"{\"name\":\"cpu:0\",\"addr\":8192,\"length\":8192,\"rkey\":[0,21,22,23]},"
		"{\"name\":\"cpu:0\",\"addr\":4096,\"length\":8192,\"rkey\":[0,11,12,4294967295]},"
		"{\"name\":\"cpu:0\",\"addr\":1,\"length\":1,\"rkey\":[]}],"
		"\"priority_matrix\":{\"cpu:0\":[[\"m1\"],[\"m3\",\"dead\"]]}}";
	struct mooncake_descriptor d;
	const struct rail_key *k;

	assert_int_equal(read_text(text, &d), 0);
	assert_true(d.rdma && !d.port);
	assert_string_equal(d.server, "10.9.0.1:15000");
	assert_int_equal(d.n_devices, 2);
	assert_false(d.partial);
	assert_string_equal(d.devices[0].name, "m1");
	assert_string_equal(d.devices[1].name, "m3");
	assert_int_equal(d.devices[1].lid, 7);
	assert_int_equal(d.devices[1].gid.s6_addr[15], 3);
	assert_int_equal(d.buffers->n, 2);
	assert_int_equal(d.buffers->v[0].start, 4096);
	assert_int_equal(d.buffers->v[1].start, 12288);
	assert_int_equal(d.buffers->v[1].end, 16384);
	assert_int_equal(d.keys->rails, 3);
	assert_int_equal(rail_keys_find(d.keys, 0, 4096)->key, 11);
	k = rail_keys_find(d.keys, 1, 12287);
	assert_int_equal(k->key, UINT32_MAX);
	assert_int_equal(k->base, 4096);
	assert_int_equal(rail_keys_find(d.keys, 1, 12288)->key, 23);
	mooncake_descriptor_clear(&d);
}

static void test_descriptor_refused(void **state)
{
#define RDMA(rest) "{\"name\":\"a:1\",\"protocol\":\"rdma\"," rest "}"
#define DEVICES "\"devices\":[{\"name\":\"m\",\"gid\":\"" GID "1\"}]"
	static const struct {
		const char *text, *why;
	} cases[] = {
		{ RDMA("\"devices\":[]"), "no device" },
		{ RDMA("\"devices\":[5]"), "impossible name" },
		{ RDMA("\"devices\":[{\"name\":\"a b\",\"gid\":\"" GID "1\"}]"),
		  "impossible name" },
		{ RDMA("\"devices\":[{\"name\":\"m\",\"gid\":\"" GID "1\",\"lid\":65536}]"),
		  "impossible name" },
		{ RDMA(DEVICES ",\"priority_matrix\":{\"cpu:0\":[[\"other\"],[]]}"), "no device" },
		{ RDMA(DEVICES ",\"buffers\":[]"), "no registered memory" },
		{ RDMA(DEVICES ",\"buffers\":[{\"addr\":1,\"length\":1,\"rkey\":[]}]"),
		  "no registered memory" },
		{ RDMA(DEVICES ",\"buffers\":[{\"addr\":1,\"length\":1,\"rkey\":[-1]}]"),
		  "a key for each device" },
		{ RDMA(DEVICES ",\"rdma_server_name\":\"x\\\"y\","
			       "\"buffers\":[{\"addr\":1,\"length\":1,\"rkey\":[1]}]"),
		  "no host and port" },
	};
	struct mooncake_descriptor d;

	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(cases); i++) {
		assert_true(read_text(cases[i].text, &d) < 0);
		assert_non_null(strstr(err.msg, cases[i].why));
		assert_true(err.code && !d.buffers && !d.keys);
	}
}

/* Devices are bounded, because each is looked for in the matrix. */
static void test_many_devices(void **state)
{
	static const char start[] = "{\"name\":\"a:1\",\"protocol\":\"rdma\",\"devices\":[0";
	char text[65 * 2 + sizeof(start) + 2];
	size_t n = (size_t)snprintf(text, sizeof(text), "%s", start);
	struct mooncake_descriptor d;

	for (unsigned i = 1; i < 65; i++)
		n += (size_t)snprintf(text + n, sizeof(text) - n, ",0");
	snprintf(text + n, sizeof(text) - n, "]}");
	assert_true(read_text(text, &d) < 0);
	assert_non_null(strstr(err.msg, "too many devices"));
}

/* Keys are bounded: with 2,000 buffers the keys of 8 devices are kept. */
static void test_many_keys(void **state)
{
	struct mooncake_descriptor d;
	char *text = NULL;
	size_t n = 0;
	FILE *f = open_memstream(&text, &n);

	fputs("{\"name\":\"a:1\",\"protocol\":\"rdma\",\"devices\":[", f);
	for (unsigned i = 0; i < 16; i++)
		fprintf(f, "%s{\"name\":\"m%u\",\"gid\":\"" GID "1\"}", i ? "," : "", i);
	fputs("],\"buffers\":[", f);
	for (unsigned i = 0; i < 2000; i++) {
		fprintf(f, "%s{\"addr\":%u,\"length\":4096,\"rkey\":[0", i ? "," : "",
			(i + 1) * 8192);
		for (unsigned k = 1; k < 16; k++)
			fprintf(f, ",%u", k);
		fputs("]}", f);
	}
	fputs("]}", f);
	assert_int_equal(fclose(f), 0);
	assert_int_equal(mooncake_descriptor_read(text, n, &d, &err), 0);
	assert_int_equal(d.n_devices, 8);
	assert_true(d.partial);
	assert_int_equal(d.keys->n, 16000);
	assert_int_equal(rail_keys_find(d.keys, 7, 2000 * 8192)->key, 7);
	mooncake_descriptor_clear(&d);
	free(text);
}

/* Values that no description needs are counted before they are read, since they take much memory and time. */
static void test_dense_text(void **state)
{
	static const char *const values[] = { "{},", "[],", "0,", "\"\"," };
	struct mooncake_descriptor d;

	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(values); i++) {
		char *text = NULL;
		size_t n = 0;
		FILE *f = open_memstream(&text, &n);

		fputs("{\"name\":\"a:1\",\"protocol\":\"tcp\",\"tcp_data_port\":1,\"buffers\":["
		      "{\"addr\":4096,\"length\":4096}],\"unused\":[",
		      f);
		for (unsigned k = 0; k < 250000; k++)
			fputs(values[i], f);
		fputs("0]}", f);
		assert_int_equal(fclose(f), 0);
		err = DRAY_ERR_NULL;
		assert_true(mooncake_descriptor_read(text, n, &d, &err) < 0);
		assert_non_null(strstr(err.msg, "more values than its buffers need"));
		free(text);
	}
}

/* As many buffers as an import may have, with keys as Mooncake writes them. */
static void test_most_buffers(void **state)
{
	struct mooncake_descriptor d;
	char *text = NULL;
	size_t n = 0;
	FILE *f = open_memstream(&text, &n);

	fputs("{\"name\":\"a:1\",\"protocol\":\"rdma\",\"devices\":[", f);
	for (unsigned i = 0; i < 4; i++)
		fprintf(f, "%s{\"name\":\"m%u\",\"gid\":\"" GID "1\"}", i ? "," : "", i);
	fputs("],\"buffers\":[", f);
	for (unsigned i = 0; i < 8192; i++)
		fprintf(f,
			"%s{\"name\":\"cpu:0\",\"addr\":%u,\"length\":4096,"
			"\"lkey\":[1,2,3,4],\"rkey\":[1,2,3,4]}",
			i ? "," : "", (i + 1) * 8192);
	fputs("]}", f);
	assert_int_equal(fclose(f), 0);
	assert_int_equal(mooncake_descriptor_read(text, n, &d, &err), 0);
	assert_int_equal(d.buffers->n, 8192);
	mooncake_descriptor_clear(&d);
	free(text);
}

/* Each device is looked for in the matrix, so a large one is refused. */
static void read_matrix(unsigned names, unsigned lists, struct mooncake_descriptor *d)
{
	char *text = NULL;
	size_t n = 0;
	FILE *f = open_memstream(&text, &n);

	fputs("{\"name\":\"10.0.0.1:15000\",\"protocol\":\"rdma\",\"devices\":[", f);
	for (unsigned i = 0; i < 64; i++)
		fprintf(f, "%s{\"name\":\"m%u\",\"gid\":\"" GID "1\"}", i ? "," : "", i);
	fputs("],\"buffers\":[{\"addr\":4096,\"length\":4096,\"rkey\":[0", f);
	for (unsigned i = 1; i < 64; i++)
		fputs(",1", f);
	fputs("]}],\"priority_matrix\":{\"cpu:0\":[[\"m0\"", f);
	for (unsigned i = 0; i < names; i++)
		fputs(",\"x\"", f);
	fputs("]", f);
	for (unsigned i = 0; i < lists; i++)
		fputs(",[]", f);
	fputs("]}}", f);
	assert_int_equal(fclose(f), 0);
	err = DRAY_ERR_NULL;
	if (names + lists < 4090) {
		assert_int_equal(mooncake_descriptor_read(text, n, d, &err), 0);
		assert_int_equal(d->n_devices, 1);
		mooncake_descriptor_clear(d);
	} else {
		assert_true(mooncake_descriptor_read(text, n, d, &err) < 0);
		assert_int_equal(err.code, DRAY_E_PROTOCOL);
		assert_non_null(strstr(err.msg, "too many names of devices"));
	}
	free(text);
}

static void test_large_matrix(void **state)
{
	struct mooncake_descriptor d;

	read_matrix(4000, 1, &d);
	read_matrix(100000, 1, &d);
	read_matrix(1, 30000, &d);
}

static const struct connection_ends ends = { .ours = "dray-1@dev0", .theirs = "10.0.0.1:15000@m1" };

/* An engine reads the request as the agent reads one of an engine. */
static void test_request(void **state)
{
	struct rails_engine_request q = { .gid.s6_addr = { [15] = 9 }, .lid = 3, .qpn = 17 };
	struct rails_guest_request seen = { .n = 0 };
	size_t n = 0;
	char *text = connection_request(&ends, &q, 3, 1u << 24 | 5, &n);

	assert_int_equal(n, strlen(text));
	assert_null(connection_parse(text, n, "10.0.0.1:15000", &seen));
	assert_string_equal(seen.path, ends.ours);
	assert_string_equal(seen.device, "m1");
	assert_int_equal(seen.lid, 3);
	assert_memory_equal(&seen.gid, &q.gid, sizeof(q.gid));
	assert_int_equal(seen.n, 3);
	assert_int_equal(seen.qpn[0], 17);
	assert_int_equal(seen.qpn[1], 5);
	assert_int_equal(seen.qpn[2], 5);
	free(text);
}

static int answer(const char *text, struct connection_reply *ret)
{
	err = DRAY_ERR_NULL;
	return connection_answer_read(text, strlen(text), &ends, ret, &err);
}

/* And the answer, as the agent gives it. */
static void test_answer(void **state)
{
	static const uint32_t qpn[] = { 0xffffff, 18 };
	struct rails_guest_request want = { .path = "dray-1@dev0" };
	struct rails_guest_reply given = { .device = { .name = "m1", .lid = 4 },
					   .n = 2,
					   .qpn = qpn };
	struct connection_reply reply;
	size_t n = 0;
	char *text = connection_answer("10.0.0.1:15000", &want, &given, &n);

	assert_int_equal(answer(text, &reply), 0);
	assert_string_equal(reply.refused, "");
	assert_int_equal(reply.n, 2);
	assert_int_equal(reply.qpn, 0xffffff);
	assert_int_equal(reply.lid, 4);
	free(text);
	assert_int_equal(
		answer("{\"reply_msg\":\"QP count\\u0007 differs\",\"qp_num\":[1,2]}", &reply), 0);
	assert_string_equal(reply.refused, "QP count? differs");
	assert_int_equal(reply.n, 2);
	/* a release before 0.3.12, which may refuse the number of queue pairs */
	assert_int_equal(answer("null", &reply), 0);
	assert_string_equal(reply.refused, "it does not say why");
	assert_int_equal(reply.n, 0);
}

static void test_answer_refused(void **state)
{
#define ENDS "\"local_nic_path\":\"10.0.0.1:15000@m1\",\"peer_nic_path\":\"dray-1@dev0\""
#define ADDRESS "\"local_gid\":\"" GID "1\",\"local_lid\":0"
	static const struct {
		const char *text, *why;
	} cases[] = {
		{ "", "no JSON" },
		{ "[1]", "no object" },
		{ "{}", "another request" },
		{ "{" ENDS "," ADDRESS "}", "no queue pair" },
		{ "{" ENDS "," ADDRESS ",\"qp_num\":[]}", "no queue pair" },
		{ "{" ENDS "," ADDRESS ",\"qp_num\":[16777216]}", "no queue pair" },
		{ "{" ENDS "," ADDRESS ",\"qp_num\":[\"1\"]}", "no queue pair" },
		{ "{" ENDS ",\"qp_num\":[1]}", "no GID" },
		{ "{" ENDS ",\"local_gid\":\"" GID "1\",\"local_lid\":\"x\",\"qp_num\":[1]}",
		  "no LID" },
		{ "{\"local_nic_path\":\"other@m1\",\"peer_nic_path\":\"dray-1@dev0\"," ADDRESS
		  ",\"qp_num\":[1]}",
		  "another request" },
	};
	struct connection_reply reply;

	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(cases); i++) {
		assert_true(answer(cases[i].text, &reply) < 0);
		assert_non_null(strstr(err.msg, cases[i].why));
		assert_int_equal(err.code, DRAY_E_PROTOCOL);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_descriptor),     cmocka_unit_test(test_descriptor_refused),
		cmocka_unit_test(test_many_devices),   cmocka_unit_test(test_large_matrix),
		cmocka_unit_test(test_request),        cmocka_unit_test(test_answer),
		cmocka_unit_test(test_answer_refused), cmocka_unit_test(test_many_keys),
		cmocka_unit_test(test_dense_text),     cmocka_unit_test(test_most_buffers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
