/* SPDX-License-Identifier: Apache-2.0 */
/* Expiry, and a wall clock that is set. */
#include <errno.h>
#include <inttypes.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "agent/placement/hint/internal.h"
#include "lib/log.h"
#include "lib/time.h"

/* Further expired hints are removed in the next turn of the loop. */
#define EXPIRE_PER_TURN 1024
/* Smaller changes are a clock that is slewed. */
#define JUMP_MS 1000
/* A timer is needed to watch the clock; this one never fires. */
#define FAR_SECONDS (1LL << 40)

int64_t hints_unix_ms(const struct hints *h)
{
	return h->deps.unix_ms ? h->deps.unix_ms(h->deps.arg) : (int64_t)dray_unix_ms();
}

int64_t hints_boot_ms(const struct hints *h)
{
	struct timespec t;

	if (h->deps.boot_ms)
		return h->deps.boot_ms(h->deps.arg);
	clock_gettime(CLOCK_BOOTTIME, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / DRAY_NS_PER_MS;
}

/* --- expiry ----------------------------------------------------------------------------------- */

static struct dray_heap_node *first(const struct hints *h)
{
	struct dray_heap_node *e = NULL;

	for (unsigned i = 0; i < SOURCE_N; i++) {
		struct dray_heap_node *other = dray_heap_first(&h->expiry[i]);

		if (other && (!e || other->key < e->key))
			e = other;
	}
	return e;
}

void hints_expire(struct hints *h)
{
	int64_t now_ns = hints_boot_ms(h) * DRAY_NS_PER_MS;

	for (unsigned i = 0; i < EXPIRE_PER_TURN; i++) {
		struct dray_heap_node *e = first(h);

		if (!e || e->key > now_ns)
			break;
		hints_remove(h, dray_container_of(e, struct entry, expiry));
	}
	hints_arm(h);
}

static int handle_timer(sd_event_source *source, uint64_t usec, void *arg)
{
	hints_expire(arg);
	return 0;
}

void hints_arm(struct hints *h)
{
	const struct dray_heap_node *e = first(h);

	if (!h->timer)
		return;
	if (e)
		sd_event_source_set_time(h->timer, (uint64_t)e->key / 1000);
	sd_event_source_set_enabled(h->timer, e ? SD_EVENT_ONESHOT : SD_EVENT_OFF);
}

/* --- the wall clock ----------------------------------------------------------------------------- */

void hints_clock_set(struct hints *h)
{
	int64_t offset = hints_unix_ms(h) - hints_boot_ms(h), jump = offset - h->offset_ms;

	if (jump > -JUMP_MS && jump < JUMP_MS)
		return;
	h->offset_ms = offset;
	if (!h->n)
		return;
	log_notice("hint",
		   "the clock was set by %+" PRId64 " s; %" PRIu64
		   " hints keep their remaining time",
		   jump / 1000, h->n);
	hints_refill(h);
}

static int watch_clock(struct hints *h)
{
	struct itimerspec far = { .it_value = { .tv_sec = FAR_SECONDS } };

	if (timerfd_settime(h->clock_fd, TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET, &far, NULL) <
	    0)
		return -errno;
	return 0;
}

static int handle_clock(sd_event_source *source, int fd, uint32_t events, void *arg)
{
	struct hints *h = arg;
	uint64_t n;

	if (read(fd, &n, sizeof(n)) >= 0 || errno != ECANCELED)
		return 0;
	hints_clock_set(h);
	if (watch_clock(h) < 0)
		log_warning("hint", "the clock is not watched any more: %m, ignoring");
	return 0;
}

int hints_init_clocks(struct hints *h)
{
	int r;

	h->offset_ms = hints_unix_ms(h) - hints_boot_ms(h);
	if (h->deps.boot_ms)
		return 0;
	r = sd_event_add_time(h->deps.event, &h->timer, CLOCK_BOOTTIME, UINT64_MAX, 0, handle_timer,
			      h);
	if (r < 0)
		return r;
	sd_event_source_set_enabled(h->timer, SD_EVENT_OFF);
	h->clock_fd = timerfd_create(CLOCK_REALTIME, TFD_CLOEXEC | TFD_NONBLOCK);
	if (h->clock_fd < 0)
		return -errno;
	r = watch_clock(h);
	if (r < 0) {
		log_debug("hint", "the clock cannot be watched: %s", dray_errno_text(r));
		return 0;
	}
	return sd_event_add_io(h->deps.event, &h->clock, h->clock_fd, EPOLLIN, handle_clock, h);
}

void hints_deinit_clocks(struct hints *h)
{
	h->timer = sd_event_source_disable_unref(h->timer);
	h->clock = sd_event_source_disable_unref(h->clock);
	h->clock_fd = dray_close(h->clock_fd);
}
