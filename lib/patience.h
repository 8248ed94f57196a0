/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A limit for one who looks again and again, in nanoseconds of waiting. What passes between two looks counts for no more than
 * DRAY_PATIENCE_STEP: who had no processor for longer has not waited, and others may have had none either.
 */
#ifndef DRAY_LIB_PATIENCE_H
#define DRAY_LIB_PATIENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/time.h"

#define DRAY_PATIENCE_STEP ((int64_t)(10 * DRAY_NS_PER_MS))

struct dray_patience {
	int64_t limit_ns, looked_ns, waited_ns;
};

static inline struct dray_patience dray_patience(int64_t limit_ns)
{
	return (struct dray_patience){ .limit_ns = limit_ns, .looked_ns = dray_now().ns };
}

/* Of a look that was in vain. True: the limit is reached. */
static inline bool dray_patience_ends(struct dray_patience *p, int64_t now_ns)
{
	int64_t since = now_ns - p->looked_ns;

	p->waited_ns += since < DRAY_PATIENCE_STEP ? since : DRAY_PATIENCE_STEP;
	p->looked_ns = now_ns;
	return p->waited_ns >= p->limit_ns;
}

#endif
