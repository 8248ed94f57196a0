/* SPDX-License-Identifier: Apache-2.0 */
#include "netdetect/topology/topology.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "lib/array.h"

#define NODES "/sys/devices/system/node"

/* "0-3,8,10-11" */
static void parse_cpus(const char *text, cpu_set_t *ret)
{
	CPU_ZERO(ret);
	while (isdigit((unsigned char)*text)) {
		char *end;
		unsigned long first = strtoul(text, &end, 10), last = first;

		if (*end == '-')
			last = strtoul(end + 1, &end, 10);
		for (unsigned long c = first; c <= last && c < CPU_SETSIZE; c++)
			CPU_SET(c, ret);
		text = *end == ',' ? end + 1 : end;
	}
}

static uint64_t node_memory(const struct nd_source *s, int id)
{
	char text[2048], *at;

	if (nd_read_text(s, text, sizeof(text), NODES "/node%d/meminfo", id) <= 0)
		return 0;
	at = strstr(text, "MemTotal:");
	return at ? strtoull(at + strlen("MemTotal:"), NULL, 10) * 1024 : 0;
}

ND_ORDER(by_id, struct nd_node, id);

static int scan_nodes(const struct nd_source *s, struct nd_topology *t)
{
	dray_auto(closedir) DIR *dir = nd_open_dir(s, NODES);
	const char *name;
	int r = 0;

	while (r >= 0 && (name = nd_next_entry(dir))) {
		struct nd_node n = { .id = -1 };

		if (strncmp(name, "node", 4) != 0 || !isdigit((unsigned char)name[4]))
			continue;
		n.id = (int)strtol(name + 4, NULL, 10);
		n.memory = node_memory(s, n.id);
		nd_read_text(s, n.cpu_list, sizeof(n.cpu_list), NODES "/node%d/cpulist", n.id);
		parse_cpus(n.cpu_list, &n.cpus);
		r = DRAY_APPEND(t->nodes, t->n_nodes, n);
	}
	if (t->n_nodes)
		qsort(t->nodes, t->n_nodes, sizeof(*t->nodes), by_id);
	return r;
}

int nd_topology_scan(const struct nd_source *s, struct nd_topology *ret)
{
	struct nd_topology t = { 0 };
	int r = nd_gpus_scan(s, &t.gpus, &t.n_gpus);

	if (r >= 0)
		r = scan_nodes(s, &t);
	if (r < 0) {
		nd_topology_deinit(&t);
		return r;
	}
	*ret = t;
	return 0;
}

void nd_topology_deinit(struct nd_topology *t)
{
	free(t->gpus);
	free(t->nodes);
	free(t->pairs);
	*t = (struct nd_topology){ 0 };
}
