/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a data worker knows of a region, a remote and a grant: immutable views. The control thread
 * makes them, publishes them to every worker, and frees them after every worker has said that it
 * dropped them; so a worker reads them without locks.
 */
#ifndef DRAY_AGENT_MODEL_VIEW_H
#define DRAY_AGENT_MODEL_VIEW_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/handle.h"

enum object_kind { OBJECT_REGION, OBJECT_REMOTE, OBJECT_GRANT, OBJECT_KIND_N };

struct extent_view {
	uint64_t start;  /* offset of its first byte in the region */
	uint64_t length; /* bytes */
	uint8_t *base;   /* first byte, for those that can reach it (enum region_memory) */
	int node;        /* NUMA node of a page in its middle, where nodes_known; -1: not known */
};

/* Head of every view. */
struct object_view {
	enum object_kind kind;
	dray_handle handle;
	dray_handle group;   /* regions, remotes: group that may use it; grants: 0 */
	dray_handle session; /* regions, remotes: who made it */
	uint64_t length;     /* bytes */
	uint16_t access;     /* DMSG_ACCESS_* */
};

/* Who can reach the bytes at an extent's `base`. */
enum region_memory {
	REGION_HOST, /* CPUs: it is mapped here */
	REGION_RDMA, /* RDMA devices alone: an address that means something to their registration (kind dmabuf) */
	REGION_GPU, /* the GPU it lies on and its peers; RDMA devices where it is registered too */
};

struct region_view {
	struct object_view o;
	enum region_memory memory;
	uint8_t gpu;        /* REGION_GPU: index of the device */
	bool fault_guarded; /* a missing page raises SIGBUS or EFAULT and is not allocated */
	bool nodes_known;
	uint32_t n_extents;
	struct extent_view extents[];
};

/* Where an extent of device memory lies, for RDMA devices. */
struct region_dmabuf {
	int fd; /* a DMA-BUF; -1: there is none */
	uint64_t offset;
};

/* An imported token: a range of a region of this agent, or of a peer's. */
struct remote_view {
	struct object_view o;
	bool is_local;
	dray_handle region; /* local: region of this agent */
	uint64_t offset;    /* local: start of the range in it */
	dray_handle peer;   /* else: peer, and its handle for our import */
	uint64_t grant;
};

/* What a peer may do here: frames name it. */
struct grant_view {
	struct object_view o;
	dray_handle peer;
	dray_handle region;
	uint64_t offset; /* start of the range in the region */
};

/*
 * Index of the extent that holds `offset` (which lies inside the region). Binary search whose steps depend on no branch, since
 * pages lie anywhere.
 */
static inline uint32_t region_view_find(const struct region_view *r, uint64_t offset)
{
	const struct extent_view *e = r->extents;

	for (uint32_t n = r->n_extents; n > 1;) {
		uint32_t half = n / 2;

		e += (uint32_t) - (int32_t)(e[half].start <= offset) & half;
		n -= half;
	}
	return (uint32_t)(e - r->extents);
}

#endif
