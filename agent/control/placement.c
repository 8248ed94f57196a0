/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/placement.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/config/env_profile.h"
#include "agent/config/segment_rules.h"
#include "agent/control/agent.h"
#include "agent/control/exchange/exchange.h"
#include "agent/control/gpu/gpus.h"
#include "agent/placement/detect/detect.h"
#include "agent/placement/environment/env_file.h"
#include "lib/log.h"
#include "netdetect/choose/address.h"
#include "schema/gen/dbus.h"
#include "schema/gen/errors.h"

#define AREA "placement"

static struct dray_str str(const char *s)
{
	return (struct dray_str){ s, (uint32_t)strlen(s) };
}

/* The host by which other nodes reach this node: the advertised one, else the best address. */
static const char *host_of(const struct agent *a, const struct nd_scan *scan, char *host, size_t n,
			   char *reason, size_t n_reason)
{
	const char *segment = peers_segment(a->peers);
	dray_auto_free struct nd_candidate *c = NULL;
	char own[DRAY_HOST_BYTES];
	struct dray_addr addr;
	unsigned port;
	size_t n_c = 0;

	*host = '\0';
	if (*segment && dray_host_port_split(segment, own, &port) == 0 &&
	    (dray_addr_parse(segment, &addr) < 0 || !dray_addr_is_loopback(&addr))) {
		snprintf(host, n, "%s", own);
		snprintf(reason, n_reason, "%s",
			 *a->config->v.peer.advertise ? "peer.advertise" :
							"the address that the agent advertises");
	} else if (scan && nd_advertise_rank(&scan->links, true, true, &c, &n_c) == 0 && n_c &&
		   !c[0].rejected) {
		nd_addr_text(&c[0].addr->addr, c[0].addr->family, host);
		snprintf(reason, n_reason, "%s", c[0].reason);
	} else {
		snprintf(reason, n_reason,
			 "no address of this node can be reached from other nodes");
	}
	return host;
}

int agent_environment(struct agent *a, const struct dray_strv *profiles, struct env *ret,
		      struct dray_err *reterr)
{
	const struct dray_config *cfg = &a->config->v;
	struct dray_err wrong = DRAY_ERR_NULL; /* the start has warned of it */
	const char *master =
		*cfg->mooncake.master_rpc ?
			cfg->mooncake.master_rpc :
			rules_master_rpc_variable(
				config_variable(a->config_args, "MOONCAKE_MASTER"), &wrong);
	const struct nd_scan *scan = a->detect ? detect_scan(a->detect) : NULL;
	char host[DRAY_HOST_BYTES], host_reason[ND_REASON_MAX];
	struct preferred p;

	segments_preferred(a->segments, "", NULL, &p);
	if (!profiles->n)
		profiles = &cfg->env.profiles;
	return env_make(
		&(struct env_facts){
			.scan = scan,
			.data_socket = cfg->data.socket,
			.segment = peers_segment(a->peers),
			.preferred = { .name = p.name,
				       .preference = dmsg_preference_name(p.preference),
				       .state = dmsg_segment_state_name(p.state),
				       .reason = p.reason,
				       .agent = p.agent },
			.host = host_of(a, scan, host, sizeof(host), host_reason,
					sizeof(host_reason)),
			.host_reason = host_reason,
			.master = master,
			.owner_segment = (unsigned)cfg->mooncake.owner_segment,
			.owner_rpc = (unsigned)cfg->mooncake.owner_rpc,
			.rnics_per_gpu = (unsigned)cfg->rdma.rnics_per_gpu,
		},
		(const char *const *)profiles->v, profiles->n, ret, reterr);
}

/* Runs when the agent's event loop begins, and after each change. */
static int write_file(sd_event_source *source, void *arg)
{
	struct dray_strv none = DRAY_STRV_NULL;
	struct dray_err err = DRAY_ERR_NULL;
	dray_auto_free char *text = NULL;
	struct env env = ENV_NULL;
	struct agent *a = arg;
	int ret;

	ret = agent_environment(a, &none, &env, &err);
	if (ret >= 0)
		ret = env_text(&env, &text);
	if (ret >= 0)
		env_file_write(&a->env_file, text);
	else
		log_limited(DRAY_LOG_WARNING, AREA, "env.file is not updated: %s",
			    err.code ? err.msg : dray_errno_text(ret));
	env_deinit(&env);
	return 0;
}

static void environment_changed(struct agent *a)
{
	if (a->env_write)
		sd_event_source_set_enabled(a->env_write, SD_EVENT_ONESHOT);
}

