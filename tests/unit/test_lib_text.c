/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses, nearest words, errors, string lists. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "lib/addr.h"
#include "lib/cleanup.h"
#include "lib/err.h"
#include "lib/nearest.h"
#include "lib/strv.h"
#include "tests/unit/cm.h"

static void addresses_are_read_and_shown(void **state)
{
	static const char *const same[] = { "1.2.3.4:5",  "0.0.0.0:0",       "[::1]:7411",
					    "[::]:65535", "[2001:db8::1]:1", "[::ffff:10.0.0.1]:9" };
	char buf[DRAY_ADDR_TEXT_MAX];
	struct dray_addr a;

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(same); i++) {
		assert_int_equal(dray_addr_parse(same[i], &a), 0);
		assert_string_equal(dray_addr_show(&a, buf, sizeof(buf)), same[i]);
	}
	assert_int_equal(dray_addr_parse("1.2.3.4:5", &a), 0);
	assert_int_equal(a.len, sizeof(struct sockaddr_in));
	assert_int_equal(dray_addr_port(&a), 5);
	dray_addr_set_port(&a, 7411);
	assert_string_equal(dray_addr_show(&a, buf, sizeof(buf)), "1.2.3.4:7411");
}

static void addresses_are_refused(void **state)
{
	static const char *const bad[] = {
		"",
		":1",
		"1.2.3.4",
		"1.2.3.4:",
		"1.2.3.4:65536",
		"1.2.3.4:-1",
		"1.2.3.4:+1",
		"1.2.3.4: 1",
		"1.2.3.4:01",
		"1.2.3:4",
		"256.0.0.1:1",
		"[::1]",
		"[::1]:",
		"[::1:5",
		"::1:5",
		"[fe80::1%eth0]:1",
		"[1.2.3.4]:1",
		"[]:1",
		"1.2.3.4:5x",
		"a b:1",
		"-a:1",
		"a-:1",
		"a..b:1",
		".a:1",
	};
	static const char *const names[] = { "localhost:1", "a.example:7411", "node_1.x-y:0",
					     "1a:1" };
	struct dray_addr a;

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(bad); i++)
		if (dray_addr_parse(bad[i], &a) != -EINVAL)
			fail_msg("%s", bad[i]);
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(names); i++)
		assert_int_equal(dray_addr_parse(names[i], &a), -EAFNOSUPPORT);
}

static void addresses_are_classified(void **state)
{
	static const struct {
		const char *text;
		bool loopback, wildcard, link_local;
	} rows[] = {
		{ "127.0.0.1:1", true, false, false },
		{ "127.9.9.9:1", true, false, false },
		{ "[::1]:1", true, false, false },
		{ "[::ffff:127.0.0.1]:1", true, false, false },
		{ "0.0.0.0:1", false, true, false },
		{ "[::]:1", false, true, false },
		{ "[::ffff:0.0.0.0]:1", false, true, false },
		{ "169.254.1.1:1", false, false, true },
		{ "[fe80::1]:1", false, false, true },
		{ "[::ffff:169.254.0.1]:1", false, false, true },
		{ "10.0.0.1:1", false, false, false },
		{ "[2001:db8::1]:1", false, false, false },
	};
	struct dray_addr a;

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(rows); i++) {
		assert_int_equal(dray_addr_parse(rows[i].text, &a), 0);
		assert_int_equal(dray_addr_is_loopback(&a), rows[i].loopback);
		assert_int_equal(dray_addr_is_wildcard(&a), rows[i].wildcard);
		assert_int_equal(dray_addr_is_link_local(&a), rows[i].link_local);
	}
}

