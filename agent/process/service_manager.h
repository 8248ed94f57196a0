/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the service manager is told (sd_notify(3), $NOTIFY_SOCKET). libsystemd's own call waits where the manager
 * does not read; this one keeps what is news and sends it once there is room. Control thread only.
 */
#ifndef DRAY_AGENT_PROCESS_SERVICE_MANAGER_H
#define DRAY_AGENT_PROCESS_SERVICE_MANAGER_H

#include <stdint.h>
#include <systemd/sd-event.h>

struct notify;

/* *ret is NULL, which all calls take, where nobody asks for it. 0 or -errno. */
int notify_new(struct notify **ret, sd_event *event);
/* What is still unsent is tried once more. */
struct notify *notify_free(struct notify *n);

/* The agent is up (again, after notify_reloading). */
void notify_ready(struct notify *n);
void notify_reloading(struct notify *n);
void notify_stopping(struct notify *n);
void notify_watchdog(struct notify *n);
/* What is under way takes this long from now. */
void notify_extend(struct notify *n, int64_t ns);

/* One line for `systemctl status`. */
__attribute__((format(printf, 2, 3))) void notify_status(struct notify *n, const char *fmt, ...);

#endif
