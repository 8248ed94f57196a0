/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the objects of a GET from the agents that lease them, one source after the other. */
#pragma once

#include "agent/data/worker/store_pending.h"

/* All is known of the keys of this ask, which the fetch takes over. May end the fetch. */
void sources_read(struct fetch *f, struct store_ask *k);
/* It does not read from this source any more. May end it. */
void source_fenced(struct fetch *f, uint32_t source);
