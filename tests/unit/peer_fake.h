/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fakes of the modules that the peer module calls: workers and regions. Their functions are defined
 * in this header, so that a program that includes it links the fakes instead of the real ones. Each
 * agent is a struct rig, which counts what happened to it.
 */
#pragma once

#include <errno.h>
#include <openssl/crypto.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/control/mailbox/mailbox.h"
#include "agent/control/peer/internal.h"
#include "agent/model/ranges.h"
#include "lib/assert.h"
#include "lib/log.h"
#include "lib/time.h"
#include "schema/gen/errors.h"

#define MS 1000000LL
#define RIG_MAX 16
/* The one grant of a store. */
#define RIG_STORED 4242
#define TOKEN_GOOD 7 /* token ids that the fake regions know */
#define TOKEN_OTHER 8

struct rig_worker {
	struct rig *rig;
};

struct rig_down {
	void (*done)(void *arg);
	void *arg;
};

/* One agent. */
struct rig {
	struct worker_pool pool;
	struct rig_worker workers[2];
	sd_event *event;
	struct dray_config cfg;
	struct peers_deps deps;
	struct peers *peers;
	struct sessions *sessions; /* points to the rig, for upcalls */
	struct rails *rails;       /* likewise */
	struct exchange *exchange; /* likewise */
	uint8_t agent_id[16];
	uint64_t incarnation;
	sd_event_source *downs_event;
	bool hold_downs; /* workers keep their links after a drop */
	struct rig_down downs[64];
	unsigned n_downs;

	/* counts of what happened */
	unsigned ups, downs_done, lost, changed, draining, gone, fences_seen, notified, released,
		fenced;
	struct peer_link *link; /* of the last peer that came up */
	dray_handle lost_peer, fenced_peer;
	uint32_t lost_code, notify_answer;
	char lost_why[DRAY_ERR_MSG_MAX];
	unsigned rdma_ups, rails_down, ports_said, n_ports, keys_said, n_keys, keys_to_give,
		qp_connects, qp_closes, exposed;
	/* memory that is lent for checks, only if a test sets owners; export always fails */
	struct region_spec lent;
	void (*lent_removed)(void *arg);
	void *lent_arg;
	unsigned lent_removals; /* requests */
	bool rails_serve; /* queue pairs serve the peer, so its end waits for grants_peer_gone() */
	unsigned rekeys;
	uint64_t keys_grant, qp_request, qp_closed, rekey_request;
	dray_handle qp_peer, rekey_peer;
	struct pmsg_qp_connect qp_asked;
	uint64_t window, window_length, stage_request;
	unsigned lookups, watches, summaries, store_releases, store_gone, store_fenced,
		store_fences;
	dray_handle store_fence_peer;
	bool store_used;
	dray_handle lookup_peer;
	uint64_t lookup_request, store_released;
	unsigned n_window_rails, n_stage_segs, stages;
	dray_handle stage_peer;
	struct pmsg_stage stage_asked; /* without its segments */
	uint64_t fence_grant, released_grant, fenced_grant, next_grant, grants_held;
	uint64_t notify_tag;
	char notify_payload[64];
	unsigned letters;
	uint32_t letter_uid, letter_answer; /* answer: an error code */
	uint8_t letter_agent[16];
	char letter_name[64], letter_payload[64];
	bool answer_fences;
	enum pmsg_release_how released_how;
	const struct ranges *ranges; /* of the leases that it grants */
	unsigned leases_acquired;
	uint64_t unasked_grant; /* answers the next request; 0: none */
	struct command commands[RIG_MAX];
	unsigned n_commands, command_worker[RIG_MAX];
};

struct regions {
	struct rig rig; /* the modules need only a pointer to it */
};

static inline struct rig *rig_of(struct regions *r)
{
	return (struct rig *)r;
}

/* --- fakes ---------------------------------------------------------------------------------------- */

int token_parse(const uint8_t *p, size_t n, struct pmsg_token *ret, char *ret_segment,
		struct dray_err *reterr)
{
	return dray_err_set(reterr, -EINVAL, DRAY_E_TOKEN_INVALID, "no token is exported");
}

int region_add(struct regions *r, const struct region_spec *spec, struct region_added *ret,
	       struct dray_err *reterr)
{
	rig_of(r)->lent = *spec;
	*ret = (struct region_added){ .region = 1 };
	return 0;
}

int region_export(struct regions *r, const struct region_owner *owner,
		  const struct dmsg_region_export *m, const char *segment, uint64_t *ret_token_id,
		  uint8_t *ret_token, uint32_t *ret_token_length, struct dray_err *reterr)
{
	return dray_err_set(reterr, -ESHUTDOWN, DRAY_E_DRAINING, "the agent drains");
}

