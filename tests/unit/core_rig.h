/* SPDX-License-Identifier: Apache-2.0 */
/* A data plane without a worker: sessions, regions and remotes of one agent, driven by the test. */
#pragma once

#include "agent/data/transfer/core.h"
#include "agent/data/transfer/xfer.h"
#include "agent/model/message.h"

#define RIG_ENDED_MAX 4096
#define RIG_TOLD_MAX 256

struct rig_end {
	uint64_t request_id, bytes;
	uint32_t code;
	dray_handle session;
};

struct rig {
	struct core core;
	struct data_counters counters;
	struct quota group;
	struct rig_end ended[RIG_ENDED_MAX];
	unsigned n_ended, n_dropped, n_faults, n_notify;
	dray_handle last_dropped, last_fault, last_notify;
	struct transport_message told[RIG_TOLD_MAX];
	unsigned n_told, n_gone;
	struct dray_err refusal;                       /* of a long list */
	void (*on_end)(struct rig *r, struct xfer *x); /* may be NULL */
};

struct rig_session {
	struct xfer_session xs;
	struct session_shared shared;
};

struct rig_region {
	struct region_view *view;
	uint8_t *memory; /* the test's own mapping */
	uint64_t bytes;
	int fd;
};

void rig_init(struct rig *r);
void rig_deinit(struct rig *r);
void rig_session_init(struct rig *r, struct rig_session *s, dray_handle handle);

/*
 * Publishes a region of n_extents equal pieces of one memfd, in reverse order of their offsets in
 * it.
 */
void rig_region_init(struct rig *r, struct rig_region *g, dray_handle handle, dray_handle session,
		     uint64_t bytes, uint32_t n_extents);
void rig_region_deinit(struct rig_region *g);
/* Address of a byte of the region in the test's own mapping. */
uint8_t *rig_at(struct rig_region *g, uint64_t offset);

/* Publishes a local remote of the whole region. Free the view after the core. */
struct remote_view *rig_remote(struct rig *r, dray_handle handle, struct rig_region *g,
			       dray_handle session);

/* Runs one turn; returns true if there is more to do. */
bool rig_turn(struct rig *r);

/* Submits operations given as {local, remote, length} triples; returns when all are read. */
int rig_submit(struct rig *r, struct rig_session *s, struct xfer_request *req,
	       const uint64_t (*ops)[3], uint32_t n, struct dray_err *err);
