/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What transport `rdma` in a worker and agent/rdma on the control thread say to each other.
 *
 * The control thread makes queue pairs and takes them down; a worker posts on those that it was given. Either
 * may find that one is over. Then: the worker stops using it and says QP_LOST; the control thread destroys
 * it here, has the peer destroy its end, and says QP_DEAD; and only then does the worker send again, or end,
 * what was in flight on it. Until QP_DEAD all of that may still arrive.
 */
#ifndef DRAY_AGENT_MODEL_RDMA_MESSAGE_H
#define DRAY_AGENT_MODEL_RDMA_MESSAGE_H

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

enum rdma_message {
	/* to the worker */
	RDMA_RAIL_UP,   /* id: rail; arg: struct rdma_cq, borrowed until RAIL_GONE */
	RDMA_RAIL_DOWN, /* id: rail; its queue pairs are dead; answered by RAIL_GONE */
	RDMA_PATHS,     /* peer; arg: struct rdma_paths, consumed */
	RDMA_QP_UP,     /* peer; arg: struct rdma_qp, consumed */
	RDMA_QP_LOSE,   /* peer, id: stop using it; answered by QP_LOST, unless that is under way */
	RDMA_QP_DEAD,   /* peer, id */
	RDMA_STAGING, /* arg: struct rail_keys of this worker's staging memory; NULL: none. One reference, consumed */
	RDMA_WINDOW, /* peer; arg: struct rdma_share, consumed */
	RDMA_ANSWER, /* peer; arg: struct rdma_ask that was lent; code: DRAY_OK or why it is not done */
	RDMA_COPY, /* peer; arg: struct rdma_copy, borrowed until COPIED */
	RDMA_UNREACHABLE, /* peer, id: class: no queue pair of it could be had; what waits goes elsewhere */
	/* from the worker */
	RDMA_RAIL_GONE, /* id: rail */
	RDMA_QP_LOST,   /* peer, id; code: enum ibv_wc_status, or one of enum rdma_loss */
	RDMA_WANTED,    /* peer: this worker has something for it and no queue pair yet */
	RDMA_FALLBACK,  /* peer; code: enum rdma_fallback; said when it changes */
	RDMA_ASK,       /* peer; arg: struct rdma_ask, borrowed until ANSWER, which always comes */
	RDMA_COPIED,    /* peer; arg: struct rdma_copy; code: DRAY_OK or why it is not done */
};

/* Above every enum ibv_wc_status. */
enum rdma_loss {
	RDMA_LOSS_TIMEOUT = 1000, /* no completion within transfer.slice_timeout */
	RDMA_LOSS_POST,           /* the device refused a work request */
	RDMA_LOSS_TOLD,           /* by QP_LOSE */
	RDMA_LOSS_PEER,           /* the peer is down */
	RDMA_LOSS_UNUSED,         /* it came too late: nobody is there to use it */
};

/* Why transfers to a peer that has rails go by another transport. */
enum rdma_fallback {
	RDMA_FALLBACK_NONE,  /* they go by rdma */
	RDMA_FALLBACK_PATHS, /* no rail here reaches one there */
	/* the region here is not registered on a rail that reaches the peer, nor, for GPU memory, what it would be staged in */
	RDMA_FALLBACK_LOCAL,
	/* the owner has not registered the region on a rail that we reach, nor given a window for it */
	RDMA_FALLBACK_REMOTE,
	RDMA_FALLBACK_UNREACHABLE, /* queue pairs could not be had lately */
};

/* Written by workers, read by the control thread. Live as long as the agent (rails), or the peer (paths). */
struct rdma_counters {
	_Atomic uint64_t sent, received; /* bytes */
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

/* Rails of ours that reach rails of the peer. */
struct rdma_paths {
	uint32_t n;
	struct rdma_pair v[];
};

/* This worker's part of the window that the peer has given us. */
struct rdma_share {
	uint64_t window;         /* its id */
	uint64_t offset, length; /* in it; 0: there is none any more */
	struct rail_keys *keys;  /* of all of it; NULL: not reached now. One reference */
};

/* A copy that the owner of a window is asked for. */
struct rdma_ask {
	dray_handle peer;
	unsigned worker;
	void *rails; /* the control thread's */
	struct pmsg_stage m;
	uint8_t segs[PMSG_SEGS_MAX * PMSG_SEG_SIZE]; /* of m, in wire form */
};

/*
 * A copy that a peer asks for, between its window in our pinned memory and GPU memory that was granted to it. Transport rdma
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
	bool far; /* the device is on another NUMA node than the worker: used when nearer ones are busy */
	enum dmsg_class class;
	uint32_t depth;               /* work requests in flight */
	uint32_t sges;                /* for each of them */
	uint32_t inline_bytes;        /* 0: none */
	uint32_t write_max, read_max; /* bytes of one work request */
	bool soft_roce;               /* reads go out alone, and confirmed: see struct device */
	/* A word at the peer, and a place here for it: reading it proves that earlier writes are in place. */
	uint32_t flush_rkey, flush_lkey;
	uint64_t flush_remote, flush_local;
	struct rdma_counters *path_counters, *rail_counters;
};

#endif
