/* SPDX-License-Identifier: Apache-2.0 */
/* Asks all Mooncake masters for an object. Control thread only; nothing blocks. */
#pragma once

#include <stddef.h>

#include "agent/placement/master/object.h"
#include "agent/placement/segment/segments.h"

struct object_place {
	char *master; /* its URL */
	struct master_replica replica;
};

struct object_search;

/*
 * Called once, from the event loop, when all masters have answered or failed, at the latest after mooncake.timeout, or 3 s. why NULL: found, and
 * the places are valid during the call. Otherwise DRAY_E_NOT_FOUND if no master has it; else the reason of one that could not say.
 */
typedef void (*object_search_fn)(void *arg, const struct object_place *v, size_t n,
				 const struct dray_err *why);

/* 0, or -errno with reterr: DRAY_E_INVALID without masters, or for a key that they cannot be asked for. Must be freed before ss. */
int object_search_new(struct object_search **ret, struct segments *ss, const char *key,
		      object_search_fn fn, void *arg, struct dray_err *reterr);
/* fn will not be called. Not within fn. Takes NULL. Returns NULL. */
struct object_search *object_search_free(struct object_search *s);
