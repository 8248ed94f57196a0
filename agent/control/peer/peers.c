/* SPDX-License-Identifier: Apache-2.0 */
/* The module as a whole: start, drain, stop, lists for operators. */
#include "agent/control/peer/peer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <openssl/crypto.h>

#include "agent/control/peer/internal.h"
#include "agent/state/identity.h"
#include "lib/assert.h"
#include "lib/log.h"
#include "lib/time.h"

void peers_wake(struct peers *p)
{
	sd_event_source_set_enabled(p->defer, SD_EVENT_ONESHOT);
}

bool peers_beyond_loopback(const struct peers *p)
{
	return *p->cfg->peer.key_file || p->cfg->peer.allow_insecure;
}

int peers_check_key(const struct peers *p, const struct dray_addr *addr, bool listen,
		    struct dray_err *reterr)
{
	char text[DRAY_ADDR_TEXT_MAX];

	if (peers_beyond_loopback(p) || dray_addr_is_loopback(addr))
		return 0;
	return dray_err_set(
		reterr, -EPERM, listen ? DRAY_E_DENIED : DRAY_E_PEER_DENIED,
		"%s%s is beyond loopback, where any program could pose as an agent without a key: set peer.key_file, or peer.allow_insecure to accept that",
		listen ? "peer.listen: " : "", dray_addr_show(addr, text, sizeof(text)));
}

static void stop_run(struct peers *p)
{
	void (*done)(void *arg) = p->stop_done;

	if (!p->stopping)
		return;
	while (!dray_list_empty(&p->all))
		peer_event_why(dray_list_first(&p->all, struct peer, all_link), PEER_EVENT_CLOSE,
			       dray_err_of(DRAY_E_SESSION_CLOSED, "this agent stops"));
	/* those that were closed just now are freed in the next turn */
	if (!dray_list_empty(&p->closed) || !dray_list_empty(&p->released) || !done)
		return;
	p->stop_done = NULL;
	done(p->stop_arg);
}

static void free_released(struct peers *p)
{
	struct peer *peer;

	while ((peer = dray_list_first(&p->released, struct peer, all_link)))
		peer_free(peer);
}

static int on_defer(sd_event_source *s, void *userdata)
{
	struct peers *p = userdata;

	free_released(p);
	acquires_send(p);
	stop_run(p);
	return 0;
}

static int key_read(const char *setting, const char *path, struct tls_keys *keys,
		    struct dray_err *reterr)
{
	struct tls_key *k = &keys->k[keys->n];
	int r = tls_key_load(setting, path, k, reterr);

	if (r < 0)
		return r;
	if (k->readers)
		log_warning(
			"peer",
			"%s %s can be read by group %u too; run: chmod 400 %s, unless it is the fsGroup of a pod",
			setting, path, k->readers, path);
	keys->n++;
	return 0;
}

int peers_read_keys(const struct dray_config *cfg, struct tls_keys *ret, struct dray_err *reterr)
{
	const char *offered = cfg->peer.key_file, *accepted = cfg->peer.accept_key_file;
	struct dray_err why = DRAY_ERR_NULL;
	int r;

	ret->n = 0;
	if (!*offered)
		return 0;
	r = key_read("peer.key_file", offered, ret, reterr);
	if (r < 0 || !*accepted)
		return r;
	r = key_read("peer.accept_key_file", accepted, ret, &why);
	if (r < 0 && why.code != DRAY_E_NOT_FOUND)
		return dray_err_set(reterr, r, why.code, "%s", why.msg);
	return 0;
}

static const char *keys_show(const struct tls_keys *keys, char text[PEERS_KEYS_BYTES])
{
	int n = 0;

	*text = '\0';
	for (unsigned i = 0; i < keys->n; i++)
		n += snprintf(text + n, PEERS_KEYS_BYTES - (size_t)n, "%s%s", i ? " " : "",
			      keys->k[i].id);
	return text;
}

const char *peers_keys(const struct peers *p, char text[PEERS_KEYS_BYTES])
{
	return keys_show(&p->tls->keys, text);
}

bool peers_use_keys(struct peers *p, const struct tls_keys *keys)
{
	char before[PEERS_KEYS_BYTES], after[PEERS_KEYS_BYTES];

	if (!keys->n || !strcmp(peers_keys(p, before), keys_show(keys, after)))
		return false;
	tls_set_keys(p->tls, keys);
	log_notice(AREA, "keys %s -> %s; connections stay", before, after);
	return true;
}

