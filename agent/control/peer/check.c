/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The asking side of a check. One step after the other: each ends with a note, and the first error ends the check. From TLS
 * on it is a connection as that of a probe, which waits for the other's HELLO and sends CHECK, or PROBE, instead of its own.
 */
#include "agent/control/peer/check.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "agent/control/peer/internal.h"
#include "agent/control/region/region.h"
#include "agent/placement/net/resolver.h"
#include "lib/plain.h"
#include "netdetect/net/path.h"

#define REQUEST_ID 1
/* Of memory that is asked for. */
#define MEMORY_BYTES (4u << 20)
/* In which the other agent checks its way here. */
#define REPLY_NS (30 * DRAY_NS_PER_SEC)
/* The whole check: drayctl waits for 60 s, and the other agent's answer ends after 25 s. */
#define ASK_NS (50 * DRAY_NS_PER_SEC)
#define BACK_NS (20 * DRAY_NS_PER_SEC)

struct peer_check {
	struct peers *p;
	bool back;
	peer_check_fn fn; /* NULL once called */
	void *arg;
	char segment[SEGMENT_MAX + 1];
	enum pmsg_check_step at;
	int64_t began_ns; /* of this step */
	int64_t ends_ns;  /* the whole check */
	bool last_wait;   /* the timer stands for ends_ns */
	bool is_name;     /* the segment has no address */
	struct resolver *resolver;
	struct dray_addr addr;
	struct nd_path path;
	sd_event_source *path_io, *timer;
	struct conn *conn;
	bool greeted;         /* HELLO has come */
	uint8_t agent_id[16]; /* from it */
	struct peer_check_result result;
};

struct peer_check *peer_check_free(struct peer_check *c)
{
	if (!c)
		return NULL;
	c->p->n_probes--;
	resolver_free(c->resolver);
	sd_event_source_disable_unref(c->path_io);
	sd_event_source_disable_unref(c->timer);
	nd_path_close(&c->path);
	conn_free(c->conn);
	free(c);
	return NULL;
}

DRAY_DEFINE_CLEANUP(struct peer_check *, peer_check_free);

static void finish(struct peer_check *c)
{
	peer_check_fn fn = dray_take(c->fn);

	sd_event_source_set_enabled(c->timer, SD_EVENT_OFF);
	if (fn)
		fn(c->arg, &c->result);
}

static void note_end(struct peer_check *c, struct peer_check_note *n, enum pmsg_check_result how)
{
	int64_t now = dray_now().ns;

	n->step = c->at;
	n->result = how;
	n->took_ns = dray_span(now - c->began_ns);
	c->result.n++;
	c->began_ns = now;
	c->at++;
}

/* Ends the step. how: NULL, or what to do. */
static __attribute__((format(printf, 4, 5))) void
note(struct peer_check *c, enum pmsg_check_result how, const char *remedy, const char *fmt, ...)
{
	struct peer_check_note *n = &c->result.v[c->result.n];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(n->text, sizeof(n->text), fmt, ap);
	va_end(ap);
	snprintf(n->remedy, sizeof(n->remedy), "%s", remedy);
	note_end(c, n, how);
}

#define note_ok(c, ...) note(c, PMSG_CHECK_RESULT_OK, "", __VA_ARGS__)
/* Ends the check with it. The caller must not use c any more. */
#define note_error(c, remedy, ...)                                     \
	do {                                                           \
		note(c, PMSG_CHECK_RESULT_ERROR, remedy, __VA_ARGS__); \
		finish(c);                                             \
	} while (0)

static void timer_set(struct peer_check *c, int64_t ns)
{
	int64_t rest = dray_max(c->ends_ns - dray_now().ns, (int64_t)0);

	c->last_wait = rest <= ns;
	ns = dray_min(ns, rest);
	sd_event_source_set_time_relative(c->timer, (uint64_t)ns / 1000);
	sd_event_source_set_enabled(c->timer, SD_EVENT_ONESHOT);
}

/* --- version, features, and the opposite way ------------------------------------------------------ */

