/* SPDX-License-Identifier: Apache-2.0 */
/* Everything that netdetect can find, at one moment. */
#pragma once

#include "lib/cleanup.h"
#include "lib/err.h"
#include "lib/strv.h"
#include "netdetect/gpu/nvidia.h"
#include "netdetect/net/listener.h"
#include "netdetect/rdma/device.h"
#include "netdetect/topology/topology.h"

enum nd_scan_flags {
	ND_SCAN_LISTENERS = 1, /* listening sockets */
	ND_SCAN_OWNERS = 2,    /* and their processes */
};

struct nd_scan_options {
	unsigned flags;
	unsigned rnics_per_gpu;          /* 0: all */
	struct dray_strv node_addresses; /* borrowed during the scan, as all below */
	struct dray_strv only, without;  /* device names, with * and ? */
	struct dray_strv gid_indices;    /* "mlx5_0:3", "mlx5_1/2:0": of a device, or of one port */
	uint8_t gid_family;              /* AF_UNSPEC: IPv4 first */
	const struct nd_scan *
		before; /* an earlier scan: what it knows of ports that cannot be read now is kept; NULL: nothing */
};

/* 0, or -EINVAL for options that cannot be parsed: reterr names the option and its correct form. */
int nd_scan_options_check(const struct nd_scan_options *o, struct dray_err *reterr);

/* A part of the scan that this kernel or these rights do not allow, or another remark; the other parts are valid. */
struct nd_note {
	char about[32]; /* "listeners", "devices", ... */
	char text[DRAY_ERR_MSG_MAX];
};
#define ND_NOTES_MAX 16

struct nd_scan {
	struct nd_links links;
	struct nd_devices devices; /* without excluded ones; GIDs are ranked */
	struct nd_topology topology;
	struct nd_nvidia nvidia;
	struct nd_listeners listeners;
	struct nd_note notes[ND_NOTES_MAX];
	size_t n_notes;
	bool failing; /* nd_device_failing() of a device: another scan may find more */
	int64_t took_ns;
	_Atomic unsigned refs;
};

/*
 * 0, -EINVAL for bad options, or another -errno if something could not be read now, such as without descriptors, or while
 * it changed again and again: nothing is known then, and another scan may succeed. What the kernel lacks or does not permit
 * is a note. Release *ret by nd_scan_free(). Any thread. Blocks for milliseconds, unless a device hangs in open().
 */
int nd_scan_run(const struct nd_source *s, const struct nd_scan_options *o, struct nd_scan **ret,
		struct dray_err *reterr);
/* What to do about a scan that failed with r. */
const char *nd_scan_remedy(int r);
/* Adds a reference, to be dropped by nd_scan_free(). Any thread; a shared scan is immutable. */
struct nd_scan *nd_scan_ref(struct nd_scan *scan);
struct nd_scan *nd_scan_free(struct nd_scan *scan);
DRAY_DEFINE_CLEANUP(struct nd_scan *, nd_scan_free);

/* Takes one change, such as "mlx5_0/1 GID 3 10.0.0.1 -> 5 10.0.0.1". */
typedef void (*nd_change_fn)(const char *line, void *arg);
/* Calls fn for each change, or for none without memory. */
void nd_scan_diff(const struct nd_scan *old, const struct nd_scan *new, nd_change_fn fn, void *arg);
