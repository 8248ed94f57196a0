/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of ports by verbs that fail. The program's calls of libibverbs come here (Makefile). */
#include <errno.h>
#include <infiniband/verbs.h>
#include <string.h>

#include "netdetect/rdma/internal.h"
#include "tests/unit/cm.h"

#define GIDS 4
#define IFINDEX 7

/* What the verbs of the two ports answer; errors are errno. */
static struct {
	int list, open, port[2], gids, pkey, pd, handle;
	enum ibv_mtu mtu;
	uint8_t layer;
} device;
static int opened, pds;

struct ibv_device **__wrap_ibv_get_device_list(int *n);
void __wrap_ibv_free_device_list(struct ibv_device **list);
const char *__wrap_ibv_get_device_name(struct ibv_device *d);
struct ibv_context *__wrap_ibv_open_device(struct ibv_device *d);
int __wrap_ibv_close_device(struct ibv_context *c);
int __wrap_ibv_query_port(struct ibv_context *c, uint8_t port, struct _compat_ibv_port_attr *a);
int __wrap_ibv_query_pkey(struct ibv_context *c, uint8_t port, int i, __be16 *key);
ssize_t __wrap__ibv_query_gid_table(struct ibv_context *c, struct ibv_gid_entry *v, size_t n,
				    uint32_t flags, size_t one);
struct ibv_pd *__wrap_ibv_alloc_pd(struct ibv_context *c);
int __wrap_ibv_dealloc_pd(struct ibv_pd *pd);
struct ibv_ah *__wrap_ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *a);
int __wrap_ibv_destroy_ah(struct ibv_ah *ah);

struct ibv_device **__wrap_ibv_get_device_list(int *n)
{
	static struct ibv_device mlx, *list[] = { &mlx, NULL };

	errno = device.list;
	*n = device.list ? 0 : 1;
	return device.list ? NULL : list;
}

void __wrap_ibv_free_device_list(struct ibv_device **list)
{
}

const char *__wrap_ibv_get_device_name(struct ibv_device *d)
{
	return "mlx5_0";
}

struct ibv_context *__wrap_ibv_open_device(struct ibv_device *d)
{
	static struct ibv_context context;

	errno = device.open;
	opened += !device.open;
	return device.open ? NULL : &context;
}

int __wrap_ibv_close_device(struct ibv_context *c)
{
	opened--;
	return 0;
}

int __wrap_ibv_query_port(struct ibv_context *c, uint8_t port, struct _compat_ibv_port_attr *a)
{
	struct ibv_port_attr *attr = (struct ibv_port_attr *)(void *)a;

	if (device.port[port - 1])
		return device.port[port - 1];
	*attr = (struct ibv_port_attr){ .state = IBV_PORT_ACTIVE,
					.active_mtu = device.mtu,
					.max_mtu = IBV_MTU_4096,
					.link_layer = device.layer,
					.gid_tbl_len = GIDS,
					.pkey_tbl_len = 1 };
	return 0;
}

/* As its manual page has it: -1. */
int __wrap_ibv_query_pkey(struct ibv_context *c, uint8_t port, int i, __be16 *key)
{
	*key = htobe16(0xffff);
	errno = device.pkey;
	return device.pkey ? -1 : 0;
}

ssize_t __wrap__ibv_query_gid_table(struct ibv_context *c, struct ibv_gid_entry *v, size_t n,
				    uint32_t flags, size_t one)
{
	if (device.gids)
		return -device.gids;
	/* as drivers/infiniband/core/cache.c */
	if (n < 2)
		return -EINVAL;
	for (uint32_t port = 1; port <= 2; port++)
		v[port - 1] = (struct ibv_gid_entry){
			.gid.raw = { [10] = 0xff, 0xff, 10, 0, 0, (uint8_t)port },
			.gid_index = 3,
			.port_num = port,
			.gid_type = IBV_GID_TYPE_ROCE_V2,
			.ndev_ifindex = IFINDEX
		};
	return 2;
}

struct ibv_pd *__wrap_ibv_alloc_pd(struct ibv_context *c)
{
	static struct ibv_pd pd;

	errno = device.pd;
	pds += !device.pd;
	return device.pd ? NULL : &pd;
}