static void features_show(uint64_t features, char *buf, size_t n)
{
	static const struct {
		uint64_t bit;
		const char *name;
	} names[] = { { PMSG_FEATURE_TCP, "tcp" },         { PMSG_FEATURE_RDMA, "rdma" },
		      { PMSG_FEATURE_WINDOW, "window" },   { PMSG_FEATURE_LEASE, "lease" },
		      { PMSG_FEATURE_MAILBOX, "mailbox" }, { PMSG_FEATURE_CHECK, "check" },
		      { PMSG_FEATURE_STORE, "store" },     { PMSG_FEATURE_FIND, "find" } };
	size_t at = 0;

	*buf = '\0';
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(names) && at < n; i++)
		if (features & names[i].bit)
			at += (size_t)snprintf(buf + at, n - at, "%s%s", at ? ", " : "",
					       names[i].name);
}

static void handle_hello(struct peer_check *c, const struct pmsg_hello *m)
{
	const struct peers_deps *own = &c->p->deps;
	uint64_t ours = hello_features(c->p), both = m->features & ours;
	struct dray_err why = DRAY_ERR_NULL;
	char text[160];
	union pmsg_body body = { .check = { .memory = MEMORY_BYTES,
					    .segment = { c->p->segment,
							 (uint32_t)strlen(c->p->segment) } } };

	c->greeted = true;
	memcpy(c->agent_id, m->agent.agent_id, sizeof(c->agent_id));
	if (hello_check_version(m->agent.major_min, m->agent.major_max, &why) < 0) {
		note_error(c, "install the same release at both", "%s", why.msg);
		return;
	}
	if (!memcmp(m->agent.agent_id, own->agent_id, sizeof(m->agent.agent_id))) {
		bool self = m->agent.incarnation == own->incarnation;

		note_error(c,
			   self ? "name the other agent's segment" :
				  "give each agent its own agent.state_dir",
			   "%s",
			   self ? "this agent itself answers there" :
				  "another agent with the id of this one answers there");
		return;
	}
	note_ok(c, "release %.*s there, " DRAY_VERSION " here", (int)m->agent.version.n,
		m->agent.version.p);
	features_show(both, text, sizeof(text));
	if (both != (m->features | ours))
		note_ok(c, "%s; only one of the two agents has others", text);
	else
		note_ok(c, "%s", text);
	/* also what follows is about it */
	c->at = PMSG_CHECK_STEP_FEATURES;
	memcpy(body.check.agent_id, own->agent_id, sizeof(body.check.agent_id));
	if (c->back || !(m->features & PMSG_FEATURE_CHECK))
		conn_send_message(c->conn, PMSG_PROBE, REQUEST_ID, NULL);
	else
		conn_send_message(c->conn, PMSG_CHECK, REQUEST_ID, &body);
	timer_set(c, REPLY_NS);
}

static void drains(struct peer_check *c, unsigned state)
{
	struct peer_check_note *n = &c->result.v[c->result.n - 2];

	if (state != PMSG_PROBE_STATE_DRAINING || n->step != PMSG_CHECK_STEP_VERSION)
		return;
	n->result = PMSG_CHECK_RESULT_ERROR;
	snprintf(n->text, sizeof(n->text), "the agent there is draining, and accepts no new work");
	snprintf(n->remedy, sizeof(n->remedy),
		 "wait for its restart, or run there: drayctl resume");
}

static void text_take(char *to, size_t cap, const uint8_t **p, const uint8_t *end, uint32_t n)
{
	size_t have = dray_min((size_t)n, (size_t)(end - *p));

	dray_plain(to, cap, (const char *)*p, have);
	*p += have;
}

/* 0, also without a token. */
static int token_take(struct peer_check *c, const struct dray_blob *from, struct dray_err *reterr)
{
	struct peer_check_result *r = &c->result;
	struct pmsg_token token;
	int e;

	if (!from->n)
		return 0;
	e = token_parse(from->p, from->n, &token, r->segment, reterr);
	if (e < 0)
		return e;
	if (memcmp(token.agent_id, c->agent_id, sizeof(c->agent_id)) != 0)
		return dray_err_set(reterr, -EPROTO, DRAY_E_TOKEN_INVALID,
				    "the token names another agent");
	r->n_token = dray_min(from->n, (uint32_t)sizeof(r->token));
	memcpy(r->token, from->p, r->n_token);
	return 0;
}

