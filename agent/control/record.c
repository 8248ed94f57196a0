/* SPDX-License-Identifier: Apache-2.0 */
/* A change goes into the history, and the connections of the control socket are told. */
#include "agent/control/agent.h"

void agent_record(struct agent *a, enum history_kind kind, const char *subject, const char *before,
		  const char *after, const char *reason)
{
	const struct history_event *e =
		history_add(a->history, kind, subject, before, after, reason);

	if (a->bus)
		a->bus_signals->event_added(a->bus, e);
}
