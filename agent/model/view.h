/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Immutable views of regions, remotes and grants. The control thread makes them, publishes them to every worker, and frees
 * them when every worker has dropped them; so workers read them without locks. Only the addresses of GPU memory may come later, each
 * before the word of its part.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lib/handle.h"
#include "schema/gen/data.h"

struct mooncake_buffers;
struct ranges;

enum object_kind {
	OBJECT_REGION,
	OBJECT_REMOTE,
	OBJECT_GRANT,
	OBJECT_KIND_N,
	OBJECT_PEER = OBJECT_KIND_N /* without a view; only in commands and events */
};

struct extent_view {
	uint64_t start;  /* offset of its first byte in the region */
	uint64_t length; /* bytes */
	uint8_t *base;   /* address of the first byte, for the devices of enum region_memory */
	int node;        /* NUMA node of a page in its middle, if nodes_known; -1: unknown */
	uint32_t part;   /* index of its descriptor or handle in the request */
};

/* Head of every view. */
struct object_view {
	enum object_kind kind;
	dray_handle handle;
	dray_handle group;   /* regions, remotes: the group that may use it; grants: 0 */
	dray_handle session; /* regions, remotes: the session that made it */
	uint64_t length;     /* bytes */
	uint16_t access;     /* DMSG_ACCESS_* */
};

/* The processors and devices that can reach the bytes at an extent's `base`. */
enum region_memory {
	REGION_HOST, /* CPUs: the agent has mapped it */
	REGION_RDMA, /* only RDMA devices, by their registration (kind dmabuf) */
	REGION_GPU,  /* its GPU and the peers of this, and RDMA devices that have registered it */
};

struct region_view {
	struct object_view o;
	enum region_memory memory;
	uint8_t gpu;        /* REGION_GPU: index of the device */
	bool fault_guarded; /* a missing page raises SIGBUS or EFAULT and is not allocated */
	bool nodes_known;
	bool cold; /* much larger than any cache, and used at random: its bytes are probably in none */
	uint32_t n_extents;
	uint32_t n_parts;
	/*
	 * REGION_GPU: a word for each part, and then one for all of them; 1: it is open, and `gpu` and the addresses of its extents are set. The
	 * view may be published before. Other memory: NULL.
	 */
	uint32_t *open;
	struct extent_view extents[];
};

/* The word is set: what was stored before it can be read. */
static inline bool region_view_is_open(const struct region_view *r, uint32_t word)
{
	return __atomic_load_n(&r->open[word], __ATOMIC_ACQUIRE);
}

/* The DMA-BUF of an extent of device memory. */
struct region_dmabuf {
	int fd; /* -1: none */
	uint64_t offset;
};

/* An imported token, or an acquired lease: a range of a region of this agent, or of a peer's. */
struct remote_view {
	struct object_view o;
	bool is_local;
	dray_handle region; /* local: the region */
	uint64_t offset;    /* local: start of the range in the region */
	dray_handle peer;   /* else: the peer, and its handle of the grant */
	uint64_t grant;
	struct ranges *ranges;          /* of a lease: what may be accessed; NULL: everything */
	char label[DMSG_LABEL_MAX + 1]; /* of a lease, from its holder, for display */
	/* of an engine with Mooncake, whose handle is `peer` and whose addresses are the offsets; NULL: of an agent */
	const struct mooncake_buffers *mooncake;
};

/* The holder of grants for peers that speak Mooncake's protocol. No peer has this handle. */
#define MOONCAKE_PEER ((dray_handle)DRAY_HANDLES_MAX)

/* A range of a region that a peer has imported; its frames name the handle. */
struct grant_view {
	struct object_view o;
	dray_handle peer;
	dray_handle region;
	uint64_t offset;             /* start of the range in the region */
	const struct ranges *ranges; /* as in a remote */
	uint64_t mooncake; /* of MOONCAKE_PEER: the address of the range for its engines */
	uint32_t pieces;   /* likewise: how many buffers the range is for them */
};

/*
 * Index of the extent that holds `offset`, which lies inside the region. The binary search has no branches, since these
 * would be unpredictable.
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
