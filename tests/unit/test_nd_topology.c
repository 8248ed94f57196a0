/* SPDX-License-Identifier: Apache-2.0 */
/* PCI distances, the choice of RNICs for each GPU, and scans that cannot see something. */
#include "netdetect/topology/topology.h"

#include <errno.h>
#include <linux/netlink.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "netdetect/choose/rnic.h"
#include "netdetect/scan.h"
#include "netdetect/topology/pci.h"
#include "schema/gen/errors.h"
#include "tests/unit/cm.h"

static struct nd_pci_place place(const char *host, int numa, const char *a, const char *b,
				 const char *c, const char *d)
{
	const char *path[] = { a, b, c, d };
	struct nd_pci_place p = { .numa = numa };

	snprintf(p.host, sizeof(p.host), "%s", host);
	for (int i = 0; i < 4 && path[i]; i++)
		snprintf(p.path[p.n++], sizeof(p.path[0]), "%s", path[i]);
	return p;
}

static void distances(void **state)
{
	/* below one switch: root port, upstream port, and a downstream port for each device */
	struct nd_pci_place gpu =
		place("pci0000:15", 0, "15:01.0", "16:00.0", "17:00.0", "19:00.0");
	struct nd_pci_place near =
		place("pci0000:15", 0, "15:01.0", "16:00.0", "17:01.0", "18:00.0");
	/* below another switch of the same root port */
	struct nd_pci_place far =
		place("pci0000:15", 0, "15:01.0", "20:00.0", "21:00.0", "22:00.0");
	/*
	 * below another root port of the same complex, below another complex, and on another socket
	 */
	struct nd_pci_place root = place("pci0000:15", 0, "15:02.0", "30:00.0", NULL, NULL);
	struct nd_pci_place node = place("pci0000:40", 0, "40:01.0", "41:00.0", NULL, NULL);
	struct nd_pci_place sys = place("pci0000:80", 1, "80:01.0", "81:00.0", NULL, NULL);
	struct nd_pci_place unknown = { .numa = -1 };
	struct nd_pci_place stray = place("", -1, "40:01.0", NULL, NULL, NULL);

	assert_int_equal(nd_pci_distance_of(&gpu, &near), ND_PIX);
	assert_int_equal(nd_pci_distance_of(&gpu, &far), ND_PXB);
	assert_int_equal(nd_pci_distance_of(&gpu, &root), ND_PHB);
	assert_int_equal(nd_pci_distance_of(&gpu, &node), ND_NODE);
	assert_int_equal(nd_pci_distance_of(&gpu, &sys), ND_SYS);
	assert_int_equal(nd_pci_distance_of(&gpu, &unknown), ND_SYS);
	assert_int_equal(nd_pci_distance_of(&stray, &stray), ND_SYS);
	assert_int_equal(nd_pci_distance_of(&near, &gpu), ND_PIX);
	for (int d = ND_PIX; d <= ND_SYS; d++)
		assert_non_null(nd_distance_name((enum nd_distance)d));
}

/* --- choice ------------------------------------------------------------------------------------------- */

#define DEVICES 4

static struct nd_device devices[DEVICES];
static struct nd_port ports[DEVICES];
static struct nd_gpu gpus[4];
/* GPUs and devices without a PCI place all have the same distance. */
static struct nd_topology choose(unsigned n_gpus, unsigned n_devices, unsigned k, unsigned down)
{
	struct nd_source s = ND_SOURCE_LIVE;
	struct nd_devices d = { .v = devices, .n = n_devices };
	struct nd_topology t = { .gpus = gpus, .n_gpus = n_gpus };

	snprintf(s.root, sizeof(s.root), "%s", cm_dir);
	for (unsigned i = 0; i < n_devices; i++) {
		ports[i] =
			(struct nd_port){ .number = 1,
					  .state = down & 1u << i ? ND_PORT_DOWN : ND_PORT_ACTIVE };
		devices[i] = (struct nd_device){ .ports = &ports[i], .n_ports = 1, .numa = -1 };
	}
	assert_int_equal(nd_affinity_make(&s, &d, k, &t), 0);
	return t;
}

static unsigned of(const struct nd_topology *t, unsigned gpu)
{
	for (size_t i = 0; i < t->n_pairs; i++)
		if (t->pairs[i].gpu == gpu && t->pairs[i].preferred)
			return t->pairs[i].device;
	return UINT16_MAX;
}

