/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Netlink messages of links, addresses, routes and listeners: complete, truncated, and with wrong
 * lengths; and the choice of the address to advertise.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_addr.h>
#include <linux/inet_diag.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>

#include "lib/cleanup.h"
#include "netdetect/choose/address.h"
#include "netdetect/net/listener.h"
#include "netdetect/net/socket_count.h"
#include "netdetect/source/netlink.h"
#include "tests/unit/cm.h"

#define ROOM 4096

/* A message under construction. */
struct building {
	uint8_t bytes[ROOM];
	size_t n;
};

static void put(struct building *b, const void *p, size_t n)
{
	assert_true(b->n + n <= ROOM);
	memcpy(b->bytes + b->n, p, n);
	b->n = NLMSG_ALIGN(b->n + n);
}

static void attr(struct building *b, uint16_t type, const void *p, size_t n)
{
	struct nlattr h = { (uint16_t)(NLA_HDRLEN + n), type };

	put(b, &h, sizeof(h));
	put(b, p, n);
}

static struct building link_message(int index, const char *name, uint32_t flags, const char *kind)
{
	struct ifinfomsg m = { .ifi_index = index, .ifi_flags = flags };
	struct building b = { .n = 0 }, info = { .n = 0 };
	uint32_t mtu = 1500;

	put(&b, &m, sizeof(m));
	attr(&b, IFLA_IFNAME, name, strlen(name) + 1);
	attr(&b, IFLA_MTU, &mtu, sizeof(mtu));
	if (kind) {
		attr(&info, IFLA_INFO_KIND, kind, strlen(kind) + 1);
		attr(&b, IFLA_LINKINFO, info.bytes, info.n);
	}
	return b;
}

static struct building addr_message(int index, const char *text, uint8_t prefix, uint8_t flags)
{
	struct ifaddrmsg m = { .ifa_prefixlen = prefix,
			       .ifa_index = (uint32_t)index,
			       .ifa_flags = flags };
	struct building b = { .n = 0 };
	uint8_t bytes[16];

	m.ifa_family = strchr(text, ':') ? AF_INET6 : AF_INET;
	assert_int_equal(inet_pton(m.ifa_family, text, bytes), 1);
	put(&b, &m, sizeof(m));
	attr(&b, IFA_ADDRESS, bytes, m.ifa_family == AF_INET ? 4 : 16);
	return b;
}

static struct building route_message(const char *dst, uint8_t prefix, int oif, uint32_t metric)
{
	struct rtmsg m = { .rtm_family = AF_INET,
			   .rtm_dst_len = prefix,
			   .rtm_table = RT_TABLE_MAIN,
			   .rtm_type = RTN_UNICAST };
	struct building b = { .n = 0 };
	uint8_t bytes[4];

	assert_int_equal(inet_pton(AF_INET, dst, bytes), 1);
	put(&b, &m, sizeof(m));
	if (prefix)
		attr(&b, RTA_DST, bytes, 4);
	attr(&b, RTA_OIF, &oif, sizeof(oif));
	attr(&b, RTA_PRIORITY, &metric, sizeof(metric));
	return b;
}

static void take(struct nd_links *l, uint16_t type, const struct building b)
{
	assert_int_equal(nd_link_message(type, b.bytes, b.n, l), 0);
}

#define UP (IFF_UP | 0x10000)

static void kinds_of_links(void **state)
{
	static const struct {
		const char *kind;
		enum nd_link_kind want;
	} cases[] = { { NULL, ND_LINK_DEVICE },       { "bond", ND_LINK_BOND },
		      { "veth", ND_LINK_VETH },       { "bridge", ND_LINK_BRIDGE },
		      { "vxlan", ND_LINK_TUNNEL },    { "wireguard", ND_LINK_TUNNEL },
		      { "macvlan", ND_LINK_MACVLAN }, { "vlan", ND_LINK_VLAN },
		      { "ipoib", ND_LINK_DEVICE },    { "netkit", ND_LINK_VETH },
		      { "vrf", ND_LINK_VRF },         { "never-heard-of", ND_LINK_OTHER } };
	struct nd_links l = { 0 };

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(cases); i++) {
		take(&l, RTM_NEWLINK, link_message((int)i + 1, "x", UP, cases[i].kind));
		assert_int_equal(l.links[i].kind, cases[i].want);
		assert_true(l.links[i].up);
	}
	nd_links_deinit(&l);
}

/*
 * A message truncated at any byte is refused, or understood up to there; the parser reads nothing
 * behind it.
 */
