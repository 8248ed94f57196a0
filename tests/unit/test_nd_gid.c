/* SPDX-License-Identifier: Apache-2.0 */
/* Which GID of a port is chosen; each mistake known from other software has a test. */
#include "netdetect/choose/gid.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "tests/unit/cm.h"

#define ROWS_MAX 8

static struct nd_gid rows[ROWS_MAX];
static struct nd_gids gids;

static const struct nd_gid_choice any = { .fixed_index = -1 };
static const struct nd_gid_choice infiniband = { .fixed_index = -1, .infiniband = true };

static int setup(void **state)
{
	memset(rows, 0, sizeof(rows));
	gids = (struct nd_gids){ .v = rows };
	return 0;
}

/*
 * Adds a GID. netdev NULL: it has none in this namespace. The netdev is up unless the test changes
 * that.
 */
static struct nd_gid *add(uint32_t index, enum nd_gid_type type, const char *gid,
			  const char *netdev)
{
	struct nd_gid *g = &rows[gids.n++];

	assert_true(gids.n <= ROWS_MAX);
	*g = (struct nd_gid){ .index = index, .type = type };
	assert_int_equal(inet_pton(AF_INET6, gid, &g->gid), 1);
	g->class = nd_gid_class_of(&g->gid);
	if (netdev) {
		g->ifindex = 2;
		g->netdev_up = true;
		strncpy(g->netdev, netdev, sizeof(g->netdev) - 1);
	}
	return g;
}

static const struct nd_gid *best(const struct nd_gid_choice *choice)
{
	nd_gids_rank(&gids, choice);
	for (size_t i = 0; i < gids.n; i++) {
		assert_true(*gids.v[i].reason);
		assert_int_equal(gids.v[i].rejected, gids.v[i].score < 0);
		/* rejected GIDs come last */
		assert_true(!i || !gids.v[i - 1].rejected || gids.v[i].rejected);
	}
	return nd_gids_best(&gids);
}

static void best_is(const struct nd_gid_choice *choice, uint32_t index)
{
	const struct nd_gid *g = best(choice);

	assert_non_null(g);
	assert_int_equal(g->index, index);
}

static void says(const struct nd_gid *g, const char *words)
{
	if (!strstr(g->reason, words))
		fail_msg("\"%s\" does not contain \"%s\"", g->reason, words);
}

static void without_live_netdev_does_not_beat_private(void **state)
{
	add(0, ND_GID_ROCE_V2, "::ffff:203.0.113.7", NULL);
	add(1, ND_GID_ROCE_V2, "::ffff:203.0.113.8", "eth1")->netdev_up = false;
	add(2, ND_GID_ROCE_V2, "::ffff:10.0.0.1", "eth0");
	best_is(&any, 2);
	says(&gids.v[0], "RoCE v2, IPv4 10.0.0.1 on eth0, up");
	says(&gids.v[1], "rejected: no netdev in this network namespace");
	says(&gids.v[2], "down");
}

static void link_local_does_not_beat_private(void **state)
{
	add(0, ND_GID_ROCE_V2, "fe80::1", "eth0");
	add(1, ND_GID_ROCE_V2, "::ffff:169.254.3.4", "eth0");
	add(2, ND_GID_ROCE_V2, "::ffff:10.0.0.1", "eth0");
	best_is(&any, 2);
}

static void index_is_a_number(void **state)
{
	add(10, ND_GID_ROCE_V2, "::ffff:10.0.0.1", "eth0");
	add(9, ND_GID_ROCE_V2, "::ffff:10.0.0.1", "eth0");
	best_is(&any, 9);
}

static void each_port_has_its_own_index(void **state)
{
	add(3, ND_GID_ROCE_V2, "::ffff:10.0.0.1", "eth0");
	best_is(&any, 3);
	setup(state);
	add(3, ND_GID_ROCE_V1, "::ffff:10.1.0.1", "eth1");
	add(5, ND_GID_ROCE_V2, "::ffff:10.1.0.1", "eth1");
	best_is(&any, 5);
}

