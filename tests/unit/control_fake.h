/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fake agent for the control socket: it defines the functions that agent/control/ calls in the
 * modules below it. For one source file of a test or fuzzer, which runs its event loop.
 */
#pragma once

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-event.h>

#include "agent/control/bus/bus.h"
#include "agent/control/gpu/gpus.h"
#include "agent/control/mooncake/client.h"
#include "agent/control/mooncake/mooncake.h"
#include "agent/control/peer/check.h"
#include "agent/control/status/health.h"
#include "agent/control/status/gather.h"
#include "agent/control/status/ready.h"
#include "agent/control/placement.h"
#include "agent/control/rails/rails.h"
#include "agent/placement/segment/object.h"
#include "lib/assert.h"
#include "lib/cleanup.h"
#include "lib/log.h"
#include "schema/gen/dbus.h"
#include "schema/gen/errors.h"
#include "lib/time.h"

#define FAKE_PATH_BYTES 80
#define FAKE_WORKERS 2

static struct {
	struct agent agent;
	struct config config;
	char path[FAKE_PATH_BYTES];
	_Atomic int n_sessions, listings, drains;
	uint32_t n_transfers; /* of a listing, at least 2 */
	/* listings are answered only by listing_answer() */
	bool hold;
	/* requests without an answer, of each kind and worker */
	struct snapshot *asked[2 * FAKE_WORKERS];
	unsigned n_asked;
	int64_t drain_timeout;
	bool bad_config, disabled;
	char closed[300];
	char hint[600]; /* the last hint that was put or forgotten */
	/* long lists */
	uint32_t n_leases, n_scopes, listed, most_listed;
	uint64_t turn;
} fake;

const char *agent_state_name(enum agent_state s)
{
	return s == AGENT_RUNNING ? "running" : s == AGENT_DRAINING ? "draining" : "drained";
}

static void signal_emit(const char *signal, const char *types, ...)
{
	va_list ap;

	va_start(ap, types);
	fake.agent.bus_signals->emit(fake.agent.bus, signal, types, ap);
	va_end(ap);
}

int agent_drain(struct agent *a, int64_t timeout_ns, bool stay)
{
	if (a->state != AGENT_RUNNING)
		return -EALREADY;
	fake.drains++;
	fake.drain_timeout = timeout_ns;
	a->stay = stay;
	a->state = AGENT_DRAINING;
	signal_emit(DRAY_DBUS_SIGNAL_STATE_CHANGED, "ss", "running", "draining");
	return 0;
}

int agent_resume(struct agent *a)
{
	enum agent_state old = a->state;

	if (a->stopping)
		return -ESHUTDOWN;
	a->state = AGENT_RUNNING;
	if (old != AGENT_RUNNING)
		signal_emit(DRAY_DBUS_SIGNAL_STATE_CHANGED, "ss", agent_state_name(old), "running");
	return 0;
}

void agent_metrics(struct agent *a, uint64_t v[DRAY_METRIC_N])
{
	for (unsigned m = 0; m < DRAY_METRIC_N; m++)
		v[m] = m + 1000;
}

void agent_each_transfer_time(struct agent *a,
			      void (*fn)(void *arg, const struct dray_dbus_transfer_time *t),
			      void *arg)
{
	fn(arg, &(struct dray_dbus_transfer_time){ .transport = "tcp",
						   .class = "latency",
						   .transfers = 2,
						   .queued_ns = 3,
						   .moved_ns = 4,
						   .completed_ns = 5 });
}

int64_t agent_poll_time(const struct agent *a, char *why, size_t n)
{
	snprintf(why, n, "a CPU limit of 1.500");
	return 0;
}

/*
 * Every worker answers a listing of transfers in flight or ended. Only one has entries, of
 * which the first two are not sorted.
 */
