/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How to copy between two regions of this agent, one of which is GPU memory: which device copies, and lists
 * of which pieces. No state.
 */
#pragma once

#include "agent/data/transport/local/local.h"
#include "agent/model/gpu_rates.h"
#include "gpu/plugin.h"
#include "schema/gen/config.h"

enum gpu_path_kind {
	GPU_PATH_WITHIN, /* inside one device's memory */
	GPU_PATH_PEER,   /* between devices that reach each other */
	GPU_PATH_TO_HOST,
	GPU_PATH_FROM_HOST,
	/*
	 * From here on through staging memory in two steps: one by a device and one by this worker, or one by each of
	 * two devices.
	 */
	GPU_PATH_TO_HOST_STAGED,
	GPU_PATH_FROM_HOST_STAGED,
	GPU_PATH_PEER_STAGED,
	GPU_PATH_N,
	GPU_PATH_NONE = GPU_PATH_N,
};

struct gpu_path_choice {
	enum gpu_path_kind kind;
	uint8_t device; /* whose queue copies; staged: the device of the first step by a device */
};

/*
 * peers: for each device the set that it reaches, including itself; 0: the device takes no work. staging:
 * there is staging memory. from_pinned, to_pinned: devices reach that region of host memory.
 */
struct gpu_path_choice gpu_plan_path(const struct region_view *from, bool from_pinned,
				     const struct region_view *to, bool to_pinned,
				     const uint32_t peers[GPU_DEVICES_MAX], bool staging);

/* By kind. */
struct gpu_plan_limits {
	enum gpu_route route;
	enum dmsg_gpu_path path; /* as clients and metrics see it */
	uint64_t slice; /* bytes of a copy, which delay the copies behind it by some hundred microseconds */
	uint64_t under_way; /* bytes in flight that keep the device busy; staged paths: limited by buffers */
	uint64_t engine_min; /* pieces of this size and larger use copy engines */
};
extern const struct gpu_plan_limits gpu_plan_limits[GPU_PATH_N];

/* What copies a slice of a transfer: which device's queue, of kernels or of copy engines; or both, through copy memory (relay.c). */
struct gpu_way {
	uint8_t device;
	bool engines;
	bool staged;
};

struct gpu_way_question {
	enum gpu_path_kind kind; /* not through staging memory on the host */
	enum gpu_bus bus;        /* the path's */
	const struct gpu_rates *rates;
	enum dray_config_gpu_copy setting;
	uint8_t device; /* the path's */
	bool busy;
	int other; /* the device on the other side, if it can make the copy too; -1: none */
	bool other_busy;
	uint32_t pieces; /* of the transfer */
	uint64_t bytes;
	uint64_t run; /* between device and host: bytes that follow each other in host memory, on average */
	uint64_t memory; /* bytes of copy memory on each device that a staged copy needs; 0: it cannot be made now */
	uint64_t could_have; /* as memory, once it has been asked for; 0: it is never given */
	int64_t wait_ns;     /* of a kernel on the busy device */
};

struct gpu_way gpu_plan_way(const struct gpu_way_question *q);
/* Copy memory is worth having: with what the agent gives the copy would be staged. */
bool gpu_plan_wants_memory(const struct gpu_way_question *q);

/* A list of pieces that is being built: all for the kernel, or all for copy engines. */
struct gpu_plan {
	const struct gpu_plan_limits *limits;
	struct dray_piece *pieces;
	uint32_t n, max;
	bool engines;         /* all pieces are for copy engines, of whatever size */
	bool relative;        /* pieces are unchanged operations, relative to the copy's bases */
	struct gpu_copy copy; /* pieces NULL: those above */
};

void gpu_plan_init(struct gpu_plan *p, enum gpu_path_kind kind, struct dray_piece *pieces,
		   uint32_t max);

/*
 * Adds pieces of the walk while there is room and they are of the same sort. True: the walk has ended.
 * Pieces that are too long for the kernel are cut into equal ones.
 */
bool gpu_plan_add(struct gpu_plan *p, struct local_walk *w);

/*
 * Adds a slice whose operations are the pieces, because each region is one extent. This is cheapest for
 * lists of thousands, above all if the device reads the transfer's own list. The slice must be the last one
 * that its transfer has handed out. False: the slice must be walked.
 */
bool gpu_plan_add_ops(struct gpu_plan *p, const struct slice *s);
