/* SPDX-License-Identifier: Apache-2.0 */
/* Metric values and readiness, gathered from all modules. Control thread only. */
#ifndef DRAY_AGENT_CONTROL_STATUS_GATHER_H
#define DRAY_AGENT_CONTROL_STATUS_GATHER_H

#include "agent/control/ready.h"
#include "agent/control/status/metrics.h"

struct agent;

/* *ret borrows names from the configuration. */
void agent_ready(struct agent *a, struct ready *ret);

/* Value of one metric: the sum over workers, or the control thread's own value. */
uint64_t agent_metric(struct agent *a, enum dray_metric m);

/* For metrics_render(). */
struct metrics_source agent_metrics_source(struct agent *a);

#endif
