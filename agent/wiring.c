/* SPDX-License-Identifier: Apache-2.0 */
/* Creates the modules of the agent, and connects the upcalls of each module to other modules. */
#include "agent/internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "agent/control/bus/bus.h"
#include "agent/control/gpu/gpus.h"
#include "agent/control/http/http.h"
#include "agent/control/peer/fsm.h"
#include "agent/control/placement.h"
#include "agent/control/rails/rails.h"
#include "agent/control/rails/verbs.h"
#include "agent/control/status/health.h"
#include "agent/control/status/watchdog.h"
#include "agent/model/gpu_message.h"
#include "agent/placement/detect/detect.h"
#include "agent/placement/detect/pinning.h"
#include "agent/process/privilege.h"
#include "agent/process/sandbox.h"
#include "lib/cleanup.h"
#include "lib/fault.h"
#include "lib/log.h"
#include "schema/gen/dbus.h"
#include "schema/gen/errors.h"

/* Upcalls take the agent as arg. Many only pass a call on to another module of it. */
static struct peers *peers_of(void *arg)
{
	return ((struct agent *)arg)->peers;
}

static struct rails *rails_of(void *arg)
{
	return ((struct agent *)arg)->rails;
}

static struct regions *regions_of(void *arg)
{
	return ((struct agent *)arg)->regions;
}

static struct sessions *sessions_of(void *arg)
{
	return ((struct agent *)arg)->sessions;
}

static void on_fence(void *arg, dray_handle peer, dray_handle grant, uint32_t code)
{
	peers_fence(peers_of(arg), peer, grant, code);
}

static void on_revoke_local(void *arg, dray_handle remote, uint32_t code, bool urgent)
{
	sessions_revoke_local(sessions_of(arg), remote, code, urgent);
}

static void on_region_added(void *arg, const struct region_view *view,
			    const struct region_dmabuf *dmabufs)
{
	rails_region_add(rails_of(arg), view, dmabufs);
}

static void on_region_removed(void *arg, dray_handle region, void (*done)(void *arg),
			      void *done_arg)
{
	rails_region_remove(rails_of(arg), region, done, done_arg);
}

static void on_region_revoked(void *arg, dray_handle region)
{
	rails_region_revoked(rails_of(arg), region);
}

static void on_gpu_lost(void *arg, unsigned device)
{
	regions_gpu_lost(regions_of(arg), device);
}

static void on_close_fds(void *arg, int *fds, unsigned n)
{
	regions_close_fds(regions_of(arg), fds, n);
}

static void on_gpu_staging(void *arg, unsigned worker, const struct gpu_staging *staging)
{
	rails_staging_add(rails_of(arg), worker, staging->base, staging->bytes);
}

static const struct gpus_upcalls gpus_up = {
	.lost = on_gpu_lost,
	.staging = on_gpu_staging,
	.close_fds = on_close_fds,
};

static const struct regions_upcalls regions_up = {
	.fence = on_fence,
	.revoke_local = on_revoke_local,
	.added = on_region_added,
	.removed = on_region_removed,
	.revoked = on_region_revoked,
};

static void on_fenced(void *arg, dray_handle peer, uint64_t grant, uint32_t code)
{
	sessions_remote_fenced(sessions_of(arg), peer, grant, code);
}

static void on_lost(void *arg, dray_handle peer, uint32_t code, const char *why)
{
	sessions_peer_lost(sessions_of(arg), peer, code, why);
}

static void on_draining(void *arg, dray_handle peer)
{
	sessions_peer_draining(sessions_of(arg), peer);
}

static uint32_t on_notification(void *arg, const struct dmsg_notification *m)
{
	struct agent *a = arg;
	int gpu = region_gpu(a->regions, m->region);

	/* the receiver may read the bytes at once, with the GPU */
	if (gpu >= 0 && !gpus_flush_rdma(a->gpus, (unsigned)gpu))
		return DRAY_E_GPU_LOST;
	return sessions_deliver(a->sessions, m);
}

static void on_peer_up(void *arg, dray_handle peer, uint64_t features)
{
	rails_peer_up(rails_of(arg), peer, features);
}

static bool on_peer_down(void *arg, dray_handle peer)
{
	return rails_peer_down(rails_of(arg), peer);
}

static void on_ports(void *arg, dray_handle peer, const struct dray_vec *ports)
{
	rails_peer_ports(rails_of(arg), peer, ports);
}

static void on_keys(void *arg, dray_handle peer, uint64_t grant, const struct dray_vec *rails)
{
	rails_peer_keys(rails_of(arg), peer, grant,
			sessions_remote_length(sessions_of(arg), peer, grant), rails);
}

static void on_imported(void *arg, dray_handle peer, const struct pmsg_import_reply *reply)
{
	rails_peer_keys(rails_of(arg), peer, reply->grant, reply->length, &reply->rails);
}

static unsigned on_grant_keys(void *arg, dray_handle peer, dray_handle grant, uint8_t *buf,
			      unsigned max)
{
	struct agent *a = arg;
	uint64_t offset, length;
	dray_handle region;
	unsigned n;

	if (!grant_range(a->regions, peer, grant, &region, &offset, &length))
		return 0;
	n = rails_grant_keys(a->rails, region, offset, length, buf, max);
	if (!n && region_gpu(a->regions, region) >= 0)
		rails_grant_staged(a->rails, peer, region);
	return n;
}

