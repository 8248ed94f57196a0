/* SPDX-License-Identifier: Apache-2.0 */
/* RDMA netlink messages that the test builds, and the devices of a recorded machine. */
#include "netdetect/rdma/device.h"

#include <errno.h>
#include <linux/netlink.h>
#include <rdma/rdma_netlink.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "lib/err.h"
#include "netdetect/choose/gid.h"
#include "netdetect/scan.h"
#include "tests/unit/cm.h"

#define OP(cmd) RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, cmd)

struct message {
	uint8_t bytes[512];
	size_t n;
};

static char dir[CM_DIR_BYTES];
static struct nd_devices devices;

static int setup(void **state)
{
	devices = (struct nd_devices){ 0 };
	cm_dir_make(dir);
	cm_file_write(dir, "sys/empty", "");
	return 0;
}

static int teardown(void **state)
{
	nd_devices_deinit(&devices);
	cm_dir_remove(dir);
	return 0;
}

/* --- messages ---------------------------------------------------------------------------------------- */

static void put(struct message *m, uint16_t type, const void *data, size_t n)
{
	struct nlattr h = { .nla_len = (uint16_t)(sizeof(h) + n), .nla_type = type };

	assert_true(m->n + NLA_ALIGN(h.nla_len) <= sizeof(m->bytes));
	memcpy(m->bytes + m->n, &h, sizeof(h));
	if (n)
		memcpy(m->bytes + m->n + sizeof(h), data, n);
	m->n += NLA_ALIGN(h.nla_len);
}

static void put_u8(struct message *m, uint16_t type, uint8_t v)
{
	put(m, type, &v, sizeof(v));
}

static void put_u32(struct message *m, uint16_t type, uint32_t v)
{
	put(m, type, &v, sizeof(v));
}

static void put_u64(struct message *m, uint16_t type, uint64_t v)
{
	put(m, type, &v, sizeof(v));
}

static void put_text(struct message *m, uint16_t type, const char *s)
{
	put(m, type, s, strlen(s) + 1);
}

static struct message device_message(uint32_t index, const char *name)
{
	struct message m = { .n = 0 };

	put_u32(&m, RDMA_NLDEV_ATTR_DEV_INDEX, index);
	put_text(&m, RDMA_NLDEV_ATTR_DEV_NAME, name);
	put_text(&m, RDMA_NLDEV_ATTR_FW_VERSION, "28.39.1002");
	put_text(&m, RDMA_NLDEV_ATTR_DEV_PROTOCOL, "roce");
	put_u64(&m, RDMA_NLDEV_ATTR_NODE_GUID, 0xa088c20300123456);
	put_u64(&m, RDMA_NLDEV_ATTR_SYS_IMAGE_GUID, 0xa088c20300123450);
	put_u8(&m, RDMA_NLDEV_ATTR_DEV_NODE_TYPE, 1);
	return m;
}

static struct message port_message(uint32_t device, uint32_t number)
{
	struct message m = { .n = 0 };

	put_u32(&m, RDMA_NLDEV_ATTR_DEV_INDEX, device);
	put_u32(&m, RDMA_NLDEV_ATTR_PORT_INDEX, number);
	put_u64(&m, RDMA_NLDEV_ATTR_CAP_FLAGS, 0x2651e848);
	put_u32(&m, RDMA_NLDEV_ATTR_LID, 17);
	put_u32(&m, RDMA_NLDEV_ATTR_SM_LID, 1);
	put_u8(&m, RDMA_NLDEV_ATTR_PORT_STATE, ND_PORT_ACTIVE);
	put_u8(&m, RDMA_NLDEV_ATTR_PORT_PHYS_STATE, 5);
	put_u32(&m, RDMA_NLDEV_ATTR_NDEV_INDEX, 3);
	put_text(&m, RDMA_NLDEV_ATTR_NDEV_NAME, "eth0");
	return m;
}

static struct message resource_message(uint32_t device)
{
	struct message m = { .n = 0 }, entry = { .n = 0 }, table = { .n = 0 };

