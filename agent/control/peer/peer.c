/* SPDX-License-Identifier: Apache-2.0 */
/* The module as a whole, and one peer on the event loop. */
#include "agent/control/peer/peer.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "agent/control/peer/internal.h"
#include "agent/state/identity.h"
#include "lib/assert.h"
#include "lib/log.h"
#include "lib/time.h"
#include "schema/gen/errors.h"

/* After the sockets: a reply that has arrived must not time out. */
#define TIMER_PRIORITY (SD_EVENT_PRIORITY_NORMAL + 5)

int64_t peers_now(struct peers *p)
{
	uint64_t usec;

	dray_assert(sd_event_now(p->event, CLOCK_MONOTONIC, &usec) >= 0);
	return (int64_t)usec * 1000;
}

void peers_wake(struct peers *p)
{
	sd_event_source_set_enabled(p->defer, SD_EVENT_ONESHOT);
}

bool peers_may_use(const struct peers *p, const struct dray_addr *addr)
{
	return p->tls->has_key || p->cfg->peer.allow_insecure || dray_addr_is_loopback(addr);
}

int peers_check_key(const struct peers *p, const struct dray_addr *addr, struct dray_err *reterr)
{
	char text[DRAY_ADDR_TEXT_MAX];

	if (peers_may_use(p, addr))
		return 0;
	return dray_err_set(
		reterr, -EPERM, DRAY_E_PEER_DENIED,
		"without a key any program at %s could pose as an agent: set peer.key_file, or peer.allow_insecure to accept that",
		dray_addr_show(addr, text, sizeof(text)));
}

static struct peer *peer_of(struct peer_fsm *f)
{
	return dray_container_of(f, struct peer, fsm);
}

static void on_changed(struct peer_fsm *f, enum peer_state old, enum peer_event event)
{
	struct peer *peer = peer_of(f);
	bool visible = f->state == PEER_STATE_READY || old == PEER_STATE_READY ||
		       old == PEER_STATE_DRAINING;
	char id[IDENTITY_TEXT_BYTES];

	/* eight digits tell agents apart; `drayctl peers` shows the whole id */
	dray_log(visible ? DRAY_LOG_INFO : DRAY_LOG_DEBUG, AREA,
		 "%s -> %s (%s)%s%s agent=%.8s incarnation=%llu segment=%s", peer_state_name(old),
		 peer_state_name(f->state), peer_event_name(event), *f->why ? ": " : "", f->why,
		 identity_show(peer->agent_id, id), (unsigned long long)peer->incarnation,
		 *peer->segment ? peer->segment : "none");
	if (visible && peer->p->deps.up->changed)
		peer->p->deps.up->changed(peer->p->deps.arg, peer->handle, peer->segment,
					  peer_state_name(old), peer_state_name(f->state),
					  *f->why ? f->why : peer_event_name(event));
}

static int on_dial(struct peer_fsm *f)
{
	struct peer *peer = peer_of(f);
	struct peers *p = peer->p;
	struct dray_err why = DRAY_ERR_NULL;
	int r;

	peer->hello_sent = peer->peer_ready = peer->known = false;
	r = conn_dial(&peer->conn, p->event, p->tls, &peer->addr, &peer_conn_ops, peer, &why);
	if (r < 0)
		peer_fsm_set_reason(f, (uint32_t)why.code, why.msg);
	return r;
}

static void announce_drain(struct peer *peer)
{
	struct peers *p = peer->p;
	int64_t left_ms = (p->drain_end_ns - peers_now(p)) / DRAY_NS_PER_MS;
	union pmsg_body m = { .draining = { (uint32_t)dray_max(left_ms, (int64_t)0) } };

	peer_send(peer, PMSG_DRAINING, 0, &m);
}

static int on_up(struct peer_fsm *f)
{
	struct peer *peer = peer_of(f);
	struct dray_err why = DRAY_ERR_NULL;
	int r;

	peer->conn->message_max = PMSG_MESSAGE_MAX;
	r = link_up(peer, &why);
	if (r < 0) {
		peer_fsm_set_reason(f, (uint32_t)why.code, why.msg);
		return r;
	}
	if (peer->p->draining)
		announce_drain(peer);
	peer->p->deps.up->up(*peer->p->deps.rails, peer->handle, peer->features);
	imports_ready(peer);
	incoming_retry(peer->p, peer);
	return 0;
}