static void notify_sessions(struct agent *a, const char *segment, enum dmsg_segment_state old,
			    enum dmsg_segment_state now, uint32_t flags, const char *reason,
			    bool of_clients)
{
	sessions_segment_changed(a->sessions,
				 &(struct dmsg_segment_changed){ .old = (uint16_t)old,
								 .new = (uint16_t)now,
								 .flags = flags,
								 .segment = str(segment),
								 .reason = str(reason) },
				 of_clients);
}

static void on_segment_changed(void *arg, const struct segment_info *s, enum dmsg_segment_state old)
{
	const char *name = s->record.segment, *reason = s->record.reason;
	const char *before = dmsg_segment_state_name(old), *after = s->record.state;
	struct agent *a = arg;

	if (!s->of_clients)
		agent_record(a, "segment", name, before, after, reason);
	agent_signal(a, DRAY_DBUS_SIGNAL_SEGMENT_CHANGED, "ssss", name, before, after, reason);
	if (a->sessions)
		notify_sessions(a, name, old, s->state, segment_flags(&s->record), reason,
				s->of_clients);
	environment_changed(a);
}

static void on_preferred_changed(void *arg, const char *old, const char *now,
				 const struct segment_info *s, const char *reason)
{
	enum dmsg_segment_state state = s ? s->state : DMSG_SEGMENT_STATE_UNKNOWN;
	uint32_t flags = DMSG_SEGMENT_FLAG_PREFERRED | (s    ? segment_flags(&s->record) :
							*now ? DMSG_SEGMENT_FLAG_UNVERIFIED :
							       0);
	struct agent *a = arg;

	agent_record(a, "preferred", *now ? now : old, *old ? old : "none", *now ? now : "none",
		     reason);
	agent_signal(a, DRAY_DBUS_SIGNAL_PREFERRED_CHANGED, "sss", old, now, reason);
	if (a->sessions)
		notify_sessions(a, now, state, state, flags, reason, false);
	environment_changed(a);
}

static unsigned stores_of(void *arg, struct segment_store ret[SEGMENT_STORES_MAX])
{
	struct exchange_store stores[EXCHANGE_STORES_MAX];
	const struct agent *a = arg;
	unsigned n = a->exchange ? exchange_stores(a->exchange, stores) : 0;

	_Static_assert(EXCHANGE_STORES_MAX <= SEGMENT_STORES_MAX, "all of them");
	for (unsigned i = 0; i < n; i++)
		ret[i] =
			(struct segment_store){ stores[i].segment, stores[i].fault, stores[i].own };
	return n;
}

static const struct segments_upcalls segment_handlers = {
	.changed = on_segment_changed,
	.preferred = on_preferred_changed,
	.stores = stores_of,
};

/* --- the store --- */

void agent_store_preferred(void *arg, const char *space, const char *tenant, uint32_t uid,
			   char *ret, size_t n)
{
	char scope[sizeof(STORE_SCOPE) + DMSG_STORE_SPACE_MAX];
	struct agent *a = arg;
	struct preferred p;

	*ret = '\0';
	if (!a->segments)
		return;
	snprintf(scope, sizeof(scope), STORE_SCOPE "%s", space);
	segments_preferred(a->segments, scope, &(struct hint_owner){ tenant, uid }, &p);
	snprintf(ret, n, "%s", p.name);
}

static void note_given(void *arg, const struct hint *h)
{
	bool *given = arg;

	*given |= hint_is_given(h->source);
}

static void store_hint_changed(struct agent *a, const char *scope)
{
	bool given = false;

	if (!a->exchange || strncmp(scope, STORE_SCOPE, strlen(STORE_SCOPE)) != 0)
		return;
	hints_each_of(a->hints, scope, note_given, &given);
	exchange_hinted(a->exchange, scope + strlen(STORE_SCOPE), given);
}

static void note_scope(void *arg, const struct hint *h)
{
	store_hint_changed(arg, h->scope);
}

void agent_store_hints(struct agent *a)
{
	hints_each(a->hints, note_scope, a);
}

static void on_hint_changed(void *arg, const char *scope)
{
	struct agent *a = arg;

	store_hint_changed(a, scope);
	/* only the hint of the whole node affects the preferred segment; hints of other scopes are looked up on request */
	if (!*scope && a->segments)
		segments_decide_soon(a->segments);
}

static void on_hint_named(void *arg, const char *segment, const struct hint_owner *owner,
			  bool named)
{
	struct agent *a = arg;

	if (a->segments)
		segments_hint_changed(a->segments, segment, owner, named);
}