/* The test calls what it is given, once. */
int region_remove(struct regions *r, dray_handle region, dray_handle session, bool urgent,
		  void (*done)(void *arg), void *arg)
{
	struct rig *rig = rig_of(r);

	rig->lent_removals++;
	if (rig->lent_removed)
		return -ENOENT;
	rig->lent_removed = done;
	rig->lent_arg = arg;
	return 0;
}

int grant_import(struct regions *r, dray_handle peer, const uint8_t peer_agent_id[16],
		 const struct pmsg_import *m, struct pmsg_import_reply *ret,
		 struct dray_err *reterr)
{
	struct rig *rig = rig_of(r);

	if (m->incarnation != rig->incarnation)
		return dray_err_set(reterr, -ESTALE, DRAY_E_INCARNATION, "not of this incarnation");
	if (m->token_id != TOKEN_GOOD && m->token_id != TOKEN_OTHER)
		return dray_err_set(reterr, -ENOENT, DRAY_E_TOKEN_INVALID, "no such token");
	ret->grant = ++rig->next_grant;
	ret->length = 4096;
	ret->access = DMSG_ACCESS_READ;
	rig->grants_held++;
	return 0;
}

int lease_acquire(struct regions *r, dray_handle peer, const uint8_t peer_agent_id[16],
		  const struct pmsg_lease_key *key, bool unasked, struct pmsg_lease_granted *ret,
		  const struct ranges **ret_ranges, struct dray_err *reterr)
{
	struct rig *rig = rig_of(r);

	if (!unasked && rig->unasked_grant) {
		ret->grant = rig->unasked_grant;
		rig->unasked_grant = 0;
		return 1;
	}
	if (key->token_id != TOKEN_GOOD)
		return dray_err_set(reterr, -ENOENT, DRAY_E_TOKEN_INVALID, "no such token");
	rig->leases_acquired++;
	ret->grant = ++rig->next_grant;
	ret->token_id = key->token_id;
	ret->length = 1 << 20;
	ret->access = DMSG_ACCESS_READ;
	ret->ranges = rig->ranges->n;
	ret->expiry_ms = 5000;
	memcpy(ret->capability, key->capability, sizeof(ret->capability));
	*ret_ranges = rig->ranges;
	rig->grants_held++;
	return 0;
}

int lease_renew(struct regions *r, dray_handle peer, dray_handle grant, uint32_t ms,
		uint32_t *ret_ms)
{
	*ret_ms = ms + 1;
	return grant && grant <= rig_of(r)->next_grant ? 0 : -ENOENT;
}

void grant_release(struct regions *r, dray_handle peer, dray_handle grant,
		   enum pmsg_release_how how)
{
	rig_of(r)->released_how = how;

	rig_of(r)->released++;
	rig_of(r)->released_grant = grant;
	if (rig_of(r)->grants_held)
		rig_of(r)->grants_held--;
}

void grant_fenced(struct regions *r, dray_handle peer, dray_handle grant)
{
	rig_of(r)->fenced++;
	rig_of(r)->fenced_grant = grant;
}

void grants_peer_gone(struct regions *r, dray_handle peer)
{
	rig_of(r)->gone++;
	rig_of(r)->grants_held = 0;
}

void grant_expose(struct regions *r, dray_handle peer, dray_handle grant)
{
	(void)peer;
	(void)grant;
	rig_of(r)->exposed++;
}

dray_handle grant_region(struct regions *r, dray_handle peer, dray_handle grant)
{
	return grant && grant <= rig_of(r)->next_grant ? 99 : 0;
}

uint32_t grants_count(struct regions *r, dray_handle peer)
{
	return (uint32_t)rig_of(r)->grants_held;
}

int mailbox_deliver(struct mailboxes *m, const struct mailbox_sender *from, struct dray_str name,
		    struct dray_blob payload, struct dray_err *reterr)
{
	struct rig *rig = (struct rig *)m;

	rig->letters++;
	rig->letter_uid = from->uid;
	memcpy(rig->letter_agent, from->agent_id, sizeof(rig->letter_agent));
	snprintf(rig->letter_name, sizeof(rig->letter_name), "%.*s", (int)name.n, name.p);
	snprintf(rig->letter_payload, sizeof(rig->letter_payload), "%.*s", (int)payload.n,
		 (const char *)payload.p);
	return rig->letter_answer ? dray_err_set(reterr, -ENOENT, (int)rig->letter_answer,
						 "refused by the test") :
				    0;
}