static void listing_answer(void)
{
	struct snapshot *asked[DRAY_ARRAY_SIZE(fake.asked)];
	unsigned n = fake.n_asked;

	memcpy(asked, fake.asked, sizeof(asked));
	fake.n_asked = 0;
	for (unsigned i = 0; i < n; i++) {
		struct snapshot *s = asked[i];

		s->n = i % FAKE_WORKERS ? 0 : dray_min(s->cap, fake.n_transfers);
		if (s->n && s->transfers) {
			s->transfers[0] = (struct transfer_info){
				.record = { .session = 7,
					    .request = 8,
					    .direction = DMSG_DIRECTION_READ,
					    .class = DMSG_CLASS_LATENCY,
					    .transport = DMSG_TRANSPORT_TCP,
					    .operations = 3,
					    .bytes = 1ull << 40,
					    .label = "chatcmpl-7" },
				.state = XFER_RUNNING,
				.left_ns = -5
			};
			s->transfers[1] = (struct transfer_info){
				.record = { .direction = 99, .transport = 99 }, .state = 99
			};
			for (uint32_t k = 2; k < s->n; k++)
				s->transfers[k] = s->transfers[0];
		}
		for (unsigned k = 0; k < s->n && s->records; k++)
			s->records[k] =
				(struct transfer_record){ .session = 7,
							  .request = k,
							  .peer = k,
							  .rails = 5,
							  .code = k ? DRAY_E_PEER_LOST : 0,
							  .transport = DMSG_TRANSPORT_RDMA,
							  .ended_ns = 2000 - (int64_t)k * 1000,
							  .phase_ns = { 1, 2, 3, 4 } };
		transfer_queries_handle_snapshot(&fake.agent, i % FAKE_WORKERS, s);
	}
}

static int answer_later(sd_event_source *s, void *arg)
{
	listing_answer();
	sd_event_source_unref(s);
	return 0;
}

/* Transfer 1 is cancelled, 2 has ended, 3 does not exist, 4 never ends. */
static void cancel_answer(const struct command *cmd)
{
	static const uint32_t codes[] = { DRAY_E_BUSY, DRAY_E_CANCELLED, DRAY_OK,
					  DRAY_E_NOT_FOUND };

	if (cmd->id < DRAY_ARRAY_SIZE(codes))
		transfer_queries_handle_cancelled(&fake.agent, cmd->handle,
						  cmd->id == 1 || cmd->id == 2, codes[cmd->id]);
}

void worker_post(struct worker *w, const struct command *cmd)
{
	sd_event_source *later;

	if (cmd->type == COMMAND_CANCEL) {
		cancel_answer(cmd);
		return;
	}
	dray_assert(cmd->type == COMMAND_SNAPSHOT && fake.n_asked < DRAY_ARRAY_SIZE(fake.asked));
	if (fake.n_asked++ % FAKE_WORKERS == 0)
		fake.listings += cmd->snapshot->transfers != NULL;
	fake.asked[fake.n_asked - 1] = cmd->snapshot;
	if (!fake.hold && fake.n_asked % FAKE_WORKERS == 0)
		dray_assert(sd_event_add_defer(fake.agent.event, &later, answer_later, NULL) >= 0);
}

int session_worker(struct sessions *s, dray_handle session)
{
	return session == 7 ? 1 : -1;
}

int agent_drain_now(struct agent *a, bool stay)
{
	return agent_drain(a, 0, stay);
}

struct drain_progress agent_drain_progress(struct agent *a)
{
	return (struct drain_progress){ 1, 2, 3, 4 };
}

int agent_reload(struct agent *a, struct config_changes *ret, struct dray_err *reterr)
{
	if (fake.bad_config)
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID, "x.conf:3: no");
	*ret = (struct config_changes){ .applied = { "log.level" },
					.restart = { "tcp.buffer", "tcp.streams" },
					.n_applied = 1,
					.n_restart = 2 };
	return 0;
}

