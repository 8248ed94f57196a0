/* SPDX-License-Identifier: Apache-2.0 */
/* Creates the modules of the agent, and connects the upcalls of each module to other modules. */
#include "agent/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "agent/config/words.h"
#include "agent/control/bus/bus.h"
#include "agent/control/directory/directory.h"
#include "agent/control/exchange/exchange.h"
#include "agent/control/gpu/gpus.h"
#include "agent/control/http/http.h"
#include "agent/control/mooncake/client.h"
#include "agent/control/mooncake/mooncake.h"
#include "agent/control/peer/fsm.h"
#include "agent/control/placement.h"
#include "agent/control/rails/rails.h"
#include "agent/control/rails/verbs.h"
#include "agent/control/status/health.h"
#include "agent/control/status/watchdog.h"
#include "agent/model/gpu_message.h"
#include "agent/placement/detect/detect.h"
#include "agent/process/privilege.h"
#include "agent/process/process.h"
#include "agent/process/sandbox.h"
#include "agent/store/store.h"
#include "lib/cleanup.h"
#include "lib/fault.h"
#include "lib/log.h"
#include "schema/gen/dbus.h"
#include "schema/gen/errors.h"

static const struct gpus_upcalls gpus_up = {
	.lost = regions_gpu_lost,
	.staging = rails_staging_add,
	.close_fds = region_close_fds,
	.part_opened = region_part_opened,
};

static const struct regions_upcalls regions_up = {
	.fence = peers_fence,
	.revoke_local = sessions_revoke_local,
	.added = rails_region_add,
	.removed = rails_region_remove,
	.revoked = rails_region_revoked,
	.mooncake_added = rails_guest_range_add,
	.mooncake_ended = rails_guest_range_end,
	.mooncake_changed = mooncake_server_ranges_changed,
	.lease_ended = sessions_lease_ended,
};

static const struct mailboxes_upcalls mailboxes_up = {
	.send = sessions_send_letter,
	.closed = sessions_mailbox_closed,
};

/* Also of engines with Mooncake, which are listed beside peers. */
static void tell_peer_changed(void *arg, dray_handle peer, const char *segment, const char *before,
			      const char *after, const char *why)
{
	struct agent *a = arg;

	agent_record(a, "peer", segment, before, after, why);
	agent_signal(a, DRAY_DBUS_SIGNAL_PEER_CHANGED, "tssss", peer, segment, before, after, why);
}

static void on_peer_changed(void *arg, dray_handle peer, const char *segment, const char *before,
			    const char *after, const char *why)
{
	struct agent *a = arg;

	tell_peer_changed(a, peer, segment, before, after, why);
	if (a->segments)
		segments_peer_changed(a->segments, segment,
				      !strcmp(after, peer_state_name(PEER_STATE_READY)));
}

static void on_mooncake_published(void *arg, const char *segment, const char *before,
				  const char *after, const char *why)
{
	agent_record(arg, "mooncake", segment, before, after, why);
}

static void on_rail_changed(void *arg, const char *device, uint32_t port, const char *before,
			    const char *after, const char *why)
{
	struct agent *a = arg;
	char name[ND_DEVICE_NAME_MAX + 12];

	snprintf(name, sizeof(name), "%s/%u", device, port);
	agent_record(a, "rail", name, before, after, why);
	agent_signal(a, DRAY_DBUS_SIGNAL_RAIL_CHANGED, "susss", device, port, before, after, why);
}

static const struct exchange_upcalls exchange_up = {
	.segment_added = rails_store_add,
	.segment_removed = rails_region_remove,
	.segment_keys = rails_store_keys,
};

static void on_store_keys_gone(void *arg, dray_handle segment)
{
	const struct agent *a = arg;

	exchange_keys_gone(a->exchange, segment);
}

static void on_peer_quiet(void *arg, dray_handle peer)
{
	const struct agent *a = arg;

	exchange_peer_quiet(a->exchange, peer);
}

static void on_guests_changed(void *arg)
{
	const struct agent *a = arg;

	mooncake_server_rails_changed(a->mooncake);
}

static void on_engine_connect(void *arg, const struct rails_engine_request *request)
{
	const struct agent *a = arg;

	mooncake_client_connect(a->mooncake_client, request);
}

static void on_engine_gone(void *arg, dray_handle engine)
{
	const struct agent *a = arg;

	mooncake_client_gone(a->mooncake_client, engine);
}

