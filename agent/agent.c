/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/agent.h"

#include <errno.h>
#include <inttypes.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <systemd/sd-daemon.h>

#include "agent/control/bus/bus.h"
#include "agent/control/directory/directory.h"
#include "agent/control/exchange/exchange.h"
#include "agent/control/gpu/gpus.h"
#include "agent/control/http/http.h"
#include "agent/control/mooncake/client.h"
#include "agent/control/mooncake/mooncake.h"
#include "agent/control/peer/peer.h"
#include "agent/control/peer/tls.h"
#include "agent/control/placement.h"
#include "agent/control/rails/rails.h"
#include "agent/control/socket/unix_listener.h"
#include "agent/control/status/health.h"
#include "agent/control/status/watchdog.h"
#include "agent/internal.h"
#include "agent/placement/detect/detect.h"
#include "agent/process/process.h"
#include "agent/process/service_manager.h"
#include "agent/store/store.h"
#include "lib/ballast.h"
#include "lib/cleanup.h"
#include "lib/cpu.h"
#include "lib/log.h"
#include "schema/gen/errors.h"

static int check_keys(const struct dray_config *cfg, struct dray_err *reterr)
{
	struct tls_keys keys;
	int r = peers_read_keys(cfg, &keys, reterr);

	OPENSSL_cleanse(&keys, sizeof(keys));
	return r;
}

static int check_data_group(const struct dray_config *cfg, struct dray_err *reterr)
{
	gid_t group;

	return unix_listener_group_parse("data", cfg->data.group, &group, reterr);
}

static int check_control_group(const struct dray_config *cfg, struct dray_err *reterr)
{
	gid_t group;

	return unix_listener_group_parse("control", cfg->control.group, &group, reterr);
}

static int check_directory(const struct dray_config *cfg, struct dray_err *reterr)
{
	return cfg->limits.store_bytes ? directory_files_check(cfg, reterr) : 0;
}

/* The command that gives a file to this user is no remedy where the agent runs as another one, which alone can tell. */
static void error_print(FILE *out, int r, const char *msg)
{
	const char *command = r == -EACCES ? strstr(msg, "; run: ") : NULL;

	if (command)
		fprintf(out, "drayd: %.*s; run the check as the agent's user\n",
			(int)(command - msg), msg);
	else
		fprintf(out, "drayd: %s\n", msg);
}

int agent_check(const struct dray_config *cfg, FILE *out)
{
	static int (*const checks[])(const struct dray_config *cfg, struct dray_err *reterr) = {
		check_keys,
		check_data_group,
		check_control_group,
		check_directory,
	};
	int ret = 0;

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(checks); i++) {
		struct dray_err err = DRAY_ERR_NULL;
		int r = checks[i](cfg, &err);

		if (r < 0)
			error_print(out, r, err.msg);
		if (!ret && r != -EACCES)
			ret = r;
	}
	return ret;
}

/* False: the name is wrong, or there are too many. */
static bool take_tenant(struct passed_sockets *p, const char *name, int fd)
{
	struct passed_data_socket *s = &p->tenants[p->n_tenants];

	if (p->n_tenants == TENANTS_MAX || tenant_name_check(name, NULL) < 0)
		return false;
	snprintf(s->tenant, sizeof(s->tenant), "%s", name);
	s->fd = fd;
	p->n_tenants++;
	return true;
}

int agent_sockets_take(struct passed_sockets *p, struct dray_err *reterr)
{
	char **names = NULL;
	int n = sd_listen_fds_with_names(1, &names);

	*p = (struct passed_sockets){ .data = -1, .control = -1 };
	if (n < 0)
		return dray_err_set(reterr, n, DRAY_E_IO, "socket activation: %s",
				    dray_errno_text(n));
	for (int i = 0; i < n; i++) {
		int fd = SD_LISTEN_FDS_START + i;

		if (!strcmp(names[i], "data") && p->data < 0)
			p->data = fd;
		else if (!strncmp(names[i], "data-", 5) && take_tenant(p, names[i] + 5, fd))
			;
		else if (!strcmp(names[i], "control") && p->control < 0)
			p->control = fd;
		else if (!strcmp(names[i], "peer") && p->n_peer < DRAY_ARRAY_SIZE(p->peer))
			p->peer[p->n_peer++] = fd;
		else {
			log_warning(
				"agent",
				"systemd passed a socket named %s, ignoring it: the names are data, data-TENANT, control and peer",
				names[i]);
			dray_close(fd);
		}
	}
	for (int i = 0; i < n; i++)
		free(names[i]);
	free(names);
	return 0;
}

static void raise_limit(int resource, const char *what)
{
	struct rlimit l;

	if (getrlimit(resource, &l) < 0 || l.rlim_cur == l.rlim_max)
		return;
	l.rlim_cur = l.rlim_max;
	if (setrlimit(resource, &l) < 0)
		log_warning(
			"agent",
			"raising the limit on %s to its hard limit failed: %m; the agent keeps the soft limit",
			what);
}

