/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which local ports reach which ports of a peer: scans that the test builds, with recorded routes.
 */
#include "netdetect/choose/rail.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/rtnetlink.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/unit/cm.h"
#include "tests/unit/netns.h"

#define PORTS_MAX 2
#define GIDS_MAX 4

/* routes come from the scan instead of the kernel */
static const struct nd_source recorded = { .root = "/nowhere" };

static struct {
	struct {
		struct nd_links links;
		struct nd_devices devices;
	} scan;
	struct nd_link links[4];
	struct nd_addr addrs[4];
	struct nd_route routes[6];
	struct nd_device devices[PORTS_MAX];
	struct nd_port ports[PORTS_MAX];
	struct nd_gid gids[PORTS_MAX][GIDS_MAX];
	struct nd_pkey pkeys[PORTS_MAX];
} rig;

static struct nd_rail *rails;
static size_t n_rails;

static int setup(void **state)
{
	memset(&rig, 0, sizeof(rig));
	rig.scan.links =
		(struct nd_links){ .links = rig.links, .addrs = rig.addrs, .routes = rig.routes };
	rig.scan.devices.v = rig.devices;
	rails = NULL;
	return 0;
}

static int teardown(void **state)
{
	free(rails);
	return 0;
}

static struct in6_addr address(const char *text)
{
	struct in6_addr a;

	assert_int_equal(inet_pton(AF_INET6, text, &a), 1);
	return a;
}

static uint8_t family_of(const struct in6_addr *a)
{
	return IN6_IS_ADDR_V4MAPPED(a) ? AF_INET : AF_INET6;
}

static struct nd_link *link_add(const char *name, enum nd_link_kind kind)
{
	struct nd_link *l = &rig.links[rig.scan.links.n_links++];

	*l = (struct nd_link){ .ifindex = (int)rig.scan.links.n_links, .kind = kind, .up = true };
	strncpy(l->name, name, sizeof(l->name) - 1);
	return l;
}

static void addr_add(int ifindex, const char *text, uint8_t prefix)
{
	struct in6_addr a = address(text);

	rig.addrs[rig.scan.links.n_addrs++] = (struct nd_addr){
		.ifindex = ifindex, .family = family_of(&a), .prefix = prefix, .addr = a
	};
}

static void route_add(int ifindex, const char *dst, uint8_t prefix, const char *gateway)
{
	struct in6_addr to = address(dst);

	rig.routes[rig.scan.links.n_routes++] =
		(struct nd_route){ .family = family_of(&to),
				   .prefix = prefix,
				   .type = RTN_UNICAST,
				   .table = RT_TABLE_MAIN,
				   .ifindex = ifindex,
				   .dst = to,
				   .gateway = gateway ? address(gateway) : in6addr_any };
}

/* Adds a GID behind the others of the port. */
static void gid_add(struct nd_port *p, enum nd_gid_type type, const char *gid, int ifindex)
{
	struct nd_gid *g = &p->gids.v[p->gids.n++];

	assert_true(p->gids.n <= GIDS_MAX);
	*g = (struct nd_gid){ .type = type, .gid = address(gid), .ifindex = ifindex };
	g->class = nd_gid_class_of(&g->gid);
	if (ifindex) {
		memcpy(g->netdev, rig.links[ifindex - 1].name, sizeof(g->netdev));
		g->netdev_up = true;
	}
}

/* Adds a device of one port with one GID. */
static struct nd_port *port_add(enum nd_link_layer layer, enum nd_gid_type type, const char *gid,
				int ifindex)
{
	size_t i = rig.scan.devices.n++;

	rig.ports[i] = (struct nd_port){ .number = 1,
					 .state = ND_PORT_ACTIVE,
					 .layer = layer,
					 .active_mtu = 4096,
					 .ifindex = ifindex,
					 .gids = { .v = rig.gids[i], .n = 0 } };
	gid_add(&rig.ports[i], type, gid, ifindex);
	rig.devices[i] = (struct nd_device){ .ports = &rig.ports[i], .n_ports = 1 };
	return &rig.ports[i];
}

static struct nd_remote_port roce(const char *gid, enum nd_gid_type type)
{
	return (struct nd_remote_port){
		.gid = address(gid), .type = type, .layer = ND_LAYER_ETHERNET, .mtu = 1024
	};
}

