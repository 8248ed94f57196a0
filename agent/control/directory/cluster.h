/* SPDX-License-Identifier: Apache-2.0 */
/* What servers of a cluster say of each other: which has which of the slots that keys are divided into. Pure. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "agent/config/directory_url.h"
#include "agent/control/directory/answer.h"

#define CLUSTER_SLOTS 16384
/* Servers that have slots. */
#define CLUSTER_SERVERS_MAX 64

/* The slot of a key: of what stands between its first { and the next }, if there is something. */
unsigned cluster_slot(const char *key, size_t n);

/*
 * The answers MOVED and ASK: the slot, and the server that has it. An empty host is the one that has answered: `host`. 0 or -EINVAL.
 */
int cluster_redirection(const redisReply *r, const char *host, unsigned *ret_slot,
			struct directory_host *ret);

struct cluster_map {
	unsigned n;
	struct directory_host servers[CLUSTER_SERVERS_MAX];
	uint8_t of[CLUSTER_SLOTS]; /* 1 + the index of the server; 0: none has it */
};

/*
 * The answer to CLUSTER NODES: a line for each server. host: for a server that does not know its own. Lines without slots, and what is
 * malformed, are left out. 0; or -EINVAL: no server has a slot.
 */
int cluster_nodes(const redisReply *r, const char *host, struct cluster_map *ret);