static unsigned preferred(const struct nd_topology *t, unsigned gpu)
{
	unsigned n = 0;

	for (size_t i = 0; i < t->n_pairs; i++)
		n += t->pairs[i].gpu == gpu && t->pairs[i].preferred;
	return n;
}

static void equal_rnics_are_spread(void **state)
{
	struct nd_topology t = choose(4, 4, 1, 0);

	for (unsigned g = 0; g < 4; g++)
		assert_int_equal(of(&t, g), g);
	free(t.pairs);
	t = choose(4, 2, 1, 0);
	for (unsigned g = 0; g < 4; g++)
		assert_int_equal(of(&t, g), g % 2);
	free(t.pairs);
}

static void ports_that_are_down_come_last(void **state)
{
	struct nd_topology t = choose(2, 4, 1, 0x3);

	assert_int_equal(of(&t, 0), 2);
	assert_int_equal(of(&t, 1), 3);
	free(t.pairs);
	/* they are used if there are no others */
	t = choose(2, 2, 1, 0x3);
	assert_int_equal(of(&t, 0), 0);
	assert_int_equal(of(&t, 1), 1);
	free(t.pairs);
}

/* Where network namespaces share devices, a pod sees those of the host and of other pods, too. */
static void rnics_without_a_gid_here_come_last(void **state)
{
	struct nd_gid refused = { .rejected = true }, good = { .rejected = false };
	struct nd_devices d = { .v = devices, .n = 3 };
	struct nd_topology t = { .gpus = gpus, .n_gpus = 1 };
	struct nd_source s = ND_SOURCE_LIVE;

	snprintf(s.root, sizeof(s.root), "%s", cm_dir);
	for (unsigned i = 0; i < 3; i++) {
		ports[i] = (struct nd_port){ .number = 1, .state = ND_PORT_ACTIVE };
		devices[i] = (struct nd_device){ .ports = &ports[i], .n_ports = 1, .numa = -1 };
	}
	ports[0].gids = (struct nd_gids){ .v = &refused, .n = 1 };
	ports[1].gids = (struct nd_gids){ .unmapped = 2 };
	ports[2].gids = (struct nd_gids){ .v = &good, .n = 1 };
	assert_int_equal(nd_affinity_make(&s, &d, 1, &t), 0);
	assert_int_equal(of(&t, 0), 2);
	free(t.pairs);
}

static void the_requested_number_is_chosen(void **state)
{
	struct nd_topology t = choose(2, 4, 2, 0);

	assert_int_equal(preferred(&t, 0), 2);
	assert_int_equal(preferred(&t, 1), 2);
	free(t.pairs);
	t = choose(2, 4, 0, 0);
	assert_int_equal(preferred(&t, 0), 4);
	free(t.pairs);
	t = choose(2, 4, 9, 0);
	assert_int_equal(preferred(&t, 1), 4);
	free(t.pairs);
	t = choose(2, 0, 1, 0);
	assert_int_equal(t.n_pairs, 0);
}

/* --- sysfs --------------------------------------------------------------------------------------------- */

static void scan(struct nd_topology *ret)
{
	struct nd_source s;

	cm_file_write(cm_dir, "sys/here", "");
	assert_int_equal(nd_source_open(&s, cm_dir), 0);
	assert_int_equal(nd_topology_scan(&s, ret), 0);
}

static void function(const char *bdf, const char *vendor, const char *class)
{
	char path[128];

	snprintf(path, sizeof(path), "sys/bus/pci/devices/%s/vendor", bdf);
	cm_file_write(cm_dir, path, vendor);
	snprintf(path, sizeof(path), "sys/bus/pci/devices/%s/class", bdf);
	cm_file_write(cm_dir, path, class);
}

static void functions_that_are_gpus(void **state)
{
	struct nd_topology t;

	function("0000:01:00.0", "0x10de\n", "0x030200\n"); /* 3D controller */
	function("0000:02:00.0", "0x10de\n", "0x030000\n"); /* with a display */
	function("0000:03:00.0", "0x10de\n", "0x040300\n"); /* its audio function */
	function("0000:04:00.0", "0x1a03\n", "0x030000\n"); /* the mainboard's console */
	function("0000:05:00.0", "0x1002\n", "0x120000\n"); /* accelerator */
	function("0000:06:00.0", "0x10de\n", "nonsense\n");
	scan(&t);
	assert_int_equal(t.n_gpus, 3);
	assert_string_equal(t.gpus[0].bdf, "0000:01:00.0");
	assert_string_equal(t.gpus[2].bdf, "0000:05:00.0");
	assert_int_equal(t.gpus[0].numa, -1);
	nd_topology_deinit(&t);
}

