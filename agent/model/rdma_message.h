/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages between transport `rdma` in a worker and agent/control/rails.
 *
 * The control thread creates and destroys queue pairs; a worker posts on those that it received. Either side may find a
 * queue pair lost. Then the worker stops using it and sends QP_LOST, the control thread destroys it, makes the peer destroy
 * the other end, and sends QP_DEAD. Only after QP_DEAD does the worker retry or end the work in flight on it: until then
 * that work may still arrive. A transfer that is being stopped and only reads ends with QP_QUIET, when no byte of it can arrive any more:
 * the peer may be silent for long.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/handle.h"
#include "lib/list.h"
#include "schema/gen/data.h"
#include "schema/gen/peer.h"

struct ibv_comp_channel;
struct ibv_cq;
struct ibv_qp;
struct rail_keys;
struct window;

/* Pieces that one work request gathers, at most. */
#define RDMA_SGES 16u

/* To the worker. */
enum rdma_command {
	RDMA_RAIL_UP,   /* id: rail; arg: struct rdma_cq, borrowed until RAIL_GONE */
	RDMA_RAIL_DOWN, /* id: rail; its queue pairs are dead; answered by RAIL_GONE */
	RDMA_PATHS,     /* peer; arg: struct rdma_paths, consumed */
	RDMA_QP_UP,     /* peer; arg: struct rdma_qp, consumed */
	RDMA_QP_LOSE, /* peer, id: stop using it; answered by QP_LOST, unless that was sent before */
	RDMA_QP_QUIET, /* peer, id: the end here is destroyed; QP_DEAD follows after the peer's end */
	RDMA_QP_DEAD, /* peer, id */
	RDMA_STAGING, /* arg: struct rail_keys of its staging memory, or NULL; one reference, consumed */
	RDMA_WINDOW, /* peer; arg: struct rdma_share, consumed */
	RDMA_STAGED, /* peer; arg: struct rdma_stage_request, returned; code: DRAY_OK or the error */
	RDMA_COPY,   /* peer; arg: struct rdma_copy, borrowed until COPIED */
	RDMA_PATH_UNREACHABLE, /* peer, id: rdma_path_id(): the same of this path; transfers that need it use another transport */
	RDMA_UNREACHABLE, /* peer, id: class without a queue pair that works or is waited for; pending transfers use another transport */
	RDMA_ENGINE_UP, /* peer: an engine with Mooncake; arg: struct peer_link, borrowed until ENGINE_GONE */
	RDMA_ENGINE_DOWN, /* peer: no remote of the engine is left; answered by ENGINE_GONE */
	RDMA_ENGINE_KEYS, /* id: region; arg: its struct rail_keys for engines, or NULL; one reference, consumed */
};

/* From the worker. */
enum rdma_event {
	RDMA_RAIL_GONE, /* id: rail */
	RDMA_QP_LOST,   /* peer, id; code: enum ibv_wc_status or enum rdma_loss */
	RDMA_WANTED,    /* peer: the worker has a transfer to it and no queue pair yet */
	RDMA_FALLBACK,  /* peer; code: enum rdma_fallback, when it changes */
	RDMA_STAGE, /* peer; arg: struct rdma_stage_request, borrowed until STAGED, which always comes */
	RDMA_COPIED,      /* peer; arg: struct rdma_copy; code: DRAY_OK or the error */
	RDMA_ENGINE_GONE, /* peer: the worker has forgotten the engine */
};

/* Above every enum ibv_wc_status. */
enum rdma_loss {
	RDMA_LOSS_TIMEOUT = 1000, /* no completion within transfer.slice_timeout */
	RDMA_LOSS_POST,           /* the device refused a work request */
	RDMA_LOSS_COMMAND,        /* by QP_LOSE */
	RDMA_LOSS_PEER,           /* the peer is down */
	RDMA_LOSS_UNUSED,         /* the queue pair came too late to be used */
};

