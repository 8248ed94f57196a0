/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/placement/detect/pace.h"

#include "lib/cleanup.h"

/* While the number of TCP sockets stays, so many searches in a row are left out: as many sockets may have opened as closed. */
#define SKIPPED_MAX 29
/* The pause is this part of the time for which the number has stayed, from one interval up to PAUSE_INTERVALS_MAX. */
#define PAUSE_PART 4
#define PAUSE_INTERVALS_MAX 4

int64_t pace_due_ns(const struct pace *p, int64_t interval_ns)
{
	int64_t pause = dray_max((p->looked_ns - p->steady_ns) / PAUSE_PART, interval_ns);

	return p->looked_ns + dray_min(pause, PAUSE_INTERVALS_MAX * interval_ns);
}

bool pace_must_search(const struct pace *p, const struct nd_socket_count *now)
{
	return !nd_socket_count_equal(now, &p->count) || p->skipped >= SKIPPED_MAX;
}

void pace_skipped(struct pace *p, int64_t now_ns)
{
	p->skipped++;
	p->looked_ns = now_ns;
}

void pace_searches(struct pace *p, const struct nd_socket_count *count, int64_t now_ns)
{
	if (!nd_socket_count_equal(count, &p->count))
		p->steady_ns = now_ns;
	p->count = *count;
	p->skipped = 0;
}

void pace_searched(struct pace *p, bool found, int64_t now_ns)
{
	p->count.known &= found;
	p->looked_ns = now_ns;
}
