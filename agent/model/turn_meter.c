/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/model/turn_meter.h"

#include <time.h>

void turn_meter_read(struct turn_meter *m, int64_t now_ns)
{
	struct timespec ts;
	int64_t used_ns;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	used_ns = (int64_t)ts.tv_sec * DRAY_NS_PER_SEC + ts.tv_nsec;
	/* the first reading is the start */
	if (m->read_ns)
		histogram_observe(&m->turns, DRAY_FAMILY_TURN_CPU_SECONDS,
				  dray_span(used_ns - m->used_ns));
	m->read_ns = now_ns;
	m->used_ns = used_ns;
}
