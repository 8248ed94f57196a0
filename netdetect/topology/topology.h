/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs and NUMA nodes of this machine, from sysfs, and the distance of GPUs to RDMA devices. */
#pragma once

#include <sched.h>

#include "netdetect/gpu/gpu.h"
#include "netdetect/topology/pci.h"

/* The longest list of CPU_SETSIZE CPUs: "0-1,3-4,6-7" and so on, 8 bytes for each pair of three-digit numbers. */
#define ND_CPU_LIST_MAX 4096

struct nd_node { /* NUMA */
	int id;
	cpu_set_t cpus;
	uint64_t memory;                /* bytes */
	char cpu_list[ND_CPU_LIST_MAX]; /* as the kernel writes it */
};

/* A GPU and an RDMA device. */
struct nd_affinity {
	uint16_t gpu, device; /* indices in the scan */
	enum nd_distance distance;
	bool preferred; /* one of the k that this GPU should use */
	bool spread;    /* preferred, and another GPU has a nearer or equal one */
};

struct nd_topology {
	struct nd_gpu *gpus; /* by bdf */
	size_t n_gpus;
	struct nd_node *nodes; /* by id */
	size_t n_nodes;
	/* set by nd_affinity_make(): by GPU, then preferred first, then by distance and name of the device */
	struct nd_affinity *pairs;
	size_t n_pairs;
	unsigned hidden_gpus; /* known to the NVIDIA driver and not in /sys; set by nd_scan_run() */
};

/* Without pairs. 0, or -ENOMEM with *ret unchanged. Any thread; blocks on sysfs. */
int nd_topology_scan(const struct nd_source *s, struct nd_topology *ret);
void nd_topology_deinit(struct nd_topology *t);