static void nodes_and_their_cpus(void **state)
{
	struct nd_topology t;

	cm_file_write(cm_dir, "sys/devices/system/node/node0/cpulist", "0-3,8,10-11\n");
	cm_file_write(cm_dir, "sys/devices/system/node/node0/meminfo",
		      "Node 0 MemTotal:  2048 kB\n");
	cm_file_write(cm_dir, "sys/devices/system/node/node1/cpulist", "\n");
	cm_file_write(cm_dir, "sys/devices/system/node/node10/cpulist", "5-99999999,x\n");
	cm_file_write(cm_dir, "sys/devices/system/node/nodes", "");
	scan(&t);
	assert_int_equal(t.n_nodes, 3);
	assert_int_equal(CPU_COUNT(&t.nodes[0].cpus), 7);
	assert_true(CPU_ISSET(11, &t.nodes[0].cpus) && !CPU_ISSET(9, &t.nodes[0].cpus));
	assert_int_equal(t.nodes[0].memory, 2048 * 1024);
	assert_int_equal(CPU_COUNT(&t.nodes[1].cpus), 0);
	assert_int_equal(t.nodes[2].id, 10);
	assert_int_equal(CPU_COUNT(&t.nodes[2].cpus), CPU_SETSIZE - 5);
	nd_topology_deinit(&t);
}

/* The lists are long where the numbers of two nodes alternate, and sysfs has no shorter form. */
static void nodes_with_alternating_cpus(void **state)
{
	struct nd_topology t;
	char list[4096];
	size_t n = 0;

	for (int cpu = 0; cpu < CPU_SETSIZE; cpu += 2)
		n += (size_t)snprintf(list + n, sizeof(list) - n, "%s%d", cpu ? "," : "", cpu);
	cm_file_write(cm_dir, "sys/devices/system/node/node0/cpulist", list);
	scan(&t);
	assert_string_equal(t.nodes[0].cpu_list, list);
	assert_int_equal(CPU_COUNT(&t.nodes[0].cpus), CPU_SETSIZE / 2);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		assert_int_equal(!CPU_ISSET(cpu, &t.nodes[0].cpus), cpu % 2);
	nd_topology_deinit(&t);
}

static void check_hidden(unsigned expected)
{
	struct nd_scan_options options = { .flags = 0 };
	struct nd_scan *scan;
	struct nd_source s;

	assert_int_equal(nd_source_open(&s, cm_dir), 0);
	assert_int_equal(nd_scan_run(&s, &options, &scan, NULL), 0);
	assert_int_equal(scan->topology.hidden_gpus, expected);
	nd_scan_free(scan);
}

static void hidden_gpus_are_counted(void **state)
{
	cm_file_write(cm_dir, "sys/here", "");
	cm_file_write(cm_dir, "dev/nvidia0", "");
	cm_file_write(cm_dir, "dev/nvidia1", "");
	cm_file_write(cm_dir, "dev/nvidia1x", "");
	cm_file_write(cm_dir, "dev/nvidiactl", "");
	function("0000:01:00.0", "0x10de\n", "0x030200\n");
	check_hidden(1);
	cm_file_write(cm_dir, "proc/driver/nvidia/gpus/0000:01:00.0/information", "");
	function("0000:02:00.0", "0x10de\n", "0x030200\n");
	function("0000:03:00.0", "0x10de\n", "0x030200\n");
	check_hidden(0);
}

/* --- what a scan cannot see ------------------------------------------------------------------------------- */

/* The kernel answers the dump with an error. */
static void record_error(const char *dump, int error)
{
	struct {
		struct nlmsghdr h;
		struct nlmsgerr e;
	} m = { { sizeof(m), NLMSG_ERROR, 0, 0, 0 }, { .error = error } };
	char path[CM_DIR_BYTES + 32];
	FILE *f;

	cm_file_write(cm_dir, "netlink/none", "");
	snprintf(path, sizeof(path), "%s/netlink/%s", cm_dir, dump);
	f = fopen(path, "we");
	assert_non_null(f);
	assert_int_equal(fwrite(&m, sizeof(m), 1, f), 1);
	assert_int_equal(fclose(f), 0);
}