static struct rig *rig_of_pool(struct worker_pool *p)
{
	return dray_container_of(p, struct rig, pool);
}

void pool_peer_up(struct worker_pool *p, struct peer_link *link)
{
	rig_of_pool(p)->ups++;
	rig_of_pool(p)->link = link;
}

static int rig_run_downs(sd_event_source *s, void *userdata)
{
	struct rig *rig = userdata;
	unsigned n = rig->n_downs;

	if (rig->hold_downs)
		return 0;
	rig->n_downs = 0;
	for (unsigned i = 0; i < n; i++) {
		rig->downs_done++;
		rig->downs[i].done(rig->downs[i].arg);
	}
	return 0;
}

void pool_peer_down(struct worker_pool *p, dray_handle peer, uint32_t code, void (*done)(void *arg),
		    void *arg)
{
	struct rig *rig = rig_of_pool(p);

	dray_assert(rig->n_downs < DRAY_ARRAY_SIZE(rig->downs));
	rig->downs[rig->n_downs++] = (struct rig_down){ done, arg };
	rig->link = NULL;
	sd_event_source_set_enabled(rig->downs_event, SD_EVENT_ONESHOT);
}

unsigned pool_pick(struct worker_pool *p)
{
	return p->next++ % p->n;
}

void worker_post(struct worker *w, const struct command *cmd)
{
	struct rig_worker *worker = (struct rig_worker *)w;
	struct rig *rig = worker->rig;

	if (rig->n_commands == RIG_MAX) {
		if (cmd->type == COMMAND_STREAM_ADOPT)
			close(cmd->fd);
		return;
	}
	rig->command_worker[rig->n_commands] = (unsigned)(worker - rig->workers);
	rig->commands[rig->n_commands++] = *cmd;
}

/* --- upcalls to the modules above ----------------------------------------------------------------- */

static void rig_fenced(struct sessions *sessions, dray_handle peer, uint64_t grant, uint32_t code)
{
	struct rig *rig = (struct rig *)sessions;

	rig->fences_seen++;
	rig->fence_grant = grant;
	rig->fenced_peer = peer;
	if (rig->answer_fences)
		peers_fence_ack(rig->peers, peer, grant);
}

static void rig_lost(struct sessions *sessions, dray_handle peer, uint32_t code, const char *why)
{
	struct rig *rig = (struct rig *)sessions;

	rig->lost++;
	rig->lost_peer = peer;
	rig->lost_code = code;
	snprintf(rig->lost_why, sizeof(rig->lost_why), "%s", why);
}

static uint32_t rig_notification(struct sessions *sessions, const struct dmsg_notification *m)
{
	struct rig *rig = (struct rig *)sessions;

	rig->notified++;
	rig->notify_tag = m->tag;
	snprintf(rig->notify_payload, sizeof(rig->notify_payload), "%.*s", (int)m->payload.n,
		 (const char *)m->payload.p);
	return rig->notify_answer;
}

static void rig_changed(void *arg, dray_handle peer, const char *segment, const char *before,
			const char *after, const char *why)
{
	struct rig *rig = arg;

	rig->changed++;
}

static void rig_draining(struct sessions *sessions, dray_handle peer)
{
	struct rig *rig = (struct rig *)sessions;

	(void)peer;
	rig->draining++;
}

/* Rails: records the peer's messages; the test answers connect requests. */
static void rig_up(struct rails *rails, dray_handle peer, uint64_t features)
{
	struct rig *r = (struct rig *)rails;

	(void)peer;
	r->rdma_ups += (features & PMSG_FEATURE_RDMA) != 0;
}

static bool rig_down_rails(struct rails *rails, dray_handle peer)
{
	struct rig *r = (struct rig *)rails;

	r->rails_down++;
	(void)peer;
	return r->rails_serve;
}

static bool rig_quiet(struct rails *rails, dray_handle peer)
{
	struct rig *r = (struct rig *)rails;

	(void)peer;
	return !r->rails_serve;
}

static void rig_ports(struct rails *rails, dray_handle peer, const struct dray_vec *ports)
{
	struct rig *r = (struct rig *)rails;

	(void)peer;
	r->ports_said++;
	r->n_ports = ports->n;
}

static void rig_keys(struct sessions *sessions, dray_handle peer, uint64_t grant,
		     const struct dray_vec *rails)
{
	struct rig *r = (struct rig *)sessions;

	(void)peer;
	r->keys_said++;
	r->keys_grant = grant;
	r->n_keys = rails->n;
}

