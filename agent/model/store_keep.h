/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects of another agent that are to be kept here, as that agent asks by STORE_KEEP. The control thread makes it and frees it; in between
 * a worker has it, from COMMAND_STORE_KEEP to EVENT_STORE_KEPT.
 */
#pragma once

#include "agent/model/quota.h"
#include "lib/list.h"
#include "schema/gen/data.h"

struct wsession;

/* Of shared.session: no session of a client has a handle of this kind. */
#define STORE_KEEP_HANDLES (DRAY_HANDLE_KIND_MAX - 1)

struct store_keep {
	/* The worker reads the objects as for a session of their owner. */
	struct session_shared shared;
	struct quota group;
	dray_handle peer;    /* that has the objects */
	uint64_t request_id; /* the peer's */
	int64_t end_ns;      /* it does not wait for the answer any longer */
	char space[DMSG_STORE_SPACE_MAX + 1];
	/* the worker's */
	struct dray_list link;
	struct wsession *session;
	uint32_t n;
	struct store_keep_key {
		const uint8_t *key;
		uint32_t n_key;
		enum dmsg_store_status status;
	} v[]; /* then the bytes of the keys */
};
