/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notifies the service manager's watchdog while the agent is alive (agent/control/status/health.h); that the event loop
 * turns is not enough. Does nothing without WatchdogSec=. Control thread only.
 */
#pragma once

#include <systemd/sd-event.h>

struct health;
struct notify;
struct watchdog;

/* *ret is NULL if the service manager has no watchdog. The other arguments are borrowed. 0 or -errno. */
int watchdog_new(struct watchdog **ret, sd_event *event, struct health *health,
		 struct notify *notify);
struct watchdog *watchdog_free(struct watchdog *w);
