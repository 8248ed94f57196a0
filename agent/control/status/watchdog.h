/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The service manager's watchdog: it hears from an agent that is alive (agent/control/status/health.h), not from one whose
 * loop merely turns. Without WatchdogSec= nothing happens. Control thread only.
 */
#ifndef DRAY_AGENT_CONTROL_STATUS_WATCHDOG_H
#define DRAY_AGENT_CONTROL_STATUS_WATCHDOG_H

#include <systemd/sd-event.h>

struct health;
struct notify;
struct watchdog;

/* 0 or -errno; *ret is NULL where no watchdog is wanted. The others are borrowed. */
int watchdog_new(struct watchdog **ret, sd_event *event, struct health *health,
		 struct notify *notify);
struct watchdog *watchdog_free(struct watchdog *w);

#endif
