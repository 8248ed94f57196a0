/* SPDX-License-Identifier: Apache-2.0 */
/* The launcher's environment, from scans of recorded machines (tests/machines). */
#include "agent/placement/environment/env.h"

#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/config/env_profile.h"
#include "lib/cleanup.h"
#include "netdetect/choose/rnic.h"
#include "tests/unit/cm.h"

#define PYTHON "/usr/bin/python3"

static struct env_facts facts;
static struct nd_scan *scan;

/* Loads the scan of a recorded machine into facts, with k RNICs for each GPU. */
static void machine(const char *name, unsigned k)
{
	static char write_it[] = "import sys; sys.path.insert(0, 'tests')\n"
				 "from machines import models\n"
				 "getattr(models, sys.argv[1])().write(sys.argv[2])";
	char python[] = PYTHON, c[] = "-c", b[] = "-B", dir[CM_DIR_BYTES], *which = strdup(name);
	char *argv[] = { python, b, c, write_it, which, dir, NULL };
	struct nd_scan_options options = { .rnics_per_gpu = k };
	struct nd_source s;
	pid_t pid;
	int status;

	cm_dir_make(dir);
	assert_int_equal(posix_spawn(&pid, PYTHON, NULL, NULL, argv, environ), 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	free(which);
	assert_int_equal(nd_source_open(&s, dir), 0);
	nd_scan_free(scan);
	assert_int_equal(nd_scan_run(&s, &options, &scan, NULL), 0);
	cm_dir_remove(dir);
	facts = (struct env_facts){
		.scan = scan,
		.data_socket = "/run/dray/dray.sock",
		.segment = "10.20.0.11:7411",
		.preferred = { "10.20.0.11:50053", "detected", "ready", "on this node", false },
		.host = "10.20.0.11",
		.host_reason = "eno1, the default route uses it",
		.owner_segment = 50053,
		.owner_rpc = 50052,
		.rnics_per_gpu = k,
	};
}

static int tear_down(void **state)
{
	scan = nd_scan_free(scan);
	return 0;
}

static struct env made(const char *profile)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct env e;

	assert_int_equal(env_make(&facts, &profile, 1, &e, &err), 0);
	for (size_t i = 0; i < e.n; i++) {
		assert_string_equal(e.v[i].profile, profile);
		assert_non_null(e.v[i].reason);
		assert_true(strlen(e.v[i].reason) > 3);
		assert_null(strchr(e.v[i].reason, '\n'));
	}
	return e;
}

static const struct env_variable *of(const struct env *e, const char *name)
{
	for (size_t i = 0; i < e->n; i++)
		if (!strcmp(e->v[i].name, name))
			return &e->v[i];
	return NULL;
}

/* Checks a variable. value NULL: it is left out. words: part of the reason. */
static void check(const char *profile, const char *name, const char *value, const char *words)
{
	struct env e = made(profile);
	const struct env_variable *v = of(&e, name);

	if (!v)
		fail_msg("%s has no %s", profile, name);
	else if (!value != !v->value || (value && strcmp(value, v->value)))
		fail_msg("%s is %s, not %s: %s", name, v->value ? v->value : "left out",
			 value ? value : "left out", v->reason);
	else if (!strstr(v->reason, words))
		fail_msg("%s: \"%s\" does not say \"%s\"", name, v->reason, words);
	env_deinit(&e);
}