/* Why transfers to a peer with rails use another transport. */
enum rdma_fallback {
	RDMA_FALLBACK_NONE,  /* they use rdma */
	RDMA_FALLBACK_PATHS, /* no rail here reaches a rail of the peer */
	/* neither the local region nor, for GPU memory, the staging memory is registered on a rail that reaches the peer */
	RDMA_FALLBACK_LOCAL,
	/* the owner has neither registered the region on a rail in reach nor provided a window for it */
	RDMA_FALLBACK_REMOTE,
	RDMA_FALLBACK_UNREACHABLE, /* no queue pair works between rails on which the memory of both sides is registered */
};

/* Written by workers, read by the control thread. They live as long as the agent (rails) or the peer (paths). */
struct rdma_counters {
	_Atomic uint64_t sent, received; /* bytes */
	_Atomic uint64_t moving_ns;      /* of all work requests that have ended, added up */
	_Atomic uint64_t slices, retries, failovers;
	_Atomic uint32_t queue_pairs;
};

/* A rail's completion queue for one worker. */
struct rdma_cq {
	struct ibv_cq *cq;
	struct ibv_comp_channel *channel;
};

struct rdma_pair {
	uint32_t rail, to_rail; /* here, at the peer */
};

/* Rails here and rails of the peer that reach each other. A rail here has one path. */
struct rdma_paths {
	uint64_t unreachable[2]; /* by class: mask of rails here, see PATH_UNREACHABLE */
	uint32_t n;
	struct rdma_pair v[];
};

static inline uint64_t rdma_path_id(uint32_t rail, enum dmsg_class class)
{
	return rail << 1 | class;
}

/* This worker's part of the window of the peer for this agent. */
struct rdma_share {
	uint64_t window;         /* its id */
	uint64_t offset, length; /* in the window; length 0: there is no window any more */
	struct rail_keys *keys; /* of the whole window; NULL: no rail reaches it now. One reference */
};

/* The request for a copy that the owner of a window makes. */
struct rdma_stage_request {
	dray_handle peer;
	unsigned worker;
	void *rails; /* the control thread's */
	struct pmsg_stage m;
	uint8_t segs[PMSG_SEGS_MAX * PMSG_SEG_SIZE]; /* of m, in wire form */
};

/*
 * A copy that a peer requests, between its window in our pinned memory and GPU memory that was granted to it. Transport rdma
 * allocates it, with room for what the worker needs to carry it out; free() releases it.
 */
struct rdma_copy {
	/* the control thread's */
	struct dray_list link;
	struct window *window;
	uint64_t request;
	/* the request */
	dray_handle peer, grant;
	bool scatter; /* into the grant; else gather from it */
	enum dmsg_class class;
	uint8_t *base; /* in the window */
	uint64_t length;
	uint32_t n_segs;
	struct pmsg_seg segs[PMSG_SEGS_MAX];
	/* the result */
	bool gpu_lost; /* the GPU may go on using the window */
};

/* NULL: no memory. */
struct rdma_copy *rdma_copy_new(void);

/* A queue pair that is ready to send. */
struct rdma_qp {
	uint64_t id;
	struct ibv_qp *qp;
	struct rdma_pair path;
	uint32_t rank; /* of its path; lower is better */
	bool far; /* the device is on another NUMA node than the worker: used while nearer ones are busy */
	enum dmsg_class class;
	uint32_t depth;               /* work requests in flight */
	uint32_t sges;                /* for each of them */
	uint32_t inline_bytes;        /* 0: none */
	uint32_t write_max, read_max; /* bytes of one work request */
	bool soft_roce;               /* reads are posted alone and confirmed: see struct device */
	/* A word at the peer, and room here for it: reading it proves that earlier writes are in place. */
	uint32_t flush_rkey, flush_lkey;
	uint64_t flush_remote, flush_local;
	struct rdma_counters *path_counters, *rail_counters;
};
