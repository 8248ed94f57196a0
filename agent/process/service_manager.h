/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notifications for the service manager (sd_notify(3), $NOTIFY_SOCKET). sd_notify() blocks while the manager does not
 * read; these calls keep the message and send it when the socket has room. Control thread only.
 */
#pragma once

#include <systemd/sd-event.h>

#include "lib/time.h"

struct notify;

/* *ret is NULL without $NOTIFY_SOCKET; all calls accept that. 0 or -errno. */
int notify_new(struct notify **ret, sd_event *event);
/* Tries once more to send what is not sent yet. */
struct notify *notify_free(struct notify *n);

/* In the order of events, in which they are sent. */
enum notify_variable {
	NOTIFY_RELOADING,
	NOTIFY_READY,
	NOTIFY_STOPPING,
	NOTIFY_WATCHDOG,
	NOTIFY_EXTEND_TIMEOUT,
	NOTIFY_STATUS,
	NOTIFY_VARIABLES,
};

/* fmt: NAME=VALUE. Replaces what is not sent yet of this variable. */
void notify_assign(struct notify *n, enum notify_variable v, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* The agent is up (again, after notify_reloading). */
#define notify_ready(n) notify_assign(n, NOTIFY_READY, "READY=1")
#define notify_reloading(n)                                                    \
	notify_assign(n, NOTIFY_RELOADING, "RELOADING=1\nMONOTONIC_USEC=%lld", \
		      (long long)dray_now().ns / 1000)
#define notify_stopping(n) notify_assign(n, NOTIFY_STOPPING, "STOPPING=1")
#define notify_watchdog(n) notify_assign(n, NOTIFY_WATCHDOG, "WATCHDOG=1")
/* Start, reload or stop may take this long from now. */
#define notify_extend(n, ns) \
	notify_assign(n, NOTIFY_EXTEND_TIMEOUT, "EXTEND_TIMEOUT_USEC=%lld", (long long)(ns) / 1000)

/* One line for `systemctl status`. fmt: a literal. */
#define notify_status(n, ...) notify_assign(n, NOTIFY_STATUS, "STATUS=" __VA_ARGS__)