static void on_drop(struct peer_fsm *f)
{
	struct peer *peer = peer_of(f);

	peer->conn = conn_free(peer->conn);
}

static void say_bye(struct peer *peer)
{
	uint32_t code = peer->fsm.code;

	/* ok: an orderly end, after which the peer may repeat its pending requests */
	if (code == DRAY_E_SESSION_CLOSED)
		code = peer->p->draining ? DRAY_OK : DRAY_E_PEER_LOST;
	peer_send(peer, PMSG_BYE, 0, &(union pmsg_body){ .bye = { code } });
}

static void on_closed(struct peer_fsm *f, bool was_up)
{
	struct peer *peer = peer_of(f);
	struct peers *p = peer->p;
	dray_handle handle = peer->handle;
	uint32_t code = hello_loss_code(peer, f->code ? f->code : DRAY_E_PEER_LOST);

	if (was_up && !peer->left)
		say_bye(peer);
	peer->conn = conn_free(peer->conn);
	sd_event_source_set_enabled(peer->timer, SD_EVENT_OFF);
	peer_table_del(peer);
	fences_clear(peer);
	if (was_up) {
		p->lost_total += f->code != DRAY_OK && f->code != DRAY_E_SESSION_CLOSED;
		/* its grants end once its queue pairs cannot reach our memory any more */
		if (!p->deps.up->down(*p->deps.rails, handle))
			grants_peer_gone(p->deps.regions, handle);
		p->deps.up->lost(*p->deps.sessions, handle, code, f->why);
		link_down(peer, handle, code);
		requests_end(peer, code);
		hello_rival_gone(p, peer->agent_id);
	}
	imports_end(peer, code, f->why);
	kept_segments_lost(peer, was_up, f->why);
	peers_wake(p);
}

static void on_heartbeat(struct peer_fsm *f)
{
	struct peer *peer = peer_of(f);
	int64_t rest = f->rests ? f->cfg->rest_heartbeat_ns : 0;
	union pmsg_body m = { .heartbeat = { .sequence = ++peer->heartbeats,
					     .rest_ms = (uint32_t)(rest / DRAY_NS_PER_MS) } };

	peer_send(peer, PMSG_HEARTBEAT, 0, &m);
}

static bool on_needed(struct peer_fsm *f)
{
	const struct peer *peer = peer_of(f);

	return peer->n_kept || !dray_list_empty(&peer->imports);
}

static bool on_in_use(struct peer_fsm *f)
{
	const struct peer *peer = peer_of(f);

	return on_needed(f) || peer->grants.n || !dray_list_empty(&peer->requests) ||
	       grants_count(peer->p->deps.regions, peer->handle);
}

static bool on_busy(struct peer_fsm *f)
{
	struct peer *peer = peer_of(f);
	uint64_t started = atomic_load(&peer->link->started);
	bool busy = started != peer->started || started != atomic_load(&peer->link->ended);

	peer->started = started;
	return busy || !dray_list_empty(&peer->requests);
}

static const struct peer_fsm_ops fsm_ops = {
	.changed = on_changed,
	.dial = on_dial,
	.up = on_up,
	.drop = on_drop,
	.closed = on_closed,
	.heartbeat = on_heartbeat,
	.needed = on_needed,
	.in_use = on_in_use,
	.busy = on_busy,
};

static void peer_arm(struct peer *peer)
{
	int64_t at = dray_min(peer->fsm.timer_ns, peer->next_timeout_ns);

	if (peer->fsm.state == PEER_STATE_CLOSED)
		return;
	if (at == peer->timer_ns)
		return;
	peer->timer_ns = at;
	if (at == INT64_MAX) {
		sd_event_source_set_enabled(peer->timer, SD_EVENT_OFF);
		return;
	}
	/* rounded up: a timer that comes too early would only be set again */
	sd_event_source_set_time(peer->timer, (uint64_t)at / 1000 + 1);
	sd_event_source_set_enabled(peer->timer, SD_EVENT_ONESHOT);
}

