/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of an engine, of every kind that can be a region, on a GPU or on the host. The engine writes and reads every
 * kind.
 */
#pragma once

#include "client/dray.h"
#include "tests/gpu/driver.h"

enum memory_kind { MEMORY_HOST, MEMORY_IPC, MEMORY_VMM, MEMORY_DMABUF };

struct memory {
	enum memory_kind kind;
	int device;
	uint64_t bytes;
	uint8_t handle[64];   /* ipc */
	int fd;               /* of all other kinds; -1: none */
	uint8_t *host;        /* NULL: GPU memory */
	cuda_address address; /* of GPU memory */
	cuda_handle vmm;
	uint64_t mapped; /* vmm: bytes, whole granules */
	char device_name[48];
};

/* Allocates memfd, cuda_ipc, cuda_vmm or dmabuf. False, with the reason in why: that failed. */
bool memory_alloc(struct memory *m, struct cuda *c, const char *kind, uint64_t bytes, int device,
		  char *why, size_t n);
void memory_free(struct memory *m, struct cuda *c);

bool memory_write(struct memory *m, struct cuda *c, uint64_t at, const void *from, uint64_t bytes,
		  char *why, size_t n);
bool memory_read(struct memory *m, struct cuda *c, uint64_t at, void *to, uint64_t bytes, char *why,
		 size_t n);

/* The kind in libdray's enumeration. */
enum dray_kind memory_region_kind(const struct memory *m);
