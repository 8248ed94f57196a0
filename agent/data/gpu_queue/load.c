/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/data/gpu_queue/load.h"

#include <errno.h>

#include "lib/cleanup.h"
#include "lib/time.h"

/* Waiting times of a probe that are slow: alone, and beside kernels of the agent, which it may have to wait for. */
#define SLOW_ALONE_NS 120000
#define SLOW_BESIDE_NS 500000
/* The same of a kernel. The longest ones take 0.2 ms. */
#define STALL_NS 800000
/* An idle device becomes busy after this number of slow results in a row; a busy one becomes idle after this number of quick ones. */
#define SLOW_RESULTS 2
#define QUICK_RESULTS 8
/* Intervals while there is traffic. A probe costs a busy engine about 0.2 ms, and an idle device nothing. */
#define IDLE_NS (5 * (int64_t)DRAY_NS_PER_MS)
#define BUSY_NS (50 * (int64_t)DRAY_NS_PER_MS)

/* Follows the waits, of which each counts for a quarter. */
static void note_wait(struct gpu_load *l, int64_t waited_ns)
{
	int64_t known_ns = atomic_load_explicit(&l->wait_ns, memory_order_relaxed);

	if (known_ns)
		waited_ns = (3 * known_ns + waited_ns) / 4;
	atomic_store_explicit(&l->wait_ns, waited_ns, memory_order_relaxed);
}

void gpu_load_note(struct gpu_load *l, bool slow, int64_t waited_ns, int64_t now_ns)
{
	bool busy = atomic_load_explicit(&l->busy, memory_order_relaxed);

	if (slow)
		note_wait(l, waited_ns);
	l->slow = slow ? l->slow + 1 : 0;
	l->quick = slow ? 0 : l->quick + 1;
	if (busy ? l->quick >= QUICK_RESULTS : l->slow >= SLOW_RESULTS) {
		busy = !busy;
		atomic_store_explicit(&l->busy, busy, memory_order_relaxed);
	}
	/* the second slow one decides, so it follows at once. Release: the next worker continues the series */
	atomic_store_explicit(&l->due_ns,
			      now_ns + (busy ? BUSY_NS :
					slow ? 0 :
					       IDLE_NS),
			      memory_order_release);
}

/* False: it is not due, or another worker measures now. */
static bool claim(struct gpu_load *l, int64_t now_ns)
{
	int64_t due_ns = atomic_load_explicit(&l->due_ns, memory_order_relaxed);

	return now_ns >= due_ns &&
	       atomic_compare_exchange_strong_explicit(&l->due_ns, &due_ns, INT64_MAX,
						       memory_order_acquire, memory_order_relaxed);
}

bool gpu_load_stalled(const struct gpu_queues *q, int64_t waited_ns, int64_t now_ns)
{
	int64_t known_ns;

	/* it need not be due: a stall is rare, and costs nothing to see */
	if (!q->queue[GPU_LANE_PROBE] || waited_ns < STALL_NS || !claim(q->load, INT64_MAX - 1))
		return false;
	/* it goes on waiting, so this says only that the wait is no shorter */
	known_ns = atomic_load_explicit(&q->load->wait_ns, memory_order_relaxed);
	gpu_load_note(q->load, true, dray_max(waited_ns, known_ns), now_ns);
	return true;
}

int gpu_probe_send(struct gpu_probe *p, const struct gpu_queues *q, bool alone, int64_t now_ns)
{
	static const struct gpu_copy nothing = { .route = GPU_WITHIN };

	if (!q->queue[GPU_LANE_PROBE] || p->sent_ns || !claim(q->load, now_ns))
		return 0;
	if (q->ops->submit(q->queue[GPU_LANE_PROBE], &nothing) == -EIO)
		return -EIO;
	p->number++;
	p->alone = alone;
	/* read anew: a turn may take as long as a probe waits */
	p->sent_ns = p->seen_ns = dray_now().ns;
	return 0;
}

void gpu_probe_look(struct gpu_probe *p, const struct gpu_queues *q, int64_t now_ns)
{
	int64_t waited_ns;

	if (!p->sent_ns)
		return;
	if (atomic_load_explicit(q->queue[GPU_LANE_PROBE]->done, memory_order_acquire) <
	    p->number) {
		p->seen_ns = now_ns;
		return;
	}
	/* the time of this look says little, because the worker may have been away */
	waited_ns = p->seen_ns - p->sent_ns;
	p->sent_ns = 0;
	if (p->alone || waited_ns >= SLOW_BESIDE_NS)
		gpu_load_note(q->load, waited_ns >= SLOW_ALONE_NS, waited_ns, now_ns);
	else
		/* it passed among the agent's own kernels, while these may have waited: no result */
		atomic_store_explicit(&q->load->due_ns, now_ns + IDLE_NS, memory_order_release);
}
