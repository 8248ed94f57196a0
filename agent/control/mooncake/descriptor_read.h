/* SPDX-License-Identifier: Apache-2.0 */
/* Reads what an engine with Mooncake says about its segment and its address. Pure. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "agent/model/keys.h"
#include "agent/model/mooncake_buffers.h"
#include "lib/addr.h"
#include "lib/err.h"

/* Bytes of a segment's name with its end. */
#define MOONCAKE_NAME_BYTES (DRAY_HOST_BYTES + 8)

/* Devices of an engine that are used, at most, and bytes of a device's name with its end. */
#define MOONCAKE_DEVICES_MAX 16
#define MOONCAKE_DEVICE_BYTES 64

struct mooncake_device {
	char name[MOONCAKE_DEVICE_BYTES];
	struct in6_addr gid;
	uint16_t lid;
};

struct mooncake_descriptor {
	char name[MOONCAKE_NAME_BYTES]; /* of the segment */
	/*
	 * Of its data connections; over RDMA of its handshake. The host is without brackets, and the reader leaves it empty, over RDMA
	 * also the port.
	 */
	char host[DRAY_HOST_BYTES];
	unsigned port;
	bool with_status;
	struct mooncake_buffers *buffers; /* one reference */
	/* over RDMA */
	bool rdma;
	char server[MOONCAKE_NAME_BYTES]; /* the name of its devices' host in queue pair requests */
	unsigned n_devices;
	bool partial; /* more of them work than are used */
	struct mooncake_device devices[MOONCAKE_DEVICES_MAX];
	struct rail_keys *keys; /* one reference; `rail` is the index of a device */
};

/* A name that needs no escapes in JSON, nor in a log. */
bool mooncake_name_is_plain(const char *text);
/* JSON of n bytes. 0, or -errno with reterr, a sentence about the engine. */
int mooncake_descriptor_read(const char *text, size_t n, struct mooncake_descriptor *ret,
			     struct dray_err *reterr);
/* Frees what it has allocated. */
void mooncake_descriptor_clear(struct mooncake_descriptor *d);
/* The host in the name of the segment. 0, or -errno with reterr. */
int mooncake_name_host(const char *name, char ret[static DRAY_HOST_BYTES], struct dray_err *reterr);
/* The host and the port of the handshake in what an engine tells a metadata server of its address. 0, or -errno with reterr. */
int mooncake_address_read(const char *text, size_t n, char ret_host[static DRAY_HOST_BYTES],
			  unsigned *ret_port, struct dray_err *reterr);