static void eight_gpus_with_a_nic_each(void **state)
{
	machine("hgx_8x8", 1);
	check("dray", "DRAY_SOCKET", "/run/dray/dray.sock", "data.socket");
	check("dray", "DRAY_SEGMENT", "10.20.0.11:7411", "own");
	check("vllm", "VLLM_HOST_IP", "10.20.0.11", "default route");
	check("vllm", "VLLM_NIXL_SIDE_CHANNEL_HOST", "10.20.0.11", "default route");
	check("vllm-mooncake", "MOONCAKE_PREFERRED_SEGMENT", "10.20.0.11:50053",
	      "detected, ready: on this node");
	check("vllm-mooncake", "MOONCAKE_REQUESTER_LOCAL_HOSTNAME", "10.20.0.11", "default route");
	check("vllm-mooncake", "MC_GID_INDEX", "3", "RoCE v2, IPv4 10.100.0.11");
	check("vllm-mooncake", "MOONCAKE_DEVICE",
	      "mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7", "each of 8 GPUs");
	check("mooncake", "MC_TE_FILTERS",
	      "mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7", "8 active ports");
	check("mooncake", "MOONCAKE_PROTOCOL", "rdma", "8 active ports");
	check("mooncake", "MOONCAKE_LOCAL_HOSTNAME", "10.20.0.11", "default route");
	check("mooncake", "MOONCAKE_MASTER", NULL, "no Mooncake master is known");
	check("mooncake-owner", "--host", "10.20.0.11:50053", "mooncake.owner_segment");
	check("mooncake-owner", "--port", "50052", "mooncake.owner_rpc");
	check("mooncake-owner", "--protocol", "rdma", "active");
	check("mooncake-owner", "--device_names",
	      "mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7", "active");
	check("nccl", "NCCL_IB_HCA",
	      "=mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1,mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_7:1",
	      "8 active ports");
	check("nccl", "NCCL_IB_GID_INDEX", "3", "all, as mlx5_0");
	check("nccl", "NCCL_SOCKET_IFNAME", "=eno1", "it has 10.20.0.11");
	check("ucx", "UCX_NET_DEVICES",
	      "mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1,mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_7:1", "active");
	check("ucx", "UCX_IB_GID_INDEX", "3", "mlx5_0");
	facts.master = "10.0.0.9:50051";
	check("mooncake", "MOONCAKE_MASTER", "10.0.0.9:50051", "knows");
	check("mooncake-owner", "--master_server_address", "10.0.0.9:50051", "knows");
}

static void a_gpu_without_a_nic_keeps_its_place(void **state)
{
	machine("hgx_8x8", 1);
	scan->devices.v[3].ports[0].state = ND_PORT_DOWN;
	/* the nearest RNIC of its NUMA node that belongs to another GPU */
	check("vllm-mooncake", "MOONCAKE_DEVICE",
	      "mlx5_0,mlx5_1,mlx5_2,mlx5_0,mlx5_4,mlx5_5,mlx5_6,mlx5_7",
	      "GPU 3 (0000:49:00.0) has no usable RNIC of its own and shares mlx5_0 (NODE)");
	check("vllm-mooncake", "MOONCAKE_DEVICE",
	      "mlx5_0,mlx5_1,mlx5_2,mlx5_0,mlx5_4,mlx5_5,mlx5_6,mlx5_7",
	      "left out: mlx5_3/1 (the port is DOWN)");
	check("nccl", "NCCL_IB_HCA",
	      "=mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_7:1",
	      "left out: mlx5_3/1 (the port is DOWN)");
	/* two GPUs without RNICs share two different ones */
	scan->devices.v[2].ports[0].state = ND_PORT_INIT;
	check("vllm-mooncake", "MOONCAKE_DEVICE",
	      "mlx5_0,mlx5_1,mlx5_0,mlx5_1,mlx5_4,mlx5_5,mlx5_6,mlx5_7", "shares mlx5_1");
	/* one RNIC for all GPUs; the order has no meaning */
	for (unsigned i = 1; i < 8; i++)
		scan->devices.v[i].ports[0].state = ND_PORT_DOWN;
	check("vllm-mooncake", "MOONCAKE_DEVICE", "mlx5_0", "shares mlx5_0 (SYS)");
	check("vllm-mooncake", "MC_GID_INDEX", "3", "mlx5_0: RoCE v2");
	scan->devices.v[0].ports[0].state = ND_PORT_DOWN;
	check("vllm-mooncake", "MOONCAKE_DEVICE", NULL,
	      "no RDMA port can be used; left out: mlx5_0/1");
	check("mooncake", "MOONCAKE_PROTOCOL", "tcp", "no RDMA port can be used");
}