static void ask(const struct nd_remote_port *ports, size_t n)
{
	assert_int_equal(nd_rails_to(&recorded, &rig.scan.links, &rig.scan.devices, ports, n,
				     &rails, &n_rails),
			 0);
	assert_int_equal(n_rails, rig.scan.devices.n * n);
	for (size_t i = 0; i < n_rails; i++) {
		assert_true(*rails[i].reason);
		/* reachable rails come first */
		assert_true(!i || rails[i - 1].reachable || !rails[i].reachable);
	}
}

static void says(const struct nd_rail *r, const char *words)
{
	if (!strstr(r->reason, words))
		fail_msg("\"%s\" does not contain \"%s\"", r->reason, words);
}

static void eth0_with_subnet(void)
{
	link_add("eth0", ND_LINK_DEVICE);
	addr_add(1, "::ffff:10.1.0.1", 16);
	route_add(1, "::ffff:10.1.0.0", 16, NULL);
	port_add(ND_LAYER_ETHERNET, ND_GID_ROCE_V2, "::ffff:10.1.0.1", 1);
}

static void same_subnet(void **state)
{
	struct nd_remote_port peer = roce("::ffff:10.1.0.9", ND_GID_ROCE_V2);

	eth0_with_subnet();
	ask(&peer, 1);
	assert_true(rails[0].reachable);
	assert_int_equal(rails[0].mtu, 1024);
	says(&rails[0], "same subnet");
	says(&rails[0], "eth0");
}

static void rails_that_cannot_reach_each_other(void **state)
{
	struct nd_remote_port peer[] = { roce("::ffff:10.1.0.9", ND_GID_ROCE_V2),
					 roce("::ffff:10.2.0.9", ND_GID_ROCE_V2) };

	eth0_with_subnet();
	link_add("eth1", ND_LINK_DEVICE);
	addr_add(2, "::ffff:10.2.0.1", 16);
	route_add(2, "::ffff:10.2.0.0", 16, NULL);
	port_add(ND_LAYER_ETHERNET, ND_GID_ROCE_V2, "::ffff:10.2.0.1", 2);
	ask(peer, 2);
	for (size_t i = 0; i < n_rails; i++)
		assert_int_equal(rails[i].reachable, rails[i].device == rails[i].remote);
	says(&rails[2], "the route to");
	says(&rails[3], "the route to");
}

static void by_gateway(void **state)
{
	struct nd_remote_port peer[] = { roce("::ffff:10.9.0.9", ND_GID_ROCE_V2),
					 roce("::ffff:10.1.0.9", ND_GID_ROCE_V2) };

	eth0_with_subnet();
	route_add(1, "::ffff:0.0.0.0", 0, "::ffff:10.1.0.254");
	ask(peer, 2);
	assert_true(rails[0].reachable && rails[1].reachable);
	assert_int_equal(rails[0].remote, 1);
	says(&rails[1], "routed");
}

/* The kernel takes one of several next hops by the addresses of a packet, but a queue pair sends by its netdev. */
static void by_one_of_several_next_hops(void **state)
{
	struct nd_remote_port peer = roce("::ffff:10.9.0.9", ND_GID_ROCE_V2);

	eth0_with_subnet();
	link_add("eth1", ND_LINK_DEVICE);
	route_add(1, "::ffff:0.0.0.0", 0, "::ffff:10.1.0.254");
	route_add(2, "::ffff:0.0.0.0", 0, "::ffff:10.2.0.254");
	port_add(ND_LAYER_ETHERNET, ND_GID_ROCE_V2, "::ffff:10.2.0.1", 2);
	ask(&peer, 1);
	assert_true(rails[0].reachable && rails[1].reachable);
	says(&rails[0], "routed on eth0");
	says(&rails[1], "routed on eth1");
	free(rails);
	/* the kernel does not look at this one */
	rig.routes[2].metric = 1;
	ask(&peer, 1);
	assert_false(rails[1].reachable);
}