	put_text(&entry, RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_NAME, "qp");
	put_u64(&entry, RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_CURR, 12);
	put(&table, RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY | NLA_F_NESTED, entry.bytes, entry.n);
	put_u32(&m, RDMA_NLDEV_ATTR_DEV_INDEX, device);
	put(&m, RDMA_NLDEV_ATTR_RES_SUMMARY | NLA_F_NESTED, table.bytes, table.n);
	return m;
}

static int feed(uint16_t cmd, const struct message *m)
{
	return nd_rdma_message(OP(cmd), m->bytes, m->n, &devices);
}

static void device_is_read(void **state)
{
	struct message m = device_message(4, "mlx5_0");
	const struct nd_device *d;

	assert_int_equal(feed(RDMA_NLDEV_CMD_GET, &m), 0);
	d = nd_device_by_name(&devices, "mlx5_0");
	assert_non_null(d);
	assert_int_equal(d->index, 4);
	assert_string_equal(d->firmware, "28.39.1002");
	assert_string_equal(d->protocol, "roce");
	assert_true(d->node_guid == 0xa088c20300123456);
	assert_true(d->system_guid == 0xa088c20300123450);
	assert_int_equal(d->node_type, 1);
	assert_int_equal(d->numa, -1);
	assert_null(nd_device_by_name(&devices, "mlx5_1"));
	/* an event can repeat it */
	assert_int_equal(feed(RDMA_NLDEV_CMD_GET, &m), 0);
	assert_int_equal(devices.n, 1);
}

static void ports_go_to_their_device(void **state)
{
	struct message d = device_message(4, "mlx5_0"), other = device_message(5, "mlx5_1");
	struct message p = port_message(5, 1), stray = port_message(9, 1);
	const struct nd_port *port;

	assert_int_equal(feed(RDMA_NLDEV_CMD_GET, &d), 0);
	assert_int_equal(feed(RDMA_NLDEV_CMD_GET, &other), 0);
	assert_int_equal(feed(RDMA_NLDEV_CMD_PORT_GET, &p), 0);
	assert_int_equal(feed(RDMA_NLDEV_CMD_PORT_GET, &p), 0);
	assert_int_equal(feed(RDMA_NLDEV_CMD_PORT_GET, &stray), 0);
	assert_int_equal(nd_device_by_name(&devices, "mlx5_0")->n_ports, 0);
	assert_int_equal(nd_device_by_name(&devices, "mlx5_1")->n_ports, 1);
	port = &nd_device_by_name(&devices, "mlx5_1")->ports[0];
	assert_int_equal(port->number, 1);
	assert_int_equal(port->state, ND_PORT_ACTIVE);
	assert_int_equal(port->physical, 5);
	assert_int_equal(port->lid, 17);
	assert_int_equal(port->sm_lid, 1);
	assert_int_equal(port->ifindex, 3);
	assert_string_equal(port->netdev, "eth0");
}

static void resources_and_mode(void **state)
{
	struct message d = device_message(4, "mlx5_0"), r = resource_message(4);
	struct message sys = { .n = 0 };

	assert_int_equal(feed(RDMA_NLDEV_CMD_GET, &d), 0);
	assert_int_equal(feed(RDMA_NLDEV_CMD_RES_GET, &r), 0);
	assert_int_equal(devices.v[0].n_resources, 1);
	assert_string_equal(devices.v[0].resources[0].name, "qp");
	assert_int_equal(devices.v[0].resources[0].count, 12);
	assert_int_equal(devices.netns, ND_NETNS_UNKNOWN);
	put_u8(&sys, RDMA_NLDEV_SYS_ATTR_NETNS_MODE, 0);
	assert_int_equal(feed(RDMA_NLDEV_CMD_SYS_GET, &sys), 0);
	assert_int_equal(devices.netns, ND_NETNS_EXCLUSIVE);
	sys.bytes[sizeof(struct nlattr)] = 1;
	assert_int_equal(feed(RDMA_NLDEV_CMD_SYS_GET, &sys), 0);
	assert_int_equal(devices.netns, ND_NETNS_SHARED);
}