/* Returns the number of entries; sets a bit for each mlx5 number. */
static unsigned devices_count(unsigned *ret_seen, const char *words)
{
	struct env e = made("vllm-mooncake");
	const struct env_variable *v = of(&e, "MOONCAKE_DEVICE");
	char *list = v && v->value ? strdup(v->value) : NULL, *rest = list, *name;
	unsigned n = 0;

	*ret_seen = 0;
	while ((name = strsep(&rest, ","))) {
		*ret_seen |= 1u << strtoul(name + strlen("mlx5_"), NULL, 10);
		n++;
	}
	assert_true(v && strstr(v->reason, words));
	free(list);
	env_deinit(&e);
	return n;
}

static void several_nics_for_a_gpu(void **state)
{
	unsigned seen;

	/* 8 GPUs, 16 RNICs: the second RNIC of each GPU follows after the list of the first ones */
	machine("two_rails_16", 2);
	assert_int_equal(devices_count(&seen, "then 8 more"), 16);
	assert_int_equal(seen, 0xffff);
	/* one RNIC for each GPU: the others belong to no GPU */
	machine("two_rails_16", 1);
	assert_int_equal(devices_count(&seen, "each of 8 GPUs"), 8);
	assert_int_equal(__builtin_popcount(seen), 8);
}

static void gpus_that_are_not_in_sys(void **state)
{
	machine("sriov_pod", 1);
	facts.host = "10.244.3.17";
	check("vllm-mooncake", "MOONCAKE_DEVICE", NULL, "8 GPUs are not in this /sys");
	/* the GIDs of the other function do not belong to this pod */
	check("ucx", "UCX_NET_DEVICES", "mlx5_3:1", "left out: mlx5_0/1 (");
	check("ucx", "UCX_IB_GID_INDEX", "3", "10.56.217.9");
	check("nccl", "NCCL_SOCKET_IFNAME", "=eth0", "10.244.3.17");
	/* without a GPU: a single device is for all, several devices cannot be assigned */
	scan->topology.hidden_gpus = 0;
	check("vllm-mooncake", "MOONCAKE_DEVICE", "mlx5_3", "the only usable RNIC");
	machine("no_netdev_gids", 1);
	check("vllm-mooncake", "MOONCAKE_DEVICE", NULL, "no GPU is in /sys");
}

static void one_index_does_not_fit_all_ports(void **state)
{
	machine("hgx_8x8", 1);
	scan->devices.v[1].ports[0].gids.v[0].index = 5;
	scan->devices.v[6].ports[0].gids.v[0].index = 5;
	check("nccl", "NCCL_IB_GID_INDEX", NULL,
	      "the ports have different GID indices: 3 on mlx5_0, mlx5_2, mlx5_3, mlx5_4, mlx5_5, "
	      "mlx5_7; 5 on mlx5_1, mlx5_6");
	check("vllm-mooncake", "MC_GID_INDEX", NULL, "5 on mlx5_1, mlx5_6");
	check("mooncake", "MC_GID_INDEX", NULL, "5 on mlx5_1, mlx5_6");
	check("ucx", "UCX_IB_GID_INDEX", NULL, "5 on mlx5_1, mlx5_6");
	/* ports that are not used do not count */
	scan->devices.v[1].ports[0].state = ND_PORT_DOWN;
	scan->devices.v[6].ports[0].state = ND_PORT_DOWN;
	check("nccl", "NCCL_IB_GID_INDEX", "3", "all, as mlx5_0");
	machine("bonded_roce", 1);
	facts.host = "10.30.0.5";
	check("nccl", "NCCL_IB_GID_INDEX", "5", "mlx5_bond_0");
	check("nccl", "NCCL_SOCKET_IFNAME", "=bond0", "10.30.0.5");
}

