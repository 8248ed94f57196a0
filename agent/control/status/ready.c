/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/status/ready.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "agent/control/agent.h"
#include "agent/control/peer/peer.h"
#include "agent/control/rails/rails.h"

static void __attribute__((format(printf, 5, 6)))
add(struct ready *r, const char *name, bool ok, bool required, const char *fmt, ...)
{
	char *reason = r->reasons[r->n];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(reason, READY_REASON_BYTES, fmt, ap);
	va_end(ap);
	r->conditions[r->n++] = (struct dray_dbus_condition){
		.name = name, .ok = ok, .required = required, .reason = reason
	};
	r->ready &= ok || !required;
}

static void add_listener(struct ready *r, const char *name, unsigned listeners, bool wanted,
			 bool required)
{
	if (listeners)
		add(r, name, true, required, "%u listener%s for peers", listeners,
		    listeners == 1 ? "" : "s");
	else
		add(r, name, false, required, "%s",
		    wanted ? "the listeners for peers are closed" : "peer.listen is none");
}

static void add_rdma(struct ready *r, unsigned rails, bool enabled, bool required)
{
	if (rails)
		add(r, "rdma", true, required, "%u rail%s up", rails, rails == 1 ? "" : "s");
	else
		add(r, "rdma", false, required, "%s",
		    enabled ? "no rail is up; drayctl rails says why" : "rdma.enable is false");
}

void agent_ready(struct agent *a, struct ready *ret)
{
	const struct dray_config *cfg = &a->config->v;
	const struct dray_strv *listen = &cfg->peer.listen, *require = &cfg->ready.require;
	bool wanted = !(listen->n == 1 && !strcmp(listen->v[0], "none"));
	unsigned listeners = peers_totals(a->peers).listeners;
	char reason[READY_REASON_BYTES];

	ret->ready = true;
	ret->n = 0;
	add(ret, "running", a->state == AGENT_RUNNING && !a->stopping, true, "the agent is %s",
	    a->stopping ? "stopping" : agent_state_name(a->state));
	add_listener(ret, "listener", listeners, wanted, wanted);
	add_rdma(ret, rails_up(a->rails), cfg->rdma.enable, dray_strv_has(require, "rdma"));
	add_listener(ret, "tcp", listeners, wanted, dray_strv_has(require, "tcp"));
	for (size_t i = 0; i < require->n && ret->n < READY_CONDITIONS_MAX; i++) {
		const char *segment = ready_word_segment(require->v[i]);
		bool ok = segment && peers_segment_ready(a->peers, segment, reason, sizeof(reason));

		if (segment)
			add(ret, require->v[i], ok, true, "%s", reason);
	}
}
