/* SPDX-License-Identifier: Apache-2.0 */
/* store.c: what each request to the store needs. */
#pragma once

#include "agent/data/worker/internal.h"

/* For one request at a time. */
struct store_scratch {
	struct store_key keys[DMSG_STORE_KEYS_MAX];
	struct dmsg_store_result results[DMSG_STORE_KEYS_MAX];
	struct dmsg_store_place places[DMSG_STORE_KEYS_MAX];
	uint8_t wire[DMSG_STORE_KEYS_MAX * DMSG_STORE_PLACE_SIZE];
	uint8_t out[DMSG_MESSAGE_MAX];
	struct store_files files;
};

/* What the session has in this name space; the worker has its scratch then. NULL with reterr. */
struct store_member *store_enter(struct wsession *s, struct dray_str space,
				 struct dray_err *reterr);
/* The results in wire form, in the scratch. */
struct dray_vec store_results_put(struct store_scratch *t, const struct dmsg_store_result *results,
				  uint32_t n);
void store_reply(struct wsession *s, const struct store_call *q, const union dmsg_body *m);