static void on_session_closed(void *arg, dray_handle session, const struct owner *owner,
			      const char *name, const char *why)
{
	char subject[HISTORY_TEXT_BYTES], key[TENANT_BYTES + 12];
	struct agent *a = arg;

	snprintf(subject, sizeof(subject), "%" PRIu64 " %s", session, name);
	snprintf(key, sizeof(key), "%s:%u", owner->tenant, owner->uid);
	agent_record_session(a, key, subject, why);
	agent_signal(a, DRAY_DBUS_SIGNAL_SESSION_CLOSED, "tss", session, name, why);
}

static const struct peers_upcalls peers_up = {
	.fenced = sessions_remote_fenced,
	.lost = sessions_peer_lost,
	.draining = sessions_peer_draining,
	.notification = sessions_deliver,
	.keys = sessions_remote_keys,
	.rekey = sessions_remote_rekey,
	.up = rails_peer_up,
	.down = rails_peer_down,
	.quiet = rails_peer_is_quiet,
	.ports = rails_peer_ports,
	.grant_keys = rails_grant_keys,
	.qp_connect = rails_peer_connect,
	.qp_close = rails_peer_close,
	.window = rails_peer_window,
	.stage = rails_peer_stage,
	.store_lookup = exchange_lookup,
	.store_release = exchange_release,
	.store_keep = exchange_keep,
	.store_watch = exchange_watch,
	.store_summary = exchange_summary,
	.store_in_use = exchange_in_use,
	.store_gone = exchange_peer_gone,
	.store_fenced = exchange_fenced,
	.store_has = exchange_has,
	.store_fence = exchange_fence,
	.changed = on_peer_changed,
};

static void place_worker(struct agent *a, unsigned i, const cpu_set_t *allowed,
			 const struct nd_scan *scan)
{
	cpu_set_t cpus;
	int node = pinning_node(scan, &a->config->v, i, allowed, &cpus);
	int ret;

	if (node == a->worker_nodes[i])
		return;
	ret = pool_place(&a->pool, i, &cpus, node);
	if (ret < 0) {
		log_warning("agent", "worker %u keeps its CPUs: binding it to others failed: %s", i,
			    dray_errno_text(ret));
		return;
	}
	a->worker_nodes[i] = node;
	if (node >= 0)
		log_info("agent", "worker %u runs on NUMA node %d", i, node);
	else
		log_info("agent", "worker %u runs on any CPU", i);
}

static void nodes_check(struct agent *a, const cpu_set_t *allowed, const struct nd_scan *scan)
{
	const struct dray_strv *named = &a->config->v.agent.numa_nodes;

	if (a->nodes_checked || list_is_none(named))
		return;
	a->nodes_checked = true;
	for (size_t i = 0; i < named->n; i++)
		if (!pinning_has(scan, named->v[i], allowed))
			log_warning("agent",
				    "agent.numa_nodes: node %s does not exist, or has no CPU that "
				    "the agent may use, ignoring it",
				    named->v[i]);
}

static void on_detected(void *arg, struct nd_scan *scan)
{
	struct agent *a = arg;
	cpu_set_t allowed;

	peers_links_changed(a->peers, &scan->links);
	agent_placement_detected(a, scan);
	rails_follow(a->rails, scan);
	/* the affinity of this thread is still the one that the process was started with */
	if (sched_getaffinity(0, sizeof(allowed), &allowed) < 0)
		return;
	nodes_check(a, &allowed, scan);
	for (unsigned i = 0; i < a->pool.n; i++)
		place_worker(a, i, &allowed, scan);
}

static unsigned worker_count(const struct dray_config *cfg, const struct dray_cpus *cpus)
{
	unsigned n = (unsigned)cfg->agent.workers;

	if (!n)
		n = dray_cpus_whole(cpus) / 4;
	n = dray_min(n, (unsigned)WORKERS_MAX);
	return dray_max(n, 1u);
}

static int start_interfaces(struct agent *a, const struct dray_config *cfg, int control_fd,
			    struct dray_err *reterr)
{
	int ret = health_new(&a->health, a);

	if (ret >= 0)
		ret = watchdog_new(&a->watchdog, a->event, a->health, a->notify);
	if (ret >= 0)
		ret = agent_keep_connected(a);
	if (ret < 0) {
		dray_close(control_fd);
		return dray_err_set(reterr, ret, DRAY_E_NO_MEMORY, "health: %s",
				    dray_errno_text(ret));
	}
	ret = bus_server_new(&a->bus, a, control_fd, reterr);
	if (ret < 0)
		return ret;
	return http_new(&a->http, a, reterr);
}

