/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/status/watchdog.h"

#include <errno.h>
#include <stdlib.h>
#include <systemd/sd-daemon.h>

#include "agent/control/status/health.h"
#include "agent/process/service_manager.h"
#include "lib/log.h"

struct watchdog {
	struct health *health;
	struct notify *notify;
	struct health_check check;
	bool checking;
	bool silent; /* not alive at the last check */
	uint64_t every_us;
	sd_event_source *timer;
};

static void answered(struct health_check *c, const char *fault)
{
	struct watchdog *w = dray_container_of(c, struct watchdog, check);

	w->checking = false;
	if (!*fault)
		notify_watchdog(w->notify);
	if (!*fault && w->silent)
		log_notice("health", "the agent is alive again; the watchdog is notified");
	if (*fault && !w->silent)
		log_error("health", "the agent is not alive, so the watchdog is not notified: %s",
			  fault);
	w->silent = *fault;
}

static int on_timer(sd_event_source *s, uint64_t usec, void *arg)
{
	struct watchdog *w = arg;
	int r = sd_event_source_set_time_relative(s, w->every_us);

	if (!w->checking) {
		w->checking = true;
		health_ask(w->health, &w->check);
	}
	return r < 0 ? r : sd_event_source_set_enabled(s, SD_EVENT_ONESHOT);
}

int watchdog_new(struct watchdog **ret, sd_event *event, struct health *health,
		 struct notify *notify)
{
	struct watchdog *w;
	uint64_t usec;
	int r = sd_watchdog_enabled(0, &usec);

	*ret = NULL;
	if (r <= 0)
		return r;
	w = calloc(1, sizeof(*w));
	if (!w)
		return -ENOMEM;
	w->health = health;
	w->notify = notify;
	w->check = HEALTH_CHECK_INIT(w->check, answered);
	w->every_us = usec / 2;
	r = sd_event_add_time_relative(event, &w->timer, CLOCK_MONOTONIC, w->every_us,
				       w->every_us / 10 + 1, on_timer, w);
	if (r < 0) {
		watchdog_free(w);
		return r;
	}
	*ret = w;
	return 0;
}

struct watchdog *watchdog_free(struct watchdog *w)
{
	if (!w)
		return NULL;
	health_cancel(&w->check);
	sd_event_source_disable_unref(w->timer);
	free(w);
	return NULL;
}