static void segments_are_checked(void **state)
{
	static const char *const good[] = { "10.0.0.1:7411", "[2001:db8::1]:1", "node-3:7411",
					    "pod.ns.svc.cluster.local:65535", "127.0.0.1:80" };
	static const char *const bad[] = {
		"10.0.0.1:0", "node-3", "node-3:0",  "[fe80::1]:7411", "169.254.0.1:1",
		"0.0.0.0:1",  "[::]:1", "node 3:1",  "10.0.0:1",       "999.1.1.1:1",
		"",           ":7411",  "http://a:1"
	};

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(good); i++)
		assert_true(dray_endpoint_valid(good[i]));
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(bad); i++)
		if (dray_endpoint_valid(bad[i]))
			fail_msg("%s", bad[i]);
}

static void host_names_have_limits(void **state)
{
	char name[400];

	memset(name, 'a', sizeof(name));
	memcpy(name + 63, ":1", 3);
	assert_true(dray_endpoint_valid(name));
	memset(name, 'a', sizeof(name));
	memcpy(name + 64, ":1", 3);
	assert_false(dray_endpoint_valid(name));
	for (size_t i = 0; i < 300; i++)
		name[i] = i % 50 == 49 ? '.' : 'a';
	memcpy(name + 253, ":1", 3);
	assert_true(dray_endpoint_valid(name));
	memcpy(name + 253, "a:1", 4);
	assert_false(dray_endpoint_valid(name));
}

static void nearest_word_is_found(void **state)
{
	struct dray_nearest n = DRAY_NEAREST("wrokers");
	char longest[80];

	dray_nearest_offer(&n, "sessions");
	assert_null(n.best);
	dray_nearest_offer(&n, "worker");
	dray_nearest_offer(&n, "workers");
	assert_string_equal(n.best, "workers");
	assert_int_equal(dray_text_distance("", ""), 0);
	assert_int_equal(dray_text_distance("abc", ""), 3);
	assert_int_equal(dray_text_distance("abc", "acb"), 1);
	assert_int_equal(dray_text_distance("kitten", "sitting"), 3);
	memset(longest, 'a', sizeof(longest));
	longest[64] = '\0';
	assert_true(dray_text_distance(longest, "a") == UINT_MAX);
	longest[63] = '\0';
	assert_int_equal(dray_text_distance(longest, longest), 0);
	assert_int_equal(dray_text_distance(longest, ""), 63);
}

static void first_error_wins(void **state)
{
	struct dray_err e = DRAY_ERR_NULL;
	char text[400];

	assert_int_equal(dray_err_set(&e, -EINVAL, 7, "first %d", 1), -EINVAL);
	assert_int_equal(dray_err_set(&e, -EIO, 8, "second"), -EIO);
	assert_int_equal(e.code, 7);
	assert_string_equal(e.msg, "first 1");
	assert_int_equal(dray_err_set(NULL, -EIO, 8, "nobody listens"), -EIO);
	e = DRAY_ERR_NULL;
	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	dray_err_set(&e, 0, 1, "%s", text);
	assert_int_equal(strlen(e.msg), DRAY_ERR_MSG_MAX - 1);
	assert_string_equal(dray_errno_text(-ENOENT), dray_errno_text(ENOENT));
	assert_string_equal(dray_errno_text(99999), "unknown error");
}

static void lists_grow_and_clear(void **state)
{
	struct dray_strv s = DRAY_STRV_NULL;

	for (int i = 0; i < 100; i++)
		assert_int_equal(dray_strv_add(&s, "word and more", 4), 0);
	assert_int_equal(s.n, 100);
	assert_string_equal(s.v[99], "word");
	dray_strv_clear(&s);
	assert_null(s.v);
	dray_strv_clear(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(addresses_are_read_and_shown),
		cmocka_unit_test(addresses_are_refused),
		cmocka_unit_test(addresses_are_classified),
		cmocka_unit_test(segments_are_checked),
		cmocka_unit_test(host_names_have_limits),
		cmocka_unit_test(nearest_word_is_found),
		cmocka_unit_test(first_error_wins),
		cmocka_unit_test(lists_grow_and_clear),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
