/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rails: the RDMA devices' ports that netdetect found, memory registered with them, and queue pairs to
 * peers. Control thread only; what may block runs in threads of its own. Whatever fails here leaves
 * transfers to the next transport, with a line in the log.
 */
#ifndef DRAY_AGENT_CONTROL_RAILS_RAILS_H
#define DRAY_AGENT_CONTROL_RAILS_RAILS_H

#include <systemd/sd-event.h>

#include "agent/control/peer/peer.h"
#include "agent/control/region/region.h"
#include "agent/control/rails/verbs.h"
#include "agent/model/rdma_message.h"
#include "agent/data/data.h"
#include "lib/cleanup.h"
#include "netdetect/scan.h"
#include "schema/gen/config.h"

struct gpu_host;
struct rails;

/* Pieces that one message takes. */
#define RAILS_KEYS_MAX ((PMSG_KEYS_BODY_MAX - PMSG_KEYS_MIN) / PMSG_RAIL_SIZE)

struct rails_deps {
	sd_event *event;
	const struct dray_config *cfg;
	struct worker_pool *pool;
	struct regions *regions; /* these two by rails_attach() */
	struct peers *peers;
	const struct verbs *verbs;
	/* Keys of what a peer granted us have changed; NULL: none. The reference is the callee's. */
	void (*remote_keys)(void *arg, dray_handle peer, uint64_t grant, struct rail_keys *keys);
	/* NUMA node that the worker runs on; -1: any. */
	int (*worker_node)(void *arg, unsigned worker);
	/* A rail has another state. */
	void (*changed)(void *arg, const char *device, uint32_t port, const char *before,
			const char *after, const char *why);
	/* The queue pairs that served a peer that is lost are dead. */
	void (*peer_quiet)(void *arg, dray_handle peer);
	/*
	 * A region of REGION_RDMA: a device has registered all of it, or every device there is has failed, and why.
	 * Once for each, but for those that are removed before; never inside rails_region_add().
	 */
	void (*registered)(void *arg, dray_handle region, bool usable, const char *why);
	/*
	 * Pinned host memory that GPUs reach, for a window: done() later, with it or NULL with err; -errno: there is none.
	 * unpin(): nothing uses it any more. What is not given back lasts until the GPUs are given back.
	 */
	int (*pin)(void *arg, uint64_t bytes,
		   void (*done)(void *done_arg, struct gpu_host *h, void *base,
				const struct dray_err *err),
		   void *done_arg);
	void (*unpin)(void *arg, struct gpu_host *h);
	void *arg;
};

/* 0 or -errno with reterr. */
int rails_new(struct rails **ret, const struct rails_deps *deps, struct dray_err *reterr);
/* Each needs the other, so these are told after they are made; before that nothing else may be called. */
void rails_attach(struct rails *r, struct regions *regions, struct peers *peers);
/* After the workers have ended. What hangs in a device is left to the end of the process. */
struct rails *rails_free(struct rails *r);
DRAY_DEFINE_CLEANUP(struct rails *, rails_free);

/* What netdetect has found; a reference is taken. */
void rails_follow(struct rails *r, struct nd_scan *scan);

/*
 * An operator wants the port not to be used, or to be used again. What is in flight on it goes over to other
 * rails or the next transport. -ENOENT: no such port is known.
 */
int rails_disable(struct rails *r, const char *device, uint32_t port, bool disable);

/* From workers. */
void rails_handle_message(struct rails *r, unsigned worker, const struct transport_message *m);

/* --- of regions --- */

/*
 * Its memory may be registered from now on; the view lives until `done` of rails_region_remove(). dmabufs: of each
 * extent, likewise, where it is device memory; else NULL. Device memory without is not registered.
 */
void rails_region_add(struct rails *r, const struct region_view *view,
		      const struct region_dmabuf *dmabufs);
/* No worker and no peer uses it any more. done(arg) once no device knows its memory; possibly inside the call. */
void rails_region_remove(struct rails *r, dray_handle region, void (*done)(void *arg), void *arg);
/* Its last token was revoked: the keys that importers have seen are not valid any more soon after. */
void rails_region_revoked(struct rails *r, dray_handle region);
/* How its memory is registered, in words; "" without rails. buf is filled and returned. */
const char *rails_region_text(struct rails *r, dray_handle region, char *buf, size_t size);

/*
 * Memory of ours through which a worker's transfers pass bytes that no device can move directly: registered for this
 * worker alone, out of reach of peers, until rails_free(). It may go after that.
 */
void rails_staging_add(struct rails *r, unsigned worker, void *base, uint64_t bytes);

/* --- of peers --- */

/* The control connection stands. features: PMSG_FEATURE_*, those that both sides have. */
void rails_peer_up(struct rails *r, dray_handle peer, uint64_t features);
/* It is over. True: peer_quiet() follows; false: nothing served it. */
bool rails_peer_down(struct rails *r, dray_handle peer);
void rails_peer_ports(struct rails *r, dray_handle peer, const struct dray_vec *ports);
void rails_peer_keys(struct rails *r, dray_handle peer, uint64_t grant, uint64_t length,
		     const struct dray_vec *rails);
void rails_peer_connect(struct rails *r, dray_handle peer, uint64_t request_id,
			const struct pmsg_qp_connect *m);
void rails_peer_close(struct rails *r, dray_handle peer, uint64_t request_id, uint64_t qp);
/* Keys of [offset, offset + length) of a region, as wire records of pmsg_rail. Returns how many; 0: none. */
unsigned rails_grant_keys(struct rails *r, dray_handle region, uint64_t offset, uint64_t length,
			  uint8_t *buf, unsigned max);
/* The peer was granted GPU memory that has no keys: where it gets none, its bytes pass through a window. */
void rails_grant_staged(struct rails *r, dray_handle peer, dray_handle region);
/* What the peer says of its window for us. */
void rails_peer_window(struct rails *r, dray_handle peer, const struct pmsg_window *m);
/* It asks for a copy between its window and a grant. */
void rails_peer_stage(struct rails *r, dray_handle peer, uint64_t request_id,
		      const struct pmsg_stage *m);

/* --- what others may see --- */

struct rail_info {
	int number;
	const char *state, *reason;
	uint32_t queue_pairs, serving;
	uint64_t sent, received, slices, retries, failovers;
};
/* False where the agent does not use the port. */
bool rails_port_info(struct rails *r, const char *device, uint32_t port, struct rail_info *ret);

struct path_info {
	dray_handle peer;
	const char *device;
	uint32_t port, to_rail, mtu, queue_pairs;
	const struct in6_addr *gid, *to_gid;
	const char *state, *reason;
	uint64_t sent, received, slices, retries, failovers;
};
void rails_each_path(struct rails *r, void (*fn)(void *arg, const struct path_info *info),
		     void *arg);
/* Rails in use to reach the peer, and queue pairs that post to it. */
uint32_t rails_peer_count(struct rails *r, dray_handle peer, uint32_t *ret_queue_pairs);
uint64_t rails_metric(struct rails *r, enum dray_metric m);

#endif
