/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Imports: tokens of other agents that become grants here.
 *
 * An import belongs to one peer, to which it may be moved: to an attempt to reach the token's segment
 * at first, then to whatever connection turns out to be the owner's. Attempts go by agent id and
 * segment together, because both are only the token's word: a forged token with somebody else's id and
 * a dead segment must not hold up those who know the right one.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "agent/control/peer/internal.h"
#include "schema/gen/errors.h"

bool imports_wanted(const struct peer *peer)
{
	return !dray_list_empty(&peer->imports);
}

int64_t imports_next_end(const struct peer *peer)
{
	int64_t end = INT64_MAX;

	dray_list_for_each(&peer->imports, i, struct import, link)
		end = dray_min(end, i->end_ns);
	return end;
}

/* Out of every list; no callback. */
static void import_detach(struct import *i)
{
	dray_list_del(&i->link);
	if (i->request) {
		dray_list_del(&i->request->link);
		free(i->request);
	}
	dray_handles_del(&i->p->imports, i->id);
}

static void import_fail(struct import *i, uint32_t code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

static void import_fail(struct import *i, uint32_t code, const char *fmt, ...)
{
	struct dray_err err = { .code = (int)code };
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(err.msg, sizeof(err.msg), fmt, ap);
	va_end(ap);
	import_detach(i);
	i->fn(i->arg, &err, 0, 0, 0, 0, NULL);
	free(i);
}

/* --- sending ------------------------------------------------------------------------------------ */

static void import_send(struct import *i)
{
	uint8_t buf[PMSG_HEADER_SIZE + PMSG_IMPORT_BODY_MAX];
	struct pmsg_import m = {
		.token_id = i->token.token_id,
		.region = i->token.region,
		.incarnation = i->token.incarnation,
	};
	struct peer *peer = i->peer;

	i->request = request_new(peer, REQUEST_IMPORT, -1);
	if (!i->request) {
		/* not failed here: this may run inside of peer_import() */
		conn_fail(peer->conn, DRAY_E_NO_MEMORY, "no memory for a request");
		return;
	}
	i->request->import = i;
	memcpy(m.capability, i->token.capability, sizeof(m.capability));
	peer_send(peer, buf, pmsg_import_encode(buf, sizeof(buf), i->request->id, &m));
}

static void import_move(struct import *i, struct peer *to)
{
	dray_list_del(&i->link);
	dray_list_add(&to->imports, &i->link);
	i->peer = to;
	peer_due(to, i->end_ns);
}

void imports_adopt(struct peer *to, struct peer *from)
{
	dray_list_for_each(&from->imports, i, struct import, link)
		if (i->token.incarnation <= to->incarnation)
			import_move(i, to);
}

void imports_run(struct peer *peer)
{
	struct dray_list todo = DRAY_LIST_INIT(todo);
	struct import *i;

	/* A callback may cancel any of them, so none is remembered beyond its turn. */
	dray_list_splice(&todo, &peer->imports);
	while ((i = dray_list_first(&todo, struct import, link))) {
		dray_list_del(&i->link);
		dray_list_add(&peer->imports, &i->link);
		if (i->request)
			continue;
		if (i->token.incarnation < peer->incarnation)
			import_fail(i, DRAY_E_INCARNATION,
				    "the token's owner was restarted: export again");
		else
			import_send(i);
	}
}

/* Other attempts to reach the same agent have nothing left to do. */
void imports_ready(struct peer *peer)
{
	table_for_each_of(peer->p, peer->agent_id, x) {
		if (x == peer || !x->fsm.initiator || peer_fsm_is_up(&x->fsm))
			continue;
		imports_adopt(peer, x);
		wants_adopt(peer, x);
		/* closes it, and it alone: nobody is left whom that would call back */
		if (!imports_wanted(x))
			peer_event(x, PEER_EVENT_UNWANTED, 0, NULL);
	}
	imports_run(peer);
}

/* --- reaching the owner ------------------------------------------------------------------------- */

int segment_addr(const struct peers *p, const char *segment, struct dray_addr *ret,
		 struct dray_err *reterr)
{
	char numeric[DRAY_ADDR_TEXT_MAX];
	int r;

	if (!dray_segment_valid(segment))
		return dray_err_set(reterr, -EINVAL, DRAY_E_TOKEN_INVALID,
				    "the token names no segment where its owner could be reached");
	if (!strncmp(segment, "localhost:", 10)) {
		snprintf(numeric, sizeof(numeric), "127.0.0.1:%s", segment + 10);
		segment = numeric;
	}
	r = dray_addr_parse(segment, ret);
	if (r < 0)
		return dray_err_set(
			reterr, r, DRAY_E_PEER_UNREACHABLE,
			"the owner's segment %s is a name, and names are not resolved: set peer.advertise there to an address",
			segment);
	if (!p->tls->has_key && !p->cfg->peer.allow_insecure && !dray_addr_is_loopback(ret))
		return dray_err_set(
			reterr, -EPERM, DRAY_E_PEER_DENIED,
			"without a key whoever answers at %s could pose as the owner: set peer.key_file, or peer.allow_insecure if that is meant",
			segment);
	return 0;
}

/* Gives the import to an attempt to reach its segment, a new one where there is none. */
static int import_dial(struct import *i, struct dray_err *reterr)
{
	struct peers *p = i->p;
	struct peer *peer = table_find_attempt(p, i->token.agent_id, i->segment);
	struct dray_addr addr;
	int r;

	if (peer) {
		import_move(i, peer);
		return 0;
	}
	r = segment_addr(p, i->segment, &addr, reterr);
	if (r < 0)
		return r;
	r = peer_new(&peer, p, i->token.agent_id, true, reterr);
	if (r < 0)
		return r;
	peer->addr = addr;
	snprintf(peer->segment, sizeof(peer->segment), "%s", i->segment);
	import_move(i, peer);
	peer_event(peer, PEER_EVENT_DIAL, 0, NULL);
	return 0;
}

static int import_place(struct import *i, struct dray_err *reterr)
{
	struct peer *up = table_find_up(i->p, i->token.agent_id, NULL);

	/* a token of a later incarnation says that the peer we know is gone: look for its successor */
	if (!up || i->token.incarnation > up->incarnation)
		return import_dial(i, reterr);
	if (i->token.incarnation < up->incarnation)
		return dray_err_set(reterr, -ESTALE, DRAY_E_INCARNATION,
				    "the token's owner was restarted: export again");
	if (conn_is_clogged(up->conn))
		return dray_err_set(reterr, -EBUSY, DRAY_E_BUSY,
				    "the owner does not take our requests fast enough");
	import_move(i, up);
	import_send(i);
	return 0;
}

int peer_import(struct peers *p, const struct pmsg_token *token, const char *segment,
		int64_t timeout_ns, peer_import_fn fn, void *arg, uint64_t *ret_id,
		struct dray_err *reterr)
{
	dray_auto_free struct import *i = NULL;
	int r;

	if (p->stopping)
		return dray_err_set(reterr, -ESHUTDOWN, DRAY_E_DRAINING, "the agent stops");
	if (!memcmp(token->agent_id, p->deps.agent_id, sizeof(token->agent_id)))
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "the token is of this agent: no peer holds it");
	if (strlen(segment) > PMSG_TOKEN_SEGMENT_MAX)
		return dray_err_set(reterr, -EINVAL, DRAY_E_TOKEN_INVALID,
				    "the token's segment is too long");
	i = calloc(1, sizeof(*i));
	if (!i || dray_handles_add(&p->imports, i, &i->id) < 0)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for an import");
	i->p = p;
	i->token = *token;
	snprintf(i->segment, sizeof(i->segment), "%s", segment);
	i->end_ns = peers_now(p) + timeout_ns;
	i->fn = fn;
	i->arg = arg;
	dray_list_init(&i->link);
	r = import_place(i, reterr);
	if (r < 0) {
		dray_handles_del(&p->imports, i->id);
		return r;
	}
	*ret_id = i->id;
	dray_take(i);
	return 0;
}

