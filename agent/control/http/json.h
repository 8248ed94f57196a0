/* SPDX-License-Identifier: Apache-2.0 */
/* The body of /readyz. */
#ifndef DRAY_AGENT_CONTROL_HTTP_JSON_H
#define DRAY_AGENT_CONTROL_HTTP_JSON_H

#include "agent/control/ready.h"

/* The caller's to free, with its length. NULL: no memory. */
char *http_ready_json(const struct ready *r, size_t *ret_n);

#endif
