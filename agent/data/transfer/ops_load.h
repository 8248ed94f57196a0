/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies the operations of a transfer out of memory that the client may change at any time: each is read once, checked and
 * merged. Several workers read long lists. Worker thread.
 */
#ifndef DRAY_AGENT_DATA_TRANSFER_OPS_LOAD_H
#define DRAY_AGENT_DATA_TRANSFER_OPS_LOAD_H

#include "agent/data/transfer/xfer.h"

/* x->ops has room for all operations. Sets x->bytes, n_ops and longest. 0, -ERANGE or -EFAULT with reterr. */
int ops_load(struct core *c, struct xfer *x, const struct xfer_request *r, struct dray_err *reterr);

#endif
