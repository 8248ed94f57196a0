/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small objects of other agents, asked for by frames of this worker's own data streams: no other thread takes part, so a lone GET of
 * one costs as much as a read. Only what needs no lease, and is in memory there, is found so; the control thread asks for the rest.
 */
#pragma once

#include "agent/data/worker/store_pending.h"

/* Asks for all keys of the ask. True: it has taken it, and goes on with the fetch when all is known. False: it cannot. */
bool direct_ask(struct fetch *f, struct store_ask *k);