/* Two addresses of one netdev: the choice does not depend on their order in the table. */
static void same_choice_after_a_flap(void **state)
{
	struct in6_addr before;

	add(0, ND_GID_ROCE_V2, "fe80::1", "eth0");
	add(1, ND_GID_ROCE_V2, "::ffff:10.0.0.1", "eth0");
	add(2, ND_GID_ROCE_V2, "::ffff:10.0.0.2", "eth0");
	before = best(&any)->gid;
	setup(state);
	add(0, ND_GID_ROCE_V2, "::ffff:10.0.0.2", "eth0");
	add(1, ND_GID_ROCE_V2, "fe80::1", "eth0");
	add(2, ND_GID_ROCE_V2, "::ffff:10.0.0.1", "eth0");
	assert_memory_equal(&best(&any)->gid, &before, sizeof(before));
}

static void ipv6_only(void **state)
{
	add(0, ND_GID_ROCE_V2, "fe80::1", "eth0");
	add(1, ND_GID_ROCE_V2, "fd00::1", "eth0");
	best_is(&any, 1);
	says(&gids.v[0], "IPv6 fd00::1");
}

static void link_local_alone_is_used_and_reported(void **state)
{
	add(0, ND_GID_ROCE_V1, "fe80::1", "eth0");
	add(1, ND_GID_ROCE_V2, "fe80::1", "eth0");
	best_is(&any, 1);
	says(&gids.v[0], "link-local");
}

static void the_configured_family_is_preferred(void **state)
{
	struct nd_gid_choice v6 = { .family = AF_INET6, .fixed_index = -1 };
	struct nd_gid_choice v4 = { .family = AF_INET, .fixed_index = -1 };

	add(1, ND_GID_ROCE_V2, "fd00::1", "eth0");
	add(2, ND_GID_ROCE_V2, "::ffff:10.0.0.1", "eth0");
	best_is(&any, 2);
	best_is(&v4, 2);
	best_is(&v6, 1);
}

static void fixed_index_wins(void **state)
{
	struct nd_gid_choice fixed = { .fixed_index = 0 };

	add(0, ND_GID_ROCE_V1, "fe80::1", "eth0");
	add(1, ND_GID_ROCE_V2, "::ffff:10.0.0.1", "eth0");
	best_is(&fixed, 0);
	says(&gids.v[0], "fixed by configuration");
	/* nor does another one replace it for peers that it does not reach */
	assert_true(gids.v[1].rejected);
	says(&gids.v[1], "configuration fixes index 0");
	rows[0].netdev_up = false;
	best_is(&fixed, 0);
	says(&gids.v[0], "fixed by configuration although");
}

static void a_missing_fixed_index_is_not_replaced(void **state)
{
	struct nd_gid_choice fixed = { .fixed_index = 7 };

	add(1, ND_GID_ROCE_V2, "::ffff:10.0.0.1", "eth0");
	assert_null(best(&fixed));
	says(&gids.v[0], "7");
}

static void refused_by_the_device(void **state)
{
	struct nd_gid *g = add(1, ND_GID_ROCE_V2, "::ffff:10.0.0.1", "eth0");

	g->proof = ND_PROOF_FAILED;
	g->proof_error = EINVAL;
	assert_null(best(&any));
	says(&gids.v[0], "rejected: the device refused an address handle (");
}

static void roce_v1_only(void **state)
{
	add(0, ND_GID_ROCE_V1, "fe80::1", "eth0");
	add(1, ND_GID_ROCE_V1, "::ffff:10.0.0.1", "eth0");
	best_is(&any, 1);
}