static void handle_reply(struct peer_check *c, const struct pmsg_check_reply *m)
{
	struct dray_err why = DRAY_ERR_NULL;
	const uint8_t *at = m->texts.p, *end = m->texts.p + m->texts.n;
	struct peer_check_result *r = &c->result;

	if (token_take(c, &m->token, &why) < 0) {
		note_error(c, "report this", "the agent there broke the protocol: %s", why.msg);
		return;
	}
	drains(c, m->state);
	for (uint32_t i = 0; i < m->notes.n && r->n < PEER_CHECK_NOTES_MAX; i++) {
		struct peer_check_note *n = &r->v[r->n++];
		struct pmsg_check_note w;

		pmsg_check_note_get(m->notes.p + (size_t)i * PMSG_CHECK_NOTE_SIZE, &w);
		n->back = true;
		n->step = (enum pmsg_check_step)w.step;
		n->result = (enum pmsg_check_result)w.result;
		n->took_ns = w.took_ns;
		text_take(n->text, sizeof(n->text), &at, end, w.text);
		text_take(n->remedy, sizeof(n->remedy), &at, end, w.remedy);
	}
	finish(c);
}

/* The agent knows no CHECK, so this is all; what it finds on its way here is missing. */
static void handle_probe_reply(struct peer_check *c, unsigned state)
{
	drains(c, state);
	if (!c->back) {
		struct peer_check_note *n = &c->result.v[c->result.n];

		n->back = true;
		note(c, PMSG_CHECK_RESULT_WARNING,
		     "run there: drayctl doctor --peer, with this agent's segment",
		     "the release there cannot check the opposite way for this agent");
	}
	finish(c);
}

static void on_message(struct conn *conn, const struct pmsg_header *h, const uint8_t *body)
{
	struct peer_check *c = conn->owner;
	struct dray_err why = DRAY_ERR_NULL;
	union pmsg_body m;

	if (!c->fn)
		return;
	if (pmsg_body_decode(h->type, body, h->length, &m, &why) < 0)
		note_error(c, "report this", "the agent there broke the protocol: %s", why.msg);
	else if (h->type == PMSG_HELLO && !c->greeted)
		handle_hello(c, &m.hello);
	else if (h->type == PMSG_CHECK_REPLY && c->greeted && !c->back)
		handle_reply(c, &m.check_reply);
	else if (h->type == PMSG_PROBE_REPLY && c->greeted)
		handle_probe_reply(c, m.probe_reply.state);
	else if (h->type == PMSG_ERROR)
		note_error(c, "try again later", "the agent there refuses: %.*s",
			   (int)dray_min(m.error.message.n, 200u), m.error.message.p);
	else
		note_error(c, "report this", "the agent there answers with %s",
			   pmsg_type_name(h->type));
}

/* --- connection ----------------------------------------------------------------------------------- */

static void on_connected(struct conn *conn)
{
	struct peer_check *c = conn->owner;
	char text[DRAY_ADDR_TEXT_MAX];

	note_ok(c, "%s accepts connections", dray_addr_show(&c->addr, text, sizeof(text)));
	timer_set(c, c->p->cfg->peer.connect_timeout);
}

static void on_secured(struct conn *conn)
{
	struct peer_check *c = conn->owner;
	const char *id = conn->tls.key_id;

	conn->message_max = PMSG_MESSAGE_MAX;
	note_ok(c, "TLS 1.3");
	if (*id)
		note_ok(c, "both hold the key %s", id);
	else
		note(c, PMSG_CHECK_RESULT_WARNING,
		     "set peer.key_file at both: drayctl genkey makes one",
		     "neither agent has a key, so any program can pose as one of them");
}

