/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Both sides of PROBE. The probing side first waits for the other's HELLO, as a connecting peer does: HELLO
 * identifies the agent, and its minor version shows if the agent supports probes.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/peer/internal.h"
#include "agent/placement/probe/peer_probe.h"
#include "lib/plain.h"

#define PROBE_MINOR 2 /* first minor version with PROBE */
#define REQUEST_ID 1

struct peer_probe {
	struct peers *p;
	struct conn *conn;
	peer_probe_fn fn; /* NULL once called */
	void *arg;
	struct peer_probe_result result;
};

void probe_answer(struct incoming *in, uint64_t request_id)
{
	const struct peers *p = in->p;
	union pmsg_body m = { .probe_reply = { .agent = hello_agent_info(p),
					       .state = p->draining || p->stopping ?
								PMSG_PROBE_STATE_DRAINING :
								PMSG_PROBE_STATE_RUNNING } };

	conn_send_message(in->conn, PMSG_PROBE_REPLY, request_id, &m);
	/* flushes the reply and closes the connection */
	incoming_free(in);
}

static void finish(struct peer_probe *q, struct dray_err err)
{
	peer_probe_fn fn = dray_take(q->fn);

	if (fn)
		fn(q->arg, &err, &q->result);
}

/* Stores the identity of the agent. Returns an error if that ends the probe. */
static struct dray_err learn(struct peer_probe *q, const struct pmsg_agent_info *m)
{
	const struct peers_deps *own = &q->p->deps;
	struct peer_probe_result *r = &q->result;
	struct dray_err why = DRAY_ERR_NULL;
	bool same_id = !memcmp(m->agent_id, own->agent_id, sizeof(r->agent_id));

	memcpy(r->agent_id, m->agent_id, sizeof(r->agent_id));
	r->incarnation = m->incarnation;
	dray_plain(r->segment, sizeof(r->segment), m->segment.p, m->segment.n);
	dray_plain(r->version, sizeof(r->version), m->version.p, m->version.n);
	r->known = true;
	r->self = same_id && m->incarnation == own->incarnation;
	if (hello_check_version(m->major_min, m->major_max, &why) == 0 && same_id && !r->self)
		why = dray_err_of(
			DRAY_E_IDENTITY,
			"another agent has the id of this agent: give each agent its own state directory");
	return why;
}

static void handle_hello(struct peer_probe *q, const struct pmsg_header *h,
			 const struct pmsg_hello *m)
{
	struct dray_err why = learn(q, &m->agent);

	if (why.code || h->minor < PROBE_MINOR)
		finish(q, why);
	else
		conn_send_message(q->conn, PMSG_PROBE, REQUEST_ID, NULL);
}

static void handle_reply(struct peer_probe *q, const struct pmsg_probe_reply *m)
{
	struct dray_err why;

	if (memcmp(m->agent_id, q->result.agent_id, sizeof(m->agent_id)) != 0 ||
	    m->incarnation != q->result.incarnation)
		why = dray_err_of(DRAY_E_PROTOCOL,
				  "the agent shows another id in its reply than in its HELLO");
	else
		why = learn(q, &m->agent);
	if (!why.code) {
		q->result.told_state = true;
		if (m->state == PMSG_PROBE_STATE_DRAINING)
			why = dray_err_of(DRAY_E_DRAINING, "draining");
		else if (m->state != PMSG_PROBE_STATE_RUNNING)
			why = dray_err_of(
				DRAY_E_UNSUPPORTED,
				"the agent reports state %u, which this release does not know; upgrade this agent",
				m->state);
	}
	finish(q, why);
}

static void on_secured(struct conn *c)
{
	c->message_max = INCOMING_MESSAGE_MAX;
}

static void on_message(struct conn *c, const struct pmsg_header *h, const uint8_t *body)
{
	struct peer_probe *q = c->owner;
	struct dray_err why = DRAY_ERR_NULL;
	union pmsg_body m;
	char text[257];

	if (!q->fn)
		return;
	if (pmsg_body_decode(h->type, body, h->length, &m, &why) < 0) {
		finish(q, dray_err_of(why.code, "the peer broke the protocol: %s", why.msg));
	} else if (h->type == PMSG_HELLO && !q->result.known) {
		handle_hello(q, h, &m.hello);
	} else if (h->type == PMSG_PROBE_REPLY && q->result.known && h->request_id == REQUEST_ID) {
		handle_reply(q, &m.probe_reply);
	} else if (h->type == PMSG_ERROR) {
		dray_plain(text, sizeof(text), m.error.message.p, m.error.message.n);
		finish(q, dray_err_of(known_code(m.error.code, DRAY_E_PROTOCOL),
				      "the peer refuses: %s", text));
	} else {
		finish(q, dray_err_of(DRAY_E_PROTOCOL, "the agent answers a probe with %s",
				      pmsg_type_name(h->type)));
	}
}

static void on_failed(struct conn *c, const struct dray_err *failure)
{
	struct peer_probe *q = c->owner;
	struct dray_err why = *failure;
	uint8_t first = c->tls.first;

	if (first && first != TLS_ALERT && first != TLS_HANDSHAKE)
		why = dray_err_of(DRAY_E_PEER_UNREACHABLE,
				  "no dray agent: the server there does not speak TLS");
	else if (q->result.known && why.code != DRAY_E_PEER_DENIED)
		why = dray_err_of(DRAY_E_PEER_LOST, "%s before the agent answered", failure->msg);
	else if (why.code != DRAY_E_PEER_DENIED)
		why.code = DRAY_E_PEER_UNREACHABLE;
	finish(q, why);
}

static const struct conn_ops ops = {
	.secured = on_secured,
	.message = on_message,
	.failed = on_failed,
};

static struct peer_probe *probe_free(struct peer_probe *q)
{
	if (!q)
		return NULL;
	q->p->n_probes--;
	conn_free(q->conn);
	free(q);
	return NULL;
}

DRAY_DEFINE_CLEANUP(struct peer_probe *, probe_free);

static int probe_start(struct peer_probe **ret, struct peers *p, const struct dray_addr *addr,
		       peer_probe_fn fn, void *arg, struct dray_err *reterr)
{
	dray_auto(probe_free) struct peer_probe *q = NULL;
	int r = peers_check_key(p, addr, false, reterr);

	if (r < 0)
		return r;
	q = calloc(1, sizeof(*q));
	if (!q)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a probe");
	*q = (struct peer_probe){ .p = p, .fn = fn, .arg = arg };
	p->n_probes++;
	r = conn_dial(&q->conn, p->deps.event, p->tls, addr, &ops, q, reterr);
	if (r < 0)
		return r;
	*ret = dray_take(q);
	return 0;
}

const struct peer_probe_ops peer_probes = {
	.start = probe_start,
	.free = probe_free,
};
