/* SPDX-License-Identifier: Apache-2.0 */
/* The values of segment.* keys, and which addresses belong to this node. */
#include "agent/placement/segment/locality.h"
#include "agent/config/internal.h"
#include "agent/config/segment_rules.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "lib/cleanup.h"
#include "tests/unit/cm.h"

static struct dray_strv words(const char *const *v, size_t n)
{
	struct dray_strv r = DRAY_STRV_NULL;

	for (size_t i = 0; i < n; i++)
		assert_int_equal(dray_strv_add(&r, v[i], strlen(v[i])), 0);
	return r;
}

/* Returns which of these keys is refused; -1: none. */
static int refused(const struct dray_config *cfg, struct dray_err *reterr)
{
	struct dray_config full = *cfg;
	char any[] = "auto", tenant[] = "default", none[] = "", prefix[] = "dray";

	full.segment.preferred = any;
	full.data.tenant = tenant;
	full.store.directory = none;
	full.store.directory_prefix = prefix;
	full.store.put_at = none;
	for (int key = 0; key < DRAY_CONFIG_KEY_N; key++)
		if (config_check_forms(&full, (enum dray_config_key_id)key, reterr) < 0)
			return key;
	return -1;
}

static void known_segments(void **state)
{
	static const struct {
		const char *word, *segment, *target;
	} good[] = {
		{ "10.0.0.5:50053", "10.0.0.5:50053", "tcp://10.0.0.5:50053" },
		{ "10.0.0.5:50053 mooncake", "10.0.0.5:50053", "mooncake://10.0.0.5:50053" },
		{ "[2001:db8::1]:7411 dray", "[2001:db8::1]:7411", "dray://[2001:db8::1]:7411" },
		{ "owner.example:50053 \t http://10.0.0.5:9300/health", "owner.example:50053",
		  "http://10.0.0.5:9300/health" },
		{ "owner:50053 mooncake://[::1]:15873", "owner:50053", "mooncake://[::1]:15873" },
	};
	static const char *const bad[] = {
		"",
		" ",
		"10.0.0.5",
		"10.0.0.5:0",
		":50053",
		"10.0.0.5:99999",
		"0.0.0.0:50053",
		"fe80::1:5",
		"a:1 ftp",
		"a:1 http",
		"a:1 tcp://",
		"a:1 https://b:1/",
		"a:1 tcp x",
		"a b:1",
		"10.0.0.5:1 tcp://b",
		"a:1 http://b:0/",
	};

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(good); i++) {
		struct dray_err err = DRAY_ERR_NULL;
		char text[PROBE_TARGET_TEXT_MAX];
		struct known_rule r;

		assert_int_equal(known_rule_parse(good[i].word, &r, &err), 0);
		assert_string_equal(r.segment, good[i].segment);
		assert_string_equal(probe_target_show(&r.target, text, sizeof(text)),
				    good[i].target);
	}
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(bad); i++) {
		struct dray_err err = DRAY_ERR_NULL;
		struct known_rule r;

		if (known_rule_parse(bad[i], &r, &err) != -EINVAL)
			fail_msg("\"%s\" was taken", bad[i]);
		assert_true(*err.msg);
	}
}

static void a_segment_is_known_once(void **state)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct dray_strv w = words((const char *[]){ "a:1 tcp", "b:1", "a:1 mooncake" }, 3);

	assert_int_equal(refused(&(struct dray_config){ .segment = { .known = w } }, &err),
			 DRAY_CONFIG_KEY_SEGMENT_KNOWN);
	assert_non_null(strstr(err.msg, "twice"));
	dray_strv_clear(&w);
}

static void ports(void **state)
{
	static const struct {
		const char *word;
		unsigned first, last, segment;
		enum probe_kind kind;
	} good[] = {
		{ "50053", 50053, 50053, 0, PROBE_TCP },
		{ "50053 mooncake", 50053, 50053, 0, PROBE_MOONCAKE },
		{ "15000-17000 mooncake", 15000, 17000, 0, PROBE_MOONCAKE },
		{ "50052:50053", 50052, 50052, 50053, PROBE_TCP },
		{ "1-65535 dray", 1, 65535, 0, PROBE_DRAY },
	};
	static const char *const bad[] = { "",        "0",        "65536",   "2-1",  "1-2:3", "1:0",
					   "1:65536", "1 http",   "1 udp",   "x",    "1-",    "1:",
					   "-1",      "99999999", "1 tcp x", "none", "1,2" };

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(good); i++) {
		struct port_rule r;

		assert_int_equal(port_rule_parse(good[i].word, &r, NULL), 0);
		assert_int_equal(r.first, good[i].first);
		assert_int_equal(r.last, good[i].last);
		assert_int_equal(r.segment_port, good[i].segment);
		assert_int_equal(r.kind, good[i].kind);
	}
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(bad); i++) {
		struct dray_err err = DRAY_ERR_NULL;
		struct port_rule r;

		if (port_rule_parse(bad[i], &r, &err) != -EINVAL)
			fail_msg("\"%s\" was taken", bad[i]);
		assert_true(*err.msg);
	}
}

static void none_must_stand_alone(void **state)
{
	struct dray_strv none = words((const char *[]){ "none" }, 1);
	struct dray_strv two = words((const char *[]){ "none", "50053" }, 2);

	assert_int_equal(refused(&(struct dray_config){ .segment = { .ports = none } }, NULL), -1);
	assert_int_equal(refused(&(struct dray_config){ .mooncake = { .masters = none } }, NULL),
			 -1);
	assert_int_equal(refused(&(struct dray_config){ .segment = { .ports = two } }, NULL),
			 DRAY_CONFIG_KEY_SEGMENT_PORTS);
	assert_int_equal(refused(&(struct dray_config){ .mooncake = { .masters = two } }, NULL),
			 DRAY_CONFIG_KEY_MOONCAKE_MASTERS);
	dray_strv_clear(&none);
	dray_strv_clear(&two);
}

