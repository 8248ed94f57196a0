/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notifications for the service manager (sd_notify(3), $NOTIFY_SOCKET). sd_notify() blocks while the manager does not
 * read; these calls keep the message and send it when the socket has room. Control thread only.
 */
#ifndef DRAY_AGENT_PROCESS_SERVICE_MANAGER_H
#define DRAY_AGENT_PROCESS_SERVICE_MANAGER_H

#include <stdint.h>
#include <systemd/sd-event.h>

struct notify;

/* *ret is NULL without $NOTIFY_SOCKET; all calls accept that. 0 or -errno. */
int notify_new(struct notify **ret, sd_event *event);
/* Tries once more to send what is not sent yet. */
struct notify *notify_free(struct notify *n);

/* The agent is up (again, after notify_reloading). */
void notify_ready(struct notify *n);
void notify_reloading(struct notify *n);
void notify_stopping(struct notify *n);
void notify_watchdog(struct notify *n);
/* Start, reload or stop may take this long from now. */
void notify_extend(struct notify *n, int64_t ns);

/* One line for `systemctl status`. */
void notify_status(struct notify *n, const char *status);

#endif
