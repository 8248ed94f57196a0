/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs, PCI distance and NUMA nodes, from sysfs alone (Documentation/ABI/testing/sysfs-bus-pci). */
#ifndef DRAY_NETDETECT_TOPOLOGY_TOPOLOGY_H
#define DRAY_NETDETECT_TOPOLOGY_TOPOLOGY_H

#include <sched.h>

#include "lib/err.h"
#include "netdetect/rdma/device.h"

/* As nvidia-smi topo -m names them, nearest first. */
enum nd_distance {
	ND_PIX,  /* at most one PCI bridge between */
	ND_PXB,  /* several bridges, no host bridge */
	ND_PHB,  /* through one host bridge */
	ND_NODE, /* host bridges of one NUMA node */
	ND_SYS,  /* across NUMA nodes, or unknown */
};
const char *nd_distance_name(enum nd_distance d);

struct nd_gpu {
	char bdf[16];
	uint16_t vendor, device;
	uint32_t class; /* 24 bits */
	char driver[32];
	int numa; /* -1 unknown */
};

struct nd_node { /* NUMA */
	int id;
	cpu_set_t cpus;
	uint64_t memory;    /* bytes */
	char cpu_list[256]; /* as the kernel writes it */
};

/* One pairing of a GPU with a port's device. */
struct nd_affinity {
	uint16_t gpu, device; /* indices in the scan */
	enum nd_distance distance;
	bool preferred; /* one of the k that this GPU should use */
	bool spread;    /* preferred, and a nearer or equal one was left to another GPU */
};

struct nd_topology {
	struct nd_gpu *gpus; /* by bdf */
	size_t n_gpus;
	struct nd_node *nodes; /* by id */
	size_t n_nodes;
	struct nd_affinity
		*pairs; /* by GPU; within one the preferred first, then by distance and name */
	size_t n_pairs;
	unsigned hidden_gpus; /* known to the driver (/proc/driver/nvidia/gpus, /dev/nvidia[0-9]*) and not in /sys */
};

#define ND_RNICS_PER_GPU 1 /* default k */

/*
 * devices: of the same scan. k: RNICs for each GPU; 0: all. Devices with no active port are paired and
 * never preferred where another is. 0 or -errno; on error nothing is left. Any thread, blocking on sysfs.
 */
int nd_topology_scan(const struct nd_source *s, const struct nd_devices *devices, unsigned k,
		     struct nd_topology *ret, struct dray_err *reterr);
void nd_topology_deinit(struct nd_topology *t);

/* Distance of two PCI functions ("0000:3b:00.0"), out of their places in the tree. */
enum nd_distance nd_pci_distance(const struct nd_source *s, const char *a, const char *b);

#endif