static void infiniband_needs_no_index(void **state)
{
	machine("infiniband_limited", 1);
	check("nccl", "NCCL_IB_HCA", "=mlx5_0:1", "mlx5_1/1 (limited member of partition 0x7fff");
	check("nccl", "NCCL_IB_HCA", "=mlx5_0:1", "mlx5_2/1 (the port is INIT)");
	check("nccl", "NCCL_IB_GID_INDEX", NULL, "InfiniBand: no GID index is needed");
	check("mooncake", "MC_GID_INDEX", NULL, "InfiniBand: no GID index is needed");
	check("ucx", "UCX_NET_DEVICES", "mlx5_0:1", "1 active port;");
	/* with an Ethernet port */
	machine("hgx_8x8", 1);
	scan->devices.v[2].ports[0].layer = ND_LAYER_INFINIBAND;
	check("nccl", "NCCL_IB_GID_INDEX", NULL,
	      "mlx5_2 is InfiniBand, which needs none, and mlx5_0 has 3");
}

static void ports_that_others_cannot_use(void **state)
{
	machine("hgx_8x8", 1);
	scan->devices.v[0].node_type = 4;
	scan->devices.v[1].ports[0].number = 2;
	scan->devices.v[2].ports[0].layer = ND_LAYER_UNSPECIFIED;
	snprintf(scan->devices.v[3].name, sizeof(scan->devices.v[3].name), "a,b\nc");
	for (size_t i = 0; i < scan->devices.v[4].ports[0].gids.n; i++)
		scan->devices.v[4].ports[0].gids.v[i].rejected = true;
	check("nccl", "NCCL_IB_HCA", "=mlx5_1:2,mlx5_5:1,mlx5_6:1,mlx5_7:1",
	      "mlx5_0/1 (neither InfiniBand nor RoCE), mlx5_2/1 (its link layer is not known), "
	      "a,b c/1 (lists cannot carry this name), mlx5_4/1 (no usable GID");
	/* Mooncake uses port 1 */
	check("mooncake", "MC_TE_FILTERS", "mlx5_5,mlx5_6,mlx5_7",
	      "mlx5_1/2 (only port 1 is used)");
}

static void no_rdma_is_not_an_error(void **state)
{
	static const char *const names[][2] = {
		{ "vllm-mooncake", "MC_GID_INDEX" },    { "vllm-mooncake", "MOONCAKE_DEVICE" },
		{ "mooncake", "MC_GID_INDEX" },         { "mooncake", "MC_TE_FILTERS" },
		{ "mooncake-owner", "--device_names" }, { "nccl", "NCCL_IB_HCA" },
		{ "nccl", "NCCL_IB_GID_INDEX" },        { "ucx", "UCX_NET_DEVICES" },
		{ "ucx", "UCX_IB_GID_INDEX" },
	};

	machine("no_rdma", 1);
	facts.host = "192.0.2.10";
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(names); i++)
		check(names[i][0], names[i][1], NULL, "there is no RDMA device");
	check("mooncake", "MOONCAKE_PROTOCOL", "tcp", "there is no RDMA device");
	check("mooncake-owner", "--protocol", "tcp", "there is no RDMA device");
	check("nccl", "NCCL_SOCKET_IFNAME", "=ens3", "192.0.2.10");
	/* a note can have the reason */
	scan->n_notes = 1;
	scan->notes[0] = (struct nd_note){ "devices", "RDMA netlink: permission denied" };
	check("nccl", "NCCL_IB_HCA", NULL, "RDMA netlink: permission denied");
	facts.scan = NULL;
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(names); i++)
		check(names[i][0], names[i][1], NULL, "not scanned yet");
	check("mooncake", "MOONCAKE_PROTOCOL", NULL, "not scanned yet");
	check("nccl", "NCCL_SOCKET_IFNAME", NULL, "not scanned yet");
}

