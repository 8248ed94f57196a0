/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers whose list of operations is too long for one submission. The request that the caller knows
 * is the whole; its parts are internal requests, of which some are in flight at a time. The operations
 * are copied, because parts are submitted later.
 *
 * A word to wait for holds back the first part, which then runs alone. A word to set and a notification
 * come with the last part, which is submitted when all others are in place. The first failure stops
 * the rest. The whole ends when no part is in flight.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "client/dray.h"
#include "schema/gen/data.h"

struct request;
struct split;

/* Starts t as *ret, in parts of up to `most` operations. 0, or a negated code with the error set. */
int dc_split_start(struct dray *d, const struct dray_transfer *t, uint32_t most,
		   struct request **ret);
void dc_split_free(struct split *s);

/* Submits what there is room for, without ringing the doorbell. */
void dc_splits_pump(struct dray *d);

/* Ends of parts: with an answer; without one; and the answer that follows an end without one. */
void dc_split_part_ended(struct dray *d, struct request *part, struct dray_str text);
void dc_split_part_unconfirmed(struct dray *d, struct request *part);
void dc_split_part_answered(struct dray *d, struct request *part, int status);

/* Submits no further part, and ends the whole with this status and text once the others have stopped. */
void dc_split_stop(struct dray *d, struct request *whole, int status, struct dray_str text);

/* The session is lost: the parts end by themselves. */
void dc_splits_lost(struct dray *d, int code);