static int run_scan(struct nd_scan **ret, struct dray_err *err)
{
	struct nd_scan_options options = { .flags = ND_SCAN_LISTENERS };
	struct nd_source s;

	*err = DRAY_ERR_NULL;
	assert_int_equal(nd_source_open(&s, cm_dir), 0);
	return nd_scan_run(&s, &options, ret, err);
}

/* A dump that failed is not one without elements. */
static void a_failed_dump_fails_the_scan(void **state)
{
	static const struct {
		const char *dump, *about;
		int error, code;
	} cases[] = { { "link", "links", -EINTR, DRAY_E_IO },
		      { "addr", "links", -ENOBUFS, DRAY_E_IO },
		      { "rdma_dev", "devices", -ENFILE, DRAY_E_NO_FDS },
		      { "rdma_dev", "devices", -EMFILE, DRAY_E_NO_FDS },
		      { "listen", "listeners", -ETIMEDOUT, DRAY_E_IO } };
	struct nd_scan *scan = NULL;
	struct dray_err err;

	cm_file_write(cm_dir, "sys/here", "");
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(cases); i++) {
		record_error(cases[i].dump, cases[i].error);
		assert_int_equal(run_scan(&scan, &err), cases[i].error);
		assert_null(scan);
		assert_int_equal(err.code, cases[i].code);
		assert_memory_equal(err.msg, cases[i].about, strlen(cases[i].about));
		assert_true(*nd_scan_remedy(cases[i].error));
		/* the next scan succeeds */
		record_error(cases[i].dump, 0);
	}
	assert_int_equal(run_scan(&scan, &err), 0);
	nd_scan_free(scan);
}

/* A kernel that lacks the request has nothing to show, and never will. */
static void what_the_kernel_lacks_is_a_note(void **state)
{
	static const char *const dumps[] = { "link", "listen", "rdma_dev" };
	static const int errors[] = { -EPROTONOSUPPORT, -EOPNOTSUPP,   -EPERM,
				      -ENOENT,          -ECONNREFUSED, -ENOSYS };
	struct nd_scan *scan;
	struct dray_err err;

	cm_file_write(cm_dir, "sys/here", "");
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(errors); i++) {
		for (size_t k = 0; k < DRAY_ARRAY_SIZE(dumps); k++)
			record_error(dumps[k], errors[i]);
		assert_int_equal(run_scan(&scan, &err), 0);
		/* sysfs, which is asked then, has no RDMA devices, either */
		assert_int_equal(scan->n_notes, 2);
		assert_int_equal(scan->devices.n, 0);
		nd_scan_free(scan);
	}
}

/* Files that do not open for want of descriptors are not taken for files that are not there. */
static void without_descriptors(void **state)
{
	struct rlimit before, low;
	struct nd_scan *scan = NULL;
	struct dray_err err;
	int spare = dup(0);

	close(spare);
	cm_file_write(cm_dir, "sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	/* with one the folder of the devices opens, and no file in it */
	for (int n = 0; n < 2; n++) {
		low = before;
		low.rlim_cur = (rlim_t)(spare + n);
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
		assert_int_equal(run_scan(&scan, &err), -EMFILE);
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
		assert_int_equal(err.code, DRAY_E_NO_FDS);
	}
	assert_int_equal(run_scan(&scan, &err), 0);
	assert_int_equal(scan->devices.v[0].ports[0].state, ND_PORT_ACTIVE);
	nd_scan_free(scan);
}

#define TEST(f) cm_test_in_dir(f)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(distances),
		TEST(equal_rnics_are_spread),
		TEST(rnics_without_a_gid_here_come_last),
		TEST(ports_that_are_down_come_last),
		TEST(the_requested_number_is_chosen),
		TEST(functions_that_are_gpus),
		TEST(nodes_and_their_cpus),
		TEST(nodes_with_alternating_cpus),
		TEST(hidden_gpus_are_counted),
		TEST(a_failed_dump_fails_the_scan),
		TEST(what_the_kernel_lacks_is_a_note),
		TEST(without_descriptors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
