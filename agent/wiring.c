/* SPDX-License-Identifier: Apache-2.0 */
/* The modules of the agent: how they are made, and which module each upcall of another one goes to. */
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
#include "agent/control/status/health.h"
#include "agent/control/status/gather.h"
#include "agent/control/status/watchdog.h"
#include "agent/model/gpu_message.h"
#include "agent/placement/detect/detect.h"
#include "agent/placement/detect/pinning.h"
#include "agent/process/privilege.h"
#include "agent/process/sandbox.h"
#include "lib/cleanup.h"
#include "lib/fault.h"
#include "lib/log.h"
#include "schema/gen/errors.h"

static void up_fence(void *arg, dray_handle peer, dray_handle grant, uint32_t code)
{
	struct agent *a = arg;

	peers_fence(a->peers, peer, grant, code);
}

static void up_revoke_local(void *arg, dray_handle remote, uint32_t code, bool urgent)
{
	struct agent *a = arg;

	sessions_revoke_local(a->sessions, remote, code, urgent);
}

static void up_region_added(void *arg, const struct region_view *view,
			    const struct region_dmabuf *dmabufs)
{
	struct agent *a = arg;

	rails_region_add(a->rails, view, dmabufs);
}

static void up_region_removed(void *arg, dray_handle region, void (*done)(void *arg),
			      void *done_arg)
{
	struct agent *a = arg;

	rails_region_remove(a->rails, region, done, done_arg);
}

static void up_region_revoked(void *arg, dray_handle region)
{
	struct agent *a = arg;

	rails_region_revoked(a->rails, region);
}

static void up_region_registered(void *arg, dray_handle region, bool usable, const char *why)
{
	struct agent *a = arg;

	region_registered(a->regions, region, usable, why);
}

static void up_gpu_lost(void *arg, unsigned device)
{
	struct agent *a = arg;

	regions_gpu_lost(a->regions, device);
}

static void up_close_fds(void *arg, int *fds, unsigned n)
{
	struct agent *a = arg;

	regions_close_fds(a->regions, fds, n);
}

static void up_gpu_staging(void *arg, unsigned worker, const struct gpu_staging *staging)
{
	struct agent *a = arg;

	rails_staging_add(a->rails, worker, staging->base, staging->bytes);
}

static const struct gpus_upcalls gpus_up = {
	.lost = up_gpu_lost,
	.staging = up_gpu_staging,
	.close_fds = up_close_fds,
};

static const struct regions_upcalls regions_up = {
	.fence = up_fence,
	.revoke_local = up_revoke_local,
	.added = up_region_added,
	.removed = up_region_removed,
	.revoked = up_region_revoked,
};

static void up_fenced(void *arg, dray_handle peer, uint64_t grant, uint32_t code)
{
	struct agent *a = arg;

	sessions_remote_fenced(a->sessions, peer, grant, code);
}

static void up_lost(void *arg, dray_handle peer, uint32_t code, const char *why)
{
	struct agent *a = arg;

	sessions_peer_lost(a->sessions, peer, code, why);
}

static void up_draining(void *arg, dray_handle peer)
{
	struct agent *a = arg;

	sessions_peer_draining(a->sessions, peer);
}

static uint32_t up_notification(void *arg, dray_handle region, const uint8_t agent_id[16],
				uint64_t incarnation, uint64_t id, uint64_t tag,
				const uint8_t *payload, uint32_t length)
{
	struct agent *a = arg;
	int gpu = region_gpu(a->regions, region);

	/* whoever hears of it may look at the bytes at once, by the GPU */
	if (gpu >= 0 && !gpus_flush_rdma(a->gpus, (unsigned)gpu))
		return DRAY_E_GPU_LOST;
	return sessions_deliver(a->sessions, region, agent_id, incarnation, id, tag, payload,
				length);
}

static void up_peer_up(void *arg, dray_handle peer, uint64_t features)
{
	struct agent *a = arg;

	rails_peer_up(a->rails, peer, features);
}

static bool up_peer_down(void *arg, dray_handle peer)
{
	struct agent *a = arg;

	return rails_peer_down(a->rails, peer);
}

