/* SPDX-License-Identifier: Apache-2.0 */
/* Changes of a running agent: reload of the configuration, log level, CPUs. */
#include <errno.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>

#include "agent/config/words.h"
#include "agent/control/agent.h"
#include "agent/control/exchange/exchange.h"
#include "agent/control/mooncake/client.h"
#include "agent/control/mooncake/mooncake.h"
#include "agent/control/placement.h"
#include "agent/process/service_manager.h"
#include "lib/log.h"
#include "lib/units.h"

struct data_config agent_data_config(const struct agent *a)
{
	const struct dray_config *cfg = &a->config->v;

	return (struct data_config){
		.slice_size = (uint64_t)cfg->transfer.slice_size,
		.slice_timeout_ns = cfg->transfer.slice_timeout,
		.fence_timeout_ns = cfg->peer.fence_timeout,
		.deadline_ns = cfg->transfer.deadline,
		.slices_per_session = (uint32_t)cfg->limits.slices_per_session,
		.tcp_streams = (uint32_t)cfg->tcp.streams,
		.tcp_latency_streams = (uint32_t)cfg->tcp.latency_streams,
		.tcp_slices_in_flight = (uint32_t)cfg->tcp.slices_in_flight,
		.tcp_buffer = (uint64_t)cfg->tcp.buffer,
		.connect_timeout_ns = cfg->peer.connect_timeout,
		.backoff_min_ns = cfg->peer.backoff_min,
		.backoff_max_ns = cfg->peer.backoff_max,
		.slow_ns = cfg->transfer.slow,
		.mooncake_stall_ns = cfg->mooncake.stall_timeout,
		.mooncake_idle_ns = cfg->mooncake.idle_timeout,
		.mooncake_streams = (uint32_t)cfg->mooncake.engine_streams,
		.report_all = cfg->log.transfers,
		.report_batches = cfg->store.log == DRAY_CONFIG_STORE_LOG_BATCH,
		.poll_time_ns = agent_poll_time(a, NULL, 0),
	};
}

int agent_keep_connected(struct agent *a)
{
	const struct dray_strv *words = &a->config->v.ready.require;
	const struct dray_strv *stores = &a->config->v.store.peers;
	const char *segments[READY_REQUIRE_MAX + STORE_PEERS_MAX + EXCHANGE_NAMED_MAX];
	unsigned n = 0;

	for (size_t i = 0; i < words->n; i++) {
		segments[n] = ready_word_segment(words->v[i]);
		n += segments[n] != NULL;
	}
	for (size_t i = 0; i < stores->n; i++)
		segments[n++] = stores->v[i];
	n += exchange_named(a->exchange, segments + n);
	return peers_keep_connected(a->peers, segments, n);
}

static const char *join(const char *const *keys, unsigned n, char *buf, size_t size)
{
	size_t at = 0;

	*buf = '\0';
	for (unsigned i = 0; i < n && at < size; i++)
		at += (size_t)snprintf(buf + at, size - at, "%s%s", i ? ", " : "", keys[i]);
	return buf;
}

static bool is_applied(const struct config_changes *c, enum dray_config_key_id id)
{
	for (unsigned i = 0; i < c->n_applied; i++)
		if (c->applied[i] == dray_config_keys[id].path)
			return true;
	return false;
}

static int workers_configure(struct agent *a)
{
	struct data_config *copies[WORKERS_MAX];
	unsigned n = 0;

	for (; n < a->pool.n; n++) {
		copies[n] = malloc(sizeof(*copies[n]));
		if (!copies[n])
			break;
		*copies[n] = agent_data_config(a);
	}
	for (unsigned i = 0; i < n; i++) {
		if (n == a->pool.n)
			worker_post(a->pool.workers[i], &(struct command){ .type = COMMAND_CONFIG,
									   .config = copies[i] });
		else
			free(copies[i]);
	}
	return n == a->pool.n ? 0 : -ENOMEM;
}

static void apply(struct agent *a, const struct config_changes *c)
{
	/* a level set over the control socket stays until the configured level changes */
	if (is_applied(c, DRAY_CONFIG_KEY_LOG_LEVEL))
		agent_set_log_level(a, (enum dray_log_level)a->config->v.log.level, "reload");
	if (agent_keep_connected(a) < 0)
		log_error(
			"config",
			"out of memory: not every segment of ready.require is connected; reload again");
	budgets_configure(&a->owners->budgets, &a->config->v);
	mooncake_server_reload(a->mooncake);
	mooncake_client_reload(a->mooncake_client);
	agent_placement_reload(a);
	if (a->exchange)
		exchange_prefer(a->exchange);
	dray_cpus_get(&a->cpus);
	if (workers_configure(a) < 0)
		log_error("config",
			  "out of memory: workers keep the old configuration; reload again");
}

