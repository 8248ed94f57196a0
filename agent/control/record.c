/* SPDX-License-Identifier: Apache-2.0 */
/* Puts a change into the history and signals it on the control socket. */
#include "agent/control/agent.h"

void agent_record(struct agent *a, enum history_kind kind, const char *subject, const char *before,
		  const char *after, const char *reason)
{
	const struct history_event *e =
		history_add(a->history, kind, subject, before, after, reason);

	if (a->bus)
		a->bus_signals->event_added(a->bus, e);
}