void agent_set_log_level(struct agent *a, enum dray_log_level level, const char *who)
{
	dray_log_set_level(level);
}

int sessions_close(struct sessions *s, dray_handle session, const char *why)
{
	snprintf(fake.closed, sizeof(fake.closed), "%s", why);
	return session == 7 ? 0 : -ENOENT;
}

int rails_disable(struct rails *r, const char *device, uint32_t port, bool disable)
{
	if (strcmp(device, "rxe0") || port != 1)
		return -ENOENT;
	fake.disabled = disable;
	return 0;
}

void agent_ready(struct agent *a, struct ready *ret)
{
	*ret = (struct ready){ .ready = false, .n = 2 };
	ret->conditions[0] = (struct dray_dbus_condition){ "running", true, true, "running" };
	ret->conditions[1] =
		(struct dray_dbus_condition){ "segment:1.2.3.4:5", false, true, "bad \xff byte" };
}

void sessions_each(struct sessions *s, void (*fn)(void *arg, const struct dray_dbus_session *s),
		   void *arg)
{
	for (int i = 0; i < fake.n_sessions; i++)
		fn(arg, &(struct dray_dbus_session){ .session = 1ull << 32 | (unsigned)i,
						     .name = "caf\xc3\xa9 \xff\xc0\xaf end",
						     .group = "",
						     .uid = 4000000000u,
						     .pid = 3,
						     .ring = true });
}

/* --- functions of rails ----------- */

void rails_describe(struct rails *r, struct dray_dbus_rail *record)
{
	(void)r;
	(void)record;
}

const char *rails_region_text(struct rails *r, dray_handle region, char *buf, size_t size)
{
	(void)r;
	snprintf(buf, size, "mlx5_0: registered, region %llu", (unsigned long long)region);
	return buf;
}

uint32_t rails_peer_count(struct rails *r, dray_handle peer, uint32_t *ret_queue_pairs)
{
	(void)r;
	(void)peer;
	*ret_queue_pairs = 3;
	return 1;
}

struct rails_traffic rails_peer_traffic(struct rails *r, dray_handle peer)
{
	(void)r;
	(void)peer;
	return (struct rails_traffic){ .sent = 7, .received = 8 };
}

/* --- GPUs: one works, one is lost -------------- */

void gpus_each(struct gpus *g, void (*fn)(void *arg, const struct dray_dbus_gpu *gpu), void *arg)
{
	(void)g;
	fn(arg, &(struct dray_dbus_gpu){ .uuid = "GPU-00000000-1111-2222-3333-444444444444",
					 .bdf = "0000:19:00.0",
					 .name = "NVIDIA \xff H200",
					 .state = "ready",
					 .memory = 150ull << 30,
					 .multiprocessors = 132,
					 .dmabuf = true,
					 .peers = "NVLink 1",
					 .context_bytes = 500ull << 20,
					 .bytes = 1ull << 40,
					 .read_bytes = 7ull << 30,
					 .written_bytes = 5ull << 30,
					 .regions = 3 });
	fn(arg, &(struct dray_dbus_gpu){ .index = 1,
					 .uuid = "GPU-1",
					 .bdf = "0000:29:00.0",
					 .name = "NVIDIA H200",
					 .state = "lost",
					 .reason = "an uncorrectable error",
					 .peers = "PCIe 0" });
}

const char *gpus_plugin(const struct gpus *g)
{
	(void)g;
	return "CUDA 13.0 \xff";
}

const char *mooncake_server_segment(const struct mooncake_server *s)
{
	(void)s;
	return "10.0.0.1:15000";
}

/* --- segments, hints, environment ---------------------------------------------------------------- */

void segments_preferred(struct segments *ss, const char *scope, const struct hint_owner *viewer,
			struct preferred *ret)
{
	(void)ss;
	(void)scope;
	*ret = (struct preferred){ .name = "10.0.0.1:50053", .reason = "made up" };
}

