/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of the fake plug-in. */
#pragma once

#include <limits.h>

#include "tests/gpu/fake.h"

#define FAKE_DEVICES_MAX 8
/* instead of a device: memory that all reach, and existing memory that is pinned */
#define FAKE_HOST UINT_MAX
#define FAKE_PIN (UINT_MAX - 1)

struct fake_device {
	unsigned starts;
	_Atomic uint32_t unreached;
	atomic_bool losing;      /* no further copy starts */
	atomic_bool lost;        /* the loss was reported; until the device is stopped */
	_Atomic unsigned active; /* copies that are being carried out */
	_Atomic uint64_t copies;
};

struct fake {
	unsigned n;
	bool no_peers, dmabuf, ordered, dry;
	const char *fail, *lose, *hold, *hold_import, *hold_free, *refuse, *refuse_pin,
		*busy; /* from the environment */
	uint64_t lose_after;
	uint64_t free_mib; /* 0: no limit */
	unsigned free_of;  /* the device with that limit; FAKE_DEVICES_MAX: all */
	struct fake_device devices[FAKE_DEVICES_MAX];
};

extern struct fake fake;
extern atomic_bool fake_held, fake_peerless, fake_refusing;
extern atomic_bool fake_told_lost[FAKE_DEVICES_MAX], fake_told_busy[FAKE_DEVICES_MAX];

/* Copies on the device must not start or continue. */
bool fake_is_losing(unsigned device);
/* The device is losing and no copy on it is in flight any more, so it counts as lost. */
bool fake_is_lost(unsigned device);
/* Another process computes on the device. */
bool fake_is_busy(unsigned device);
bool fake_reaches(unsigned from, unsigned to);

/* --- memory ------------------------------------------------------------------------------------ */

/* Registers [base, base+bytes) as memory of a device, FAKE_HOST or FAKE_PIN, with its bytes at `bytes_at`. 0 or -ENOMEM. */
int fake_range_add(uintptr_t base, uint64_t bytes, uint8_t *bytes_at, unsigned device, bool write);
void fake_range_del(uintptr_t base);
/* The last device has stopped: pins that are not deleted yet are reached by none any more. */
void fake_pins_end(void);
/* Location of the bytes of an address; NULL: the device does not reach it. */
uint8_t *fake_range_find(unsigned device, uint64_t address, uint64_t bytes, bool write);

int fake_import(struct gpu_plugin *p, const struct gpu_import_spec *spec, struct gpu_import **ret,
		uint64_t *ret_address, uint64_t *ret_bytes, struct dray_err *reterr);
void fake_release(struct gpu_import *i);
int fake_export_dmabuf(struct gpu_import *i, uint64_t offset, uint64_t bytes,
		       struct dray_err *reterr);
int fake_block_alloc(struct gpu_plugin *p, unsigned device, uint64_t bytes, struct gpu_block **ret,
		     uint64_t *ret_address, struct dray_err *reterr);
void fake_block_free(struct gpu_block *b);
int fake_block_handle(struct gpu_block *b, uint8_t ret[GPU_HANDLE_BYTES], struct dray_err *reterr);
int fake_host_alloc(struct gpu_plugin *p, uint64_t bytes, void **ret, struct dray_err *reterr);
void fake_host_free(struct gpu_plugin *p, void *base);
int fake_pin(struct gpu_plugin *p, void *base, uint64_t bytes, bool write, struct dray_err *reterr);
void fake_unpin(struct gpu_plugin *p, void *base);

/* --- queues ------------------------------------------------------------------------------------ */

int fake_queue_new(struct gpu_plugin *p, const struct gpu_queue_spec *spec, struct gpu_queue **ret,
		   struct dray_err *reterr);
void fake_queue_free(struct gpu_queue *q);
int fake_submit(struct gpu_queue *q, const struct gpu_copy *c);
int fake_check(struct gpu_queue *q);
int fake_notify(struct gpu_queue *q, void (*fn)(void *arg), void *arg);

/* True if FAKE_GPU_FAIL contains the name. */
bool fake_fails(const char *what);