static void each_next_hop_of_the_kernel(void)
{
	static const char setup[] =
		"ip link add eth0 type veth peer name to0 && ip link add eth1 type veth peer name to1 && "
		"for i in to0 to1 eth0 eth1; do ip link set dev $i up || exit 1; done && "
		"ip addr add 10.1.0.1/16 dev eth0 && ip addr add 10.2.0.1/16 dev eth1 && "
		"ip addr add fd00:1::1/64 dev eth0 nodad && ip addr add fd00:2::1/64 dev eth1 nodad && "
		"ip route add default nexthop via 10.1.0.254 dev eth0 nexthop via 10.2.0.254 dev eth1 && "
		"ip -6 route add fd09::/64 nexthop via fd00:1::9 dev eth0 nexthop via fd00:2::9 dev eth1";
	static const char *const gids[][2] = { { "::ffff:10.1.0.1", "::ffff:10.2.0.1" },
					       { "fd00:1::1", "fd00:2::1" } };
	static const char *const peers[] = { "::ffff:10.9.0.", "fd09::" };
	struct nd_links links;
	char text[64];

	CHECK(system(setup) == 0);
	CHECK(nd_links_scan(&ND_SOURCE_LIVE, &links, NULL) == 0);
	for (int family = 0; family < 2; family++) {
		rig.scan.devices.n = 0;
		for (size_t i = 0; i < 2; i++) {
			const struct nd_link *link = nd_link_by_name(&links, i ? "eth1" : "eth0");

			port_add(ND_LAYER_ETHERNET, ND_GID_ROCE_V2, gids[family][i], 0);
			rig.gids[i][0].ifindex = link->ifindex;
		}
		for (int last = 1; last <= 8; last++) {
			struct nd_remote_port peer;

			snprintf(text, sizeof(text), "%s%d", peers[family], last);
			peer = roce(text, ND_GID_ROCE_V2);
			CHECK(nd_rails_to(&ND_SOURCE_LIVE, &links, &rig.scan.devices, &peer, 1,
					  &rails, &n_rails) == 0);
			CHECK(n_rails == 2 && rails[0].reachable && rails[1].reachable);
			CHECK(strstr(rails[0].reason, "routed on eth0"));
			CHECK(strstr(rails[1].reason, "routed on eth1"));
			free(rails);
		}
	}
	nd_links_deinit(&links);
}

/* Whichever next hop the kernel takes for a pair of addresses. */
static void by_each_next_hop_of_the_kernel(void **state)
{
	/* ip has no rights in a user namespace without a map of users */
	if (geteuid() != 0)
		skip();
	netns_run(each_next_hop_of_the_kernel);
}

static void without_a_route(void **state)
{
	struct nd_remote_port peer = roce("::ffff:10.9.0.9", ND_GID_ROCE_V2);

	eth0_with_subnet();
	ask(&peer, 1);
	assert_false(rails[0].reachable);
	says(&rails[0], "no route");
}

static void through_its_bond(void **state)
{
	struct nd_remote_port peer = roce("::ffff:10.1.0.9", ND_GID_ROCE_V2);

	link_add("eth0", ND_LINK_DEVICE)->master = 2;
	link_add("bond0", ND_LINK_BOND);
	route_add(2, "::ffff:10.1.0.0", 16, NULL);
	port_add(ND_LAYER_ETHERNET, ND_GID_ROCE_V2, "::ffff:10.1.0.1", 1);
	ask(&peer, 1);
	assert_true(rails[0].reachable);
}

/* A queue pair sends with the tag of its GID's netdev, so only the VLAN's own GID reaches hosts of the VLAN. */
static void through_a_vlan(void **state)
{
	struct nd_remote_port peer = roce("::ffff:10.1.0.9", ND_GID_ROCE_V2);
	struct nd_port *port;

	link_add("eth0", ND_LINK_DEVICE);
	link_add("eth0.7", ND_LINK_VLAN)->lower = 1;
	route_add(1, "::ffff:10.0.0.0", 16, NULL);
	route_add(2, "::ffff:10.1.0.0", 16, NULL);
	port = port_add(ND_LAYER_ETHERNET, ND_GID_ROCE_V2, "::ffff:10.0.0.1", 1);
	ask(&peer, 1);
	assert_false(rails[0].reachable);
	says(&rails[0], "uses eth0.7, not eth0");
	free(rails);
	gid_add(port, ND_GID_ROCE_V1, "::ffff:10.1.0.1", 2);
	gid_add(port, ND_GID_ROCE_V2, "::ffff:10.1.0.1", 2);
	ask(&peer, 1);
	assert_true(rails[0].reachable);
	assert_int_equal(rails[0].gid, 2);
	says(&rails[0], "same subnet on eth0.7, 10.1.0.9");
}