struct object_search {
	char *key;
	object_search_fn fn;
	void *arg;
	sd_event_source *later;
};

struct object_search *object_search_free(struct object_search *s)
{
	if (!s)
		return NULL;
	sd_event_source_disable_unref(s->later);
	free(s->key);
	free(s);
	return NULL;
}

/* A key is there, unless it is the name of an error. */
static int answer_search(sd_event_source *source, void *arg)
{
	static char master[] = "http://10.0.0.9:9003";
	struct object_search *s = arg;
	struct object_place place = { .master = master,
				      .replica = { .segment = "10.0.0.2:15000",
						   .protocol = "tcp",
						   .address = 4096,
						   .length = 5000 } };
	int code = !strcmp(s->key, "not_found") ? DRAY_E_NOT_FOUND :
		   !strcmp(s->key, "busy")      ? DRAY_E_BUSY :
		   !strcmp(s->key, "timeout")   ? DRAY_E_TIMEOUT :
						  0;
	struct dray_err why = dray_err_of(code, "it is %s", s->key);
	object_search_fn fn = s->fn;

	(void)source;
	arg = s->arg;
	object_search_free(s);
	fn(arg, &place, !code, code ? &why : NULL);
	return 0;
}

/* The search for "never" does not end. */
int object_search_new(struct object_search **ret, struct segments *ss, const char *key,
		      object_search_fn fn, void *arg, struct dray_err *reterr)
{
	struct object_search *s;

	(void)ss;
	if (!*key)
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID, "the key is empty");
	s = calloc(1, sizeof(*s));
	dray_assert(s);
	s->key = strdup(key);
	s->fn = fn;
	s->arg = arg;
	if (strcmp(key, "never") != 0)
		dray_assert(sd_event_add_defer(fake.agent.event, &s->later, answer_search, s) >= 0);
	*ret = s;
	return 0;
}

void segments_each(struct segments *ss,
		   void (*fn)(void *arg, const struct dray_dbus_segment *segment), void *arg)
{
	(void)ss;
	fn(arg, &(struct dray_dbus_segment){ .segment = "10.0.0.1:50053",
					     .state = "ready",
					     .verified = true,
					     .preferred = true,
					     .sources = "listener,master",
					     .probe = "tcp",
					     .target = "tcp://127.0.0.1:50053",
					     .reason = "it accepts connections",
					     .capacity = 1ull << 40 });
}

int segments_explain(struct segments *ss, const char *scope,
		     void (*fn)(void *arg, const struct dray_dbus_candidate *candidate), void *arg)
{
	(void)ss;
	fn(arg, &(struct dray_dbus_candidate){ .rank = 1,
					       .segment = scope,
					       .preference = "hint",
					       .state = "unknown",
					       .chosen = true,
					       .reason = "made up" });
	return 0;
}

/* Counts the leases and scopes that one turn of the loop lists. */
static void note_listed(void)
{
	uint64_t turn = 0;

	dray_assert(sd_event_get_iteration(fake.agent.event, &turn) >= 0);
	fake.listed = turn == fake.turn ? fake.listed + 1 : 1;
	fake.turn = turn;
	fake.most_listed = dray_max(fake.most_listed, fake.listed);
}

void hints_each_scope(struct hints *h, void (*fn)(void *arg, const char *scope), void *arg)
{
	(void)h;
	for (uint32_t i = 0; i < fake.n_scopes; i++)
		fn(arg, "llama");
}

void hints_each_of(struct hints *h, const char *scope,
		   void (*fn)(void *arg, const struct hint *hint), void *arg)
{
	(void)h;
	note_listed();
	fn(arg, &(struct hint){ .scope = scope,
				.segment = "10.0.0.1:50053",
				.source = DMSG_HINT_SOURCE_CLIENT,
				.uid = 7,
				.score = 5,
				.age_ms = 1000,
				.left_ms = 2000,
				.counts = true });
}