static void refill(void *arg)
{
	struct agent *a = arg;

	hints_refill(a->hints);
	segments_refill(a->segments);
	gpus_rates_refill(a->gpus);
}

static void load_row(void *arg, enum state_kind kind, const union state_row *row)
{
	struct agent *a = arg;

	if (kind == STATE_PREFERRED)
		segments_restore_preferred(a->segments, &row->preferred);
	else if (kind == STATE_SEGMENT)
		segments_restore(a->segments, &row->segment);
	else if (kind == STATE_GPU_RATE)
		gpus_rates_load(a->gpus, &row->gpu_rate);
	else
		hints_load(a->hints, &row->hint);
}

static int open_state(struct agent *a, struct dray_err *reterr)
{
	int ret = state_open(&a->state_db,
			     &(struct state_deps){ .event = a->event,
						   .dir = a->config->v.agent.state_dir,
						   .refill = refill,
						   .arg = a },
			     reterr);

	if (ret >= 0)
		ret = hints_new(&a->hints,
				&(struct hints_deps){ .event = a->event,
						      .cfg = &a->config->v,
						      .state = a->state_db,
						      .changed = on_hint_changed,
						      .named = on_hint_named,
						      .arg = a },
				reterr);
	return ret;
}

int agent_placement_start(struct agent *a, struct dray_err *reterr)
{
	const struct dray_config *cfg = &a->config->v;
	int ret = open_state(a, reterr);

	if (ret >= 0)
		ret = segments_new(&a->segments,
				   &(struct segments_deps){
					   .event = a->event,
					   .cfg = cfg,
					   .environment = rules_preferred_variable(
						   config_variable(a->config_args,
								   "MOONCAKE_PREFERRED_SEGMENT"),
						   NULL),
					   .environment_master = rules_master_variable(
						   config_variable(a->config_args,
								   "MOONCAKE_MASTER_METRICS_URL"),
						   NULL),
					   .peer_probes = &peer_probes,
					   .peers = a->peers,
					   .own_segment = peers_segment(a->peers),
					   .hints = a->hints,
					   .state = a->state_db,
					   .up = &segment_handlers,
					   .arg = a },
				   reterr);
	/* before state_load(): configured segments get a place before remembered ones, and masters are known */
	if (ret >= 0)
		ret = segments_start(a->segments, reterr);
	if (ret < 0)
		return ret;
	state_load(a->state_db,
		   1u << STATE_PREFERRED | 1u << STATE_SEGMENT | 1u << STATE_HINT |
			   1u << STATE_GPU_RATE,
		   load_row, a);
	hints_loaded(a->hints);
	if (env_file_init(&a->env_file, cfg->env.file, cfg->data.socket) < 0 ||
	    sd_event_add_defer(a->event, &a->env_write, write_file, a) < 0)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "out of memory");
	return 0;
}

int agent_placement_work(struct agent *a, struct dray_err *reterr)
{
	int ret = state_start(a->state_db);

	if (ret < 0)
		return dray_err_set(reterr, ret, DRAY_E_IO,
				    "starting the thread that writes the state database: %s",
				    dray_errno_text(ret));
	return 0;
}

void agent_placement_stop(struct agent *a)
{
	a->env_write = sd_event_source_disable_unref(a->env_write);
	env_file_deinit(&a->env_file);
	a->segments = segments_free(a->segments);
	a->hints = hints_free(a->hints);
	a->state_db = state_free(a->state_db);
}

int agent_environment_lines(void *arg, const char *profiles, char **ret_variables, char **ret_notes,
			    struct dray_err *reterr)
{
	struct dray_strv words = DRAY_STRV_NULL;
	struct env env = ENV_NULL;
	struct agent *a = arg;
	int ret = *profiles ? env_profiles_parse(profiles, &words, reterr) : 0;

	if (ret >= 0)
		ret = agent_environment(a, &words, &env, reterr);
	if (ret >= 0)
		ret = env_lines(&env, ret_variables, ret_notes);
	env_deinit(&env);
	dray_strv_clear(&words);
	if (ret == -ENOMEM)
		dray_err_set(reterr, ret, DRAY_E_NO_MEMORY, "out of memory");
	return ret;
}

void agent_placement_detected(struct agent *a, const struct nd_scan *scan)
{
	segments_links_changed(a->segments, &scan->links, peers_segment(a->peers));
	environment_changed(a);
}

void agent_placement_listeners(void *arg, struct nd_listeners *now)
{
	struct agent *a = arg;

	segments_listeners_changed(a->segments, now);
}

void agent_placement_reload(struct agent *a)
{
	segments_reload(a->segments);
	environment_changed(a);
}