static void check_pidfd(void)
{
	int fd = process_pidfd();

	if (fd < 0)
		log_warning("agent",
			    "pidfd_open: %s; after a crash of the agent, clients cannot prove that "
			    "the memory of unanswered transfers is free",
			    dray_errno_text(fd));
	dray_close(fd);
}

int agent_start(struct agent *a, struct config *config, const struct config_args *args,
		struct dray_err *reterr)
{
	const struct dray_config *cfg = &config->v;
	char id[IDENTITY_TEXT_BYTES];
	int ret;

	*a = (struct agent){ .config = config,
			     .config_args = args,
			     .identity = IDENTITY_NULL,
			     .started_ns = dray_now().ns };
	transfer_queries_init(a);
	dray_cpus_get(&a->cpus);
	for (unsigned i = 0; i < WORKERS_MAX; i++)
		a->worker_nodes[i] = -1;
	dray_ballast_start();
	raise_limit(RLIMIT_NOFILE, "open files");
	raise_limit(RLIMIT_MEMLOCK, "pinned memory");
	ret = sd_event_default(&a->event);
	if (ret < 0)
		return dray_err_set(reterr, ret, DRAY_E_IO, "event loop: %s", dray_errno_text(ret));
	ret = agent_watch_signals(a);
	if (ret < 0)
		dray_err_set(reterr, ret, DRAY_E_IO, "signals: %s", dray_errno_text(ret));
	a->history = history_new();
	if (ret >= 0)
		ret = a->history ? notify_new(&a->notify, a->event) : -ENOMEM;
	if (ret < 0)
		dray_err_set(reterr, ret, DRAY_E_NO_MEMORY, "%s", dray_errno_text(ret));
	if (ret >= 0)
		check_pidfd();
	if (ret >= 0)
		ret = identity_open(&a->identity, cfg->agent.state_dir, reterr);
	if (ret >= 0)
		ret = agent_start_modules(a, cfg, reterr);
	if (ret >= 0)
		ret = agent_start_work(a, cfg, reterr);
	if (ret < 0)
		return ret;
	log_notice("agent", "ready agent_id=%s incarnation=%" PRIu64 " segment=%s workers=%u",
		   identity_show(a->identity.agent_id, id), a->identity.incarnation,
		   peers_segment(a->peers), a->pool.n);
	notify_status(a->notify, "running, segment %s", peers_segment(a->peers));
	notify_ready(a->notify);
	return 0;
}

int agent_run(struct agent *a)
{
	int ret = 0, status = 1;

	while (ret >= 0 && sd_event_get_state(a->event) != SD_EVENT_FINISHED) {
		ret = sd_event_run(a->event, UINT64_MAX);
		turn_meter_between(&a->turns, dray_now().ns);
	}
	if (ret >= 0)
		ret = sd_event_get_exit_code(a->event, &status);
	if (ret < 0) {
		log_error("agent", "event loop: %s", dray_errno_text(ret));
		return 1;
	}
	return status;
}

bool agent_deinit(struct agent *a)
{
	a->http = http_free(a->http);
	a->bus = bus_server_free(a->bus);
	a->watchdog = watchdog_free(a->watchdog);
	a->health = health_free(a->health);
	a->detect = detect_free(a->detect);
	a->sessions = sessions_free(a->sessions);
	agent_placement_stop(a);
	a->mooncake = mooncake_server_free(a->mooncake);
	a->peers = peers_free(a->peers);
	for (unsigned i = 0; i < WORKERS_MAX; i++)
		a->worker_events[i] = sd_event_source_disable_unref(a->worker_events[i]);
	if (!pool_stop(&a->pool)) {
		log_error("agent", "a worker does not end; the process exits without it");
		return false;
	}
	a->mooncake_client = mooncake_client_free(a->mooncake_client);
	a->rails = rails_free(a->rails);
	if (!gpus_free(a->gpus))
		log_warning(
			"agent",
			"a call into the GPU driver does not return; the process exits without it");
	a->gpus = NULL;
	a->exchange = exchange_free(a->exchange);
	a->directory = directory_free(a->directory);
	if (!store_free(dray_take(a->store)))
		log_warning(
			"agent",
			"a call of the store for memory or to the disk in store.disk_dir does not return; the process exits without it");
	a->regions = regions_free(a->regions);
	a->mailboxes = mailboxes_free(a->mailboxes);
	a->owners = owners_free(a->owners);
	transfer_queries_free(a);
	identity_close(&a->identity);
	a->identity = IDENTITY_NULL;
	a->drain_timer = sd_event_source_disable_unref(a->drain_timer);
	a->stop_timer = sd_event_source_disable_unref(a->stop_timer);
	a->notify = notify_free(a->notify);
	a->history = history_free(a->history);
	for (unsigned i = 0; i < a->n_signals; i++)
		a->signals[i] = sd_event_source_disable_unref(a->signals[i]);
	a->event = sd_event_unref(a->event);
	return true;
}
