/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/placement/detect/pinning.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "schema/gen/errors.h"

#define NODES_MAX 64
#define NODE_ID_MAX 4095

/* Nodes to use, each once, in the order they came. */
struct nodes {
	int id[NODES_MAX];
	unsigned n;
};

static int node_number(const char *s)
{
	char *end;
	unsigned long v;

	if (*s < '0' || *s > '9')
		return -EINVAL;
	v = strtoul(s, &end, 10);
	return *end || v > NODE_ID_MAX ? -EINVAL : (int)v;
}

static bool is_none(const struct dray_strv *l)
{
	return l->n == 1 && !strcmp(l->v[0], "none");
}

int placement_check_config(const struct dray_config *cfg, struct dray_err *reterr)
{
	const struct dray_strv *l = &cfg->agent.numa_nodes;

	for (size_t i = 0; !is_none(l) && i < l->n; i++)
		if (node_number(l->v[i]) < 0)
			return dray_err_set(
				reterr, -EINVAL, DRAY_E_INVALID,
				"\"%s\" is no NUMA node: write numbers such as 0, 1, or none alone",
				l->v[i]);
	return 0;
}

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

static struct nodes nodes_of(const struct nd_scan *scan, const struct dray_strv *named,
			     const cpu_set_t *allowed)
{
	struct nodes n = { .n = 0 };

	for (size_t i = 0; i < named->n; i++)
		add(&n, scan, node_number(named->v[i]), allowed);
	if (named->n)
		return n;
	for (size_t i = 0; i < scan->devices.n; i++)
		if (nd_device_active(&scan->devices.v[i]))
			add(&n, scan, scan->devices.v[i].numa, allowed);
	for (size_t i = 0; !n.n && i < scan->topology.n_gpus; i++)
		add(&n, scan, scan->topology.gpus[i].numa, allowed);
	return n;
}

int placement_of(const struct nd_scan *scan, const struct dray_config *cfg, unsigned index,
		 const cpu_set_t *allowed, cpu_set_t *cpus)
{
	const struct dray_strv *named = &cfg->agent.numa_nodes;
	struct nodes n;

	*cpus = *allowed;
	if (is_none(named) || (!named->n && scan->topology.n_nodes < 2))
		return -1;
	n = nodes_of(scan, named, allowed);
	if (!n.n)
		return -1;
	cpus_of(scan, n.id[index % n.n], allowed, cpus);
	return n.id[index % n.n];
}
