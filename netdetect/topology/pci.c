/* SPDX-License-Identifier: Apache-2.0 */
/*
 * /sys/bus/pci/devices/<bdf> is a link to /sys/devices/pci0000:3a/0000:3a:00.0/.../<bdf>: each component is a
 * bridge between the root complex and the function.
 */
#include "netdetect/topology/pci.h"

#include <stdio.h>
#include <string.h>

const char *nd_distance_name(enum nd_distance d)
{
	static const char *const names[] = { "PIX", "PXB", "PHB", "NODE", "SYS" };

	return d < DRAY_ARRAY_SIZE(names) ? names[d] : "SYS";
}

static void add_component(struct nd_pci_place *p, const char *name)
{
	char bdf[16];

	nd_bdf_parse(name, bdf);
	if (!strncmp(name, "pci", 3) && strlen(name) < sizeof(p->host)) {
		snprintf(p->host, sizeof(p->host), "%s", name);
		p->n = 0;
	} else if (bdf[0] && p->n < ND_PCI_DEPTH_MAX) {
		memcpy(p->path[p->n++], bdf, sizeof(bdf));
	}
}

int nd_pci_place_of(const struct nd_source *s, const char *bdf, struct nd_pci_place *ret)
{
	char target[ND_PATH_MAX], *save = NULL;

	*ret = (struct nd_pci_place){ .numa = -1 };
	if (!*bdf || !nd_read_link(s, target, "/sys/bus/pci/devices/%s", bdf))
		return -ENOENT;
	for (char *name = strtok_r(target, "/", &save); name; name = strtok_r(NULL, "/", &save))
		add_component(ret, name);
	(void)nd_read_int(s, &ret->numa, "/sys/bus/pci/devices/%s/numa_node", bdf);
	return ret->n ? 0 : -ENOENT;
}

enum nd_distance nd_pci_distance_of(const struct nd_pci_place *a, const struct nd_pci_place *b)
{
	unsigned common = 0, bridges;

	if (!a->n || !b->n || !a->host[0] || strcmp(a->host, b->host) != 0)
		return a->n && b->n && a->numa >= 0 && a->numa == b->numa ? ND_NODE : ND_SYS;
	while (common < a->n && common < b->n && !strcmp(a->path[common], b->path[common]))
		common++;
	/* nothing shared below the host bridge: through the root complex */
	if (!common)
		return ND_PHB;
	/* from the last shared bridge down to both functions, which count too */
	bridges = (a->n - common) + (b->n - common);
	/* two functions below one switch: its upstream port, and a downstream port for each */
	return bridges <= 4 ? ND_PIX : ND_PXB;
}

enum nd_distance nd_pci_distance(const struct nd_source *s, const char *a, const char *b)
{
	struct nd_pci_place x, y;

	if (nd_pci_place_of(s, a, &x) < 0 || nd_pci_place_of(s, b, &y) < 0)
		return ND_SYS;
	return nd_pci_distance_of(&x, &y);
}