static void hosts(void **state)
{
	struct env e;

	machine("ipv6_only", 1);
	facts.host = "2001:db8:7::11";
	check("vllm", "VLLM_HOST_IP", "2001:db8:7::11", "default route");
	check("mooncake", "MOONCAKE_LOCAL_HOSTNAME", "2001:db8:7::11", "default route");
	check("mooncake", "MC_USE_IPV6", "1", "2001:db8:7::11 is IPv6");
	check("vllm-mooncake", "MC_USE_IPV6", "1", "2001:db8:7::11 is IPv6");
	check("mooncake-owner", "--host", "[2001:db8:7::11]:50053", "default route");
	check("nccl", "NCCL_SOCKET_IFNAME", "=eth0", "2001:db8:7::11");
	/* its presence alone changes the setting */
	facts.host = "10.0.0.1";
	e = made("mooncake");
	assert_null(of(&e, "MC_USE_IPV6"));
	env_deinit(&e);
	check("nccl", "NCCL_SOCKET_IFNAME", NULL,
	      "10.0.0.1 is not an address of an interface of this node");
	facts.host = "node7.example";
	check("vllm", "VLLM_HOST_IP", NULL, "node7.example is a name");
	check("vllm", "VLLM_NIXL_SIDE_CHANNEL_HOST", "node7.example", "default route");
	check("mooncake-owner", "--host", "node7.example:50053", "mooncake.owner_segment");
	facts.host = "0.0.0.0";
	check("mooncake-owner", "--host", NULL, "not an address that others can use");
	facts.host = "::";
	check("vllm", "VLLM_HOST_IP", NULL, "not an address that others can use");
	facts.host = NULL;
	check("vllm", "VLLM_HOST_IP", NULL, "no address to advertise: eno1");
	facts.host_reason = NULL;
	check("vllm-mooncake", "MOONCAKE_REQUESTER_LOCAL_HOSTNAME", NULL,
	      "no address to advertise was found");
}

static void unknown_values_are_left_out(void **state)
{
	static const struct env_facts none;

	facts = none;
	check("dray", "DRAY_SOCKET", NULL, "no data socket");
	check("dray", "DRAY_SEGMENT", NULL, "no peer listener");
	check("vllm-mooncake", "MOONCAKE_PREFERRED_SEGMENT", NULL, "no segment is preferred");
	check("mooncake-owner", "--host", NULL, "no address to advertise was found");
	check("mooncake-owner", "--port", NULL, "mooncake.owner_rpc");
	facts.host = "10.0.0.1";
	check("mooncake-owner", "--host", NULL, "mooncake.owner_segment");
	facts.preferred.reason = "nothing is ready on this node";
	check("vllm-mooncake", "MOONCAKE_PREFERRED_SEGMENT", NULL,
	      "no segment is preferred: nothing is ready on this node");
	facts.preferred.name = "10.0.0.1";
	check("vllm-mooncake", "MOONCAKE_PREFERRED_SEGMENT", NULL, "is not HOST:PORT");
	facts.preferred.name = "10.0.0.1:5";
	facts.preferred.reason = NULL;
	check("vllm-mooncake", "MOONCAKE_PREFERRED_SEGMENT", "10.0.0.1:5", "preferred, unknown");
	/* whoever has named it */
	facts.preferred.agent = true;
	check("vllm-mooncake", "MOONCAKE_PREFERRED_SEGMENT", NULL,
	      "10.0.0.1:5 is a dray agent, and no segment of Mooncake's");
	facts.preferred.agent = false;
	/* values that do not fit on a line */
	facts.data_socket = "/run/a\nb=c";
	check("dray", "DRAY_SOCKET", NULL, "newline");
}