static int tls_setup(struct peers *p, struct dray_err *reterr)
{
	struct tls_keys keys;
	int r = peers_read_keys(p->cfg, &keys, reterr);

	if (r >= 0)
		r = tls_new(&p->tls, keys.n ? &keys : NULL, p->cfg->peer.key_identity, reterr);
	OPENSSL_cleanse(&keys, sizeof(keys));
	return r;
}

static void close_passed(const struct peers_deps *deps)
{
	for (unsigned i = 0; i < deps->n_listen_fds; i++)
		dray_close(deps->listen_fds[i]);
}

DRAY_DEFINE_CLEANUP(struct peers *, peers_free);

int peers_new(struct peers **ret, const struct peers_deps *deps, struct dray_err *reterr)
{
	dray_auto(peers_free) struct peers *p = calloc(1, sizeof(*p));
	int r;

	if (!p) {
		close_passed(deps);
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for peers");
	}
	p->deps = *deps;
	p->cfg = deps->cfg;
	dray_map_init(&p->by_id);
	dray_list_init(&p->all);
	dray_list_init(&p->closed);
	dray_list_init(&p->released);
	dray_list_init(&p->acquirers);
	dray_list_init(&p->attempts);
	dray_map_init(&p->by_segment);
	dray_map_init(&p->kept_by_segment);
	dray_map_init(&p->by_reached);
	dray_list_init(&p->listeners.list);
	dray_list_init(&p->incoming);
	dray_list_init(&p->denied);
	dray_list_init(&p->lent);
	dray_list_init(&p->kept_segments);
	reaches_init(&p->reaches);
	dray_handles_init(&p->handles, (uint32_t)p->cfg->limits.peers, DMSG_HANDLE_KIND_PEER);
	dray_handles_init(&p->imports, DRAY_HANDLES_MAX, 0);
	r = sd_event_add_defer(deps->event, &p->defer, on_defer, p);
	if (r >= 0)
		r = sd_event_source_set_enabled(p->defer, SD_EVENT_OFF);
	if (r >= 0)
		r = peers_start_timers(p);
	if (r < 0)
		return dray_err_set(reterr, r, DRAY_E_NO_MEMORY, "peers: %s", dray_errno_text(r));
	r = tls_setup(p, reterr);
	if (r == 0)
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
	/* frees the checks that are being answered */
	incoming_close(p);
	lent_clear(p);
	/* probes use the key */
	dray_assert(!p->n_probes);
	kept_segments_free(p);
	dray_list_for_each(&p->all, peer, struct peer, all_link) {
		if (peer_fsm_is_up(&peer->fsm))
			peer_say_bye(peer);
		requests_free(peer);
		imports_free(peer);
		posts_free(peer);
		peer_free(peer);
	}
	dray_list_for_each(&p->closed, closed, struct peer, all_link)
		peer_free(closed);
	free_released(p);
	denied_free(p);
	tcp_listeners_close(&p->listeners);
	close_passed(&p->deps);
	sd_event_source_disable_unref(p->defer);
	timers_deinit(&p->timers);
	tls_free(p->tls);
	dray_handles_deinit(&p->handles);
	dray_handles_deinit(&p->imports);
	dray_map_deinit(&p->by_id);
	dray_map_deinit(&p->by_segment);
	dray_map_deinit(&p->kept_by_segment);
	dray_map_deinit(&p->by_reached);
	reaches_deinit(&p->reaches);
	free(p);
	return NULL;
}

const char *peers_segment(struct peers *p)
{
	return p->segment;
}

void peers_handle_used(struct peers *p, dray_handle handle)
{
	struct peer *peer = peer_get(p, handle);

	if (peer)
		peer_use(peer);
}

void peers_drain(struct peers *p, uint32_t deadline_ms)
{
	p->draining = true;
	lent_end(p);
	p->drain_end_ns = peers_now(p) + (int64_t)deadline_ms * DRAY_NS_PER_MS;
	dray_list_for_each(&p->all, peer, struct peer, all_link)
		if (peer_fsm_is_up(&peer->fsm))
			peer_announce_drain(peer);
}

void peers_resume(struct peers *p)
{
	p->draining = false;
	dray_list_for_each(&p->all, peer, struct peer, all_link)
		if (peer_fsm_is_up(&peer->fsm) && peer->features & PMSG_FEATURE_RESUMED)
			peer_send(peer, PMSG_RESUMED, 0, NULL);
}

