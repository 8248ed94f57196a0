/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the files of this folder alone.
 *
 * Two threads call the plug-in: the opener does what somebody waits for (devices, memory of clients, and its end), the
 * pinner what may take seconds for each region. A device that was given up may hang, so its queues end on a thread of its
 * own. What a job fills in is looked at when it is done. Memory and pins that are under way are counted where they are; a
 * device is stopped when nothing on it is left.
 */
#ifndef DRAY_AGENT_CONTROL_GPU_INTERNAL_H
#define DRAY_AGENT_CONTROL_GPU_INTERNAL_H

#include "agent/control/gpu/gpus.h"
#include "agent/process/jobs.h"
#include "agent/model/gpu_message.h"
#include "lib/list.h"

#define AREA "gpu"
/* Of the threads. The driver's own code runs on these, which counts on the stack that threads usually have. */
#define STACK_BYTES (8ul << 20)
/* Copies that a queue can have under way without waiting for room, and pieces of each. */
#define QUEUE_PIECES (8 * 16384)
#define CLASSES 2

enum device_state {
	DEVICE_UNUSED,
	DEVICE_STARTING, /* a job makes its context, queues and staging memory */
	DEVICE_READY,
	DEVICE_LOST,   /* until the workers have let go of it */
	DEVICE_ENDING, /* a job of the ender awaits what is under way in its queues, and ends them */
	DEVICE_ENDED,  /* until nobody uses anything of it */
	DEVICE_STOPPING, /* a job gives back what was made */
};

struct gpu_device {
	struct gpus *gpus;
	unsigned index;
	struct gpu_device_info info;
	bool excluded;
	enum device_state state;
	char reason[DRAY_ERR_MSG_MAX]; /* it was lost, or did not start; "" */
	uint64_t context_bytes, bytes;
	uint32_t regions, memories; /* open; and all that the plug-in may know */
	unsigned gone_missing;      /* workers that have not let go of it */
	sd_event_source *late;      /* while it is ending */
	bool hangs;                 /* that has taken too long: err says so */
	struct gpu_queues queues[WORKERS_MAX];
	/* of the job */
	bool started;
	uint32_t peers; /* with which it copies directly */
	int error;
	struct dray_err err, peers_err, staging_err;
	struct dray_job job;
	struct dray_jobs *ender; /* NULL until it is given up for the first time */
};

enum plugin_state { PLUGIN_UNUSED, PLUGIN_LOADING, PLUGIN_READY };

struct gpus {
	struct gpus_deps deps;
	const struct dray_config *cfg;
	struct dray_jobs *opener, *pinner; /* NULL until somebody opens GPU memory */
	const struct gpu_plugin_ops *ops;
	struct gpu_plugin *plugin;
	enum plugin_state plugin_state;
	char plugin_text[DRAY_ERR_MSG_MAX];
	int error; /* of the job that loads it */
	struct dray_err err;
	struct dray_job job;
	struct gpu_device devices[GPU_DEVICES_MAX];
	unsigned n;
	unsigned n_workers;
	uint64_t lost;
	struct dray_list memories; /* of struct gpu_memory */
	struct dray_list hosts;    /* of struct gpu_host */
	/* staging: made by the first device that starts, kept until the end */
	struct gpu_staging staging[WORKERS_MAX];
	void *lists[WORKERS_MAX]; /* the same for lists of operations */
	bool staging_tried, staging_told;
	/* pin.c */
	bool pinning; /* a GPU was in use */
	struct dray_list host_regions, pins;
	uint64_t pinned_bytes;
};

/* --- gpus.c --- */
/* The threads, and the plug-in once a thread has loaded it. 0, or -errno with reterr. */
int gpus_load(struct gpus *g, struct dray_err *reterr);
void gpus_tell(struct gpus *g, unsigned worker, enum gpu_command type, uint64_t id, void *arg);

/* --- device.c --- */
void gpu_devices_find(struct gpus *g);
/* NULL with reterr: unknown, excluded, or of no use. */
struct gpu_device *gpu_device_get(struct gpus *g, const char *name, struct dray_err *reterr);
/* Started if it is not in use; memories_step() when that has ended. */
void gpu_device_start(struct gpu_device *d);
void gpu_device_lost(struct gpu_device *d, const char *why);
/*
 * No device that was given up may still have copies under way that are about memory on `of`, or about host memory: NULL.
 * As long as this is false none of that memory is closed or unpinned.
 */
bool gpu_devices_settled(const struct gpus *g, const struct gpu_device *of);
void gpu_device_worker_gone(struct gpu_device *d);
/* After the last user of something may have gone. */
void gpu_device_check(struct gpu_device *d);
/* On the opener's thread: what the device has. */
void gpu_device_give_back(struct gpu_device *d);

/* --- queues.c: on the opener's thread, or the ender's --- */
int queues_make(struct gpu_device *d, struct dray_err *reterr);
void queues_free(struct gpu_device *d);
/* Memory of every worker, to stage in and for lists of operations. What it could not have is left out. */
void staging_make(struct gpus *g, struct dray_err *reterr);
void staging_free(struct gpus *g);

/* --- memory.c --- */
/* Those that waited for the plug-in or a device go on; why: the plug-in cannot be used. */
void memories_step(struct gpus *g, const struct dray_err *why);
/* Of those that wait for this device: it could not be started. */
void memories_refuse(struct gpu_device *d, const struct dray_err *why);
/* Those that waited for gpu_devices_settled() are closed. */
void memories_settled(struct gpus *g);
/* On the opener's thread: all that is open. */
void memories_give_back(struct gpus *g);
void memories_free(struct gpus *g);

/* --- host.c --- */
/* On the opener's thread: all there is. */
void gpu_hosts_give_back(struct gpus *g);
void gpu_hosts_free(struct gpus *g);

/* --- pin.c --- */
void pins_begin(struct gpus *g);
/* Those that waited for gpu_devices_settled() are dropped. */
void pins_settled(struct gpus *g);
/* On a thread, when no other runs. */
void pins_give_back(struct gpus *g);
void pins_free(struct gpus *g);

#endif
