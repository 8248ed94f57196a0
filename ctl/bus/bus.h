/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent's control socket from the client's side. Nothing here waits longer than it was told: an agent
 * that is stopped, or whose queue of connections is full, ends in an error like one that is not there.
 */
#ifndef DRAY_CTL_BUS_BUS_H
#define DRAY_CTL_BUS_BUS_H

#include <systemd/sd-bus.h>

#include "ctl/ctl.h"

struct ctl_bus {
	sd_bus *bus;
	const char *path; /* borrowed */
	int64_t timeout_ns;
};

#define CTL_BUS_NULL ((struct ctl_bus){ .bus = NULL })

/* 0, or -1 with reterr. */
int ctl_bus_open(struct ctl_bus *b, const char *path, int64_t timeout_ns, struct ctl_err *reterr);
void ctl_bus_close(struct ctl_bus *b);

/* A new call of a method of the agent, to be filled and passed on. 0 or -1. */
int ctl_bus_new_call(struct ctl_bus *b, const char *interface, const char *member,
		     sd_bus_message **ret, struct ctl_err *reterr);

/* Sends it (the message is consumed) and waits for the reply. 0 or -1. */
int ctl_bus_call(struct ctl_bus *b, sd_bus_message *m, sd_bus_message **ret_reply,
		 struct ctl_err *reterr);

/* The same for a method of dev.dray.Agent1; types and arguments as with sd_bus_message_append(3), NULL: none. */
int ctl_bus_ask(struct ctl_bus *b, const char *member, sd_bus_message **ret_reply,
		struct ctl_err *reterr, const char *types, ...);
int ctl_bus_askv(struct ctl_bus *b, const char *member, sd_bus_message **ret_reply,
		 struct ctl_err *reterr, const char *types, va_list ap);

/* Handles what the agent sends, for at most this long. 1 if there was something, 0 if not, -1: it is gone. */
int ctl_bus_turn(struct ctl_bus *b, int64_t timeout_ns);

/* For a reply that is not what the interface says. Returns -1. */
int ctl_bus_bad_reply(struct ctl_err *reterr, const char *what, int error);

#endif