static void cut_short(void **state)
{
	const struct building messages[] = { link_message(1, "eth0", UP, "vlan"),
					     addr_message(1, "2001:db8::1", 64, 0),
					     route_message("10.0.0.0", 8, 1, 5) };
	static const uint16_t types[] = { RTM_NEWLINK, RTM_NEWADDR, RTM_NEWROUTE };

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(messages); i++)
		for (size_t n = 0; n <= messages[i].n; n++) {
			uint8_t *exact dray_auto_free = malloc(n ? n : 1);
			struct nd_links l = { 0 };
			int r;

			memcpy(exact, messages[i].bytes, n);
			r = nd_link_message(types[i], exact, n, &l);
			assert_true(r == 0 || r == -EBADMSG);
			nd_links_deinit(&l);
		}
}

static void wrong_lengths(void **state)
{
	for (uint32_t lie = 0; lie < 65536; lie += 7) {
		struct building b = link_message(1, "eth0", UP, "bond");
		uint16_t length = (uint16_t)lie;
		struct nd_links l = { 0 };
		int r;

		memcpy(b.bytes + sizeof(struct ifinfomsg), &length, sizeof(length));
		r = nd_link_message(RTM_NEWLINK, b.bytes, b.n, &l);
		assert_true(r == 0 || r == -EBADMSG);
		nd_links_deinit(&l);
	}
}

static int count(uint16_t type, const void *p, size_t n, void *arg)
{
	(*(int *)arg)++;
	return 0;
}

static void streams_of_messages(void **state)
{
	struct nlmsghdr h = { .nlmsg_len = NLMSG_HDRLEN, .nlmsg_type = RTM_NEWLINK };
	struct nlmsghdr done = { .nlmsg_len = NLMSG_HDRLEN, .nlmsg_type = NLMSG_DONE };
	struct {
		struct nlmsghdr h;
		struct nlmsgerr e;
	} error = { { sizeof(error), NLMSG_ERROR, 0, 0, 0 }, { .error = -EPERM } };
	struct building b = { .n = 0 };
	int n = 0;

	put(&b, &h, sizeof(h));
	put(&b, &h, sizeof(h));
	assert_int_equal(nd_messages(b.bytes, b.n, count, &n), 0);
	assert_int_equal(n, 2);
	put(&b, &done, sizeof(done));
	put(&b, &h, sizeof(h));
	assert_int_equal(nd_messages(b.bytes, b.n, count, &n), 1);
	assert_int_equal(n, 4);
	for (size_t cut = 1; cut < NLMSG_HDRLEN; cut++)
		assert_int_equal(nd_messages(b.bytes, cut, count, &n), -EBADMSG);
	h.nlmsg_len = 4000;
	assert_int_equal(nd_messages(&h, sizeof(h), count, &n), -EBADMSG);
	h.nlmsg_len = 3;
	assert_int_equal(nd_messages(&h, sizeof(h), count, &n), -EBADMSG);
	h.nlmsg_len = sizeof(h);
	h.nlmsg_flags = NLM_F_DUMP_INTR;
	assert_int_equal(nd_messages(&h, sizeof(h), count, &n), -EINTR);
	assert_int_equal(nd_messages(&error, sizeof(error), count, &n), -EPERM);
	error.e.error = 0;
	assert_int_equal(nd_messages(&error, sizeof(error), count, &n), 1);
}

static void listeners(void **state)
{
	struct inet_diag_msg m = { .idiag_family = AF_INET6, .idiag_state = 10 };
	struct nd_listeners l = { 0 };
	struct building b = { .n = 0 };
	uint8_t only = 0;

	m.id.idiag_sport = htons(7411);
	put(&b, &m, sizeof(m));
	attr(&b, INET_DIAG_SKV6ONLY, &only, sizeof(only));
	assert_int_equal(nd_listener_message(SOCK_DIAG_BY_FAMILY, b.bytes, b.n, &l), 0);
	assert_int_equal(l.n, 1);
	assert_int_equal(l.v[0].port, 7411);
	assert_true(l.v[0].dual);
	for (size_t n = 0; n < sizeof(m); n++)
		assert_int_equal(nd_listener_message(SOCK_DIAG_BY_FAMILY, b.bytes, n, &l),
				 -EBADMSG);
	nd_listeners_deinit(&l);
}

