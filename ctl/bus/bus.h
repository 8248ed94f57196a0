/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client's side of the control socket; the connection is in struct ctl. No call waits longer than its timeout: an
 * agent that is stopped, or whose queue of connections is full, is an error like an agent that is not there.
 */
#pragma once

#include <systemd/sd-bus.h>

#include "ctl/ctl.h"

/* Values of the property State. */
#define CTL_STATE_RUNNING "running"
#define CTL_STATE_DRAINED "drained"

/* Replaces the connection by a new one, whose calls have this timeout. 0 or -1. */
int ctl_bus_open(struct ctl *c, int64_t timeout_ns);
void ctl_bus_close(struct ctl *c);

/* A new call of a method of the agent, to be filled and passed on. Opens the connection. 0 or -1. */
int ctl_bus_new_call(struct ctl *c, const char *interface, const char *member,
		     sd_bus_message **ret);

/* Sends the call, which is consumed, and waits for the reply. 0 or -1. */
int ctl_bus_send(struct ctl *c, sd_bus_message *m, sd_bus_message **ret_reply);

/* Calls a method of dev.dray.Agent1; types and arguments as of sd_bus_message_append(3), NULL: none. 0 or -1. */
int ctl_bus_call(struct ctl *c, const char *member, sd_bus_message **ret_reply, const char *types,
		 ...);
int ctl_bus_callv(struct ctl *c, const char *member, sd_bus_message **ret_reply, const char *types,
		  va_list ap);

/* From now on, a signal of this name sets c->news. Opens the connection. 0 or -1. */
int ctl_bus_subscribe(struct ctl *c, const char *signal);

/*
 * Handles the agent's messages until c->news.any is set (CTL_WAKE_READY) or until ends_ns; 0 is no limit.
 * interruptible: ends as ctl_interrupt_wait() does; without it, there must be a limit. One of enum ctl_wake, or -1.
 */
int ctl_bus_wait(struct ctl *c, bool interruptible, int64_t ends_ns);

/* For a reply that does not have the types of the interface. Returns -1. */
int ctl_bus_bad_reply(struct ctl *c, const char *member, int error);