static void on_failed(struct conn *conn, const struct dray_err *why)
{
	struct peer_check *c = conn->owner;

	if (!c->fn)
		return;
	if (c->at == PMSG_CHECK_STEP_TCP) {
		note_error(c,
			   conn->refused ? "start drayd there, or correct the port: drayctl status "
					   "there shows its segment" :
					   "start that host, or let firewalls and network policies "
					   "pass this port",
			   conn->refused ? "no program listens there: %s" : "no connection: %s",
			   why->msg);
	} else if (c->at == PMSG_CHECK_STEP_TLS && conn->tls.first &&
		   conn->tls.first != TLS_ALERT && conn->tls.first != TLS_HANDSHAKE) {
		note_error(c,
			   "correct the port: drayctl status there shows the segment of the agent",
			   "the server there does not speak TLS: it is no dray agent");
	} else if (c->at == PMSG_CHECK_STEP_TLS && why->code == DRAY_E_PEER_DENIED) {
		note_ok(c, "an agent answers");
		note_error(c,
			   "give both agents the same peer.key_file, then drayctl reload; drayctl "
			   "status shows the ids of their keys",
			   "the agents have different keys: %s", why->msg);
	} else {
		note_error(c, "its log has the reason", "the connection ended: %s", why->msg);
	}
}

static const struct conn_ops ops = {
	.connected = on_connected,
	.secured = on_secured,
	.message = on_message,
	.failed = on_failed,
};

static void dial(struct peer_check *c)
{
	struct dray_err why = DRAY_ERR_NULL;

	if (conn_dial(&c->conn, c->p->deps.event, c->p->tls, &c->addr, &ops, c, &why) < 0)
		note_error(c, "let firewalls and network policies pass this port",
			   "no connection: %s", why.msg);
	else
		timer_set(c, c->p->cfg->peer.connect_timeout);
}

/* --- route and MTU -------------------------------------------------------------------------------- */

static void mtu_found(struct peer_check *c)
{
	const struct nd_path *p = &c->path;
	char remedy[200];

	snprintf(
		remedy, sizeof(remedy),
		"raise the MTU of the links and tunnels between the hosts, or set that of %s to %u",
		p->interface, p->mtu);
	if (p->proof == ND_PATH_SILENT)
		note_ok(c, "%u bytes, as the kernel assumes: the host does not answer datagrams",
			p->mtu);
	else if (p->mtu >= p->link_mtu || p->proof == ND_PATH_PROVED)
		note_ok(c, "packets of %u bytes arrive", p->mtu);
	else if (p->proof == ND_PATH_REPORTED)
		note(c, PMSG_CHECK_RESULT_WARNING, remedy,
		     "packets of %u bytes arrive, and %s sends up to %u; a router reports the limit",
		     p->mtu, p->interface, p->link_mtu);
	else
		note(c, PMSG_CHECK_RESULT_WARNING, remedy,
		     "packets of %u bytes arrive, and larger ones are lost without a report; %s sends up to %u",
		     p->mtu, p->interface, p->link_mtu);
	c->path_io = sd_event_source_disable_unref(c->path_io);
	dial(c);
}

static void path_step(struct peer_check *c, bool late)
{
	unsigned sent = c->path.sent;

	if (nd_path_step(&c->path, late))
		mtu_found(c);
	else if (c->path.sent != sent)
		timer_set(c, ND_PATH_WAIT_MS * DRAY_NS_PER_MS);
}

static int on_path(sd_event_source *source, int fd, uint32_t revents, void *userdata)
{
	path_step(userdata, false);
	return 0;
}

static void route(struct peer_check *c)
{
	char text[DRAY_ADDR_TEXT_MAX];
	int r = nd_path_open(&c->path, &c->addr);

	if (r < 0) {
		note_error(c, "add a route, or name another address of that host",
			   "no way there: %s", dray_errno_text(r));
		return;
	}
	dray_addr_show(&c->path.from, text, sizeof(text));
	*strrchr(text, ':') = '\0';
	note_ok(c, "by %s, from %s", c->path.interface, text);
	if (sd_event_add_io(c->p->deps.event, &c->path_io, c->path.fd, 0, on_path, c) < 0)
		note_error(c, "try again later", "no memory");
	else
		path_step(c, false);
}

/* --- name ----------------------------------------------------------------------------------------- */

