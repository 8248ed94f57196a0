/* SPDX-License-Identifier: Apache-2.0 */
/* The decoders of Mooncake's protocol, the index of buffers, and networks of the configuration. */
#include <errno.h>
#include <string.h>

#include "agent/config/network.h"
#include "agent/control/mooncake/frame.h"
#include "agent/data/transport/mooncake/exports.h"
#include "agent/data/transport/mooncake/wire.h"
#include "tests/unit/cm.h"

static void test_request(void **state)
{
	uint8_t p[MOONCAKE_REQUEST_BYTES] = { 0x01, 0x02, 0, 0, 0, 0, 0, 0x80, 0xff, 0, 0, 0,
					      0,    0,    0, 1, 0, 9, 9, 9,    9,    9, 9, 9 };
	struct mooncake_request rq;

	assert_int_equal(mooncake_request_get(p, &rq), 0);
	assert_int_equal(rq.length, 0x8000000000000201);
	assert_int_equal(rq.address, 0x01000000000000ff);
	assert_false(rq.write || rq.with_status);
	for (unsigned operation = 0; operation < 256; operation++) {
		p[16] = (uint8_t)operation;
		if ((operation & 0x7f) > 1) {
			assert_int_equal(mooncake_request_get(p, &rq), -EPROTO);
			continue;
		}
		assert_int_equal(mooncake_request_get(p, &rq), 0);
		assert_int_equal(rq.write, operation & 1);
		assert_int_equal(rq.with_status, operation >> 7);
	}
}

static void test_status(void **state)
{
	static const uint8_t ok[] = { 0, 0, 0, 0, 0x56, 0x54, 0x43, 0x4d };
	static const uint8_t refused[] = { 1, 0, 0, 0, 0x56, 0x54, 0x43, 0x4d };
	uint8_t p[MOONCAKE_STATUS_BYTES];

	mooncake_status_put(p, MOONCAKE_STATUS_OK);
	assert_memory_equal(p, ok, sizeof(ok));
	mooncake_status_put(p, MOONCAKE_STATUS_REFUSED);
	assert_memory_equal(p, refused, sizeof(refused));
}

static void test_frame(void **state)
{
	static const struct {
		uint8_t p[MOONCAKE_FRAME_HEAD];
		int r;
		uint64_t body;
	} cases[] = {
		{ { 0 }, -EPROTO, 0 },
		{ { 1, 0, 0, 0, 0, 0, 0, 0, 0 }, 0, 0 },
		{ { 3, 0, 0, 0, 0, 0, 0, 0, 1 }, 0, 2 },
		{ { 3, 0, 0, 0, 0, 0, 0, 0, 3 }, 0, 2 },
		{ { 3, 0, 0, 0, 0, 0, 0, 0, 4 }, -EPROTO, 0 },
		{ { 3, 0, 0, 0, 0, 0, 0, 0, '{' }, -EPROTO, 0 },
		{ { 3, 0, 0, 0, 0, 0, 0, 0, 0xfe }, -EPROTO, 0 },
		{ { 0, 0, 16, 0, 0, 0, 0, 0, 1 }, 0, 1048575 },
		{ { 1, 0, 16, 0, 0, 0, 0, 0, 1 }, -EPROTO, 0 },
		{ { 1, 0, 0, 0, 0, 0, 0, 0x80, 1 }, -EPROTO, 0 },
	};
	uint8_t p[MOONCAKE_FRAME_HEAD];
	struct mooncake_frame f;

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		assert_int_equal(mooncake_frame_get(cases[i].p, &f), cases[i].r);
		if (cases[i].r)
			continue;
		assert_int_equal(f.body, cases[i].body);
		mooncake_frame_put(p, &f);
		assert_memory_equal(p, cases[i].p, sizeof(p));
	}
}

static struct grant_view grant(uint64_t address, uint64_t length, dray_handle handle)
{
	return (struct grant_view){
		.o = { .kind = OBJECT_GRANT, .handle = handle, .length = length },
		.peer = MOONCAKE_PEER,
		.mooncake = address
	};
}

static dray_handle found(const struct mooncake_exports *e, uint64_t address, uint64_t length)
{
	const struct mooncake_export *x = mooncake_exports_find(e, address, length);

	return x ? x->grant : 0;
}