int agent_start_modules(struct agent *a, const struct dray_config *cfg, struct dray_err *reterr)
{
	struct data_config core = agent_data_config(a);
	struct passed_sockets passed;
	int ret;

	ret = agent_sockets_take(&passed, reterr);
	if (ret < 0)
		return ret;
	ret = fault_init();
	if (ret < 0)
		return dray_err_set(reterr, ret, DRAY_E_IO, "SIGBUS handler: %s",
				    dray_errno_text(ret));
	ret = pool_new(&a->pool, worker_count(cfg, &a->cpus), &core,
		       (uint32_t)cfg->limits.transfers, reterr);
	if (ret < 0)
		return ret;
	for (unsigned i = 0; i < a->pool.n; i++) {
		ret = sd_event_add_io(a->event, &a->worker_events[i],
				      worker_event_fd(a->pool.workers[i]), EPOLLIN,
				      agent_pump_events, a);
		if (ret < 0)
			return dray_err_set(reterr, ret, DRAY_E_IO, "event loop: %s",
					    dray_errno_text(ret));
	}
	ret = owners_new(&a->owners, a->event, cfg);
	if (ret < 0)
		return dray_err_set(reterr, ret, DRAY_E_NO_MEMORY, "threads of clients: %s",
				    dray_errno_text(ret));
	ret = gpus_new(&a->gpus, &(struct gpus_deps){ .event = a->event,
						      .cfg = cfg,
						      .pool = &a->pool,
						      .up = &gpus_up,
						      .regions = &a->regions,
						      .rails = &a->rails,
						      .state = &a->state_db });
	if (ret < 0)
		return dray_err_set(reterr, ret, DRAY_E_NO_MEMORY, "GPUs: %s",
				    dray_errno_text(ret));
	ret = regions_new(&a->regions,
			  &(struct regions_deps){ .event = a->event,
						  .cfg = cfg,
						  .pool = &a->pool,
						  .gpus = a->gpus,
						  .agent_id = a->identity.agent_id,
						  .incarnation = a->identity.incarnation,
						  .up = &regions_up,
						  .peers = &a->peers,
						  .sessions = &a->sessions,
						  .rails = &a->rails,
						  .mooncake = &a->mooncake });
	if (ret < 0)
		return dray_err_set(reterr, ret, DRAY_E_NO_MEMORY, "regions: %s",
				    dray_errno_text(ret));
	ret = mailboxes_new(&a->mailboxes, &(struct mailboxes_deps){ .event = a->event,
								     .cfg = cfg,
								     .up = &mailboxes_up,
								     .sessions = &a->sessions });
	if (ret < 0)
		return dray_err_set(reterr, ret, DRAY_E_NO_MEMORY, "mailboxes: %s",
				    dray_errno_text(ret));
	ret = peers_new(&a->peers,
			&(struct peers_deps){ .event = a->event,
					      .cfg = cfg,
					      .pool = &a->pool,
					      .regions = a->regions,
					      .mailboxes = a->mailboxes,
					      .owners = a->owners,
					      .agent_id = a->identity.agent_id,
					      .incarnation = a->identity.incarnation,
					      .up = &peers_up,
					      .sessions = &a->sessions,
					      .rails = &a->rails,
					      .exchange = &a->exchange,
					      .arg = a,
					      .listen_fds = passed.peer,
					      .n_listen_fds = passed.n_peer },
			reterr);
	if (ret < 0)
		return ret;
	ret = mooncake_server_new(&a->mooncake,
				  &(struct mooncake_deps){ .event = a->event,
							   .cfg = cfg,
							   .pool = &a->pool,
							   .regions = a->regions,
							   .rails = &a->rails,
							   .published = on_mooncake_published,
							   .arg = a },
				  reterr);
	if (ret < 0)
		return ret;
	ret = mooncake_client_new(&a->mooncake_client,
				  &(struct mooncake_client_deps){ .event = a->event,
								  .cfg = cfg,
								  .pool = &a->pool,
								  .rails = &a->rails,
								  .agent_id = a->identity.agent_id,
								  .lost = sessions_engine_lost,
								  .changed = tell_peer_changed,
								  .arg = a,
								  .sessions = &a->sessions },
				  reterr);
	if (ret < 0)
		return ret;
	ret = agent_placement_start(a, reterr);
	if (ret < 0)
		return ret;
	ret = sessions_new(&a->sessions,
			   &(struct sessions_deps){ .event = a->event,
						    .cfg = cfg,
						    .pool = &a->pool,
						    .owners = a->owners,
						    .regions = a->regions,
						    .peers = a->peers,
						    .mailboxes = a->mailboxes,
						    .mooncake = a->mooncake_client,
						    .gpus = a->gpus,
						    .hints = a->hints,
						    .segments = a->segments,
						    .agent_id = a->identity.agent_id,
						    .incarnation = a->identity.incarnation,
						    .open_pidfd = process_pidfd,
						    .listen_fd = passed.data,
						    .passed = passed.tenants,
						    .n_passed = passed.n_tenants,
						    .closed = on_session_closed,
						    .env_get = agent_environment_lines,
						    .arg = a },
			   reterr);
	if (ret < 0)
		return ret;
	ret = start_interfaces(a, cfg, passed.control, reterr);
	if (ret < 0)
		return ret;
	return detect_new(&a->detect,
			  &(struct detect_deps){ .event = a->event,
						 .cfg = cfg,
						 .changed = on_detected,
						 .cpus = agent_cpus_changed,
						 .listeners = agent_placement_listeners,
						 .arg = a },
			  reterr);
}

