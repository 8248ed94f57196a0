/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the files of this folder alone.
 *
 * Three threads call the plug-in: the opener starts devices and opens and closes memory of clients, which requests wait for;
 * the pinner pins host memory, which may take seconds for each region; a third one measures rates. A lost device may hang,
 * so its queues end on a thread of its own. The control thread reads the results of a job after the job. A device is stopped when it is lost and
 * has no memory left, or has been unused for gpu.idle_time.
 */
#pragma once

#include "agent/control/gpu/gpus.h"
#include "agent/control/gpu/measure.h"
#include "agent/model/gpu_message.h"
#include "agent/process/jobs.h"
#include "lib/list.h"

#define AREA "gpu"
#define GPU_NAME_BYTES 72 /* of a device, as clients name it */
#define GPU_RATES_BYTES 128
/* Of the threads: the driver's code expects the usual size. */
#define STACK_BYTES (8ul << 20)
/* Copies in flight without a wait for room, times the pieces of each. */
#define QUEUE_PIECES (8 * 16384)
/* Lists for copy engines are short, or of large pieces. */
#define ENGINE_PIECES 16384

enum device_state {
	DEVICE_UNUSED,
	DEVICE_STARTING, /* a job makes its context, queues and staging memory */
	DEVICE_READY,
	DEVICE_LEAVING, /* lost or unused: until no worker uses it */
	DEVICE_ENDING,  /* a job of the ender waits for the copies in its queues, and frees these */
	DEVICE_ENDED,   /* until its memory is closed */
	DEVICE_STOPPING, /* a job stops it */
};

enum copy_memory_state {
	COPY_MEMORY_NONE,
	COPY_MEMORY_MAKING, /* a job allocates it */
	COPY_MEMORY_GIVEN,
	COPY_MEMORY_HELD, /* freed after gpu_copies_ended() */
	COPY_MEMORY_FREEING,
};

struct copy_memory {
	enum copy_memory_state state;
	unsigned worker;
	struct gpu_copy_memory given;
	/* of the job */
	struct gpu_block *block;
	int error;
	struct dray_err err;
	struct dray_job job;
};

struct gpu_device {
	struct gpus *gpus;
	unsigned index;
	struct gpu_device_info info;
	bool excluded;
	enum device_state state;
	char reason[DRAY_ERR_MSG_MAX]; /* why it was lost or did not start; "" */
	uint64_t context_bytes, bytes;
	uint32_t regions, memories; /* open; open or under construction, also of the agent's own */
	uint32_t announced;         /* by sessions */
	bool measured; /* a thread measures rates with it: it is not stopped before the end of that */
	const struct gpu_rates *rates;
	bool lost;             /* since its start */
	unsigned in_use_by;    /* workers that still use a device that is leaving */
	sd_event_source *idle; /* gpu.idle_time of a device that is unused */
	sd_event_source *late; /* time limit of the end of its queues */
	bool hangs;            /* its end passed the time limit; see err */
	struct gpu_load load;  /* since its start */
	struct copy_memory copy_memory;
	struct gpu_queues queues[WORKERS_MAX];
	/* of the job */
	bool started;
	uint32_t peers; /* mask of devices to which it copies directly */
	int error;
	struct dray_err err, peers_err, staging_err;
	struct dray_job job;
	struct dray_jobs *ender; /* NULL until its first loss */
};

enum plugin_state { PLUGIN_UNUSED, PLUGIN_LOADING, PLUGIN_READY };

struct gpus {
	struct gpus_deps deps;
	const struct dray_config *cfg;
	struct dray_jobs *opener, *pinner; /* NULL until the first use of GPU memory */
	const struct gpu_plugin_ops *ops;
	struct gpu_plugin *plugin;
	enum plugin_state plugin_state;
	char plugin_text[DRAY_ERR_MSG_MAX];
	int error; /* of the job that loads the plug-in */
	struct dray_err err;
	struct dray_job job; /* loads it; another one, which may be added while this one runs: */
	struct dray_job end_job;
	struct gpu_device devices[GPU_DEVICES_MAX];
	unsigned n;
	unsigned n_workers;
	uint64_t lost;
	struct dray_list memories; /* of struct gpu_memory */
	struct dray_list hosts;    /* of struct gpu_host */
	struct dray_list announcements;
	/* staging: made by the first device that starts, kept until the end */
	struct gpu_staging staging[WORKERS_MAX];
	void *lists[WORKERS_MAX]; /* likewise, for lists of operations */
	bool staging_tried, staging_told;
	struct {
		struct dray_list known, published;
		unsigned n_known;
		struct dray_jobs *thread;  /* NULL until the first measurement */
		struct gpu_device *device; /* that is measured now; NULL: none */
		struct gpu_device *peer;   /* likewise, for copies between the two */
		unsigned next;             /* where the search for the next device begins */
		sd_event_source *retry;
		uint64_t pause_us;
		sd_event_source *late; /* time limit of a measurement */
		bool abandoned; /* it passed the limit, and the thread still uses its devices */
		/* of the job */
		struct gpu_measure measure;
		int error;
		struct dray_err err;
		struct dray_job job;
	} rates; /* rates.c */
	/* pin.c */
	bool pinning; /* since a device was started, until none is */
	struct dray_list host_regions, pins;
	uint64_t pinned_bytes;
};

