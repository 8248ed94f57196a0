/* SPDX-License-Identifier: Apache-2.0 */
/* The request of a transfer, its states and phases, and its record. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lib/handle.h"
#include "schema/gen/data.h"

struct core;
struct object;
struct slice;
struct xfer;

/* Operations and notification lie in memory that the client can change, so they are read once. */
struct xfer_request {
	struct dmsg_transfer_spec spec;
	uint64_t request_id;
	const uint8_t *ops; /* in wire form */
	const uint8_t *notify;
	uint32_t n_ops, notify_length;
	bool from_ring;
	bool ops_ours; /* no client can change `ops` */
	/* Memory of the agent or of a peer, in place of spec.local and spec.remote: `ended` runs in place of the client's answer. */
	struct object *local, *remote, *target;
	/*
	 * Both memories stay until `remote` has no users, or no device reaches them. So the transfer may end before the devices have:
	 * each stop is urgent. Without `local` that holds for `remote` alone: while devices write to memory of the client, stops wait for
	 * them as those of its own transfers do.
	 */
	bool outlived;
	/*
	 * NULL, or: how many bytes may move now, in the order of the operations; never fewer than before, and all in the end. It begins
	 * when there are some.
	 */
	uint64_t (*ready)(const struct xfer *x);
	/*
	 * NULL, or: the bytes of this slice are in place; in any order, and on the threads of several workers at the same time. It ends
	 * nothing. For slices with lists of their memory. 0, or -EFAULT: the client has taken pages from its memory.
	 */
	int (*arrived)(const struct xfer *x, const struct slice *s);
	void (*ended)(struct core *c, struct xfer *x);
	void *ended_arg; /* of all three */
};

enum xfer_state {
	XFER_WAITING, /* until its operations are read, for its wait word or first bytes, and until its memory is open */
	XFER_RUNNING,   /* sends slices */
	XFER_STOPPING,  /* failed or cancelled; waits for slices in flight */
	XFER_NOTIFYING, /* all bytes are in place; waits for the answer to its notification */
	XFER_STATE_N
};

/* In this order; a transfer may end in any phase. */
enum xfer_phase {
	XFER_PHASE_WAIT,  /* for its wait word, and until its memory is open */
	XFER_PHASE_QUEUE, /* for its first slice */
	XFER_PHASE_MOVE,  /* until all bytes are in place, or no slice is in flight any more */
	XFER_PHASE_COMPLETE, /* until its completion is posted: flush of a GPU, answer to its notification */
	XFER_PHASE_N
};

/* Records that a worker keeps. */
#define RECORDS_MAX 1000

struct transfer_record {
	dray_handle session;
	dray_handle peer; /* 0: between sessions of this agent */
	uint64_t request;
	uint64_t rails; /* transport rdma: the rails it used */
	uint64_t bytes, bytes_done;
	uint32_t operations; /* after merging */
	uint32_t slices;     /* sent, including resent ones */
	uint32_t resent;     /* sent again after their stream or queue pair had failed */
	uint32_t code;       /* status */
	uint8_t direction, class, transport, gpu_path, gpu_way;
	char label[DMSG_LABEL_MAX + 1]; /* of the remote */
	int64_t ended_ns;               /* CLOCK_MONOTONIC */
	int64_t phase_ns[XFER_PHASE_N]; /* time spent in each phase */
};

/* From acceptance to end. */
static inline int64_t record_duration(const struct transfer_record *r)
{
	int64_t sum = 0;

	for (unsigned i = 0; i < XFER_PHASE_N; i++)
		sum += r->phase_ns[i];
	return sum;
}