static void bridges_of_containers_are_last(void **state)
{
	add(0, ND_GID_ROCE_V2, "::ffff:172.17.0.1", "docker0");
	add(1, ND_GID_ROCE_V2, "::ffff:10.0.0.1", "eth0");
	best_is(&any, 1);
	setup(state);
	/* every host has that address, so it reaches no other machine */
	add(0, ND_GID_ROCE_V2, "::ffff:172.17.0.1", "docker0");
	add(1, ND_GID_ROCE_V2, "fd00::1", "eth0");
	best_is(&any, 1);
}

static void infiniband_uses_the_first(void **state)
{
	add(2, ND_GID_IB, "fe80::3", NULL);
	add(1, ND_GID_IB, "fe80::1", NULL);
	add(0, ND_GID_IB, "fe80::2", NULL);
	best_is(&infiniband, 0);
}

static void infiniband_routable(void **state)
{
	struct nd_gid_choice choice = infiniband;

	add(0, ND_GID_IB, "fe80::2", NULL);
	add(1, ND_GID_IB, "fec0:0:12:34::2", NULL);
	choice.flid = nd_gids_flid(&gids);
	assert_int_equal(choice.flid, 0x12);
	best_is(&choice, 1);
	/* an alias GUID at that index is not an FLID */
	setup(state);
	add(0, ND_GID_IB, "fe80::2", NULL);
	add(1, ND_GID_IB, "fe80::9:8:7:6", NULL);
	assert_int_equal(nd_gids_flid(&gids), 0);
}

static void classes_and_texts(void **state)
{
	static const struct {
		const char *gid, *text;
		enum nd_gid_class class;
	} all[] = {
		{ "::ffff:10.0.0.1", "10.0.0.1", ND_GID_IPV4 },
		{ "::ffff:169.254.0.1", "169.254.0.1", ND_GID_LINK_LOCAL },
		{ "::ffff:169.253.255.255", "169.253.255.255", ND_GID_IPV4 },
		{ "fe80::1", "fe80::1", ND_GID_LINK_LOCAL },
		{ "febf::1", "febf::1", ND_GID_LINK_LOCAL },
		{ "fec0::1", "fec0::1", ND_GID_IPV6 },
		{ "fd00::1", "fd00::1", ND_GID_IPV6 },
		{ "2001:db8::1", "2001:db8::1", ND_GID_IPV6 },
	};
	char text[INET6_ADDRSTRLEN];

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		struct in6_addr a;

		assert_int_equal(inet_pton(AF_INET6, all[i].gid, &a), 1);
		assert_int_equal(nd_gid_class_of(&a), all[i].class);
		assert_string_equal(nd_gid_text(&a, text), all[i].text);
	}
}

static void no_gids_have_no_best(void **state)
{
	nd_gids_rank(&gids, &any);
	assert_null(nd_gids_best(&gids));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(without_live_netdev_does_not_beat_private, setup),
		cmocka_unit_test_setup(link_local_does_not_beat_private, setup),
		cmocka_unit_test_setup(index_is_a_number, setup),
		cmocka_unit_test_setup(each_port_has_its_own_index, setup),
		cmocka_unit_test_setup(same_choice_after_a_flap, setup),
		cmocka_unit_test_setup(ipv6_only, setup),
		cmocka_unit_test_setup(link_local_alone_is_used_and_reported, setup),
		cmocka_unit_test_setup(the_configured_family_is_preferred, setup),
		cmocka_unit_test_setup(fixed_index_wins, setup),
		cmocka_unit_test_setup(a_missing_fixed_index_is_not_replaced, setup),
		cmocka_unit_test_setup(refused_by_the_device, setup),
		cmocka_unit_test_setup(roce_v1_only, setup),
		cmocka_unit_test_setup(bridges_of_containers_are_last, setup),
		cmocka_unit_test_setup(infiniband_uses_the_first, setup),
		cmocka_unit_test_setup(infiniband_routable, setup),
		cmocka_unit_test_setup(classes_and_texts, setup),
		cmocka_unit_test_setup(no_gids_have_no_best, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
