/* SPDX-License-Identifier: Apache-2.0 */
/* Where a PCI function sits in the tree. */
#ifndef DRAY_NETDETECT_TOPOLOGY_PCI_H
#define DRAY_NETDETECT_TOPOLOGY_PCI_H

#include "netdetect/topology/topology.h"

#define ND_PCI_DEPTH_MAX 16

/* The functions above it, from the host bridge down to itself. */
struct nd_pci_place {
	char host[32]; /* "pci0000:3a", "" unknown */
	char path[ND_PCI_DEPTH_MAX][16];
	unsigned n;
	int numa; /* -1 unknown */
};

/* 0 or -ENOENT: not in this /sys. */
int nd_pci_place_of(const struct nd_source *s, const char *bdf, struct nd_pci_place *ret);

/* Pure. */
enum nd_distance nd_pci_distance_of(const struct nd_pci_place *a, const struct nd_pci_place *b);

#endif