static void test_exports(void **state)
{
	struct mooncake_exports e = { .v = NULL };
	struct grant_view g;

	assert_int_equal(found(&e, 0, 1), 0);
	assert_int_equal(found(&e, UINT64_MAX, UINT64_MAX), 0);
	/* in an order that puts each between others */
	for (uint64_t i = 0; i < 101; i++) {
		uint64_t k = i * 37 % 101;

		g = grant((k + 1) * 4096, k % 2 ? 4096 : 4000, k + 1);
		mooncake_exports_add(&e, &g);
	}
	for (uint64_t k = 0; k < 101; k++) {
		uint64_t base = (k + 1) * 4096, length = k % 2 ? 4096 : 4000;

		assert_int_equal(found(&e, base, length), k + 1);
		assert_int_equal(found(&e, base + length - 1, 1), k + 1);
		assert_int_equal(found(&e, base, length + 1), 0);
		assert_int_equal(found(&e, base + 1, length), 0);
		assert_int_equal(found(&e, base + 1, UINT64_MAX), 0);
		assert_int_equal(found(&e, base + 1, UINT64_MAX - base), 0);
		if (length < 4096)
			assert_int_equal(found(&e, base + length, 1), 0);
	}
	assert_int_equal(found(&e, 4095, 1), 0);
	assert_int_equal(found(&e, 0, UINT64_MAX), 0);
	/* the address belongs to another grant now */
	g = grant(4096, 4000, 77);
	mooncake_exports_del(&e, &g);
	assert_int_equal(found(&e, 4096, 1), 1);
	for (uint64_t k = 0; k < 101; k += 2) {
		g = grant((k + 1) * 4096, 4000, k + 1);
		mooncake_exports_del(&e, &g);
		mooncake_exports_del(&e, &g);
	}
	for (uint64_t k = 0; k < 101; k++)
		assert_int_equal(found(&e, (k + 1) * 4096, 1), k % 2 ? k + 1 : 0);
	assert_int_equal(e.n, 50);
	mooncake_exports_deinit(&e);
}

static bool has(const char *word, const char *endpoint)
{
	struct network n;
	struct dray_addr a;

	assert_int_equal(network_parse(word, &n, NULL), 0);
	assert_int_equal(dray_addr_parse(endpoint, &a), 0);
	return network_has(&n, &a);
}

static void test_networks(void **state)
{
	static const char *const bad[] = { "",
					   "/",
					   "/8",
					   "10.0.0.0/33",
					   "10.0.0.0/",
					   "10.0.0.0/x",
					   "10.0.0.1/8",
					   "10.0.0.0/008x",
					   "10.0.0.0/-1",
					   "host",
					   "10.0.0.1:5",
					   "[::1]",
					   "::1/129",
					   "fe80::1/64",
					   "10.0.0.0/8/8" };
	struct dray_strv words = { .v = (char *[]){ (char *)(uintptr_t) "10.0.0.7",
						    (char *)(uintptr_t) "2001:db8::/32" },
				   .n = 2 };
	struct dray_addr a;

	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		struct dray_err err = DRAY_ERR_NULL;

		assert_int_equal(network_parse(bad[i], &(struct network){ .bits = 0 }, &err),
				 -EINVAL);
		assert_true(err.msg[0]);
	}
	assert_true(has("10.0.0.7", "10.0.0.7:1"));
	assert_false(has("10.0.0.7", "10.0.0.8:1"));
	assert_true(has("10.0.0.0/8", "10.255.0.1:1"));
	assert_false(has("10.0.0.0/8", "11.0.0.0:1"));
	assert_true(has("10.0.0.128/25", "10.0.0.129:1"));
	assert_false(has("10.0.0.128/25", "10.0.0.127:1"));
	/* a peer of a dual-stack socket */
	assert_true(has("10.0.0.0/8", "[::ffff:10.1.2.3]:1"));
	assert_true(has("0.0.0.0/0", "1.2.3.4:1"));
	assert_false(has("0.0.0.0/0", "[2001:db8::1]:1"));
	assert_true(has("::/0", "[2001:db8::1]:1"));
	/* IPv4 needs a network of its own, also where one socket accepts both */
	assert_false(has("::/0", "1.2.3.4:1"));
	assert_false(has("::/0", "[::ffff:1.2.3.4]:1"));
	assert_false(has("::/80", "[::ffff:1.2.3.4]:1"));
	assert_true(has("::ffff:0:0/96", "1.2.3.4:1"));
	assert_true(has("::ffff:10.0.0.7", "10.0.0.7:1"));
	assert_true(has("2001:db8::/33", "[2001:db8:7fff::1]:1"));
	assert_false(has("2001:db8::/33", "[2001:db8:8000::1]:1"));
	assert_int_equal(dray_addr_parse("[2001:db8:1::1]:1", &a), 0);
	assert_true(networks_have(&words, &a));
	assert_int_equal(dray_addr_parse("10.0.0.8:1", &a), 0);
	assert_false(networks_have(&words, &a));
	words.n = 0;
	assert_false(networks_have(&words, &a));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_request),  cmocka_unit_test(test_status),
		cmocka_unit_test(test_frame),    cmocka_unit_test(test_exports),
		cmocka_unit_test(test_networks),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