/* Parses in memory of the exact size, so that the sanitizer finds every access beyond. */
static void cut(uint16_t cmd, const struct message *m)
{
	for (size_t n = 0; n <= m->n; n++) {
		uint8_t *copy = malloc(n ? n : 1);
		int r;

		memcpy(copy, m->bytes, n);
		r = nd_rdma_message(OP(cmd), copy, n, &devices);
		free(copy);
		assert_true(r == 0 || r == -EBADMSG);
	}
}

static void truncated_at_each_byte(void **state)
{
	struct message d = device_message(4, "mlx5_0"), p = port_message(4, 1);
	struct message r = resource_message(4);

	cut(RDMA_NLDEV_CMD_GET, &d);
	assert_int_equal(devices.n, 1);
	cut(RDMA_NLDEV_CMD_PORT_GET, &p);
	assert_int_equal(devices.v[0].n_ports, 1);
	cut(RDMA_NLDEV_CMD_RES_GET, &r);
	cut(RDMA_NLDEV_CMD_SYS_GET, &d);
}

static void wrong_lengths(void **state)
{
	static const uint16_t lies[] = { 0, 1, 3, 0x7fff, 0xffff };
	struct message good = device_message(4, "mlx5_0");

	for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
		struct message m = good;

		memcpy(m.bytes, &lies[i], sizeof(lies[i]));
		assert_int_equal(feed(RDMA_NLDEV_CMD_GET, &m), -EBADMSG);
	}
	/* inside a nested attribute */
	good = resource_message(4);
	good.bytes[8 + sizeof(struct nlattr)] = 0xff;
	assert_int_equal(feed(RDMA_NLDEV_CMD_RES_GET, &good), -EBADMSG);
	assert_int_equal(devices.n, 0);
}

/* Names become parts of paths, so they must not lead to other directories. Such a device does not make the others unknown. */
static void names_with_paths_are_left_out(void **state)
{
	static const char *const bad[] = { ".", "..", "../../etc", "a/b", ".mlx5_0" };
	struct message none = device_message(1, ""), good = device_message(9, "mlx5_0");

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct message m = device_message(1, bad[i]);

		assert_int_equal(feed(RDMA_NLDEV_CMD_GET, &m), 0);
	}
	assert_int_equal(devices.n, 0);
	assert_int_equal(feed(RDMA_NLDEV_CMD_GET, &none), -EBADMSG);
	assert_int_equal(feed(RDMA_NLDEV_CMD_GET, &good), 0);
	assert_int_equal(devices.n, 1);
}

static void unknown_attributes_are_ignored(void **state)
{
	struct message m = device_message(4, "mlx5_0");

	put_u32(&m, 0x3ff0, 1);
	assert_int_equal(nd_rdma_message(OP(RDMA_NLDEV_CMD_STAT_GET), m.bytes, m.n, &devices), 0);
	assert_int_equal(devices.n, 0);
	assert_int_equal(feed(RDMA_NLDEV_CMD_GET, &m), 0);
	assert_int_equal(devices.n, 1);
}

/* --- a recorded machine without netlink records ---------------------------------------------------------- */

__attribute__((format(printf, 3, 4))) static void record(const char *device, const char *text,
							 const char *fmt, ...)
{
	char path[256];
	va_list args;
	int n = snprintf(path, sizeof(path), "sys/class/infiniband/%s/", device);

	va_start(args, fmt);
	vsnprintf(path + n, sizeof(path) - (size_t)n, fmt, args);
	va_end(args);
	cm_file_write(dir, path, text);
}

