/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for the operations of transfers: size classes of powers of two, kept for reuse up to a bound. */
#ifndef DRAY_AGENT_TRANSFER_OPS_STORE_H
#define DRAY_AGENT_TRANSFER_OPS_STORE_H

#include <stdint.h>

#include "agent/transfer/core.h"

#define OPS_CLASSES 15 /* 4 to 65,536 operations */

struct ops_store {
	void *free[OPS_CLASSES]; /* chains; the first word of a free block is the next */
	uint64_t kept;           /* bytes in the chains */
};

/* Room for n operations (1 to DMSG_OPS_MAX), or NULL. *ret_class goes back with it. */
struct xfer_op *ops_store_get(struct ops_store *s, uint32_t n, uint32_t *ret_class);
void ops_store_put(struct ops_store *s, struct xfer_op *ops, uint32_t class);
void ops_store_deinit(struct ops_store *s);

#endif