/* Each family's sockets count from listen() to close(). In a network namespace without other sockets. */
static void sockets_are_counted(void **state)
{
	static const int families[] = { AF_INET, AF_INET6 };
	struct nd_socket_counter c;

	if (unshare(CLONE_NEWUSER | CLONE_NEWNET) < 0)
		skip();
	nd_socket_counter_init(&c);
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(families); i++) {
		int fd = socket(families[i], SOCK_STREAM | SOCK_CLOEXEC, 0);
		struct nd_socket_count before = nd_socket_count_read(&c), during, after;

		if (fd < 0)
			continue;
		assert_true(nd_socket_count_equal(&before, &before));
		assert_int_equal(listen(fd, 1), 0);
		during = nd_socket_count_read(&c);
		assert_int_equal(during.v4 - before.v4, families[i] == AF_INET);
		assert_int_equal(during.v6 - before.v6, families[i] == AF_INET6);
		assert_false(nd_socket_count_equal(&before, &during));
		close(fd);
		after = nd_socket_count_read(&c);
		assert_true(nd_socket_count_equal(&before, &after));
	}
	nd_socket_counter_deinit(&c);
	/* without the files nothing is known, so nothing is equal */
	c = (struct nd_socket_counter){ .fd4 = -1, .fd6 = -1 };
	assert_false(nd_socket_count_read(&c).known);
	assert_false(nd_socket_count_equal(&(struct nd_socket_count){ .known = false },
					   &(struct nd_socket_count){ .known = false }));
}

/* --- which address to advertise --------------------------------------------------------------------------- */

static void expect_first(const struct nd_links *l, bool v4, bool v6, const char *want)
{
	struct nd_candidate *c;
	char text[INET6_ADDRSTRLEN];
	size_t n;

	assert_int_equal(nd_advertise_rank(l, v4, v6, &c, &n), 0);
	if (want) {
		assert_true(n > 0 && !c[0].rejected);
		assert_string_equal(nd_addr_text(&c[0].addr->addr, c[0].addr->family, text), want);
	} else {
		assert_true(!n || c[0].rejected);
	}
	free(c);
}

static void addresses_are_ranked(void **state)
{
	struct nd_links l = { 0 };

	expect_first(&l, true, true, NULL);
	take(&l, RTM_NEWLINK, link_message(1, "eth0", UP, NULL));
	take(&l, RTM_NEWLINK, link_message(2, "eth1", UP, NULL));
	take(&l, RTM_NEWLINK, link_message(3, "docker0", UP, "bridge"));
	take(&l, RTM_NEWLINK, link_message(4, "tun0", UP, "tun"));
	take(&l, RTM_NEWLINK, link_message(5, "eth2", IFF_UP, NULL));
	take(&l, RTM_NEWADDR, addr_message(1, "169.254.1.1", 16, 0));
	take(&l, RTM_NEWADDR, addr_message(1, "fe80::1", 64, 0));
	take(&l, RTM_NEWADDR, addr_message(5, "10.5.0.1", 16, 0));
	expect_first(&l, true, true, NULL);
	take(&l, RTM_NEWADDR, addr_message(3, "172.17.0.1", 16, 0));
	expect_first(&l, true, true, "172.17.0.1");
	take(&l, RTM_NEWADDR, addr_message(4, "10.8.0.1", 16, 0));
	expect_first(&l, true, true, "10.8.0.1");
	/*
	 * an address of a real interface comes before overlays and bridges of containers, whatever
	 * its family
	 */
	take(&l, RTM_NEWADDR, addr_message(1, "2001:db8::1", 64, 0));
	expect_first(&l, true, true, "2001:db8::1");
	expect_first(&l, true, false, "10.8.0.1");
	take(&l, RTM_NEWADDR, addr_message(1, "10.0.0.9", 16, 0));
	expect_first(&l, true, true, "10.0.0.9");
	expect_first(&l, false, true, "2001:db8::1");
	take(&l, RTM_NEWADDR, addr_message(1, "10.0.0.8", 16, IFA_F_TENTATIVE));
	take(&l, RTM_NEWADDR, addr_message(1, "10.0.0.7", 16, IFA_F_DEPRECATED));
	expect_first(&l, true, true, "10.0.0.9");
	/* among interfaces the default route with the lowest metric decides */
	take(&l, RTM_NEWADDR, addr_message(2, "10.1.0.1", 16, 0));
	expect_first(&l, true, true, "10.0.0.9");
	take(&l, RTM_NEWROUTE, route_message("0.0.0.0", 0, 2, 100));
	expect_first(&l, true, true, "10.1.0.1");
	take(&l, RTM_NEWROUTE, route_message("0.0.0.0", 0, 1, 50));
	expect_first(&l, true, true, "10.0.0.9");
	/* a default route by a bridge of containers does not count */
	take(&l, RTM_NEWROUTE, route_message("0.0.0.0", 0, 3, 1));
	expect_first(&l, true, true, "10.0.0.9");
	nd_links_deinit(&l);
}

