/* SPDX-License-Identifier: Apache-2.0 */
/* store.c: what each request to the store needs. */
#pragma once

#include "agent/data/worker/internal.h"

/* Objects that a request evicts before other owners have their turn. */
#define EVICTIONS_STEP (TURN_WORK / EVICTION_WORK)
/* The same for places of bytes that follow an answer, which come in this turn: some 70 us. */
#define EVICTIONS_TRAILING 256

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
/* All requests but PUT and GET. It is answered now or later, unless err is set. */
void store_carry_out(struct wsession *s, const struct store_call *q, const union dmsg_body *m,
		     struct dray_err *err);

/* Before a PIN or READ is carried out: what is only on disk gets room in memory. */
struct loads {
	struct store_member *member;
	int64_t end_ns; /* the deadline: it is carried out without the rest */
	uint32_t at;    /* the next key */
	struct turns_share share;
	struct store_effort effort;
};

/* Looks at the next of its n keys, which are in the scratch. False: there is more to do, in the next turns. */
bool loads_begin(struct wsession *s, struct loads *l, uint32_t n);
/* store_begin.c: it goes on in the next turns, and then the request is carried out. False: no memory. */
bool loads_go_on_later(struct wsession *s, const struct store_call *call, const uint8_t *body,
		       uint32_t length, const struct loads *l);