int64_t agent_poll_time(const struct agent *a, char *why, size_t n)
{
	if (!dray_cpus_can_spin(&a->cpus, why, n))
		return 0;
	if (!a->config->v.agent.poll_time)
		snprintf(why, n, "agent.poll_time is 0");
	return a->config->v.agent.poll_time;
}

void agent_cpus_changed(void *arg, const struct dray_cpus *now)
{
	char why[DRAY_CPUS_WHY_BYTES], span[32];
	struct agent *a = arg;
	int64_t old = agent_poll_time(a, NULL, 0), ns;

	a->cpus = *now;
	ns = agent_poll_time(a, why, sizeof(why));
	if (ns == old)
		return;
	if (workers_configure(a) < 0) {
		log_error("agent", "out of memory: workers keep the old poll time");
		return;
	}
	if (ns)
		log_notice("agent", "workers poll for up to %s after work",
			   dray_duration_show(ns, span, sizeof(span)));
	else
		log_notice("agent", "workers no longer poll: %s", why);
}

/* why: the first error, with the number of the others. */
static void report_refusal(struct agent *a, const struct dray_strv *errors, const char *why)
{
	const char *file = a->config->file ? a->config->file : "no file";

	log_error("config", "reload refused, nothing has changed: %s", why);
	for (size_t i = 1; i < errors->n; i++)
		log_error("config", "reload refused: %s", errors->v[i]);
	agent_record(a, "config", file, "", "refused", why);
}

static void report_reload(struct agent *a, const struct config_changes *c)
{
	const char *file = a->config->file ? a->config->file : "no file";
	char applied[400], restart[400];

	join(c->applied, c->n_applied, applied, sizeof(applied));
	join(c->restart, c->n_restart, restart, sizeof(restart));
	log_notice("config", "reloaded %s: %s", file, *applied ? applied : "nothing has changed");
	if (*restart)
		log_warning("config", "these keys have changed and need a restart: %s", restart);
	for (size_t i = 0; i < a->config->warnings.n; i++)
		log_warning("config", "%s", a->config->warnings.v[i]);
	agent_record(a, "config", file, "", "reloaded", applied);
}

struct new_keys {
	const struct dray_config *running;
	struct tls_keys keys;
};

/* Reads the key files that will be in effect after the reload. */
static int keys_prepare(void *arg, const struct dray_config *fresh, struct dray_err *reterr)
{
	struct new_keys *new = arg;
	bool stay = config_key_use_differs(new->running, fresh);

	return peers_read_keys(stay ? new->running : fresh, &new->keys, reterr);
}

/* Files may also have a new content under the same name. */
static void apply_keys(struct agent *a, const struct tls_keys *keys, struct config_changes *c)
{
	if (peers_use_keys(a->peers, keys) && !is_applied(c, DRAY_CONFIG_KEY_PEER_KEY_FILE) &&
	    !is_applied(c, DRAY_CONFIG_KEY_PEER_ACCEPT_KEY_FILE))
		c->applied[c->n_applied++] = dray_config_keys[DRAY_CONFIG_KEY_PEER_KEY_FILE].path;
}

int agent_reload(struct agent *a, struct config_changes *ret, struct dray_err *reterr)
{
	struct dray_strv errors = DRAY_STRV_NULL;
	struct dray_err err = DRAY_ERR_NULL;
	struct new_keys new = { .running = &a->config->v };
	int r;

	notify_reloading(a->notify);
	r = config_reload(a->config, a->config_args, keys_prepare, &new, ret, &errors, &err);
	if (r >= 0) {
		apply(a, ret);
		apply_keys(a, &new.keys, ret);
		report_reload(a, ret);
	} else {
		report_refusal(a, &errors, err.msg);
	}
	OPENSSL_cleanse(&new.keys, sizeof(new.keys));
	dray_strv_clear(&errors);
	notify_ready(a->notify);
	if (r < 0)
		dray_err_set(reterr, r, err.code, "%s", err.msg);
	return r;
}

void agent_set_log_level(struct agent *a, enum dray_log_level level, const char *who)
{
	const char *const *names = dray_config_keys[DRAY_CONFIG_KEY_LOG_LEVEL].choices;
	enum dray_log_level old = dray_log_get_level();

	if (old == level)
		return;
	dray_log_set_level(level);
	log_notice("log", "level %s -> %s, by %s", names[old], names[level], who);
	agent_record(a, "log-level", "log.level", names[old], names[level], who);
}