/* A default route with two next hops, and a third one that is dead. */
static struct building default_by(int first, int second)
{
	static const uint8_t gateway[4] = { 10, 1, 0, 254 };
	struct rtmsg m = { .rtm_family = AF_INET,
			   .rtm_table = RT_TABLE_MAIN,
			   .rtm_type = RTN_UNICAST };
	struct rtnexthop hop = { .rtnh_len = sizeof(hop) + RTA_SPACE(4), .rtnh_ifindex = first };
	struct building b = { .n = 0 }, hops = { .n = 0 };

	put(&b, &m, sizeof(m));
	put(&hops, &hop, sizeof(hop));
	attr(&hops, RTA_GATEWAY, gateway, sizeof(gateway));
	hop = (struct rtnexthop){ .rtnh_len = sizeof(hop), .rtnh_ifindex = second };
	put(&hops, &hop, sizeof(hop));
	hop.rtnh_flags = RTNH_F_DEAD;
	put(&hops, &hop, sizeof(hop));
	attr(&b, RTA_MULTIPATH, hops.bytes, hops.n);
	return b;
}

/* Each is a route, so that its interface is known. */
static void routes_with_several_next_hops(void **state)
{
	struct building b = default_by(2, 3);
	struct nd_links l = { 0 };
	char text[INET6_ADDRSTRLEN];

	take(&l, RTM_NEWROUTE, b);
	assert_int_equal(l.n_routes, 2);
	assert_int_equal(l.routes[0].ifindex, 2);
	assert_string_equal(nd_addr_text(&l.routes[0].gateway, AF_INET, text), "10.1.0.254");
	assert_int_equal(l.routes[1].ifindex, 3);
	assert_true(IN6_IS_ADDR_UNSPECIFIED(&l.routes[1].gateway));
	assert_true(l.routes[0].multipath && l.routes[1].multipath);
	/* the management interface comes first by its number only */
	take(&l, RTM_NEWLINK, link_message(1, "eno1", UP, NULL));
	take(&l, RTM_NEWLINK, link_message(2, "eth0", UP, NULL));
	take(&l, RTM_NEWLINK, link_message(3, "eth1", UP, NULL));
	take(&l, RTM_NEWADDR, addr_message(1, "10.0.0.9", 16, 0));
	take(&l, RTM_NEWADDR, addr_message(3, "10.1.0.9", 16, 0));
	expect_first(&l, true, true, "10.1.0.9");
	nd_links_deinit(&l);
	/* wrong lengths of a next hop are refused, or understood up to there */
	for (uint16_t lie = 0; lie < 64; lie++) {
		int r;

		memcpy(b.bytes + sizeof(struct rtmsg) + NLA_HDRLEN, &lie, sizeof(lie));
		r = nd_link_message(RTM_NEWROUTE, b.bytes, b.n, &l);
		assert_true(r == 0 || r == -EBADMSG);
	}
	nd_links_deinit(&l);
}

static uint64_t hash_of(const struct building b)
{
	struct nd_links l = { 0 };
	uint64_t hash;

	take(&l, RTM_NEWROUTE, b);
	hash = l.routes_hash;
	nd_links_deinit(&l);
	return hash;
}

/* It shows each change that look-ups can depend on, in every table, but not that a lifetime was renewed. */
static void hash_of_routes(void **state)
{
	const uint64_t hash = hash_of(route_message("10.0.0.0", 8, 1, 50));
	struct building b = route_message("10.0.0.0", 8, 1, 50);
	struct rta_cacheinfo lifetime = { .rta_expires = 1000 };
	struct rtnexthop hop = { .rtnh_len = sizeof(hop), .rtnh_ifindex = 2 };
	struct nd_links l = { 0 };
	struct rtmsg m;

	attr(&b, RTA_CACHEINFO, &lifetime, sizeof(lifetime));
	assert_int_equal(hash_of(b), hash);
	assert_int_not_equal(hash_of(route_message("10.0.0.0", 9, 1, 50)), hash);
	assert_int_not_equal(hash_of(route_message("10.0.0.0", 8, 2, 50)), hash);
	assert_int_not_equal(hash_of(route_message("10.0.0.0", 8, 1, 51)), hash);
	attr(&b, RTA_MULTIPATH, &hop, sizeof(hop));
	assert_int_not_equal(hash_of(b), hash);
	/* another table */
	b = route_message("10.0.0.0", 8, 1, 50);
	memcpy(&m, b.bytes, sizeof(m));
	m.rtm_table = RT_TABLE_LOCAL;
	memcpy(b.bytes, &m, sizeof(m));
	take(&l, RTM_NEWROUTE, b);
	assert_int_equal(l.n_routes, 0);
	assert_int_not_equal(l.routes_hash, 0);
	assert_int_not_equal(l.routes_hash, hash);
	nd_links_deinit(&l);
}

