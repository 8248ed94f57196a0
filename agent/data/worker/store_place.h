/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the objects of a GET land: for each key that an agent has, a place in the store here, or the ranges of the client.
 *
 * It is the ranges if no copy is kept, if their region is host memory, where processors compute the checksum, and if they do not overlap.
 * It is a place for what devices read, because they may go on after the request has ended, and for bytes that came with an answer.
 */
#pragma once

#include "agent/data/worker/store_pending.h"
#include "agent/model/store_ask.h"

/* The room for a key of an ask of this fetch. */
uint64_t place_room(struct fetch *f, uint32_t item);
/* Before places_found(). False: no memory. */
bool places_begin(struct fetch *f);
/* Gets a place for each key that was found, and answers the others. False: it evicts for them in the next turns, too. */
bool places_found(struct fetch *f);
/* Writes the operations that read a key from its source. Returns how many. */
uint32_t place_ops(struct fetch *f, uint32_t i, uint8_t *ops);
/* The bytes of a key are in place; sum: their checksum. */
void place_arrived(struct fetch *f, uint32_t i, uint32_t sum);
/* What a key that was found nowhere, or not read, is answered. */
void place_failed(struct fetch *f, struct store_asked *k);
/* The bytes of a key did not come: it may be had elsewhere; or later, if its agent was only too slow. */
void place_lost(struct fetch *f, uint32_t i, bool slow);
/* All have ended: the GET goes on as if all had been here, some of them on disk. Wrong bytes are zeroed before, in several turns. */
void places_done(struct fetch *f);