static void profiles_by_name(void **state)
{
	static const char *const wrong[] = { "dray", "ncl" }, *const twice[] = { "ucx", "dray",
										 "ucx" };
	struct dray_strv list = DRAY_STRV_NULL;
	struct dray_err err = DRAY_ERR_NULL;
	struct env e = ENV_NULL;

	machine("no_rdma", 1);
	assert_int_equal(env_make(&facts, wrong, 2, &e, &err), -EINVAL);
	assert_string_equal(
		err.msg,
		"unknown profile \"ncl\", did you mean nccl?; there are dray, vllm, vllm-dray, "
		"vllm-mooncake, mooncake, mooncake-owner, nccl, ucx");
	assert_int_equal(env_profile_check(wrong[0], &err), 0);
	assert_int_equal(env_profile_check(wrong[1], NULL), -EINVAL);
	assert_int_equal(env_make(&facts, twice, 3, &e, NULL), 0);
	assert_int_equal(e.n, 4);
	env_deinit(&e);
	assert_int_equal(env_make(&facts, twice, 0, &e, NULL), 0);
	assert_int_equal(e.n, 0);
	env_deinit(&e);

	assert_int_equal(env_profiles_parse("nccl, ucx ,dray", &list, NULL), 0);
	assert_int_equal(list.n, 3);
	assert_string_equal(list.v[1], "ucx");
	assert_string_equal(list.v[2], "dray");
	dray_strv_clear(&list);
	assert_int_equal(env_profiles_parse("", &list, NULL), 0);
	assert_int_equal(list.n, 0);
	assert_int_equal(env_profiles_parse(",", &list, NULL), -EINVAL);
	assert_int_equal(env_profiles_parse("dray,", &list, NULL), -EINVAL);
	assert_int_equal(env_profiles_parse("dray ucx", &list, NULL), -EINVAL);
	assert_int_equal(env_profiles_parse("   ", &list, NULL), -EINVAL);
}

static void as_lines(void **state)
{
	static const char *const profiles[] = { "dray", "mooncake", "vllm-mooncake",
						"mooncake-owner" };
	dray_auto_free char *text = NULL, *variables = NULL, *notes = NULL;
	struct env e;

	machine("infiniband_limited", 1);
	facts.data_socket = "/run/it's here/dray.sock";
	assert_int_equal(env_make(&facts, profiles, 4, &e, NULL), 0);
	assert_int_equal(env_text(&e, &text), 0);
	assert_int_equal(env_lines(&e, &variables, &notes), 0);
	env_deinit(&e);
	assert_non_null(strstr(text, "\n# dray: the agent's data socket and segment\n"
				     "DRAY_SOCKET=\"/run/it's here/dray.sock\"\n"
				     "DRAY_SEGMENT=10.20.0.11:7411\n"));
	assert_non_null(strstr(text, "\n# MC_GID_INDEX left out: InfiniBand: no GID index"));
	assert_non_null(strstr(text, "\n# --host=10.20.0.11:50053\n"));
	assert_non_null(strstr(variables, "DRAY_SOCKET=/run/it's here/dray.sock\nDRAY_SEGMENT="));
	assert_null(strstr(variables, "--host"));
	assert_non_null(strstr(notes, "MC_GID_INDEX: InfiniBand: no GID index is needed\n"));
	assert_non_null(strstr(notes, "--host: an argument, --host=10.20.0.11:50053\n"));

	/* a variable of two profiles is printed once */
	free(dray_take(text));
	machine("hgx_8x8", 1);
	assert_int_equal(env_make(&facts, profiles, 3, &e, NULL), 0);
	assert_int_equal(env_text(&e, &text), 0);
	env_deinit(&e);
	assert_ptr_equal(strstr(strstr(text, "MC_GID_INDEX=3") + 1, "MC_GID_INDEX"), NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(eight_gpus_with_a_nic_each, tear_down),
		cmocka_unit_test_teardown(a_gpu_without_a_nic_keeps_its_place, tear_down),
		cmocka_unit_test_teardown(several_nics_for_a_gpu, tear_down),
		cmocka_unit_test_teardown(gpus_that_are_not_in_sys, tear_down),
		cmocka_unit_test_teardown(one_index_does_not_fit_all_ports, tear_down),
		cmocka_unit_test_teardown(infiniband_needs_no_index, tear_down),
		cmocka_unit_test_teardown(ports_that_others_cannot_use, tear_down),
		cmocka_unit_test_teardown(no_rdma_is_not_an_error, tear_down),
		cmocka_unit_test_teardown(hosts, tear_down),
		cmocka_unit_test_teardown(unknown_values_are_left_out, tear_down),
		cmocka_unit_test_teardown(profiles_by_name, tear_down),
		cmocka_unit_test_teardown(as_lines, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