static void rig_rekey(struct sessions *sessions, dray_handle peer, uint64_t grant,
		      uint64_t request_id)
{
	struct rig *r = (struct rig *)sessions;

	r->rekeys++;
	r->rekey_peer = peer;
	r->keys_grant = grant;
	r->rekey_request = request_id;
}

static unsigned rig_grant_keys(struct rails *rails, dray_handle peer, dray_handle grant,
			       uint8_t *buf, unsigned max)
{
	const struct rig *r = (const struct rig *)rails;

	(void)peer;
	(void)grant;
	for (unsigned i = 0; i < r->keys_to_give && i < max; i++)
		pmsg_rail_put(buf + (size_t)i * PMSG_RAIL_SIZE,
			      &(struct pmsg_rail){ .rail = i, .rkey = 7, .length = 4096 });
	return r->keys_to_give;
}

static void rig_qp_connect(struct rails *rails, dray_handle peer, uint64_t request_id,
			   const struct pmsg_qp_connect *m)
{
	struct rig *r = (struct rig *)rails;

	r->qp_peer = peer;
	r->qp_request = request_id;
	r->qp_asked = *m;
	r->qp_connects++;
}

static void rig_qp_close(struct rails *rails, dray_handle peer, uint64_t request_id, uint64_t qp)
{
	struct rig *r = (struct rig *)rails;

	r->qp_peer = peer;
	r->qp_request = request_id;
	r->qp_closed = qp;
	r->qp_closes++;
}

static void rig_window(struct rails *rails, dray_handle peer, const struct pmsg_window *m)
{
	struct rig *r = (struct rig *)rails;

	(void)peer;
	r->window = m->window;
	r->window_length = m->length;
	r->n_window_rails = m->rails.n;
}

static void rig_stage(struct rails *rails, dray_handle peer, uint64_t request_id,
		      const struct pmsg_stage *m)
{
	struct rig *r = (struct rig *)rails;

	r->stage_peer = peer;
	r->stage_request = request_id;
	r->stage_asked = *m;
	r->n_stage_segs = m->segs.n;
	r->stages++;
}

static void rig_store_lookup(struct exchange *x, dray_handle peer, uint64_t request_id,
			     const struct pmsg_store_lookup *m)
{
	struct rig *r = (struct rig *)x;

	(void)m;
	r->lookups++;
	r->lookup_peer = peer;
	r->lookup_request = request_id;
}

static void rig_store_watch(struct exchange *x, dray_handle peer, uint64_t request_id)
{
	struct rig *r = (struct rig *)x;

	(void)request_id;
	r->watches++;
	r->lookup_peer = peer;
}

static void rig_store_summary(struct exchange *x, dray_handle peer, uint64_t request_id,
			      const struct pmsg_store_summary *m)
{
	struct rig *r = (struct rig *)x;

	(void)m;
	(void)request_id;
	r->summaries++;
	r->lookup_peer = peer;
}

static void rig_store_release(struct exchange *x, dray_handle peer, uint64_t grant)
{
	struct rig *r = (struct rig *)x;

	(void)peer;
	r->store_releases++;
	r->store_released = grant;
}

static bool rig_store_in_use(struct exchange *x, dray_handle peer)
{
	(void)peer;
	return ((struct rig *)x)->store_used;
}

static void rig_store_gone(struct exchange *x, dray_handle peer, bool quiet)
{
	struct rig *r = (struct rig *)x;

	(void)peer;
	(void)quiet;
	r->store_gone++;
}

static bool rig_store_fenced(struct exchange *x, dray_handle peer, dray_handle grant)
{
	struct rig *r = (struct rig *)x;

	(void)peer;
	r->store_fenced += grant == RIG_STORED;
	return grant == RIG_STORED;
}

static bool rig_store_has(struct exchange *x, dray_handle peer, uint64_t grant)
{
	(void)x;
	(void)peer;
	return grant == RIG_STORED;
}

static void rig_store_fence(struct exchange *x, dray_handle peer, uint64_t grant)
{
	struct rig *r = (struct rig *)x;

	(void)grant;
	r->store_fences++;
	r->store_fence_peer = peer;
}