int __wrap_ibv_dealloc_pd(struct ibv_pd *pd)
{
	pds--;
	return 0;
}

struct ibv_ah *__wrap_ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *a)
{
	static struct ibv_ah ah;

	errno = device.handle;
	return device.handle ? NULL : &ah;
}

int __wrap_ibv_destroy_ah(struct ibv_ah *ah)
{
	return 0;
}

static struct nd_link eth0 = { .ifindex = IFINDEX, .name = "eth0", .up = true };
static struct nd_addr addrs[2]; /* of port 1 and of port 2 */
static struct nd_links links = { .links = &eth0, .n_links = 1, .addrs = addrs, .n_addrs = 2 };
static struct nd_devices before, now;

/* A scan of the device after `old`, or the first one. */
static struct nd_devices scan(const struct nd_devices *old)
{
	struct nd_devices d = { .v = calloc(1, sizeof(*d.v)), .n = 1 };
	struct nd_verbs verbs = { .listed = false };

	assert_non_null(d.v);
	*d.v = (struct nd_device){ .index = 1, .name = "mlx5_0", .n_ports = 2 };
	d.v->ports = calloc(2, sizeof(*d.v->ports));
	assert_non_null(d.v->ports);
	for (uint32_t i = 0; i < 2; i++)
		d.v->ports[i] = (struct nd_port){ .number = i + 1, .state = ND_PORT_ACTIVE };
	assert_int_equal(nd_verbs_tables(&verbs, &links, d.v), 0);
	assert_int_equal(nd_device_keep(d.v, old, &links), 0);
	nd_verbs_deinit(&verbs);
	assert_int_equal(opened, 0);
	assert_int_equal(pds, 0);
	return d;
}

static int setup(void **state)
{
	memset(&device, 0, sizeof(device));
	device.mtu = IBV_MTU_4096;
	device.layer = IBV_LINK_LAYER_ETHERNET;
	eth0.up = true;
	for (uint8_t i = 0; i < 2; i++) {
		addrs[i] = (struct nd_addr){ .ifindex = IFINDEX, .family = AF_INET };
		nd_addr_set(&addrs[i].addr, AF_INET, (uint8_t[]){ 10, 0, 0, i + 1 });
	}
	before = scan(NULL);
	return 0;
}

static int teardown(void **state)
{
	nd_devices_deinit(&before);
	nd_devices_deinit(&now);
	return 0;
}

static void has_tables(const struct nd_port *p)
{
	assert_int_equal(p->gids.n, 1);
	assert_int_equal(p->gids.v[0].index, 3);
	assert_int_equal(p->gids.v[0].gid.s6_addr[15], p->number);
	assert_string_equal(p->gids.v[0].netdev, "eth0");
	assert_int_equal(p->n_pkeys, 1);
	assert_int_equal(p->active_mtu, 4096);
}

static void healthy_device_has_no_error(void **state)
{
	char why[ND_REASON_MAX];

	for (unsigned i = 0; i < 2; i++) {
		has_tables(&before.v->ports[i]);
		assert_int_equal(before.v->ports[i].query_error, 0);
		assert_null(strstr(nd_port_why(&before.v->ports[i], why), "cannot be read"));
	}
	assert_false(nd_device_failing(before.v));
}

static void failed_port_keeps_what_was_known(void **state)
{
	char why[ND_REASON_MAX];

	device.port[0] = EIO;
	now = scan(&before);
	has_tables(&now.v->ports[0]);
	assert_int_equal(now.v->ports[0].query_error, EIO);
	assert_non_null(strstr(nd_port_why(&now.v->ports[0], why), "Input/output error"));
	/* the other one is read, although the table of the first one has an unknown length */
	has_tables(&now.v->ports[1]);
	assert_int_equal(now.v->ports[1].query_error, 0);
	assert_true(nd_device_failing(now.v));
}

static void failed_port_is_named_if_nothing_was_known(void **state)
{
	char why[ND_REASON_MAX];

	device.gids = EIO;
	now = scan(NULL);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(now.v->ports[i].gids.n, 0);
		assert_int_equal(now.v->ports[i].query_error, EIO);
		assert_string_equal(nd_port_why(&now.v->ports[i], why),
				    "its GIDs cannot be read now: Input/output error");
	}
}