static void through_a_macvlan(void **state)
{
	struct nd_remote_port peer = roce("::ffff:10.1.0.9", ND_GID_ROCE_V2);

	link_add("eth0", ND_LINK_DEVICE);
	link_add("mv0", ND_LINK_MACVLAN)->lower = 1;
	route_add(2, "::ffff:10.1.0.0", 16, NULL);
	port_add(ND_LAYER_ETHERNET, ND_GID_ROCE_V2, "::ffff:10.1.0.1", 1);
	ask(&peer, 1);
	assert_true(rails[0].reachable);
}

/* An interface with addresses in two subnets: the first GID that reaches the peer's without a gateway, else by one. */
static void by_the_gid_of_the_same_subnet(void **state)
{
	struct nd_remote_port peer[] = { roce("::ffff:10.2.0.9", ND_GID_ROCE_V2),
					 roce("::ffff:10.3.0.9", ND_GID_ROCE_V2) };
	struct nd_port *port;

	link_add("eth0", ND_LINK_DEVICE);
	link_add("eth0.7", ND_LINK_VLAN)->lower = 1;
	route_add(1, "::ffff:0.0.0.0", 0, "::ffff:10.1.0.254");
	route_add(2, "::ffff:10.2.0.0", 16, NULL);
	port = port_add(ND_LAYER_ETHERNET, ND_GID_ROCE_V2, "::ffff:10.1.0.1", 1);
	gid_add(port, ND_GID_ROCE_V2, "::ffff:10.2.0.1", 2);
	ask(peer, 2);
	assert_int_equal(rails[0].remote, 0);
	assert_int_equal(rails[0].gid, 1);
	assert_int_equal(rails[1].remote, 1);
	assert_int_equal(rails[1].gid, 0);
	assert_true(rails[1].reachable);
	says(&rails[1], "routed on eth0");
}

static void other_roce_version(void **state)
{
	struct nd_remote_port peer = roce("::ffff:10.1.0.9", ND_GID_ROCE_V1);

	eth0_with_subnet();
	ask(&peer, 1);
	assert_false(rails[0].reachable);
	says(&rails[0], "RoCE v1");
}

static void ipv6(void **state)
{
	struct nd_remote_port peer[] = { roce("fd00:1::9", ND_GID_ROCE_V2),
					 roce("::ffff:10.1.0.9", ND_GID_ROCE_V2) };

	link_add("eth0", ND_LINK_DEVICE);
	addr_add(1, "fd00:1::1", 64);
	route_add(1, "fd00:1::", 64, NULL);
	port_add(ND_LAYER_ETHERNET, ND_GID_ROCE_V2, "fd00:1::1", 1);
	ask(peer, 2);
	assert_true(rails[0].reachable);
	assert_int_equal(rails[0].remote, 0);
	assert_false(rails[1].reachable);
}

static void port_that_is_down(void **state)
{
	struct nd_remote_port peer = roce("::ffff:10.1.0.9", ND_GID_ROCE_V2);

	eth0_with_subnet();
	rig.ports[0].state = ND_PORT_DOWN;
	ask(&peer, 1);
	assert_false(rails[0].reachable);
	says(&rails[0], "DOWN");
}

/* A process without descriptors cannot ask the kernel, which says nothing about the route. */
static void routes_that_cannot_be_asked_for(void **state)
{
	struct nd_remote_port peer = roce("::ffff:10.1.0.9", ND_GID_ROCE_V2);
	struct rlimit before, none;

	eth0_with_subnet();
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	none = before;
	none.rlim_cur = 0;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	assert_int_equal(nd_rails_to(&ND_SOURCE_LIVE, &rig.scan.links, &rig.scan.devices, &peer, 1,
				     &rails, &n_rails),
			 -EMFILE);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	assert_null(rails);
}

/* --- InfiniBand ----------------------------------------------------------------------------------------- */

static struct nd_remote_port infiniband(const char *gid, uint64_t subnet, uint16_t pkey)
{
	return (struct nd_remote_port){ .gid = address(gid),
					.type = ND_GID_IB,
					.layer = ND_LAYER_INFINIBAND,
					.mtu = 4096,
					.subnet = subnet,
					.pkey = pkey };
}

static void infiniband_port(uint16_t pkey)
{
	struct nd_port *p = port_add(ND_LAYER_INFINIBAND, ND_GID_IB, "fe80::1", 0);

	rig.pkeys[0] = (struct nd_pkey){ .value = pkey, .full = pkey & 0x8000 };
	p->pkeys = rig.pkeys;
	p->n_pkeys = 1;
}