static const struct peers_upcalls rig_upcalls = {
	.fenced = rig_fenced,
	.lost = rig_lost,
	.draining = rig_draining,
	.notification = rig_notification,
	.changed = rig_changed,
	.up = rig_up,
	.down = rig_down_rails,
	.quiet = rig_quiet,
	.ports = rig_ports,
	.keys = rig_keys,
	.rekey = rig_rekey,
	.grant_keys = rig_grant_keys,
	.qp_connect = rig_qp_connect,
	.qp_close = rig_qp_close,
	.window = rig_window,
	.stage = rig_stage,
	.store_lookup = rig_store_lookup,
	.store_watch = rig_store_watch,
	.store_summary = rig_store_summary,
	.store_release = rig_store_release,
	.store_in_use = rig_store_in_use,
	.store_gone = rig_store_gone,
	.store_fenced = rig_store_fenced,
	.store_has = rig_store_has,
	.store_fence = rig_store_fence,
};

/* --- making agents -------------------------------------------------------------------------------- */

static char rig_empty[] = "", rig_identity[] = "dray";
static char rig_loopback[] = "127.0.0.1:0";
static char *rig_listen[] = { rig_loopback };

static void rig_config(struct dray_config *c)
{
	memset(c, 0, sizeof(*c));
	c->peer.listen = (struct dray_strv){ rig_listen, 1 };
	c->peer.advertise = rig_empty;
	c->peer.key_file = rig_empty;
	c->peer.accept_key_file = rig_empty;
	c->peer.key_identity = rig_identity;
	c->peer.heartbeat = 50 * MS;
	c->peer.heartbeat_limit = 10000 * MS;
	c->peer.connect_timeout = 10000 * MS;
	c->peer.backoff_min = 5 * MS;
	c->peer.backoff_max = 40 * MS;
	c->peer.idle_timeout = 60000 * MS;
	c->peer.fence_timeout = 10000 * MS;
	c->transfer.slice_timeout = 10000 * MS;
	c->store.peer_timeout = 10000 * MS;
	c->limits.peers = 32;
	c->limits.unproved_segments_per_owner = 100;
	c->limits.log_lines_per_peer = 100;
	c->limits.strangers = 8;
	c->limits.grants_per_peer = 100;
	c->limits.lease_ranges_per_session = 1 << 20;
}

/* Makes an agent without starting it. n: its id; a higher n is a higher id. */
static struct rig *rig_new(sd_event *event, uint8_t n, uint64_t incarnation)
{
	/* struct regions comes first in memory */
	struct rig *rig = calloc(1, sizeof(struct regions));

	dray_assert(rig);
	signal(SIGPIPE, SIG_IGN); /* as agent_watch_signals() */
	rig->event = event;
	rig->sessions = (struct sessions *)rig;
	rig->rails = (struct rails *)rig;
	rig->exchange = (struct exchange *)rig;
	rig->incarnation = incarnation;
	/* one bucket for all keys, so that collisions always occur */
	rig->agent_id[15] = n;
	rig->answer_fences = true;
	rig->pool.n = 2;
	for (unsigned i = 0; i < 2; i++) {
		rig->workers[i].rig = rig;
		rig->pool.workers[i] = (struct worker *)&rig->workers[i];
	}
	rig_config(&rig->cfg);
	dray_assert(sd_event_add_defer(event, &rig->downs_event, rig_run_downs, rig) >= 0);
	sd_event_source_set_enabled(rig->downs_event, SD_EVENT_OFF);
	rig->deps = (struct peers_deps){
		.event = event,
		.cfg = &rig->cfg,
		.pool = &rig->pool,
		.regions = (struct regions *)rig,
		.mailboxes = (struct mailboxes *)rig,
		.agent_id = rig->agent_id,
		.incarnation = incarnation,
		.up = &rig_upcalls,
		.sessions = &rig->sessions,
		.rails = &rig->rails,
		.exchange = &rig->exchange,
		.arg = rig,
	};
	return rig;
}

static inline int rig_try_start(struct rig *rig, struct dray_err *err)
{
	return peers_new(&rig->peers, &rig->deps, err);
}

/* Ends an agent as if its process had died: sockets close without BYE. */
static inline struct rig *rig_kill(struct rig *rig)
{
	if (!rig)
		return NULL;
	if (rig->peers) {
		dray_list_for_each(&rig->peers->all, peer, struct peer, all_link) {
			if (peer->conn)
				peer->conn->phase = CONN_FAILED;
			free(peer->link);
		}
		dray_list_for_each(&rig->peers->closed, closed, struct peer, all_link)
			free(closed->link);
		rig->peers = peers_free(rig->peers);
	}
	for (unsigned i = 0; i < rig->n_commands; i++)
		if (rig->commands[i].type == COMMAND_STREAM_ADOPT)
			dray_close(rig->commands[i].fd);
	sd_event_source_disable_unref(rig->downs_event);
	free(rig);
	return NULL;
}
