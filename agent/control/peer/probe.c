/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Both sides of PROBE. The probing side first waits for the other's HELLO, as a connecting peer does: HELLO tells
 * whether that agent supports probes, and identifies it if it does not.
 */
#include "agent/control/peer/probe.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/peer/internal.h"
#include "schema/gen/errors.h"

#define PROBE_MINOR 2 /* first minor version with PROBE */
#define REQUEST_ID 1

/* First bytes of TLS records that a server sends in a handshake. */
#define TLS_ALERT 0x15
#define TLS_HANDSHAKE 0x16

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

static void finish(struct peer_probe *q, const struct dray_err *err)
{
	peer_probe_fn fn = q->fn;

	if (!fn)
		return;
	q->fn = NULL;
	fn(q->arg, err, &q->result);
}

__attribute__((format(printf, 3, 4))) static void fail(struct peer_probe *q, uint32_t code,
						       const char *fmt, ...)
{
	struct dray_err err = { .code = (int)code };
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(err.msg, sizeof(err.msg), fmt, ap);
	va_end(ap);
	finish(q, &err);
}

static void copy_str(char *to, size_t cap, const struct dray_str *s)
{
	size_t n = dray_min((size_t)s->n, cap - 1);

	for (size_t i = 0; i < n; i++)
		to[i] = s->p[i] >= ' ' && s->p[i] <= '~' ? s->p[i] : '?';
	to[n] = '\0';
}

/* Stores which agent it is. False if that ends the probe, which may then be freed. */
static bool learn(struct peer_probe *q, const struct pmsg_agent_info *m)
{
	const struct peers_deps *own = &q->p->deps;
	struct peer_probe_result *r = &q->result;

	memcpy(r->agent_id, m->agent_id, sizeof(r->agent_id));
	r->incarnation = m->incarnation;
	copy_str(r->segment, sizeof(r->segment), &m->segment);
	copy_str(r->version, sizeof(r->version), &m->version);
	r->known = true;
	if (m->major_min > PMSG_MAJOR || m->major_max < PMSG_MAJOR) {
		fail(q, DRAY_E_VERSION,
		     "it speaks versions %u to %u, this agent version %d; upgrade the older",
		     m->major_min, m->major_max, PMSG_MAJOR);
		return false;
	}
	if (memcmp(m->agent_id, own->agent_id, sizeof(r->agent_id)) != 0)
		return true;
	r->self = m->incarnation == own->incarnation;
	if (r->self)
		return true;
	fail(q, DRAY_E_IDENTITY,
	     "another agent has the id of this one: give each a state directory of its own");
	return false;
}

static void handle_hello(struct peer_probe *q, const struct pmsg_header *h,
			 const struct pmsg_hello *m)
{
	if (!learn(q, &m->agent))
		return;
	if (h->minor < PROBE_MINOR)
		finish(q, &DRAY_ERR_NULL);
	else
		conn_send_message(q->conn, PMSG_PROBE, REQUEST_ID, NULL);
}

static void handle_reply(struct peer_probe *q, const struct pmsg_probe_reply *m)
{
	if (memcmp(m->agent_id, q->result.agent_id, sizeof(m->agent_id)) != 0 ||
	    m->incarnation != q->result.incarnation) {
		fail(q, DRAY_E_PROTOCOL, "its reply has another agent id than its hello");
		return;
	}
	if (!learn(q, &m->agent))
		return;
	q->result.told_state = true;
	if (m->state == PMSG_PROBE_STATE_RUNNING)
		finish(q, &DRAY_ERR_NULL);
	else if (m->state == PMSG_PROBE_STATE_DRAINING)
		fail(q, DRAY_E_DRAINING, "draining");
	else
		fail(q, DRAY_E_UNSUPPORTED, "its state %u is unknown to this release", m->state);
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
	uint32_t code;

	if (!q->fn)
		return;
	if (pmsg_body_decode(h->type, body, h->length, &m, &why) < 0) {
		fail(q, (uint32_t)why.code, "it broke the protocol: %.200s", why.msg);
	} else if (h->type == PMSG_HELLO && !q->result.known) {
		handle_hello(q, h, &m.hello);
	} else if (h->type == PMSG_PROBE_REPLY && q->result.known && h->request_id == REQUEST_ID) {
		handle_reply(q, &m.probe_reply);
	} else if (h->type == PMSG_ERROR) {
		code = m.error.code;
		copy_str(text, sizeof(text), &m.error.message);
		fail(q, code && code < DRAY_ERROR_N ? code : DRAY_E_PROTOCOL, "it refuses: %.200s",
		     text);
	} else {
		fail(q, DRAY_E_PROTOCOL, "it answers a probe with %s", pmsg_type_name(h->type));
	}
}

static void on_failed(struct conn *c, const struct dray_err *why)
{
	struct peer_probe *q = c->owner;
	uint8_t first = c->tls.first;

	if (!q->fn)
		return;
	if (first && first != TLS_ALERT && first != TLS_HANDSHAKE)
		fail(q, DRAY_E_PEER_UNREACHABLE,
		     "no dray agent: the server there does not speak TLS");
	else if (why->code == DRAY_E_PEER_DENIED)
		fail(q, DRAY_E_PEER_DENIED, "%.160s; both agents need the same peer.key_file",
		     why->msg);
	else if (q->result.known)
		fail(q, DRAY_E_PEER_LOST, "%.200s before its answer", why->msg);
	else
		fail(q, DRAY_E_PEER_UNREACHABLE, "%s", why->msg);
}

static const struct conn_ops ops = {
	.secured = on_secured,
	.message = on_message,
	.failed = on_failed,
};

int peer_probe_new(struct peer_probe **ret, struct peers *p, const struct dray_addr *addr,
		   peer_probe_fn fn, void *arg, struct dray_err *reterr)
{
	dray_auto(peer_probe_free) struct peer_probe *q = NULL;
	int r = peers_check_key(p, addr, reterr);

	if (r < 0)
		return r;
	q = calloc(1, sizeof(*q));
	if (!q)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a probe");
	*q = (struct peer_probe){ .p = p, .fn = fn, .arg = arg };
	p->n_probes++;
	r = conn_dial(&q->conn, p->event, p->tls, addr, &ops, q, reterr);
	if (r < 0)
		return r;
	*ret = dray_take(q);
	return 0;
}

struct peer_probe *peer_probe_free(struct peer_probe *q)
{
	if (!q)
		return NULL;
	q->p->n_probes--;
	conn_free(q->conn);
	free(q);
	return NULL;
}

const struct peer_probe_ops peer_probes = {
	.start = peer_probe_new,
	.free = peer_probe_free,
};