static void named(struct peer_check *c)
{
	struct dray_err why = DRAY_ERR_NULL;
	char text[DRAY_ADDR_TEXT_MAX];

	dray_addr_show(&c->addr, text, sizeof(text));
	if (c->back && c->is_name)
		note(c, PMSG_CHECK_RESULT_WARNING, "set peer.advertise here to an address",
		     "%s; names are not resolved for transfers", text);
	else
		note_ok(c, "%s", text);
	if (peers_check_key(c->p, &c->addr, false, &why) < 0) {
		c->at = PMSG_CHECK_STEP_KEY;
		note_error(c, "set peer.key_file at both agents: drayctl genkey makes a key", "%s",
			   why.msg);
		return;
	}
	route(c);
}

static void on_resolved(void *arg, const struct dray_addr *addrs, unsigned n,
			const struct dray_err *why)
{
	struct peer_check *c = arg;

	if (n) {
		c->addr = addrs[0];
		c->is_name = true;
		named(c);
	} else {
		note_error(c, "correct the name, or give an address", "the name has no address: %s",
			   why ? why->msg : "no answer");
	}
}

static void begin(struct peer_check *c)
{
	struct dray_err why = DRAY_ERR_NULL;
	char host[DRAY_HOST_BYTES];
	unsigned port;

	if (segment_parse(c->segment, &c->addr) >= 0) {
		named(c);
		return;
	}
	if (dray_host_port_split(c->segment, host, &port) < 0)
		dray_err_set(&why, 0, DRAY_E_INVALID, "it is not HOST:PORT");
	else if (resolver_new(&c->resolver, c->p->deps.event, &why) >= 0 &&
		 resolver_lookup(c->resolver, host, port, c->p->cfg->peer.connect_timeout,
				 on_resolved, c, NULL, &why) >= 0) {
		timer_set(c, ASK_NS);
		return;
	}
	note_error(c, "give HOST:PORT, as drayctl status there shows it", "%s", why.msg);
}

static int on_timer(sd_event_source *source, uint64_t usec, void *userdata)
{
	struct peer_check *c = userdata;

	if (c->last_wait) {
		note_error(c, "see what the steps before it took, and reduce peer.connect_timeout",
			   "the time of the whole check, %d s, is over",
			   (int)((c->back ? BACK_NS : ASK_NS) / DRAY_NS_PER_SEC));
		return 0;
	}
	switch (c->at) {
	case PMSG_CHECK_STEP_NAME:
		begin(c);
		break;
	case PMSG_CHECK_STEP_MTU:
		path_step(c, true);
		break;
	case PMSG_CHECK_STEP_TCP:
		note_error(c,
			   "start that host, or let firewalls and network policies pass this port",
			   "no answer within peer.connect_timeout");
		break;
	case PMSG_CHECK_STEP_TLS:
	case PMSG_CHECK_STEP_KEY:
	case PMSG_CHECK_STEP_VERSION:
		note_error(c, "see there: drayctl health, and the log of the agent",
			   "connections are accepted, and nothing answers: the agent is stopped or "
			   "too busy");
		break;
	case PMSG_CHECK_STEP_ROUTE:
	case PMSG_CHECK_STEP_FEATURES:
	default:
		note_error(c, "see there: drayctl health, and the log of the agent",
			   "the agent there does not answer any more");
		break;
	}
	return 0;
}

int peer_check_start(struct peer_check **ret, struct peers *p, const char *segment, bool back,
		     peer_check_fn fn, void *arg, struct dray_err *reterr)
{
	dray_auto(peer_check_free) struct peer_check *c = NULL;

	if (strlen(segment) > SEGMENT_MAX || !dray_endpoint_valid(segment))
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "\"%.80s\" is no segment: give HOST:PORT", segment);
	c = calloc(1, sizeof(*c));
	if (!c)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a check");
	*c = (struct peer_check){ .p = p,
				  .back = back,
				  .fn = fn,
				  .arg = arg,
				  .at = PMSG_CHECK_STEP_NAME,
				  .began_ns = dray_now().ns,
				  .path = ND_PATH_NULL };
	c->ends_ns = c->began_ns + (back ? BACK_NS : ASK_NS);
	p->n_probes++;
	snprintf(c->segment, sizeof(c->segment), "%s", segment);
	if (sd_event_add_time_relative(p->deps.event, &c->timer, CLOCK_MONOTONIC, 0, 0, on_timer,
				       c) < 0)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a check");
	*ret = dray_take(c);
	return 0;
}
