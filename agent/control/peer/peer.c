/* SPDX-License-Identifier: Apache-2.0 */
/* The module as a whole, and the life of one peer on the event loop. */
#include "agent/control/peer/peer.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "agent/state/identity.h"
#include "agent/control/peer/internal.h"
#include "agent/control/peer/segment.h"
#include "lib/assert.h"
#include "lib/log.h"
#include "lib/time.h"
#include "schema/gen/errors.h"

/* After the sockets: what has arrived in time must not be called late. */
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

/* Eight digits tell agents apart in a log; the whole id stands in `drayctl peers`. */
const char *peer_show(const struct peer *peer, char buf[64])
{
	char id[IDENTITY_TEXT_BYTES];

	snprintf(buf, 64, "%.8s", identity_show(peer->agent_id, id));
	return buf;
}

/* --- the machine's effects ---------------------------------------------------------------------- */

static struct peer *peer_of(struct peer_fsm *f)
{
	return dray_container_of(f, struct peer, fsm);
}

static void on_changed(struct peer_fsm *f, enum peer_state old, enum peer_event event)
{
	struct peer *peer = peer_of(f);
	bool news = f->state == PEER_STATE_READY || old == PEER_STATE_READY ||
		    old == PEER_STATE_DRAINING;
	char name[64];

	dray_log(news ? DRAY_LOG_INFO : DRAY_LOG_DEBUG, AREA,
		 "%s -> %s (%s)%s%s agent=%s incarnation=%llu segment=%s", peer_state_name(old),
		 peer_state_name(f->state), peer_event_name(event), *f->why ? ": " : "", f->why,
		 peer_show(peer, name), (unsigned long long)peer->incarnation,
		 *peer->segment ? peer->segment : "none");
	if (news && peer->p->deps.up->changed)
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
	if (r < 0) {
		f->code = (uint32_t)why.code;
		snprintf(f->why, sizeof(f->why), "%s", why.msg);
	}
	return r;
}

static void announce_drain(struct peer *peer)
{
	struct peers *p = peer->p;
	int64_t left_ms = (p->drain_end_ns - peers_now(p)) / DRAY_NS_PER_MS;
	uint8_t buf[PMSG_HEADER_SIZE + PMSG_DRAINING_BODY_MAX];
	struct pmsg_draining m = { .deadline_ms = (uint32_t)dray_max(left_ms, (int64_t)0) };

	peer_send(peer, buf, pmsg_draining_encode(buf, sizeof(buf), 0, &m));
}

static int on_up(struct peer_fsm *f)
{
	struct peer *peer = peer_of(f);
	struct dray_err why = DRAY_ERR_NULL;
	int r;

	peer->conn->message_max = PMSG_MESSAGE_MAX;
	r = link_up(peer, &why);
	if (r < 0) {
		f->code = (uint32_t)why.code;
		snprintf(f->why, sizeof(f->why), "%s", why.msg);
		return r;
	}
	if (peer->p->draining)
		announce_drain(peer);
	peer->p->deps.up->up(peer->p->deps.arg, peer->handle, peer->features);
	imports_ready(peer);
	strangers_retry(peer->p, peer);
	return 0;
}

static void on_drop(struct peer_fsm *f)
{
	struct peer *peer = peer_of(f);

	peer->conn = conn_free(peer->conn);
}

static void say_bye(struct peer *peer)
{
	uint8_t buf[PMSG_HEADER_SIZE + PMSG_BYE_BODY_MAX];
	struct pmsg_bye m = { .code = peer->fsm.code };

	/* ok: we leave in good order, and what the peer has asked for may be asked for again */
	if (m.code == DRAY_E_SESSION_CLOSED)
		m.code = peer->p->draining ? DRAY_OK : DRAY_E_PEER_LOST;
	peer_send(peer, buf, pmsg_bye_encode(buf, sizeof(buf), 0, &m));
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
	table_del(peer);
	fences_clear(peer);
	if (was_up) {
		p->lost_total += f->code != DRAY_OK && f->code != DRAY_E_SESSION_CLOSED;
		/* what it was granted may go when nothing of it can reach that any more */
		if (!p->deps.up->down(p->deps.arg, handle))
			grants_peer_gone(p->deps.regions, handle);
		p->deps.up->lost(p->deps.arg, handle, code, f->why);
		link_down(peer, handle, code);
		requests_end(peer, code);
		hello_rival_gone(p, peer->agent_id);
	}
	imports_end(peer, code, f->why);
	wants_lost(peer, was_up, f->why);
	peers_wake(p);
}

