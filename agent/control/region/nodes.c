/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/region/nodes.h"

#include <linux/mempolicy.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib/cleanup.h"

/* So many of a region's extents; each costs a system call of the control thread, and others count as not known. */
#define EXTENTS_MAX 1024

DRAY_DEFINE_CLEANUP(FILE *, fclose);

/* A list such as 0-1 or 0,2; one node is a single number. */
static bool several_nodes(void)
{
	dray_auto(fclose) FILE *f = fopen("/sys/devices/system/node/online", "re");
	char text[64] = "";

	return f && fgets(text, sizeof(text), f) && strpbrk(text, "-,");
}

static int node_of(const void *p)
{
	int node;

	if (syscall(SYS_get_mempolicy, &node, NULL, 0, p, MPOL_F_NODE | MPOL_F_ADDR) < 0)
		return -1;
	return node;
}

void nodes_find(struct region_view *v)
{
	static int several = -1;

	if (several < 0)
		several = several_nodes();
	for (uint32_t i = 0; i < v->n_extents; i++) {
		struct extent_view *e = &v->extents[i];

		e->node = several && i < EXTENTS_MAX ? node_of(e->base + e->length / 2) : -1;
		if (e->node >= 0)
			v->nodes_known = true;
	}
}