static void up_ports(void *arg, dray_handle peer, const struct dray_vec *ports)
{
	struct agent *a = arg;

	rails_peer_ports(a->rails, peer, ports);
}

static void up_keys(void *arg, dray_handle peer, uint64_t grant, const struct dray_vec *rails)
{
	struct agent *a = arg;

	rails_peer_keys(a->rails, peer, grant, sessions_remote_length(a->sessions, peer, grant),
			rails);
}

static void up_imported(void *arg, dray_handle peer, uint64_t grant, uint64_t length,
			const struct dray_vec *rails)
{
	struct agent *a = arg;

	rails_peer_keys(a->rails, peer, grant, length, rails);
}

static unsigned up_grant_keys(void *arg, dray_handle peer, dray_handle grant, uint8_t *buf,
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

static void up_qp_connect(void *arg, dray_handle peer, uint64_t request_id,
			  const struct pmsg_qp_connect *m)
{
	struct agent *a = arg;

	rails_peer_connect(a->rails, peer, request_id, m);
}

static void up_qp_close(void *arg, dray_handle peer, uint64_t request_id, uint64_t qp)
{
	struct agent *a = arg;

	rails_peer_close(a->rails, peer, request_id, qp);
}

static void up_window(void *arg, dray_handle peer, const struct pmsg_window *m)
{
	struct agent *a = arg;

	rails_peer_window(a->rails, peer, m);
}

static void up_stage(void *arg, dray_handle peer, uint64_t request_id, const struct pmsg_stage *m)
{
	struct agent *a = arg;

	rails_peer_stage(a->rails, peer, request_id, m);
}

static int up_pin(void *arg, uint64_t bytes, gpu_host_fn done, void *done_arg)
{
	struct agent *a = arg;

	return gpus_host_new(a->gpus, bytes, done, done_arg);
}

static void up_unpin(void *arg, struct gpu_host *h)
{
	(void)arg;
	gpus_host_free(h);
}

static void up_remote_keys(void *arg, dray_handle peer, uint64_t grant, struct rail_keys *keys)
{
	struct agent *a = arg;

	sessions_remote_keys(a->sessions, peer, grant, keys);
}

static int up_worker_node(void *arg, unsigned worker)
{
	const struct agent *a = arg;

	return a->worker_nodes[worker];
}

static void up_peer_quiet(void *arg, dray_handle peer)
{
	struct agent *a = arg;

	peers_quiet(a->peers, peer);
}

static void up_peer_changed(void *arg, dray_handle peer, const char *segment, const char *before,
			    const char *after, const char *why)
{
	struct agent *a = arg;

	agent_record(a, HISTORY_PEER, segment, before, after, why);
	if (a->segments)
		segments_peer_changed(a->segments, segment,
				      !strcmp(after, peer_state_name(PEER_STATE_READY)));
	if (a->control)
		control_peer_changed(a->control, peer, segment, before, after, why);
}

static void up_rail_changed(void *arg, const char *device, uint32_t port, const char *before,
			    const char *after, const char *why)
{
	struct agent *a = arg;
	char name[ND_DEVICE_NAME_MAX + 12];

	snprintf(name, sizeof(name), "%s/%u", device, port);
	agent_record(a, HISTORY_RAIL, name, before, after, why);
	if (a->control)
		control_rail_changed(a->control, device, port, before, after, why);
}

static void up_session_closed(void *arg, dray_handle session, const char *name, const char *why)
{
	struct agent *a = arg;
	char subject[HISTORY_SUBJECT_BYTES];

	snprintf(subject, sizeof(subject), "%" PRIu64 " %s", session, name);
	agent_record(a, HISTORY_SESSION, subject, "open", "closed", why);
	if (a->control)
		control_session_closed(a->control, session, name, why);
}

static const struct peers_upcalls peers_up = {
	.fenced = up_fenced,
	.lost = up_lost,
	.draining = up_draining,
	.notification = up_notification,
	.up = up_peer_up,
	.down = up_peer_down,
	.ports = up_ports,
	.keys = up_keys,
	.grant_keys = up_grant_keys,
	.qp_connect = up_qp_connect,
	.qp_close = up_qp_close,
	.window = up_window,
	.stage = up_stage,
	.changed = up_peer_changed,
};

static void place_worker(struct agent *a, unsigned i, const cpu_set_t *allowed,
			 const struct nd_scan *scan)
{
	cpu_set_t cpus;
	int node = placement_of(scan, &a->config->v, i, allowed, &cpus);
	int ret;

	if (node == a->worker_nodes[i])
		return;
	ret = pool_place(&a->pool, i, &cpus, node);
	if (ret < 0) {
		log_warning("agent", "worker %u stays where it is: %s, ignoring", i,
			    dray_errno_text(ret));
		return;
	}
	a->worker_nodes[i] = node;
	if (node >= 0)
		log_info("agent", "worker %u runs on NUMA node %d", i, node);
	else
		log_info("agent", "worker %u runs on any CPU", i);
}

static void up_detected(void *arg, struct nd_scan *scan)
{
	struct agent *a = arg;
	cpu_set_t allowed;

	peers_links_changed(a->peers, &scan->links);
	agent_placement_detected(a, scan);
	rails_follow(a->rails, scan);
	/* this thread keeps the mask that the process was given */
	if (sched_getaffinity(0, sizeof(allowed), &allowed) < 0)
		return;
	for (unsigned i = 0; i < a->pool.n; i++)
		place_worker(a, i, &allowed, scan);
}

static void up_ready(void *arg, struct ready *ret)
{
	agent_ready(arg, ret);
}

static unsigned worker_count(const struct dray_config *cfg, const struct dray_cpus *cpus)
{
	unsigned n = (unsigned)cfg->agent.workers;

	if (!n)
		n = dray_cpus_whole(cpus) / 4;
	n = dray_min(n, (unsigned)WORKERS_MAX);
	return dray_max(n, 1u);
}

static int start_outside(struct agent *a, const struct dray_config *cfg, int control_fd,
			 struct dray_err *reterr)
{
	int ret = health_new(&a->health, a);

	if (ret >= 0)
		ret = watchdog_new(&a->watchdog, a->event, a->health, a->notify);
	if (ret >= 0)
		ret = agent_want_segments(a);
	if (ret < 0)
		dray_err_set(reterr, ret, DRAY_E_NO_MEMORY, "health: %s", dray_errno_text(ret));
	if (ret < 0) {
		dray_close(control_fd);
		return ret;
	}
	ret = control_new(&a->control, a, control_fd, reterr);
	if (ret < 0)
		return ret;
	return http_new(&a->http,
			&(struct http_deps){ .event = a->event,
					     .cfg = cfg,
					     .health = a->health,
					     .metrics = agent_metrics_source(a),
					     .ready = up_ready,
					     .arg = a },
			reterr);
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
						    .keys = up_imported,
						    .closed = up_session_closed,
						    .placement = &agent_placement,
						    .arg = a },
			   reterr);
	if (ret < 0)
		return ret;
	ret = start_outside(a, cfg, passed.control, reterr);
	if (ret < 0)
		return ret;
	return detect_new(&a->detect,
			  &(struct detect_deps){ .event = a->event,
						 .cfg = cfg,
						 .changed = up_detected,
						 .cpus = agent_cpus_changed,
						 .listeners = agent_placement_listeners,
						 .arg = a },
			  reterr);
}

/*
 * Privileges go between what needs them and the threads that work. Those share this thread's credentials as they
 * are from then on, and must: the kernel refuses a device's write() to who has others than whoever opened it
 * (ib_safe_file_access() in drivers/infiniband), were it only by another copy of the same.
 */
int agent_start_work(struct agent *a, const struct dray_config *cfg, struct dray_err *reterr)
{
	int ret = privilege_drop();

	if (ret < 0)
		log_warning("agent", "capabilities are kept that are not needed: %s, ignoring",
			    dray_errno_text(ret));
	ret = rails_new(&a->rails,
			&(struct rails_deps){ .event = a->event,
					      .cfg = cfg,
					      .pool = &a->pool,
					      .verbs = &verbs_real,
					      .remote_keys = up_remote_keys,
					      .worker_node = up_worker_node,
					      .changed = up_rail_changed,
					      .peer_quiet = up_peer_quiet,
					      .registered = up_region_registered,
					      .pin = up_pin,
					      .unpin = up_unpin,
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
