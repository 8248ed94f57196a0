/* SPDX-License-Identifier: Apache-2.0 */
/* Places of PCI functions in the tree, and their distance (Documentation/ABI/testing/sysfs-bus-pci). */
#pragma once

#include "netdetect/source/source.h"

#define ND_PCI_DEPTH_MAX 16

/* With the names of nvidia-smi topo -m, nearest first. */
enum nd_distance {
	ND_PIX,  /* at most one PCI bridge between them */
	ND_PXB,  /* several bridges, no host bridge */
	ND_PHB,  /* through one host bridge */
	ND_NODE, /* host bridges of one NUMA node */
	ND_SYS,  /* across NUMA nodes, or unknown */
};
const char *nd_distance_name(enum nd_distance d);

/* The functions above it, from the host bridge down to itself. */
struct nd_pci_place {
	char host[32]; /* "pci0000:3a", "" unknown */
	char path[ND_PCI_DEPTH_MAX][16];
	unsigned n;
	int numa; /* -1 unknown */
};

/* 0, or -ENOENT if it is not in this /sys. */
int nd_pci_place_of(const struct nd_source *s, const char *bdf, struct nd_pci_place *ret);

/* Pure. */
enum nd_distance nd_pci_distance_of(const struct nd_pci_place *a, const struct nd_pci_place *b);

/* Distance of two PCI functions ("0000:3b:00.0"). */
enum nd_distance nd_pci_distance(const struct nd_source *s, const char *a, const char *b);
