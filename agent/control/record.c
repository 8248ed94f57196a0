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

static void added(struct agent *a, uint64_t number)
{
	agent_signal(a, DRAY_DBUS_SIGNAL_EVENT_ADDED, "t", number);
}

void agent_record(struct agent *a, const char *kind, const char *subject, const char *before,
		  const char *after, const char *reason)
{
	added(a, history_add(a->history, kind, NULL, subject, before, after, reason));
}

void agent_record_session(struct agent *a, const char *owner, const char *subject,
			  const char *reason)
{
	added(a, history_add(a->history, "session", owner, subject, "open", "closed", reason));
}