void peer_import_cancel(struct peers *p, uint64_t id)
{
	struct import *i = dray_handles_get(&p->imports, id);
	struct peer *peer;

	if (!i)
		return;
	peer = i->peer;
	import_detach(i);
	free(i);
	if (!imports_wanted(peer))
		peer_event(peer, PEER_EVENT_UNWANTED, 0, NULL);
}

void peer_release(struct peers *p, dray_handle handle, uint64_t grant)
{
	struct peer *peer = table_get(p, handle);

	/* one that was fenced is gone already */
	if (!peer || !idset_del(&peer->grants, grant))
		return;
	fence_answer(peer, grant);
	send_release(peer, grant);
}

/* --- answers ------------------------------------------------------------------------------------ */

void import_reply(struct peer *peer, struct request *r, const struct pmsg_import_reply *m)
{
	struct import *i = r->import;
	struct dray_err ok = DRAY_ERR_NULL;
	int err;

	i->request = NULL;
	free(r);
	err = idset_add(&peer->grants, m->grant);
	if (err < 0) {
		/* two imports over one grant could not be told apart when it ends */
		peer_protocol_error(peer, err == -EEXIST ? DRAY_E_PROTOCOL : DRAY_E_NO_MEMORY,
				    "grant %" PRIx64
				    " was given twice, or there is no memory for it",
				    m->grant);
		return;
	}
	import_detach(i);
	/* an owner that drains would have refused: it has resumed */
	peer_event(peer, PEER_EVENT_RESUMED, 0, NULL);
	i->fn(i->arg, &ok, peer->handle, m->grant, m->length, m->access, &m->rails);
	free(i);
}

