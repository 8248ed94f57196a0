/* SPDX-License-Identifier: Apache-2.0 */
/* Where the objects of a GET land: for each key that an agent has, a place in the store here. */
#pragma once

#include "agent/data/worker/store_pending.h"
#include "agent/model/store_ask.h"

/* Gets a place for each key that was found, and answers the others. False: no memory. */
bool places_begin(struct fetch *f);
/* What a key that was found nowhere, or not read, is answered. */
void place_failed(struct fetch *f, struct store_asked *k);
/* The bytes of a key did not come: it may be had elsewhere; or later, if its agent was only too slow. */
void place_lost(struct fetch *f, uint32_t i, bool slow);
/* All have ended: the GET goes on as if all had been here, some of them on disk. */
void places_done(struct fetch *f);
