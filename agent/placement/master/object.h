/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks a Mooncake master for the replicas in memory of one object, by its admin page /query_key. A master that has the object leases
 * it for the reader, as it does for its own clients. Control thread only; nothing blocks.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "agent/placement/master/master.h"

struct master_replica {
	char segment[DRAY_HOST_BYTES + 8]; /* host:port of the transfer engine that has it */
	char protocol[32];                 /* tcp, rdma, ...; "" unknown */
	uint64_t address, length;          /* in the memory of that engine; neither is 0 */
};

struct master_object {
	struct master_replica *v; /* in the order of the page */
	size_t n;
};

#define MASTER_OBJECT_NULL ((struct master_object){ .v = NULL })

void master_object_deinit(struct master_object *o);

/*
 * Parses the page of an object that exists: a JSON object with an array since 0.3.12, before that one JSON object after the other. ret
 * is MASTER_OBJECT_NULL; the caller deinitialises it in any case. 0, or -EPROTO or -ENOMEM with reterr. Pure.
 */
int master_object_page(const char *body, size_t n, struct master_object *ret,
		       struct dray_err *reterr);
/* What another status than 200 means, as an error: DRAY_E_NOT_FOUND, DRAY_E_BUSY or DRAY_E_PROTOCOL. Pure. */
struct dray_err master_object_refusal(unsigned status, const char *body, size_t n);

struct master_query;

/* Called once, from the event loop. why NULL: found, with the replicas, which are valid during the call. The query has ended. */
typedef void (*master_query_fn)(void *arg, const struct master_object *object,
				const struct dray_err *why);

/* 0; -EINVAL with reterr: masters have no way to be asked for this key; or another -errno with reterr. Outlives the master. */
int master_query_new(struct master_query **ret, const struct master *m, const char *key,
		     master_query_fn fn, void *arg, struct dray_err *reterr);
/* fn will not be called. Takes NULL. Returns NULL. */
struct master_query *master_query_free(struct master_query *q);
DRAY_DEFINE_CLEANUP(struct master_query *, master_query_free);
