/* SPDX-License-Identifier: Apache-2.0 */
/* Puts changes into the history, and signals changes on the control socket. */
#include <stdarg.h>

#include "agent/control/agent.h"
#include "schema/gen/dbus.h"

void agent_signal(struct agent *a, const char *signal, const char *types, ...)
{
	va_list ap;

	if (!a->bus)
		return;
	va_start(ap, types);
	a->bus_signals->emit(a->bus, signal, types, ap);
	va_end(ap);
}

void agent_record(struct agent *a, const char *kind, const char *subject, const char *before,
		  const char *after, const char *reason)
{
	uint64_t number = history_add(a->history, kind, subject, before, after, reason);

	agent_signal(a, DRAY_DBUS_SIGNAL_EVENT_ADDED, "t", number);
}