static void record_roce(const char *device)
{
	record(device, "1: CA\n", "node_type");
	record(device, "28.39.1002\n", "fw_ver");
	record(device, "a088:c203:0012:3456\n", "node_guid");
	record(device, "4: ACTIVE\n", "ports/1/state");
	record(device, "5: LinkUp\n", "ports/1/phys_state");
	record(device, "400 Gb/sec (4X NDR)\n", "ports/1/rate");
	record(device, "Ethernet\n", "ports/1/link_layer");
	record(device, "0xffff\n", "ports/1/pkeys/0");
	record(device, "0000:0000:0000:0000:0000:0000:0000:0000\n", "ports/1/gids/0");
	record(device, "0000:0000:0000:0000:0000:ffff:0a00:0001\n", "ports/1/gids/10");
	record(device, "fe80:0000:0000:0000:a288:c2ff:fe12:3456\n", "ports/1/gids/9");
	record(device, "RoCE v2\n", "ports/1/gid_attrs/types/10");
	record(device, "RoCE v2\n", "ports/1/gid_attrs/types/9");
	record(device, "eth0\n", "ports/1/gid_attrs/ndevs/10");
	record(device, "eth0\n", "ports/1/gid_attrs/ndevs/9");
}

static void scan(const struct nd_links *links)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct nd_source s;

	assert_int_equal(nd_source_open(&s, dir), 0);
	assert_int_equal(nd_devices_list(&s, &devices, &err), 0);
	assert_int_equal(nd_devices_read(&s, links, NULL, &devices, &err), 0);
	for (size_t i = 0; i < devices.n; i++)
		for (size_t k = 0; k < devices.v[i].n_ports; k++) {
			struct nd_port *p = &devices.v[i].ports[k];
			struct nd_gid_choice choice = {
				.fixed_index = -1, .infiniband = p->layer == ND_LAYER_INFINIBAND
			};

			nd_gids_rank(&p->gids, &choice);
		}
}

static void no_rdma_is_not_an_error(void **state)
{
	struct nd_links none = { 0 };

	scan(&none);
	assert_int_equal(devices.n, 0);
}

static void roce_of_sysfs(void **state)
{
	struct nd_link eth0 = { .ifindex = 2,
				.name = "eth0",
				.mtu = 9000,
				.up = true,
				.mac = { 0xa0, 0x88, 0xc2, 0x12, 0x34, 0x56 },
				.mac_n = 6 };
	struct nd_addr addr = { .ifindex = 2, .family = AF_INET };
	struct nd_links links = { &eth0, 1, &addr, 1, NULL, 0, 0 };
	int fds = cm_fds_count();
	const struct nd_gid *g;
	const struct nd_port *p;

	nd_addr_set(&addr.addr, AF_INET, (uint8_t[]){ 10, 0, 0, 1 });
	record_roce("mlx5_0");
	scan(&links);
	assert_int_equal(cm_fds_count(), fds);
	assert_int_equal(devices.n, 1);
	assert_int_equal(devices.v[0].node_type, 1);
	assert_true(devices.v[0].node_guid == 0xa088c20300123456);
	assert_int_equal(devices.v[0].open_error, ENOENT);
	assert_int_equal(devices.v[0].n_ports, 1);
	p = &devices.v[0].ports[0];
	assert_int_equal(p->state, ND_PORT_ACTIVE);
	assert_int_equal(p->physical, 5);
	assert_int_equal(p->layer, ND_LAYER_ETHERNET);
	assert_true(p->rate == 400000000000);
	assert_int_equal(p->lanes, 4);
	assert_int_equal(p->active_mtu, 4096);
	assert_int_equal(p->ifindex, 2);
	assert_int_equal(p->n_pkeys, 1);
	assert_true(p->pkeys[0].full);
	assert_int_equal(p->gids.n, 2);
	g = nd_gids_best(&p->gids);
	assert_non_null(g);
	assert_int_equal(g->index, 10);
	assert_int_equal(g->type, ND_GID_ROCE_V2);
	assert_string_equal(g->netdev, "eth0");
	/* made of the MAC; no such address is assigned */
	assert_string_equal(p->gids.v[1].netdev, "eth0");
	assert_int_equal(p->gids.unmapped, 0);
}