static void keep_owner(struct owner_account *account)
{
	owner_ref(dray_container_of(account, struct owner, account));
}

static void release_owner(struct owner_account *account)
{
	owner_unref(dray_container_of(account, struct owner, account));
}

static struct owner_account *stored_account(void *arg, const char *tenant, uint32_t uid)
{
	struct agent *a = arg;
	struct owner *o = strlen(tenant) < TENANT_BYTES ? owner_get_idle(a->owners, tenant, uid) :
							  NULL;

	return o ? &o->account : NULL;
}

static struct owner_account *kept_account(void *arg, const char *tenant, uint32_t uid)
{
	struct agent *a = arg;
	struct owner *o = owner_get_named(a->owners, tenant, uid);

	return o ? &o->account : NULL;
}

static void on_disk_state(void *arg, enum disk_state state, const struct dray_err *why)
{
	struct agent *a = arg;
	const char *before = a->disk_state, *now = disk_state_name(state);

	a->disk_state = now;
	agent_record(a, "store", "disk tier", before ? before : disk_state_name(DISK_STATE_OK), now,
		     why->msg);
	if (state == DISK_STATE_OK)
		log_notice("store", "the disk tier can be written again");
	else if (state == DISK_STATE_ABSENT)
		log_warning(
			"store",
			"the disk tier is not used until its folder can be: %s; objects stay in memory",
			why->msg);
	else
		log_warning(
			"store",
			"the disk tier is not written: %s; objects stay in memory, and what is on "
			"disk can still be read",
			why->msg);
}

static void on_directory_state(void *arg, enum directory_state state, const struct dray_err *why)
{
	struct agent *a = arg;
	const char *before = a->directory_state, *now = directory_state_name(state);

	a->directory_state = now;
	agent_record(a, "store", "directory",
		     before ? before : directory_state_name(DIRECTORY_DOWN), now, why->msg);
	if (state == DIRECTORY_OK)
		log_notice("store", "the directory is used: %s", why->msg);
	else
		log_warning("store", "the directory is not used: %s; all of store.peers are asked",
			    why->msg);
}

static void on_directory_named(void *arg)
{
	if (agent_keep_connected(arg) < 0)
		log_warning("store",
			    "out of memory: an agent that the directory names is not asked");
}

static int start_directory(struct agent *a, const struct dray_config *cfg, struct dray_err *reterr)
{
	if (!*cfg->store.directory)
		return 0;
	return directory_new(&a->directory,
			     &(struct directory_deps){ .event = a->event,
						       .cfg = cfg,
						       .store = a->store,
						       .segment = peers_segment(a->peers),
						       .changed = on_directory_state,
						       .arg = a },
			     reterr);
}