static void on_heartbeat(struct peer_fsm *f)
{
	struct peer *peer = peer_of(f);
	uint8_t buf[PMSG_HEADER_SIZE + PMSG_HEARTBEAT_BODY_MAX];
	int64_t rest = f->rests ? f->cfg->rest_heartbeat_ns : 0;
	struct pmsg_heartbeat m = {
		.sequence = ++peer->heartbeats,
		.rest_ms = (uint32_t)(rest / DRAY_NS_PER_MS),
	};

	peer_send(peer, buf, pmsg_heartbeat_encode(buf, sizeof(buf), 0, &m));
}

static bool on_wanted(struct peer_fsm *f)
{
	const struct peer *peer = peer_of(f);

	return peer->wants || imports_wanted(peer);
}

static bool on_in_use(struct peer_fsm *f)
{
	const struct peer *peer = peer_of(f);

	return peer->wants || peer->grants.n || !dray_list_empty(&peer->imports) ||
	       !dray_list_empty(&peer->requests) ||
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
	.wanted = on_wanted,
	.in_use = on_in_use,
	.busy = on_busy,
};

/* --- one peer ----------------------------------------------------------------------------------- */

static void peer_arm(struct peer *peer)
{
	int64_t at = dray_min(peer->fsm.timer_ns, peer->due_ns);

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

void peer_due(struct peer *peer, int64_t end_ns)
{
	if (end_ns < peer->due_ns) {
		peer->due_ns = end_ns;
		peer_arm(peer);
	}
}

/* Workers tell when a transfer starts while the side rests. One that has, meanwhile, ends the rest. */
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
	struct peer *peer = dray_handles_get(&p->handles, handle);

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
	if (now >= peer->due_ns) {
		requests_expire(peer, now);
		imports_expire(peer, now);
		peer->due_ns = dray_min(requests_next_end(peer), imports_next_end(peer));
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
	dray_handles_del(&peer->p->handles, peer->handle);
	fences_clear(peer);
	conn_free(peer->conn);
	sd_event_source_disable_unref(peer->timer);
	idset_deinit(&peer->grants);
	stream_table_deinit(&peer->streams);
	/* a link that workers have not let go of stays: they may be reading it, and this is the end */
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
	peer->timer_ns = peer->due_ns = INT64_MAX;
	memcpy(peer->agent_id, agent_id, sizeof(peer->agent_id));
	dray_list_init(&peer->all_link);
	dray_list_init(&peer->imports);
	dray_list_init(&peer->requests);
	dray_list_init(&peer->fences);
	peer_fsm_init(&peer->fsm, &fsm_ops, &p->fsm_cfg, initiator, peers_now(p));
	if (dray_handles_add(&p->handles, peer, &peer->handle) < 0)
		return dray_err_set(reterr, -ENOSPC, DRAY_E_QUOTA,
				    "the agent has limits.peers = %lld peers already",
				    (long long)p->cfg->limits.peers);
	if (sd_event_add_time(p->event, &peer->timer, CLOCK_MONOTONIC, 0, (uint64_t)accuracy_us(p),
			      on_timer, peer) < 0 ||
	    sd_event_source_set_enabled(peer->timer, SD_EVENT_OFF) < 0 ||
	    sd_event_source_set_priority(peer->timer, TIMER_PRIORITY) < 0)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a peer");
	table_add(p, peer);
	*ret = dray_take(peer);
	return 0;
}

/* --- the module --------------------------------------------------------------------------------- */

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
	dray_list_init(&p->strangers);
	dray_list_init(&p->late_fences);
	dray_list_init(&p->wants);
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
		if (r >= 0)
			r = strangers_init(p);
		if (r < 0)
			dray_err_set(reterr, r, DRAY_E_NO_MEMORY, "peers: %s", dray_errno_text(r));
	}
	if (r < 0) {
		close_passed(deps);
		return r;
	}
	r = listeners_open(p, reterr);
	if (r < 0)
		return r;
	*ret = dray_take(p);
	return 0;
}