static void limited_members(void **state)
{
	static const struct {
		uint16_t here, there;
		bool reachable;
	} all[] = {
		{ 0x8001, 0x8001, true },  { 0x0001, 0x8001, true },  { 0x8001, 0x0001, true },
		{ 0x0001, 0x0001, false }, { 0x8001, 0x8002, false },
	};

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		struct nd_remote_port peer =
			infiniband("fe80::2", 0xfe80000000000000, all[i].there);

		teardown(state);
		setup(state);
		infiniband_port(all[i].here);
		ask(&peer, 1);
		assert_int_equal(rails[0].reachable, all[i].reachable);
		if (all[i].here == all[i].there && !all[i].reachable)
			says(&rails[0], "limited");
	}
}

static void other_infiniband_subnet(void **state)
{
	struct nd_remote_port peer = infiniband("fec0::2", 0xfec0000000000000, 0xffff);

	infiniband_port(0xffff);
	ask(&peer, 1);
	assert_false(rails[0].reachable);
	says(&rails[0], "subnet");
}

static void infiniband_and_ethernet(void **state)
{
	struct nd_remote_port peer = roce("::ffff:10.1.0.9", ND_GID_ROCE_V2);

	infiniband_port(0xffff);
	ask(&peer, 1);
	assert_false(rails[0].reachable);
	says(&rails[0], "InfiniBand");
	says(&rails[0], "Ethernet");
}

static void nothing_to_pair(void **state)
{
	ask(NULL, 0);
	eth0_with_subnet();
	free(rails);
	ask(NULL, 0);
}

/* Scans are alike until something changes by which nd_rails_to() decides. */
static void alike(void **state)
{
	struct nd_links links;
	struct nd_devices devices;
	struct nd_link link;
	struct nd_addr addr;
	struct nd_port port;
	struct nd_device device;
	struct nd_gid gid;

	eth0_with_subnet();
	link = rig.links[0];
	addr = rig.addrs[0];
	gid = rig.gids[0][0];
	port = rig.ports[0];
	port.gids.v = &gid;
	device = rig.devices[0];
	device.ports = &port;
	links = rig.scan.links;
	links.links = &link;
	links.addrs = &addr;
	devices = (struct nd_devices){ .v = &device, .n = 1 };
#define ALIKE() nd_rails_alike(&rig.scan.links, &rig.scan.devices, &links, &devices)
#define DIFFERS(field, value)                  \
	do {                                   \
		__typeof__(field) was = field; \
		assert_true(ALIKE());          \
		field = value;                 \
		assert_false(ALIKE());         \
		field = was;                   \
	} while (0)
	DIFFERS(links.routes_hash, 1);
	DIFFERS(link.ifindex, 7);
	DIFFERS(link.master, 7);
	DIFFERS(link.lower, 7);
	DIFFERS(link.kind, ND_LINK_BOND);
	DIFFERS(link.name[0], 'x');
	DIFFERS(addr.ifindex, 7);
	DIFFERS(addr.prefix, 24);
	DIFFERS(addr.addr.s6_addr[15], 9);
	DIFFERS(devices.n, 0);
	DIFFERS(device.name[0], 'x');
	DIFFERS(port.number, 2);
	DIFFERS(port.state, ND_PORT_DOWN);
	DIFFERS(port.layer, ND_LAYER_INFINIBAND);
	DIFFERS(port.active_mtu, 1024);
	DIFFERS(gid.index, 7);
	DIFFERS(gid.type, ND_GID_ROCE_V1);
	DIFFERS(gid.rejected, true);
	DIFFERS(gid.ifindex, 7);
	DIFFERS(gid.gid.s6_addr[15], 9);
	/* flags, such as those that tell the end of a lifetime, and counters do not matter */
	link.mtu = 9000;
	addr.flags = 1;
	assert_true(ALIKE());
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(same_subnet),
		TEST(rails_that_cannot_reach_each_other),
		TEST(by_gateway),
		TEST(by_one_of_several_next_hops),
		TEST(without_a_route),
		TEST(routes_that_cannot_be_asked_for),
		TEST(through_its_bond),
		TEST(through_a_vlan),
		TEST(through_a_macvlan),
		TEST(by_the_gid_of_the_same_subnet),
		TEST(other_roce_version),
		TEST(ipv6),
		TEST(port_that_is_down),
		TEST(limited_members),
		TEST(other_infiniband_subnet),
		TEST(infiniband_and_ethernet),
		TEST(nothing_to_pair),
		TEST(alike),
		TEST(by_each_next_hop_of_the_kernel),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