/* A host whose uplink is a port of a bridge. */
static void a_bridge_can_be_the_uplink(void **state)
{
	struct nd_links l = { 0 };
	struct building b = link_message(2, "eth0", UP, NULL);
	uint32_t master = 1;

	attr(&b, IFLA_MASTER, &master, sizeof(master));
	take(&l, RTM_NEWLINK, link_message(1, "br0", UP, "bridge"));
	take(&l, RTM_NEWLINK, b);
	take(&l, RTM_NEWLINK, link_message(3, "pod0", UP, "veth"));
	take(&l, RTM_NEWADDR, addr_message(1, "10.0.0.1", 16, 0));
	take(&l, RTM_NEWADDR, addr_message(3, "10.9.0.1", 16, 0));
	expect_first(&l, true, true, "10.0.0.1");
	nd_links_deinit(&l);
}

/* Open vSwitch, as under OVN-Kubernetes: the device is a port of ovs-system, and br-ex has its address. */
static void a_bridge_of_openvswitch_can_be_the_uplink(void **state)
{
	struct nd_links l = { 0 };
	struct building b = link_message(2, "eth0", UP, NULL);
	uint32_t master = 3;

	attr(&b, IFLA_MASTER, &master, sizeof(master));
	take(&l, RTM_NEWLINK, b);
	take(&l, RTM_NEWLINK, link_message(3, "ovs-system", 0, "openvswitch"));
	take(&l, RTM_NEWLINK, link_message(4, "ovn-k8s-mp0", UP, "openvswitch"));
	take(&l, RTM_NEWLINK, link_message(5, "br-ex", UP, "openvswitch"));
	take(&l, RTM_NEWLINK, link_message(6, "wg0", UP, "wireguard"));
	take(&l, RTM_NEWADDR, addr_message(4, "10.128.0.2", 16, 0));
	take(&l, RTM_NEWADDR, addr_message(5, "192.168.1.9", 16, 0));
	take(&l, RTM_NEWADDR, addr_message(6, "10.7.0.1", 16, 0));
	expect_first(&l, true, true, "10.7.0.1");
	take(&l, RTM_NEWROUTE, route_message("0.0.0.0", 0, 5, 48));
	expect_first(&l, true, true, "192.168.1.9");
	nd_links_deinit(&l);
}

/* Addresses that move or expire: a virtual one of keepalived, in the subnet of the host's own, and temporary ones of IPv6. */
static void addresses_that_stay_come_first(void **state)
{
	struct nd_links l = { 0 };

	take(&l, RTM_NEWLINK, link_message(1, "eth0", UP, NULL));
	take(&l, RTM_NEWADDR, addr_message(1, "10.0.0.9", 16, IFA_F_PERMANENT));
	take(&l, RTM_NEWADDR, addr_message(1, "10.0.0.5", 16, IFA_F_PERMANENT | IFA_F_SECONDARY));
	take(&l, RTM_NEWADDR, addr_message(1, "10.0.0.4", 32, IFA_F_PERMANENT));
	take(&l, RTM_NEWADDR, addr_message(1, "2001:db8::1", 64, IFA_F_TEMPORARY));
	take(&l, RTM_NEWADDR, addr_message(1, "2001:db8::2", 64, 0));
	expect_first(&l, true, true, "10.0.0.9");
	expect_first(&l, false, true, "2001:db8::2");
	nd_links_deinit(&l);
	take(&l, RTM_NEWLINK, link_message(1, "eth0", UP, NULL));
	take(&l, RTM_NEWADDR, addr_message(1, "2001:db8::1", 64, IFA_F_TEMPORARY));
	expect_first(&l, true, true, "2001:db8::1");
	nd_links_deinit(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_bridge_of_openvswitch_can_be_the_uplink),
		cmocka_unit_test(addresses_that_stay_come_first),
		cmocka_unit_test(kinds_of_links),
		cmocka_unit_test(cut_short),
		cmocka_unit_test(wrong_lengths),
		cmocka_unit_test(streams_of_messages),
		cmocka_unit_test(listeners),
		cmocka_unit_test(sockets_are_counted),
		cmocka_unit_test(hash_of_routes),
		cmocka_unit_test(routes_with_several_next_hops),
		cmocka_unit_test(addresses_are_ranked),
		cmocka_unit_test(a_bridge_can_be_the_uplink),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