/* As iboe_get_mtu() of the kernel. */
static void mtu_of_the_netdev(void **state)
{
	static const struct {
		uint32_t netdev, port;
	} cases[] = { { 9000, 4096 }, { 4192, 4096 }, { 4191, 2048 }, { 1500, 1024 }, { 351, 0 } };
	struct nd_link eth0 = { .ifindex = 2, .name = "eth0", .up = true };
	struct nd_addr addr = { .ifindex = 2, .family = AF_INET };
	struct nd_links links = { &eth0, 1, &addr, 1, NULL, 0, 0 };

	nd_addr_set(&addr.addr, AF_INET, (uint8_t[]){ 10, 0, 0, 1 });
	record_roce("mlx5_0");
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		eth0.mtu = cases[i].netdev;
		scan(&links);
		assert_int_equal(devices.v[0].ports[0].active_mtu, cases[i].port);
		nd_devices_deinit(&devices);
	}
}

static void netdev_elsewhere_is_not_used(void **state)
{
	struct nd_link eth0 = { .ifindex = 2, .name = "eth0", .up = true, .mac_n = 6 };
	struct nd_links none = { 0 }, same_name = { .links = &eth0, .n_links = 1 };

	record_roce("mlx5_0");
	/* sysfs gives only the name of a netdev, which another namespace may have as well */
	scan(&same_name);
	assert_null(nd_gids_best(&devices.v[0].ports[0].gids));
	assert_int_equal(devices.v[0].ports[0].gids.unmapped, 2);
	nd_devices_deinit(&devices);
	/* a netdev of another namespace is listed but not used */
	scan(&none);
	assert_int_equal(devices.v[0].ports[0].gids.n, 2);
	assert_null(nd_gids_best(&devices.v[0].ports[0].gids));
}

static void names_in_natural_order(void **state)
{
	static const char *const names[] = { "mlx5_0", "mlx5_2", "mlx5_10", "mlx5_bond_0" };
	struct nd_links none = { 0 };

	for (size_t i = 0; i < 4; i++)
		record_roce(names[3 - i]);
	scan(&none);
	assert_int_equal(devices.n, 4);
	for (size_t i = 0; i < 4; i++)
		assert_string_equal(devices.v[i].name, names[i]);
}

static void infiniband_of_sysfs(void **state)
{
	struct nd_links none = { 0 };
	const struct nd_port *p;

	record("mlx5_0", "4: ACTIVE\n", "ports/1/state");
	record("mlx5_0", "InfiniBand\n", "ports/1/link_layer");
	record("mlx5_0", "0x2a\n", "ports/1/lid");
	record("mlx5_0", "fe80:0000:0000:0000:a088:c203:0012:3456\n", "ports/1/gids/0");
	record("mlx5_0", "IB/RoCE v1\n", "ports/1/gid_attrs/types/0");
	record("mlx5_0", "0x7fff\n", "ports/1/pkeys/0");
	record("mlx5_0", "0x0000\n", "ports/1/pkeys/1");
	record("mlx5_0", "0x8001\n", "ports/1/pkeys/2");
	scan(&none);
	p = &devices.v[0].ports[0];
	assert_int_equal(p->lid, 42);
	assert_int_equal(p->gids.v[0].type, ND_GID_IB);
	assert_int_equal(nd_gids_best(&p->gids)->index, 0);
	assert_int_equal(p->n_pkeys, 2);
	assert_false(p->pkeys[0].full);
	assert_int_equal(p->pkeys[1].index, 2);
	assert_true(p->pkeys[1].full);
}

/* Watches how often this directory of the recorded machine is opened. */
static int watch(const char *path)
{
	char full[sizeof(dir) + 256];
	int fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);

	snprintf(full, sizeof(full), "%s/%s", dir, path);
	assert_true(fd >= 0 && inotify_add_watch(fd, full, IN_OPEN) >= 0);
	return fd;
}

/* Ends the watch. Opening of files in the directory does not count. */
static unsigned opened(int fd)
{
	struct inotify_event events[64];
	unsigned n = 0;

	for (ssize_t got = read(fd, events, sizeof(events)), at = 0; at < got;) {
		const struct inotify_event *e = (const void *)((const char *)events + at);

		n += !e->len;
		at += (ssize_t)(sizeof(*e) + e->len);
	}
	close(fd);
	return n;
}