struct peers *peers_free(struct peers *p)
{
	if (!p)
		return NULL;
	/* they use the key */
	dray_assert(!p->n_probes);
	wants_free(p);
	dray_list_for_each(&p->all, peer, struct peer, all_link) {
		if (peer_fsm_is_up(&peer->fsm))
			say_bye(peer);
		requests_free(peer);
		imports_free(peer);
		peer_free(peer);
	}
	dray_list_for_each(&p->closed, closed, struct peer, all_link)
		peer_free(closed);
	dray_list_for_each(&p->late_fences, late, struct late_fence, link)
		free(late);
	strangers_deinit(p);
	listeners_close(p);
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

void peers_links_changed(struct peers *p, const struct nd_links *links)
{
	segment_follow(p, links);
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

/* Peers learn of it by the next import that is not refused: the protocol has no word for it. */
void peers_resume(struct peers *p)
{
	p->draining = false;
}

void peers_stop(struct peers *p, void (*done)(void *arg), void *arg)
{
	p->stopping = true;
	p->stop_done = done;
	p->stop_arg = arg;
	listeners_close(p);
	dray_list_for_each(&p->strangers, s, struct stranger, link)
		stranger_free(s);
	peers_wake(p);
}

/* --- what others may see ------------------------------------------------------------------------ */

void peers_each(struct peers *p, void (*fn)(void *arg, const struct peer_info *info), void *arg)
{
	int64_t now = peers_now(p);

	dray_list_for_each(&p->all, peer, struct peer, all_link) {
		struct peer_info i = {
			.peer = peer->handle,
			.known = peer->known,
			.incarnation = peer->incarnation,
			.segment = peer->segment,
			.state = peer_state_name(peer->fsm.state),
			.reason = peer->fsm.why,
			.since_ns = now - peer->fsm.since_ns,
			.heard_ns = now - peer->fsm.heard_ns,
			.initiator = peer->fsm.initiator,
			.grants = grants_count(p->deps.regions, peer->handle),
			.imports = peer->grants.n,
			.streams = peer->link ? atomic_load(&peer->link->streams) : 0,
		};

		memcpy(i.agent_id, peer->agent_id, sizeof(i.agent_id));
		fn(arg, &i);
	}
}

const char *peers_segment_of(struct peers *p, dray_handle handle)
{
	const struct peer *peer = table_get(p, handle);

	return peer ? peer->segment : "";
}

uint32_t peers_count(struct peers *p, uint32_t *ret_ready)
{
	uint32_t n = 0, ready = 0;

	dray_list_for_each(&p->all, peer, struct peer, all_link) {
		n++;
		ready += peer_fsm_is_up(&peer->fsm);
	}
	*ret_ready = ready;
	return n;
}

void peers_states(struct peers *p, uint32_t *counts)
{
	dray_list_for_each(&p->all, peer, struct peer, all_link)
		counts[peer->fsm.state]++;
}

unsigned peers_listeners(struct peers *p)
{
	unsigned n = 0;

	dray_list_for_each(&p->listeners, l, struct listener, link)
		n++;
	return n;
}

uint64_t peers_lost_total(struct peers *p)
{
	return p->lost_total;
}

uint64_t peers_strangers_refused(struct peers *p)
{
	return p->strangers_refused;
}