int hints_put(struct hints *h, const struct hint_put *put, struct dray_err *reterr)
{
	(void)h;
	if (!strcmp(put->segment, "bad"))
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID, "no segment");
	if (!strcmp(put->segment, "full:1"))
		return dray_err_set(reterr, -EDQUOT, DRAY_E_QUOTA, "no room");
	snprintf(fake.hint, sizeof(fake.hint), "%s=%s %u %llu", put->scope, put->segment,
		 put->score, (unsigned long long)put->ttl_ms);
	return 0;
}

bool hints_are_unread(const struct hints *h)
{
	(void)h;
	return true;
}

uint32_t hints_forget(struct hints *h, const char *scope, const char *segment, bool all)
{
	(void)h;
	snprintf(fake.hint, sizeof(fake.hint), "%s=%s %d", scope, segment ? segment : "any", all);
	return 3;
}

int agent_environment(struct agent *a, const struct dray_strv *profiles, struct env *ret,
		      struct dray_err *reterr)
{
	(void)a;
	if (profiles->n && !strcmp(profiles->v[0], "nope"))
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID, "nope is no profile");
	*ret = (struct env){ .v = calloc(2, sizeof(*ret->v)), .n = 2 };
	dray_assert(ret->v);
	ret->v[0] = (struct env_variable){ .profile = "dray",
					   .name = "DRAY_SOCKET",
					   .value = strdup("/run/dray/dray.sock"),
					   .reason = strdup("data.socket") };
	ret->v[1] = (struct env_variable){ .profile = "dray",
					   .name = "DRAY_SEGMENT",
					   .reason = strdup("no peer listener") };
	return 0;
}

void rails_each_path(struct rails *r, void (*fn)(void *arg, const struct dray_dbus_path *path),
		     void *arg)
{
	(void)r;
	fn(arg, &(struct dray_dbus_path){ .peer = 1,
					  .segment = "10.0.0.1:7411",
					  .device = "mlx5_0",
					  .port = 1,
					  .gid = "::ffff:10.0.0.1",
					  .to_gid = "::ffff:10.0.0.1",
					  .mtu = 4096,
					  .state = "up",
					  .reason = "same subnet",
					  .sent_bytes = 5000000000 });
}

struct peer_check {
	int nothing;
};

/* Never ends. */
int peer_check_start(struct peer_check **ret, struct peers *p, const char *segment, bool back,
		     peer_check_fn fn, void *arg, struct dray_err *reterr)
{
	(void)p;
	(void)back;
	(void)fn;
	(void)arg;
	if (!strchr(segment, ':'))
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID, "give HOST:PORT");
	*ret = calloc(1, sizeof(**ret));
	return *ret ? 0 : -ENOMEM;
}

struct peer_check *peer_check_free(struct peer_check *c)
{
	free(c);
	return NULL;
}

const char *peers_segment_of(struct peers *p, dray_handle peer)
{
	(void)p;
	(void)peer;
	return "10.0.0.1:7411";
}

void regions_each(struct regions *r, void (*fn)(void *arg, const struct dray_dbus_region *region),
		  void *arg)
{
	for (uint32_t i = 1; i <= 3; i++)
		fn(arg, &(struct dray_dbus_region){ .region = i,
						    .name = NULL,
						    .kind = i == 1 ? "cuda_vmm" : "memfd",
						    .state = "live",
						    .access = "r",
						    .device = i == 1 ? "GPU-1" : "",
						    .length = UINT64_MAX });
}

bool leases_next(struct regions *r, uint32_t *cursor,
		 void (*fn)(void *arg, const struct dray_dbus_lease *lease), void *arg)
{
	(void)r;
	if (*cursor >= fake.n_leases)
		return false;
	note_listed();
	fn(arg, &(struct dray_dbus_lease){ .lease = ++*cursor,
					   .region = 2,
					   .access = "r",
					   .state = "held",
					   .holders = 1,
					   .acquired = 1,
					   .left_ns = 1000000000 });
	return true;
}