static int start_store(struct agent *a, const struct dray_config *cfg, struct dray_err *reterr)
{
	static const enum policy_kind policies[] = {
		[DRAY_CONFIG_STORE_POLICY_LRU] = POLICY_LRU,
		[DRAY_CONFIG_STORE_POLICY_S3FIFO] = POLICY_S3FIFO,
		[DRAY_CONFIG_STORE_POLICY_GDSF] = POLICY_GDSF,
		[DRAY_CONFIG_STORE_POLICY_SCORE] = POLICY_SCORE,
		[DRAY_CONFIG_STORE_POLICY_VALUE] = POLICY_VALUE,
	};
	int ret =
		store_new(&a->store,
			  &(struct store_config){
				  .bytes = (uint64_t)cfg->limits.store_bytes,
				  .segment_size = (uint64_t)cfg->store.segment_size,
				  .policy = policies[cfg->store.policy],
				  .evict = cfg->store.full == DRAY_CONFIG_STORE_FULL_EVICT,
				  .lend = cfg->store.lend,
				  .asks = exchange_asks(cfg),
				  .keep_copies = cfg->store.keep_copies,
				  .replicas = (uint32_t)cfg->store.replicas,
				  .retry_ms = (uint32_t)(cfg->store.retry_after / DRAY_NS_PER_MS),
				  .lease_ms = (uint32_t)(cfg->store.lookup_lease / DRAY_NS_PER_MS),
				  .peer_timeout_ns = cfg->store.peer_timeout,
				  .leases_max = (uint32_t)cfg->limits.store_leases_per_session,
				  .spaces = (const char *const *)cfg->store.spaces.v,
				  .n_spaces = cfg->store.spaces.n,
				  .keep = keep_owner,
				  .release = release_owner,
				  .disk = { .event = a->event,
					    .dir = cfg->store.disk_dir,
					    .bytes = (uint64_t)cfg->limits.store_disk_bytes,
					    .threads = (unsigned)cfg->store.disk_threads,
					    .read_rate = (uint64_t)cfg->store.disk_read_rate,
					    .write_rate = (uint64_t)cfg->store.disk_write_rate,
					    .write_back = cfg->store.disk_write ==
							  DRAY_CONFIG_STORE_DISK_WRITE_BACK,
					    .account = stored_account,
					    .state_changed = on_disk_state,
					    .arg = a },
			  },
			  reterr);

	if (ret < 0 || !a->store)
		return ret;
	pool_store(&a->pool, a->store);
	ret = start_directory(a, cfg, reterr);
	if (ret < 0)
		return ret;
	ret = exchange_new(&a->exchange,
			   &(struct exchange_deps){ .event = a->event,
						    .cfg = cfg,
						    .pool = &a->pool,
						    .peers = a->peers,
						    .store = a->store,
						    .up = &exchange_up,
						    .rails = &a->rails,
						    .directory = a->directory,
						    .named = on_directory_named,
						    .account = kept_account,
						    .release = release_owner,
						    .preferred = agent_store_preferred,
						    .arg = a },
			   reterr);
	if (ret >= 0)
		agent_store_hints(a);
	return ret;
}

/*
 * Privileges are dropped after the sockets are open and before threads start. The threads share this thread's
 * credentials from then on. They must: the kernel refuses write() on an RDMA device unless the caller has the very
 * credentials that opened it (ib_safe_file_access() in drivers/infiniband); an equal copy is refused, too.
 */
int agent_start_work(struct agent *a, const struct dray_config *cfg, struct dray_err *reterr)
{
	int ret = privilege_drop();

	if (ret < 0)
		log_warning(
			"agent",
			"dropping capabilities failed: %s; the agent keeps capabilities that it does not need",
			dray_errno_text(ret));
	ret = rails_new(&a->rails,
			&(struct rails_deps){ .event = a->event,
					      .cfg = cfg,
					      .pool = &a->pool,
					      .gpus = a->gpus,
					      .verbs = &verbs_real,
					      .regions = a->regions,
					      .peers = a->peers,
					      .worker_nodes = a->worker_nodes,
					      .changed = on_rail_changed,
					      .store_keys_gone = on_store_keys_gone,
					      .peer_quiet = on_peer_quiet,
					      .guests_changed = on_guests_changed,
					      .engine_connect = on_engine_connect,
					      .engine_gone = on_engine_gone,
					      .arg = a },
			reterr);
	if (ret < 0)
		return ret;
	ret = agent_placement_work(a, reterr);
	if (ret >= 0)
		ret = start_store(a, cfg, reterr);
	if (ret >= 0)
		ret = pool_start(&a->pool, reterr);
	if (ret >= 0)
		ret = sandbox_enter(cfg->agent.seccomp, cfg->rdma.enable || cfg->gpu.enable,
				    reterr);
	if (ret >= 0)
		gpus_keep(a->gpus);
	return ret;
}
