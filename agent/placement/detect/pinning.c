/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/placement/detect/detect.h"

#include "agent/config/words.h"

#define NODES_MAX 64

/* Nodes to use, each once, in the order they came. */
struct nodes {
	int id[NODES_MAX];
	unsigned n;
};

static bool cpus_of(const struct nd_scan *scan, int id, const cpu_set_t *allowed, cpu_set_t *ret)
{
	CPU_ZERO(ret);
	for (size_t i = 0; i < scan->topology.n_nodes; i++)
		if (scan->topology.nodes[i].id == id)
			CPU_AND(ret, &scan->topology.nodes[i].cpus, allowed);
	return CPU_COUNT(ret) > 0;
}

static void add(struct nodes *n, const struct nd_scan *scan, int id, const cpu_set_t *allowed)
{
	cpu_set_t cpus;

	if (id < 0 || n->n == NODES_MAX || !cpus_of(scan, id, allowed, &cpus))
		return;
	for (unsigned i = 0; i < n->n; i++)
		if (n->id[i] == id)
			return;
	n->id[n->n++] = id;
}

bool pinning_has(const struct nd_scan *scan, const char *node, const cpu_set_t *allowed)
{
	cpu_set_t cpus;

	return cpus_of(scan, numa_node_parse(node), allowed, &cpus);
}

static struct nodes nodes_of(const struct nd_scan *scan, const struct dray_strv *named,
			     const cpu_set_t *allowed)
{
	struct nodes n = { .n = 0 };

	for (size_t i = 0; i < named->n; i++)
		add(&n, scan, numa_node_parse(named->v[i]), allowed);
	if (named->n)
		return n;
	for (size_t i = 0; i < scan->devices.n; i++)
		if (nd_device_active(&scan->devices.v[i]))
			add(&n, scan, scan->devices.v[i].numa, allowed);
	for (size_t i = 0; !n.n && i < scan->topology.n_gpus; i++)
		add(&n, scan, scan->topology.gpus[i].numa, allowed);
	return n;
}

int pinning_node(const struct nd_scan *scan, const struct dray_config *cfg, unsigned index,
		 const cpu_set_t *allowed, cpu_set_t *cpus)
{
	const struct dray_strv *named = &cfg->agent.numa_nodes;
	struct nodes n;

	*cpus = *allowed;
	if (list_is_none(named) || (!named->n && scan->topology.n_nodes < 2))
		return -1;
	n = nodes_of(scan, named, allowed);
	if (!n.n)
		return -1;
	cpus_of(scan, n.id[index % n.n], allowed, cpus);
	return n.id[index % n.n];
}