struct leases_totals leases_totals(const struct regions *r)
{
	return (struct leases_totals){ .leases = 1, .holders = 1, .made = 7, .renewed = 3 };
}

void mailboxes_each(struct mailboxes *m, void (*fn)(void *arg, const struct dray_dbus_mailbox *b),
		    void *arg)
{
	(void)m;
	fn(arg, &(struct dray_dbus_mailbox){ .mailbox = 7, .name = "engine-0", .state = "open" });
}

struct mailboxes_totals mailboxes_totals(const struct mailboxes *m)
{
	(void)m;
	return (struct mailboxes_totals){ .open = 1, .letters = 2, .delivered = 3 };
}

uint64_t hints_count(const struct hints *h)
{
	return 0;
}

uint32_t hints_count_of(const struct hints *h, const struct hint_owner *owner)
{
	return 0;
}

void mooncake_client_each(struct mooncake_client *c,
			  void (*fn)(void *arg, const struct dray_dbus_peer *peer), void *arg)
{
}

struct mooncake_client_totals mooncake_client_totals(const struct mooncake_client *c)
{
	return (struct mooncake_client_totals){ 0 };
}

void peers_each(struct peers *p, void (*fn)(void *arg, const struct dray_dbus_peer *peer),
		void *arg)
{
	fn(arg, &(struct dray_dbus_peer){ .segment = "10.0.0.1:7411", .state = "connecting" });
	fn(arg,
	   &(struct dray_dbus_peer){
		   .segment = "[fd00::1]:7411", .state = "ready", .agent_id = "ab", .streams = 2 });
}

const char *peers_segment(struct peers *p)
{
	return "127.0.0.1:7411";
}

const char *peers_keys(const struct peers *p, char text[PEERS_KEYS_BYTES])
{
	snprintf(text, PEERS_KEYS_BYTES, "0123abcd 4567cdef");
	return text;
}

/* Opens the control socket at fake.path, with a loop that the caller runs. Returns 0 or -1. */
static int fake_open(void)
{
	struct dray_err err = DRAY_ERR_NULL;

	fake.config = CONFIG_NULL;
	if (config_load(&fake.config, &(struct config_args){ .file = "" }, &err) < 0)
		return -1;
	free(fake.config.v.control.socket);
	fake.config.v.control.socket = strdup(fake.path);
	fake.config.v.control.mode = 0600;
	fake.config.v.health.worker_limit = 20 * DRAY_NS_PER_MS;
	fake.agent = (struct agent){ .config = &fake.config,
				     .identity = { .agent_id = { 0x12 }, .incarnation = 99 } };
	fake.agent.pool.n = FAKE_WORKERS;
	transfer_queries_init(&fake.agent);
	fake.agent.history = history_new();
	fake.bad_config = fake.disabled = fake.hold = false;
	fake.n_asked = 0;
	fake.n_sessions = 2;
	fake.n_transfers = 2;
	fake.n_leases = fake.n_scopes = 1;
	fake.most_listed = 0;
	fake.listings = fake.drains = 0;
	if (sd_event_new(&fake.agent.event) < 0 ||
	    owners_new(&fake.agent.owners, fake.agent.event, &fake.config.v) < 0 ||
	    health_new(&fake.agent.health, &fake.agent) < 0 ||
	    bus_server_new(&fake.agent.bus, &fake.agent, -1, &err) < 0)
		return -1;
	return 0;
}

static void fake_close(void)
{
	bus_server_free(fake.agent.bus);
	fake.agent.owners = owners_free(fake.agent.owners);
	fake.agent.health = health_free(fake.agent.health);
	transfer_queries_free(&fake.agent);
	history_free(fake.agent.history);
	config_deinit(&fake.config);
	sd_event_unref(fake.agent.event);
}
