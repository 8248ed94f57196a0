/* SPDX-License-Identifier: Apache-2.0 */
/* The NUMA nodes that workers run on. */
#include "agent/placement/detect/detect.h"

#include "lib/cleanup.h"
#include "tests/unit/cm.h"

static struct nd_node nodes[3];
static struct nd_port port = { .number = 1, .state = ND_PORT_ACTIVE };
static struct nd_device devices[2];
static struct nd_gpu gpu;

/* A scan with nodes of two CPUs each, and two RNICs on nodes numa_a and numa_b. */
static struct nd_scan scan(unsigned n_nodes, int numa_a, int numa_b)
{
	for (int i = 0; i < 3; i++) {
		nodes[i] = (struct nd_node){ .id = i };
		CPU_ZERO(&nodes[i].cpus);
		CPU_SET(2 * (size_t)i, &nodes[i].cpus);
		CPU_SET(2 * (size_t)i + 1, &nodes[i].cpus);
	}
	devices[0] = (struct nd_device){ .ports = &port, .n_ports = 1, .numa = numa_a };
	devices[1] = (struct nd_device){ .ports = &port, .n_ports = 1, .numa = numa_b };
	return (struct nd_scan){ .devices = { .v = devices, .n = 2 },
				 .topology = { .nodes = nodes, .n_nodes = n_nodes } };
}

static cpu_set_t cpus(unsigned n)
{
	cpu_set_t s;

	CPU_ZERO(&s);
	for (unsigned i = 0; i < n; i++)
		CPU_SET(i, &s);
	return s;
}

static int pin(const struct nd_scan *s, const struct dray_config *cfg, unsigned index,
	       unsigned allowed, unsigned want_cpus)
{
	cpu_set_t all = cpus(allowed), got;
	int node = pinning_node(s, cfg, index, &all, &got);

	assert_int_equal(CPU_COUNT(&got), want_cpus);
	return node;
}

static void by_the_rnics(void **state)
{
	struct dray_config cfg = { 0 };
	struct nd_scan s = scan(3, 2, 1);

	assert_int_equal(pin(&s, &cfg, 0, 6, 2), 2);
	assert_int_equal(pin(&s, &cfg, 1, 6, 2), 1);
	assert_int_equal(pin(&s, &cfg, 2, 6, 2), 2);
	/* node 2 has no allowed CPU */
	assert_int_equal(pin(&s, &cfg, 0, 4, 2), 1);
	assert_int_equal(pin(&s, &cfg, 1, 3, 1), 1);
	assert_int_equal(pin(&s, &cfg, 0, 2, 2), -1);
	s = scan(3, -1, -1);
	assert_int_equal(pin(&s, &cfg, 0, 6, 6), -1);
	gpu.numa = 1;
	s.topology.gpus = &gpu;
	s.topology.n_gpus = 1;
	assert_int_equal(pin(&s, &cfg, 0, 6, 2), 1);
	/* one node: no choice */
	s = scan(1, 0, 0);
	assert_int_equal(pin(&s, &cfg, 0, 6, 6), -1);
}

static void as_configured(void **state)
{
	char zero[] = "0", two[] = "2", none[] = "none";
	char *two_zero[] = { two, zero }, *no[] = { none };
	struct dray_config cfg = { 0 };
	struct nd_scan s = scan(3, 1, 1);
	cpu_set_t all;

	cfg.agent.numa_nodes = (struct dray_strv){ two_zero, 2 };
	assert_int_equal(pin(&s, &cfg, 0, 6, 2), 2);
	assert_int_equal(pin(&s, &cfg, 1, 6, 2), 0);
	all = cpus(4);
	assert_true(pinning_has(&s, zero, &all));
	assert_false(pinning_has(&s, two, &all)); /* no allowed CPU */
	assert_false(pinning_has(&s, "7", &all));
	cfg.agent.numa_nodes = (struct dray_strv){ no, 1 };
	assert_int_equal(pin(&s, &cfg, 0, 6, 6), -1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(by_the_rnics),
		cmocka_unit_test(as_configured),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
