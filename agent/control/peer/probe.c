/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Both sides of PROBE. The side that asks waits for the other's HELLO first, as one that means to become a peer
 * does: it shows whether that agent knows probes, and who it is where it does not.
 */
#include "agent/control/peer/probe.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/peer/internal.h"
#include "lib/assert.h"
#include "schema/gen/errors.h"

#ifndef DRAY_VERSION
#define DRAY_VERSION "unknown"
#endif

#define PROBE_MINOR 2 /* that brought PROBE */
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

/* --- the side that is asked --------------------------------------------------------------------- */

void probe_answer(struct stranger *s, uint64_t request_id)
{
	uint8_t buf[PMSG_HEADER_SIZE + PMSG_PROBE_REPLY_BODY_MAX];
	const struct peers *p = s->p;
	struct pmsg_probe_reply m = {
		.major_min = PMSG_MAJOR,
		.major_max = PMSG_MAJOR,
		.state = p->draining || p->stopping ? PMSG_PROBE_STATE_DRAINING :
						      PMSG_PROBE_STATE_RUNNING,
		.incarnation = p->deps.incarnation,
		.segment = { p->segment, (uint32_t)strlen(p->segment) },
		.version = { DRAY_VERSION, (uint32_t)strlen(DRAY_VERSION) },
	};
	int n;

	memcpy(m.agent_id, p->deps.agent_id, sizeof(m.agent_id));
	n = pmsg_probe_reply_encode(buf, sizeof(buf), request_id, &m);
	dray_assert(n > 0);
	conn_send(s->conn, buf, (size_t)n);
	/* sends it, and then the goodbye */
	stranger_free(s);
}

/* --- the side that asks ------------------------------------------------------------------------- */

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

/* Who it is. False where that ends the probe, which may be gone then. */
static bool learn(struct peer_probe *q, unsigned major_min, unsigned major_max,
		  const uint8_t agent_id[16], uint64_t incarnation, const struct dray_str *segment,
		  const struct dray_str *version)
{
	const struct peers_deps *own = &q->p->deps;
	struct peer_probe_result *r = &q->result;

	memcpy(r->agent_id, agent_id, sizeof(r->agent_id));
	r->incarnation = incarnation;
	copy_str(r->segment, sizeof(r->segment), segment);
	copy_str(r->version, sizeof(r->version), version);
	r->known = true;
	if (major_min > PMSG_MAJOR || major_max < PMSG_MAJOR) {
		fail(q, DRAY_E_VERSION, "it speaks versions %u to %u, this agent %d", major_min,
		     major_max, PMSG_MAJOR);
		return false;
	}
	if (memcmp(agent_id, own->agent_id, sizeof(r->agent_id)) != 0)
		return true;
	if (incarnation == own->incarnation) {
		r->self = true;
		return true;
	}
	fail(q, DRAY_E_IDENTITY,
	     "another agent shows the id of this one: give each a state directory of its own");
	return false;
}

static void handle_hello(struct peer_probe *q, const struct pmsg_header *h,
			 const struct pmsg_hello *m)
{
	uint8_t buf[PMSG_HEADER_SIZE + PMSG_PROBE_BODY_MAX + 1];
	struct pmsg_probe ask = {};
	int n;

	if (!learn(q, m->major_min, m->major_max, m->agent_id, m->incarnation, &m->segment,
		   &m->version))
		return;
	if (h->minor < PROBE_MINOR) {
		finish(q, &DRAY_ERR_NULL);
		return;
	}
	n = pmsg_probe_encode(buf, sizeof(buf), REQUEST_ID, &ask);
	dray_assert(n > 0);
	conn_send(q->conn, buf, (size_t)n);
}

static void handle_reply(struct peer_probe *q, const struct pmsg_probe_reply *m)
{
	if (memcmp(m->agent_id, q->result.agent_id, sizeof(m->agent_id)) != 0 ||
	    m->incarnation != q->result.incarnation) {
		fail(q, DRAY_E_PROTOCOL, "it answers with another id than it began with");
		return;
	}
	if (!learn(q, m->major_min, m->major_max, m->agent_id, m->incarnation, &m->segment,
		   &m->version))
		return;
	q->result.told_state = true;
	if (m->state == PMSG_PROBE_STATE_RUNNING)
		finish(q, &DRAY_ERR_NULL);
	else if (m->state == PMSG_PROBE_STATE_DRAINING)
		fail(q, DRAY_E_DRAINING, "draining");
	else
		fail(q, DRAY_E_UNSUPPORTED, "it is in a state that this release does not know, %u",
		     m->state);
}

static void on_secured(struct conn *c)
{
	c->message_max = STRANGER_MESSAGE_MAX;
}

static void on_message(struct conn *c, const struct pmsg_header *h, const uint8_t *body)
{
	struct peer_probe *q = c->owner;
	struct dray_err why = DRAY_ERR_NULL;
	union {
		struct pmsg_hello hello;
		struct pmsg_probe_reply reply;
		struct pmsg_error error;
	} m;
	char text[257];

	if (!q->fn)
		return;
	if (h->type == PMSG_HELLO && !q->result.known) {
		if (pmsg_hello_decode(body, h->length, &m.hello, &why) == 0)
			handle_hello(q, h, &m.hello);
	} else if (h->type == PMSG_PROBE_REPLY && q->result.known && h->request_id == REQUEST_ID) {
		if (pmsg_probe_reply_decode(body, h->length, &m.reply, &why) == 0)
			handle_reply(q, &m.reply);
	} else if (h->type == PMSG_ERROR) {
		if (pmsg_error_decode(body, h->length, &m.error, &why) == 0) {
			copy_str(text, sizeof(text), &m.error.message);
			fail(q,
			     m.error.code && m.error.code < DRAY_ERROR_N ? m.error.code :
									   DRAY_E_PROTOCOL,
			     "it refuses: %.200s", text);
		}
	} else {
		fail(q, DRAY_E_PROTOCOL, "it answers a probe with %s", pmsg_type_name(h->type));
	}
	if (why.code)
		fail(q, (uint32_t)why.code, "it breaks the protocol: %.200s", why.msg);
}

static void on_failed(struct conn *c, const struct dray_err *why)
{
	struct peer_probe *q = c->owner;
	uint8_t first = c->tls.first;

	if (!q->fn)
		return;
	if (first && first != TLS_ALERT && first != TLS_HANDSHAKE)
		fail(q, DRAY_E_PEER_UNREACHABLE,
		     "no dray agent: what answers there does not speak TLS");
	else if (why->code == DRAY_E_PEER_DENIED)
		fail(q, DRAY_E_PEER_DENIED, "%.160s; both agents need the same peer.key_file",
		     why->msg);
	else if (q->result.known)
		fail(q, DRAY_E_PEER_LOST, "%.200s before it answered", why->msg);
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
	char text[DRAY_ADDR_TEXT_MAX];
	int r;

	if (!p->tls->has_key && !p->cfg->peer.allow_insecure && !dray_addr_is_loopback(addr))
		return dray_err_set(
			reterr, -EPERM, DRAY_E_PEER_DENIED,
			"without a key whoever answers at %s could pose as an agent: set peer.key_file, or peer.allow_insecure if that is meant",
			dray_addr_show(addr, text, sizeof(text)));
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
