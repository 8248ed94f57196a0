/* SPDX-License-Identifier: Apache-2.0 */
/* A dray agent: the handshake of peers, with the message PROBE in place of HELLO. */
#include <errno.h>

#include "agent/placement/probe/internal.h"
#include "agent/placement/probe/peer_probe.h"
#include "agent/state/identity.h"
#include "schema/gen/errors.h"

static void answered(void *arg, const struct dray_err *err, const struct peer_probe_result *r)
{
	char id[IDENTITY_TEXT_BYTES];
	struct probe *p = arg;

	/* an agent answered: other addresses of the name lead to the same one */
	if (err->code && r->known)
		probe_fail(p, "%s", err->msg);
	else if (err->code)
		probe_fail_address(p, "%s", err->msg);
	else if (r->self)
		probe_succeed(p, "this agent");
	else if (!r->told_state)
		probe_succeed(p, "agent %.8s; its release %.64s cannot say whether it drains",
			      identity_show(r->agent_id, id), r->version);
	else
		probe_succeed(p, "agent %.8s, release %.64s", identity_show(r->agent_id, id),
			      r->version);
}

static int try_address(struct probe *p, const struct dray_addr *addr, struct dray_err *reterr)
{
	if (!p->deps.peer_probes)
		return dray_err_set(reterr, -EOPNOTSUPP, DRAY_E_UNSUPPORTED,
				    "this agent has no peers: dray probes are not possible");
	p->awaited = "answer of a dray agent";
	return p->deps.peer_probes->start(&p->dray, p->deps.peers, addr, answered, p, reterr);
}

static void stop(struct probe *p)
{
	if (p->dray)
		p->dray = p->deps.peer_probes->free(p->dray);
}

const struct probe_ops probe_dray_ops = {
	.try_address = try_address,
	.stop = stop,
};