/* What is kept once is kept on, until it can be read, and then it is new. */
static void kept_until_a_scan_succeeds(void **state)
{
	device.gids = EIO;
	for (unsigned i = 0; i < 3; i++) {
		now = scan(&before);
		nd_devices_deinit(&before);
		before = now;
		now = (struct nd_devices){ 0 };
		has_tables(&before.v->ports[1]);
	}
	device.gids = 0;
	device.mtu = IBV_MTU_1024;
	now = scan(&before);
	assert_int_equal(now.v->ports[1].active_mtu, 1024);
	assert_int_equal(now.v->ports[1].query_error, 0);
	assert_false(nd_device_failing(now.v));
}

static void kept_gids_follow_their_netdev(void **state)
{
	device.gids = EIO;
	eth0.up = false;
	now = scan(&before);
	assert_int_equal(now.v->ports[0].gids.n, 1);
	assert_false(now.v->ports[0].gids.v[0].netdev_up);
}

/* The kernel names the netdev by its index in its own network namespace, where eth0 is another one. */
static void gids_of_other_namespaces_have_no_netdev(void **state)
{
	const struct nd_port *p;

	addrs[0].ifindex = IFINDEX + 1;
	now = scan(NULL);
	p = now.v->ports;
	assert_int_equal(p[0].gids.v[0].ifindex, 0);
	assert_string_equal(p[0].gids.v[0].netdev, "");
	assert_int_equal(p[0].gids.unmapped, 1);
	has_tables(&p[1]);
	assert_int_equal(p[1].gids.unmapped, 0);
}

static void another_device_inherits_nothing(void **state)
{
	device.gids = EIO;
	before.v->index = 2;
	now = scan(&before);
	assert_int_equal(now.v->ports[0].gids.n, 0);
	assert_true(nd_device_failing(now.v));
}

/* No partitions on RoCE, so some drivers have none to tell. */
static void failed_pkeys_count_on_infiniband_only(void **state)
{
	device.pkey = EINVAL;
	now = scan(&before);
	assert_int_equal(now.v->ports[0].query_error, 0);
	nd_devices_deinit(&now);
	device.layer = IBV_LINK_LAYER_INFINIBAND;
	now = scan(&before);
	assert_int_equal(now.v->ports[0].query_error, EINVAL);
	has_tables(&now.v->ports[0]);
}

/* One that cannot be opened for another reason, such as a node that is gone, is not kept. */
static void device_without_memory_is_kept(void **state)
{
	device.open = ENOMEM;
	now = scan(&before);
	assert_int_equal(now.v->open_error, 0);
	assert_int_equal(now.v->ports[0].query_error, ENOMEM);
	has_tables(&now.v->ports[0]);
	nd_devices_deinit(&now);
	device.open = ENODEV;
	now = scan(&before);
	assert_int_equal(now.v->open_error, ENODEV);
	assert_int_equal(now.v->ports[0].gids.n, 0);
	assert_false(nd_device_failing(now.v));
}

/* A device that refuses the address of a GID rejects it; one that has no memory for that does not. */
static void handle_that_cannot_be_made_now(void **state)
{
	assert_int_equal(before.v->ports[0].gids.v[0].proof, ND_PROOF_OK);
	device.handle = EINVAL;
	now = scan(&before);
	assert_int_equal(now.v->ports[0].gids.v[0].proof, ND_PROOF_FAILED);
	assert_int_equal(now.v->ports[0].gids.v[0].proof_error, EINVAL);
	nd_devices_deinit(&now);
	device.handle = ENOMEM;
	now = scan(&before);
	assert_int_equal(now.v->ports[0].gids.v[0].proof, ND_PROOF_NONE);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(healthy_device_has_no_error),
		T(failed_port_keeps_what_was_known),
		T(failed_port_is_named_if_nothing_was_known),
		T(kept_until_a_scan_succeeds),
		T(kept_gids_follow_their_netdev),
		T(gids_of_other_namespaces_have_no_netdev),
		T(another_device_inherits_nothing),
		T(failed_pkeys_count_on_infiniband_only),
		T(device_without_memory_is_kept),
		T(handle_that_cannot_be_made_now),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