static void preferred_words(void **state)
{
	static const char *const good[] = { "local",      "self",      "own",
					    "10.0.0.5:1", "a.b:65535", "[::1]:5" };
	static const char *const bad[] = { "",          "  ",          "Local",
					   "10.0.0.5",  "10.0.0.5:",   "x y:1",
					   "0.0.0.0:5", "[fe80::1]:5", "http://a:1" };

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(good); i++)
		assert_int_equal(preferred_check(good[i], NULL), 0);
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(bad); i++) {
		struct dray_err err = DRAY_ERR_NULL;

		assert_int_equal(preferred_check(bad[i], &err), -EINVAL);
		assert_true(*err.msg);
	}
	assert_true(preferred_is_own("self"));
	assert_false(preferred_is_own("10.0.0.5:1"));
}

/* --- addresses of this node ---------------------------------------------------------------------- */

static struct in6_addr number(const char *text)
{
	struct in6_addr a = { 0 };

	if (inet_pton(AF_INET6, text, &a) == 1)
		return a;
	a.s6_addr[10] = a.s6_addr[11] = 0xff;
	assert_int_equal(inet_pton(AF_INET, text, &a.s6_addr[12]), 1);
	return a;
}

static int judge(const struct locality *l, const char *segment)
{
	char reason[200] = "";
	int r = locality_find(l, segment, reason, sizeof(reason));

	assert_true(*reason);
	return r;
}

static void addresses_of_this_node(void **state)
{
	struct nd_addr addrs[] = {
		{ .ifindex = 1, .family = AF_INET, .addr = number("127.0.0.1") },
		{ .ifindex = 2, .family = AF_INET, .addr = number("10.0.0.5") },
		{ .ifindex = 3, .family = AF_INET, .addr = number("172.16.0.5") },
		{ .ifindex = 3, .family = AF_INET6, .addr = number("2001:db8::5") },
	};
	struct nd_links links = { .addrs = addrs, .n_addrs = DRAY_ARRAY_SIZE(addrs) };
	struct dray_strv node = words((const char *[]){ "192.0.2.9", "2001:db8::9" }, 2);
	struct dray_strv local = words((const char *[]){ "203.0.113.7:50053", "2001:db8:f::1",
							 "owner.example", "nat.example:1" },
				       4);
	struct locality l = LOCALITY_NULL;

	for (size_t i = 0; i < local.n; i++) {
		struct local_rule r;

		assert_int_equal(local_rule_parse(local.v[i], &r, NULL), 0);
	}
	assert_int_equal(judge(&l, "10.0.0.5:1"), 0);
	assert_int_equal(locality_set_addresses(&l, &links, &node), 1);
	assert_int_equal(locality_set_addresses(&l, &links, &node), 0);
	assert_int_equal(locality_set_rules(&l, &local), 0);
	/* every interface, both families, node.addresses, loopback */
	assert_int_equal(judge(&l, "10.0.0.5:1"), 1);
	assert_int_equal(judge(&l, "172.16.0.5:50053"), 1);
	assert_int_equal(judge(&l, "[2001:db8::5]:1"), 1);
	assert_int_equal(judge(&l, "192.0.2.9:1"), 1);
	assert_int_equal(judge(&l, "[2001:db8::9]:1"), 1);
	assert_int_equal(judge(&l, "127.0.0.99:1"), 1);
	assert_int_equal(judge(&l, "[::1]:1"), 1);
	/* an IPv4-mapped IPv6 address is the same address */
	assert_int_equal(judge(&l, "[::ffff:10.0.0.5]:1"), 1);
	assert_int_equal(judge(&l, "10.0.0.6:1"), 0);
	assert_int_equal(judge(&l, "[2001:db8::6]:1"), 0);
	/* an address that only the configuration has */
	assert_int_equal(judge(&l, "203.0.113.7:50053"), 1);
	assert_int_equal(judge(&l, "203.0.113.7:50054"), 0);
	assert_int_equal(judge(&l, "[2001:db8:f::1]:50054"), 1);
	assert_int_equal(judge(&l, "OWNER.example:5"), 1);
	assert_int_equal(judge(&l, "nat.example:1"), 1);
	assert_int_equal(judge(&l, "nat.example:2"), -EAGAIN);
	assert_int_equal(judge(&l, "other.example:1"), -EAGAIN);
	/* removed addresses no longer count */
	assert_int_equal(locality_set_addresses(&l, NULL, &node), 1);
	assert_int_equal(judge(&l, "10.0.0.5:1"), 0);
	locality_deinit(&l);
	dray_strv_clear(&node);
	dray_strv_clear(&local);
}

static void local_words(void **state)
{
	static const char *const bad[] = { "",        ":1",   "a b",     "10.0.0.256:1", "0.0.0.0",
					   "host:0x", "[::1", "fe80::1", "host:65536" };

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(bad); i++) {
		struct dray_err err = DRAY_ERR_NULL;
		struct local_rule r;

		if (local_rule_parse(bad[i], &r, &err) != -EINVAL)
			fail_msg("\"%s\" was taken", bad[i]);
		assert_true(*err.msg);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(known_segments),  cmocka_unit_test(a_segment_is_known_once),
		cmocka_unit_test(ports),           cmocka_unit_test(none_must_stand_alone),
		cmocka_unit_test(preferred_words), cmocka_unit_test(addresses_of_this_node),
		cmocka_unit_test(local_words),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