/* --- gpus.c --- */
/* Starts the threads, and loads the plug-in on one of them. 0, or -errno with reterr. */
int gpus_load(struct gpus *g, struct dray_err *reterr);
void gpus_tell(struct gpus *g, unsigned worker, enum gpu_command type, uint64_t id, void *arg);

/* --- device.c --- */
void gpu_devices_find(struct gpus *g);
/* NULL with reterr: unknown, excluded or unusable. */
struct gpu_device *gpu_device_get(struct gpus *g, const char *name, struct dray_err *reterr);
/* Starts it unless it is in use or being stopped; calls memories_step() at the end. */
void gpu_device_start(struct gpu_device *d);
void gpu_device_lost(struct gpu_device *d, const char *why);
/*
 * False: a lost device may have copies in flight that use memory on `of`, or host memory (of: NULL). Until then none of
 * that memory is closed or unpinned.
 */
bool gpu_copies_ended(const struct gpus *g, const struct gpu_device *of);
void gpu_device_worker_gone(struct gpu_device *d);
/* After the last memory or announcement of a device may have ended. */
void gpu_device_check(struct gpu_device *d);
/* On the opener's thread: stops the device. */
void gpu_device_release(struct gpu_device *d);

/* --- announce.c --- */
/* The plug-in is loaded. */
void announcements_step(struct gpus *g);
void announcements_free(struct gpus *g);

/* --- queues.c --- */
/* Kernels of other processes take turns with the agent's there, and the agent may copy in another way. */
bool gpu_device_follows_load(const struct gpu_device *d);
int queues_make(struct gpu_device *d, struct dray_err *reterr);
void queues_free(struct gpu_device *d);
/* Allocates staging memory and memory for lists of operations for every worker, as far as possible. */
void staging_make(struct gpus *g, struct dray_err *reterr);
void staging_free(struct gpus *g);

/* --- memory.c --- */
/* Continues memory that waits for the plug-in or a device; runs no callback. why: the plug-in cannot be used; else NULL. */
void memories_step(struct gpus *g, const struct dray_err *why);
/* Refuses memory that waits for this device, which did not start or hangs, with its error; runs no callback. */
void memories_refuse(struct gpu_device *d);
/* Closes memory that waited for gpu_copies_ended(). */
void memories_close_held(struct gpus *g);
/* At the end, on the opener's thread: closes and frees all. */
void memories_release(struct gpus *g);

/* --- copy_memory.c --- */
/* A worker asks for it, and does not use it any more. */
void copy_memory_wanted(struct gpu_device *d, unsigned worker);
void copy_memory_back(struct gpu_device *d);
/* Frees memory that waited for gpu_copies_ended(). */
void copy_memories_free_held(struct gpus *g);
/* At the end, on the opener's thread. */
void copy_memory_release(struct gpu_device *d);
/* Bytes in use; 0: none. */
uint64_t copy_memory_bytes(const struct gpu_device *d);
/* Bytes that a worker gets at most; 0: none. */
uint64_t copy_memory_most(const struct gpu_device *d);

/* --- rates.c --- */
/* The devices are known: gives them the rates that were saved. */
void gpu_rates_found(struct gpus *g);
/* Measures what is not known of devices that are started, one after another. */
void gpu_rates_step(struct gpus *g);
/* Ends a measurement that goes on. */
void gpu_rates_stop(struct gpus *g);
/* The measurement of rates that uses the device passed its time limit, and did not end. */
bool gpu_rates_hang(const struct gpu_device *d);
/* measured, partly, built_in or abandoned. */
const char *gpu_device_rates(const struct gpu_device *d);
/* Those of the kernel, in GB/s. */
const char *gpu_device_rates_text(const struct gpu_device *d, char ret[GPU_RATES_BYTES]);
/* At the end. False: a call into the driver does not return. */
bool gpu_rates_free(struct gpus *g);
/* After the threads. */
void gpu_rates_end(struct gpus *g);

/* --- host.c --- */
/* At the end, on the opener's thread: frees all. */
void gpu_hosts_release(struct gpus *g);

/* --- pin.c --- */
/* After a device has started. */
void pins_begin(struct gpus *g);
/* After a device has stopped. */
void pins_end(struct gpus *g);
/* Drops pins that waited for gpu_copies_ended(). */
void pins_drop_held(struct gpus *g);
/* At the end, on the opener's thread: unpins and frees all. */
void pins_release(struct gpus *g);
void host_regions_free(struct gpus *g);