/* The list of uverbs nodes is read once, whatever the number of devices, and nothing of a device that is excluded. */
static void only_what_is_needed_is_read(void **state)
{
	char excluded[] = "mlx5_1", *without[] = { excluded };
	struct nd_scan_options o = { .without = { without, 1 } };
	struct dray_err err = DRAY_ERR_NULL;
	int nodes, first, second;
	struct nd_scan *found;
	struct nd_source s;

	for (unsigned i = 0; i < 3; i++) {
		char name[16], node[64];

		snprintf(name, sizeof(name), "mlx5_%u", i);
		snprintf(node, sizeof(node), "sys/class/infiniband_verbs/uverbs%u/ibdev", 7 - i);
		record_roce(name);
		cm_file_write(dir, node, name);
	}
	nodes = watch("sys/class/infiniband_verbs");
	first = watch("sys/class/infiniband/mlx5_0/ports");
	second = watch("sys/class/infiniband/mlx5_1/ports");
	assert_int_equal(nd_source_open(&s, dir), 0);
	assert_int_equal(nd_scan_run(&s, &o, &found, &err), 0);
	assert_int_equal(found->devices.n, 2);
	assert_string_equal(found->devices.v[0].uverbs, "uverbs7");
	assert_string_equal(found->devices.v[1].uverbs, "uverbs5");
	assert_int_equal(opened(nodes), 1);
	assert_int_equal(opened(first), 1);
	assert_int_equal(opened(second), 0);
	nd_scan_free(found);
}

/* A pin that names no port of its device would otherwise have no effect, and nobody would know. */
static void pins_without_a_port(void **state)
{
	char device[] = "mlx5_0:10", other[] = "mlx5_0:4", port[] = "mlx5_0/1:4",
	     absent[] = "mlx5_0/7:3";
	char *pins[] = { device, absent }, *twice[] = { device, other },
	     *apart[] = { device, port, absent }, *port_twice[] = { port, port };
	struct nd_scan_options o = { .gid_indices = { pins, 2 } };
	struct dray_err err = DRAY_ERR_NULL;
	struct nd_scan *found;
	struct nd_source s;

	record_roce("mlx5_0");
	assert_int_equal(nd_source_open(&s, dir), 0);
	assert_int_equal(nd_scan_run(&s, &o, &found, &err), 0);
	assert_int_equal(found->n_notes, 1);
	assert_string_equal(found->notes[0].text, "GID index mlx5_0/7:3: mlx5_0 has no such port");
	nd_scan_free(found);
	o.gid_indices = (struct dray_strv){ apart, 3 };
	assert_int_equal(nd_scan_options_check(&o, &err), 0);
	o.gid_indices = (struct dray_strv){ twice, 2 };
	assert_int_equal(nd_scan_options_check(&o, &err), -EINVAL);
	assert_string_equal(err.msg, "there are two GID indices for mlx5_0: keep one");
	err = DRAY_ERR_NULL;
	o.gid_indices = (struct dray_strv){ port_twice, 2 };
	assert_int_equal(nd_scan_options_check(&o, &err), -EINVAL);
	assert_string_equal(err.msg, "there are two GID indices for mlx5_0/1: keep one");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(device_is_read),
		TEST(ports_go_to_their_device),
		TEST(resources_and_mode),
		TEST(truncated_at_each_byte),
		TEST(wrong_lengths),
		TEST(names_with_paths_are_left_out),
		TEST(unknown_attributes_are_ignored),
		TEST(no_rdma_is_not_an_error),
		TEST(roce_of_sysfs),
		TEST(mtu_of_the_netdev),
		TEST(netdev_elsewhere_is_not_used),
		TEST(names_in_natural_order),
		TEST(infiniband_of_sysfs),
		TEST(only_what_is_needed_is_read),
		TEST(pins_without_a_port),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