static void on_qp_connect(void *arg, dray_handle peer, uint64_t request_id,
			  const struct pmsg_qp_connect *m)
{
	rails_peer_connect(rails_of(arg), peer, request_id, m);
}

static void on_qp_close(void *arg, dray_handle peer, uint64_t request_id, uint64_t qp)
{
	rails_peer_close(rails_of(arg), peer, request_id, qp);
}

static void on_window(void *arg, dray_handle peer, const struct pmsg_window *m)
{
	rails_peer_window(rails_of(arg), peer, m);
}

static void on_stage(void *arg, dray_handle peer, uint64_t request_id, const struct pmsg_stage *m)
{
	rails_peer_stage(rails_of(arg), peer, request_id, m);
}

static void on_remote_keys(void *arg, dray_handle peer, uint64_t grant, struct rail_keys *keys)
{
	sessions_remote_keys(sessions_of(arg), peer, grant, keys);
}

static int on_worker_node(void *arg, unsigned worker)
{
	const struct agent *a = arg;

	return a->worker_nodes[worker];
}

static void on_peer_quiet(void *arg, dray_handle peer)
{
	peers_quiet(peers_of(arg), peer);
}

static void on_peer_changed(void *arg, dray_handle peer, const char *segment, const char *before,
			    const char *after, const char *why)
{
	struct agent *a = arg;

	agent_record(a, HISTORY_PEER, segment, before, after, why);
	if (a->segments)
		segments_peer_changed(a->segments, segment,
				      !strcmp(after, peer_state_name(PEER_STATE_READY)));
	agent_signal(a, DRAY_DBUS_SIGNAL_PEER_CHANGED, "tssss", peer, segment, before, after, why);
}

static void on_rail_changed(void *arg, const char *device, uint32_t port, const char *before,
			    const char *after, const char *why)
{
	struct agent *a = arg;
	char name[ND_DEVICE_NAME_MAX + 12];

	snprintf(name, sizeof(name), "%s/%u", device, port);
	agent_record(a, HISTORY_RAIL, name, before, after, why);
	agent_signal(a, DRAY_DBUS_SIGNAL_RAIL_CHANGED, "susss", device, port, before, after, why);
}

static void on_session_closed(void *arg, dray_handle session, const char *name, const char *why)
{
	struct agent *a = arg;
	char subject[HISTORY_SUBJECT_BYTES];

	snprintf(subject, sizeof(subject), "%" PRIu64 " %s", session, name);
	agent_record(a, HISTORY_SESSION, subject, "open", "closed", why);
	agent_signal(a, DRAY_DBUS_SIGNAL_SESSION_CLOSED, "tss", session, name, why);
}

static const struct peers_upcalls peers_up = {
	.fenced = on_fenced,
	.lost = on_lost,
	.draining = on_draining,
	.notification = on_notification,
	.up = on_peer_up,
	.down = on_peer_down,
	.ports = on_ports,
	.keys = on_keys,
	.grant_keys = on_grant_keys,
	.qp_connect = on_qp_connect,
	.qp_close = on_qp_close,
	.window = on_window,
	.stage = on_stage,
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
	ret = gpus_new(&a->gpus, &(struct gpus_deps){ .event = a->event,
						      .cfg = cfg,
						      .pool = &a->pool,
						      .up = &gpus_up,
						      .arg = a });
	if (ret < 0)
		return dray_err_set(reterr, ret, DRAY_E_NO_MEMORY, "GPUs: %s",
				    dray_errno_text(ret));
	ret = regions_new(&a->regions,
			  &(struct regions_deps){ .cfg = cfg,
						  .pool = &a->pool,
						  .gpus = a->gpus,
						  .agent_id = a->identity.agent_id,
						  .incarnation = a->identity.incarnation,
						  .up = &regions_up,
						  .arg = a });
	if (ret < 0)
		return dray_err_set(reterr, ret, DRAY_E_NO_MEMORY, "regions: %s",
				    dray_errno_text(ret));
	ret = peers_new(&a->peers,
			&(struct peers_deps){ .event = a->event,
					      .cfg = cfg,
					      .pool = &a->pool,
					      .regions = a->regions,
					      .agent_id = a->identity.agent_id,
					      .incarnation = a->identity.incarnation,
					      .up = &peers_up,
					      .arg = a,
					      .listen_fds = passed.peer,
					      .n_listen_fds = passed.n_peer },
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
						    .regions = a->regions,
						    .peers = a->peers,
						    .agent_id = a->identity.agent_id,
						    .incarnation = a->identity.incarnation,
						    .listen_fd = passed.data,
						    .keys = on_imported,
						    .closed = on_session_closed,
						    .placement = &agent_placement,
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
					      .remote_keys = on_remote_keys,
					      .worker_node = on_worker_node,
					      .changed = on_rail_changed,
					      .peer_quiet = on_peer_quiet,
					      .arg = a },
			reterr);
	if (ret < 0)
		return ret;
	rails_attach(a->rails, a->regions, a->peers);
	ret = agent_placement_work(a, reterr);
	if (ret >= 0)
		ret = pool_start(&a->pool, reterr);
	return ret < 0 ? ret : sandbox_enter(cfg->agent.seccomp, reterr);
}