void peer_add_timeout(struct peer *peer, int64_t end_ns)
{
	if (end_ns < peer->next_timeout_ns) {
		peer->next_timeout_ns = end_ns;
		peer_arm(peer);
	}
}

/* Workers report a transfer that starts while this side rests. A transfer that started meanwhile ends the rest. */
static void follow_rest(struct peer *peer)
{
	struct peer_fsm *f = &peer->fsm;

	if (!peer_fsm_is_up(f) || atomic_load(&peer->link->rests) == f->rests)
		return;
	atomic_store(&peer->link->rests, f->rests);
	if (f->rests && on_busy(f))
		peer_use(peer);
}

void peer_event(struct peer *peer, enum peer_event event, uint32_t code, const char *why)
{
	peer_step(&peer->fsm, event, peers_now(peer->p), code, why);
	follow_rest(peer);
	peer_arm(peer);
}

void peer_use(struct peer *peer)
{
	if (peer->fsm.rests)
		peer_event(peer, PEER_EVENT_USED, 0, NULL);
}

void peers_handle_used(struct peers *p, dray_handle handle)
{
	struct peer *peer = peer_get(p, handle);

	if (peer)
		peer_use(peer);
}

void peer_close(struct peer *peer, uint32_t code, const char *fmt, ...)
{
	char why[DRAY_ERR_MSG_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	peer_event(peer, PEER_EVENT_CLOSE, code, why);
}

static int on_timer(sd_event_source *s, uint64_t usec, void *userdata)
{
	struct peer *peer = userdata;
	int64_t now = peers_now(peer->p);

	peer->timer_ns = INT64_MAX;
	if (now >= peer->fsm.timer_ns)
		peer_event(peer, PEER_EVENT_TIMER, 0, NULL);
	if (now >= peer->next_timeout_ns) {
		requests_expire(peer, now);
		imports_expire(peer, now);
		peer->next_timeout_ns =
			dray_min(requests_next_timeout(peer), imports_next_timeout(peer));
	}
	peer_arm(peer);
	return 0;
}

static struct peer *peer_free(struct peer *peer)
{
	if (!peer)
		return NULL;
	dray_list_del(&peer->all_link);
	dray_map_del(&peer->p->by_id, &peer->by_id);
	if (peer->handle) {
		dray_handles_retire(&peer->p->handles, peer->handle);
		dray_handles_reuse(&peer->p->handles, peer->handle);
	}
	fences_clear(peer);
	conn_free(peer->conn);
	sd_event_source_disable_unref(peer->timer);
	idset_deinit(&peer->grants);
	stream_table_deinit(&peer->streams);
	/* a link that workers have not released stays allocated: they may be reading it, and the process ends */
	free(peer);
	return NULL;
}

DRAY_DEFINE_CLEANUP(struct peer *, peer_free);

static int64_t accuracy_us(const struct peers *p)
{
	return dray_min(p->cfg->peer.heartbeat / 16000, (int64_t)50000);
}

int peer_new(struct peer **ret, struct peers *p, const uint8_t agent_id[16], bool initiator,
	     struct dray_err *reterr)
{
	dray_auto(peer_free) struct peer *peer = calloc(1, sizeof(*peer));

	if (!peer)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a peer");
	peer->p = p;
	peer->timer_ns = peer->next_timeout_ns = INT64_MAX;
	memcpy(peer->agent_id, agent_id, sizeof(peer->agent_id));
	dray_list_init(&peer->all_link);
	dray_list_init(&peer->imports);
	dray_list_init(&peer->requests);
	dray_list_init(&peer->fences);
	peer_fsm_init(&peer->fsm, &fsm_ops, &p->fsm_cfg, initiator, peers_now(p));
	if (dray_handles_add(&p->handles, peer, &peer->handle) < 0)
		return dray_err_set(
			reterr, -ENOSPC, DRAY_E_QUOTA,
			"the agent has %lld peers, as many as limits.peers allows; raise it",
			(long long)p->cfg->limits.peers);
	if (sd_event_add_time(p->event, &peer->timer, CLOCK_MONOTONIC, 0, (uint64_t)accuracy_us(p),
			      on_timer, peer) < 0 ||
	    sd_event_source_set_enabled(peer->timer, SD_EVENT_OFF) < 0 ||
	    sd_event_source_set_priority(peer->timer, TIMER_PRIORITY) < 0)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a peer");
	peer_table_add(p, peer);
	*ret = dray_take(peer);
	return 0;
}

int peer_new_to(struct peer **ret, struct peers *p, const uint8_t agent_id[16], const char *segment,
		struct dray_err *reterr)
{
	struct dray_addr addr;
	struct peer *peer = NULL;
	int r;

	if (!dray_endpoint_valid(segment))
		return dray_err_set(
			reterr, -EINVAL, DRAY_E_TOKEN_INVALID,
			"segment \"%s\" is not one where an agent can be reached; export the region again",
			segment);
	r = segment_parse(segment, &addr);
	if (r < 0)
		return dray_err_set(
			reterr, r, DRAY_E_PEER_UNREACHABLE,
			"segment %s is a name, and names are not resolved: set peer.advertise there to an address",
			segment);
	r = peers_check_key(p, &addr, reterr);
	if (r == 0)
		r = peer_new(&peer, p, agent_id, true, reterr);
	if (r < 0)
		return r;
	peer->addr = addr;
	snprintf(peer->segment, sizeof(peer->segment), "%s", segment);
	*ret = peer;
	return 0;
}

static void stop_run(struct peers *p)
{
	void (*done)(void *arg) = p->stop_done;

	if (!p->stopping)
		return;
	while (!dray_list_empty(&p->all))
		peer_close(dray_list_first(&p->all, struct peer, all_link), DRAY_E_SESSION_CLOSED,
			   "this agent stops");
	if (!dray_list_empty(&p->closed) || !done)
		return;
	p->stop_done = NULL;
	done(p->stop_arg);
}

static int on_defer(sd_event_source *s, void *userdata)
{
	struct peers *p = userdata;

	late_fences_run(p);
	dray_list_for_each(&p->closed, peer, struct peer, all_link)
		if (!peer->link)
			peer_free(peer);
	stop_run(p);
	return 0;
}

static int tls_setup(struct peers *p, struct dray_err *reterr)
{
	struct tls_key key;
	int r;

	if (!*p->cfg->peer.key_file)
		return tls_new(&p->tls, NULL, NULL, reterr);
	r = tls_key_load(p->cfg->peer.key_file, &key, reterr);
	if (r < 0)
		return r;
	r = tls_new(&p->tls, &key, p->cfg->peer.key_identity, reterr);
	OPENSSL_cleanse(&key, sizeof(key));
	return r;
}

static void close_passed(const struct peers_deps *deps)
{
	for (unsigned i = 0; i < deps->n_listen_fds; i++)
		dray_close(deps->listen_fds[i]);
}

static void init_lists(struct peers *p)
{
	dray_map_init(&p->by_id);
	dray_list_init(&p->all);
	dray_list_init(&p->closed);
	dray_list_init(&p->listeners);
	dray_list_init(&p->incoming);
	dray_list_init(&p->late_fences);
	dray_list_init(&p->kept_segments);
	dray_handles_init(&p->handles, (uint32_t)p->cfg->limits.peers);
	dray_handles_init(&p->imports, UINT32_MAX);
}

DRAY_DEFINE_CLEANUP(struct peers *, peers_free);

int peers_new(struct peers **ret, const struct peers_deps *deps, struct dray_err *reterr)
{
	const struct dray_config *cfg = deps->cfg;
	dray_auto(peers_free) struct peers *p = calloc(1, sizeof(*p));
	int r;

	if (!p) {
		close_passed(deps);
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for peers");
	}
	p->deps = *deps;
	p->event = sd_event_ref(deps->event);
	p->cfg = cfg;
	p->fsm_cfg = (struct peer_fsm_config){
		.connect_timeout_ns = cfg->peer.connect_timeout,
		.backoff_min_ns = cfg->peer.backoff_min,
		.backoff_max_ns = cfg->peer.backoff_max,
		.heartbeat_ns = cfg->peer.heartbeat,
		.rest_heartbeat_ns = dray_max(cfg->peer.heartbeat, cfg->peer.rest_heartbeat),
		.rest_after_ns = 3 * cfg->peer.heartbeat,
		.idle_ns = cfg->peer.idle_timeout,
	};
	init_lists(p);
	r = tls_setup(p, reterr);
	if (r == 0) {
		r = sd_event_add_defer(p->event, &p->defer, on_defer, p);
		if (r >= 0)
			r = sd_event_source_set_enabled(p->defer, SD_EVENT_OFF);
		if (r < 0)
			dray_err_set(reterr, r, DRAY_E_NO_MEMORY, "peers: %s", dray_errno_text(r));
	}
	if (r < 0) {
		close_passed(deps);
		return r;
	}
	r = segment_listeners_open(p, reterr);
	if (r < 0)
		return r;
	*ret = dray_take(p);
	return 0;
}

struct peers *peers_free(struct peers *p)
{
	if (!p)
		return NULL;
	/* probes use the key */
	dray_assert(!p->n_probes);
	kept_segments_free(p);
	dray_list_for_each(&p->all, peer, struct peer, all_link) {
		if (peer_fsm_is_up(&peer->fsm))
			say_bye(peer);
		requests_free(peer);
		imports_free(peer);
		peer_free(peer);
	}
	dray_list_for_each(&p->closed, closed, struct peer, all_link)
		peer_free(closed);
	late_fences_free(p);
	incoming_close(p);
	segment_listeners_close(p);
	sd_event_source_disable_unref(p->defer);
	tls_free(p->tls);
	dray_handles_deinit(&p->handles);
	dray_handles_deinit(&p->imports);
	dray_map_deinit(&p->by_id);
	sd_event_unref(p->event);
	free(p);
	return NULL;
}

const char *peers_segment(struct peers *p)
{
	return p->segment;
}

void peers_quiet(struct peers *p, dray_handle peer)
{
	grants_peer_gone(p->deps.regions, peer);
}

void peers_drain(struct peers *p, uint32_t deadline_ms)
{
	p->draining = true;
	p->drain_end_ns = peers_now(p) + (int64_t)deadline_ms * DRAY_NS_PER_MS;
	dray_list_for_each(&p->all, peer, struct peer, all_link)
		if (peer_fsm_is_up(&peer->fsm))
			announce_drain(peer);
}

/* The protocol has no message for it: a peer learns it from its next successful import. */
void peers_resume(struct peers *p)
{
	p->draining = false;
}

void peers_stop(struct peers *p, void (*done)(void *arg), void *arg)
{
	p->stopping = true;
	p->stop_done = done;
	p->stop_arg = arg;
	segment_listeners_close(p);
	incoming_close(p);
	peers_wake(p);
}

void peers_each(struct peers *p, void (*fn)(void *arg, const struct dray_dbus_peer *peer),
		void *arg)
{
	int64_t now = peers_now(p);

	dray_list_for_each(&p->all, peer, struct peer, all_link) {
		char id[IDENTITY_TEXT_BYTES];
		struct dray_dbus_peer i = {
			.peer = peer->handle,
			.agent_id = peer->known ? identity_show(peer->agent_id, id) : "",
			.incarnation = peer->known ? peer->incarnation : 0,
			.segment = peer->segment,
			.state = peer_state_name(peer->fsm.state),
			.reason = peer->fsm.why,
			.since_ns = dray_span(now - peer->fsm.since_ns),
			.heartbeat_age_ns = dray_span(now - peer->fsm.heard_ns),
			.initiator = peer->fsm.initiator,
			.grants = grants_count(p->deps.regions, peer->handle),
			.imports = peer->grants.n,
			.streams = peer->link ? atomic_load(&peer->link->streams) : 0,
		};

		fn(arg, &i);
	}
}

const char *peers_segment_of(struct peers *p, dray_handle handle)
{
	const struct peer *peer = peer_get(p, handle);

	return peer ? peer->segment : "";
}

struct peers_totals peers_totals(struct peers *p)
{
	struct peers_totals t = { .lost = p->lost_total, .incoming_refused = p->incoming_refused };

	dray_list_for_each(&p->all, peer, struct peer, all_link) {
		t.peers++;
		t.up += peer_fsm_is_up(&peer->fsm);
		t.states[peer->fsm.state]++;
	}
	dray_list_for_each(&p->listeners, l, struct segment_listener, link)
		t.listeners++;
	return t;
}