void import_error(struct peer *peer, struct request *r, uint32_t code, const char *why)
{
	struct import *i = r->import;

	i->request = NULL;
	free(r);
	import_fail(i, code, "%s", *why ? why : dray_error_doc(code));
}

/* --- ends --------------------------------------------------------------------------------------- */

static void import_timed_out(struct import *i)
{
	struct peer *peer = i->peer;

	if (peer_fsm_is_up(&peer->fsm))
		import_fail(i, DRAY_E_TIMEOUT, "the owner at %s did not answer in time",
			    peer->segment);
	else if (*peer->fsm.why)
		import_fail(i, DRAY_E_PEER_UNREACHABLE, "the owner at %s cannot be reached: %s",
			    peer->segment, peer->fsm.why);
	else
		import_fail(i, DRAY_E_PEER_UNREACHABLE, "the owner at %s did not answer in time",
			    peer->segment);
}

void imports_expire(struct peer *peer, int64_t now)
{
	struct import *due;

	for (;;) {
		due = NULL;
		dray_list_for_each(&peer->imports, i, struct import, link) {
			if (i->end_ns <= now) {
				due = i;
				break;
			}
		}
		if (!due)
			break;
		import_timed_out(due);
	}
	if (!imports_wanted(peer))
		peer_event(peer, PEER_EVENT_UNWANTED, 0, NULL);
}

/* Connects again for an import that the peer had not answered when it left in good order. */
static void try_again(struct import *i)
{
	struct dray_err why = DRAY_ERR_NULL;

	if (import_dial(i, &why) < 0)
		import_fail(i, (uint32_t)why.code, "%s", why.msg);
}

void imports_end(struct peer *peer, uint32_t code, const char *why)
{
	struct import *i;

	while ((i = dray_list_first(&peer->imports, struct import, link))) {
		if (peer->left && !peer->p->stopping)
			try_again(i);
		else
			import_fail(i, code, "the owner at %s: %s", peer->segment,
				    *why ? why : dray_error_doc(code));
	}
}

void imports_free(struct peer *peer)
{
	dray_list_for_each(&peer->imports, i, struct import, link)
		free(i);
	dray_list_init(&peer->imports);
}