void peers_stop(struct peers *p, void (*done)(void *arg), void *arg)
{
	p->stopping = true;
	p->stop_done = done;
	p->stop_arg = arg;
	tcp_listeners_close(&p->listeners);
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
			.reason = peer->fsm.why.msg,
			.since_ns = dray_span(now - peer->fsm.since_ns),
			.heartbeat_age_ns = dray_span(now - peer->fsm.heard_ns),
			.initiator = peer->fsm.initiator,
			.grants = grants_count(p->deps.regions, peer->handle),
			.imports = peer->grants.n,
			.streams = peer->link ? atomic_load(&peer->link->streams) : 0,
			.key = peer->known && peer->conn ? peer->conn->tls.key_id : "",
			.sent_bytes = peer->link ? atomic_load(&peer->link->bytes_sent) : 0,
			.received_bytes = peer->link ? atomic_load(&peer->link->bytes_received) : 0,
		};

		fn(arg, &i);
	}
	denied_each(p, fn, arg);
}

static bool is_listed(const struct peer_traffic *t, unsigned n, const char *segment)
{
	for (unsigned i = 0; i < n; i++)
		if (!strcmp(t[i].segment, segment))
			return true;
	return false;
}

unsigned peers_traffic(struct peers *p, struct peer_traffic *ret, unsigned max)
{
	unsigned n = 0;

	dray_list_for_each(&p->all, peer, struct peer, all_link) {
		const struct peer_link *link = peer->link;

		if (n == max || !link || !*peer->segment || is_listed(ret, n, peer->segment))
			continue;
		ret[n++] = (struct peer_traffic){
			.peer = peer->handle,
			.segment = peer->segment,
			.tcp_sent = atomic_load(&link->bytes_sent),
			.tcp_received = atomic_load(&link->bytes_received),
			.moving_ns = atomic_load(&link->moving_ns),
		};
	}
	return n;
}

const char *peers_segment_of(struct peers *p, dray_handle handle)
{
	const struct peer *peer = peer_get(p, handle);

	return peer ? peer->segment : "";
}

struct peers_log peers_log_about(struct peers *p, const char *what, const char *name)
{
	struct peers_log l = { .burst = (uint32_t)p->cfg->limits.log_lines_per_peer };

	snprintf(l.about, sizeof(l.about), "about %s%s", what, name);
	l.limit = dray_log_limit_of(&p->log, l.about);
	return l;
}

struct peers_log peers_log_of_agent(struct peers *p, const uint8_t agent_id[16])
{
	char id[IDENTITY_TEXT_BYTES];

	identity_show(agent_id, id);
	id[8] = '\0';
	return peers_log_about(p, "agent=", id);
}

const uint8_t *peers_agent_id(struct peers *p, dray_handle handle)
{
	static const uint8_t unknown[16];
	const struct peer *peer = peer_get(p, handle);

	return peer ? peer->agent_id : unknown;
}

int peers_may_reach(struct peers *p, const struct peer_client *client, const char *segment,
		    struct dray_err *reterr)
{
	uint32_t max = (uint32_t)p->cfg->limits.unproved_segments_per_owner;

	switch (reach_take(&p->reaches, client, segment, max, peers_now(p))) {
	case REACH_OK:
		return 0;
	case REACH_NO_MEMORY:
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY,
				    "no memory to connect to another agent");
	case REACH_FULL:
		break;
	}
	return dray_err_set(
		reterr, -EBUSY, DRAY_E_BUSY,
		"in the last minute clients of %s named %u segments where no agent has proved the key, "
		"as many as limits.unproved_segments_per_owner allows; try again in a minute",
		client->name, max);
}

struct dray_err peer_unreached(struct peer *peer, const char *what,
			       const struct peer_client *client, uint32_t code)
{
	const char *why = *peer->fsm.why.msg ? peer->fsm.why.msg : dray_error_doc(code);
	struct peers_log log;

	if (peer->proved || peer->known || peer->p->stopping)
		return dray_err_of((int)code, "the %s at %s: %s", what, peer->segment, why);
	log = peers_log_about(peer->p, "segments for ", client->name);
	log_within(log.limit, log.burst, log.about, DRAY_LOG_INFO, AREA,
		   "the %s at %s cannot be reached: %s %s", what, peer->segment, why, client->name);
	return dray_err_of(
		DRAY_E_PEER_UNREACHABLE,
		"the %s at %s cannot be reached, or has not proved the key of this agent, "
		"whose log has the reason",
		what, peer->segment);
}

struct peers_totals peers_totals(struct peers *p)
{
	struct peers_totals t = p->totals;

	dray_list_for_each(&p->all, peer, struct peer, all_link) {
		t.peers++;
		t.states[peer->fsm.state]++;
	}
	dray_list_for_each(&p->listeners.list, l, struct tcp_listener, link)
		t.listeners++;
	return t;
}
