/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rails: the ports of RDMA devices that netdetect found, memory that is registered with them, and queue pairs to peers.
 * Control thread only; calls that may block run in threads of their own. After a failure transfers use the next transport,
 * and the log has a line.
 */
#pragma once

#include <systemd/sd-event.h>

#include "agent/data/data.h"
#include "agent/model/keys.h"
#include "agent/model/view.h"
#include "lib/addr.h"
#include "lib/cleanup.h"
#include "netdetect/scan.h"
#include "schema/gen/config.h"
#include "schema/gen/dbus.h"
#include "schema/gen/metrics.h"
#include "schema/gen/peer.h"

struct gpus;
struct peers;
struct rail_keys;
struct rails;
struct rails_engine_request;
struct regions;
struct verbs;

struct rails_deps {
	sd_event *event;
	const struct dray_config *cfg;
	struct worker_pool *pool;
	struct gpus *gpus;
	struct regions *regions;
	struct peers *peers;
	const struct verbs *verbs;
	const int *worker_nodes; /* NUMA node of each worker, -1: any; they may change */
	/* A rail has changed its state. */
	void (*changed)(void *arg, const char *device, uint32_t port, const char *before,
			const char *after, const char *why);
	/* Peers must not use keys of rails_store_keys() any more that they have of this segment. May be NULL, as the next one. */
	void (*store_keys_gone)(void *arg, dray_handle segment);
	/* rails_peer_down() was true, and the peer can reach nothing here any more; after grants_peer_gone(). */
	void (*peer_quiet)(void *arg, dray_handle peer);
	/* What rails_guest_ready() and the calls after it return may have changed. */
	void (*guests_changed)(void *arg);
	/* Ask the engine for its end of a queue pair; rails_engine_connected() answers, possibly inside the call. */
	void (*engine_connect)(void *arg, const struct rails_engine_request *request);
	/* A worker has forgotten the engine: each does so once after rails_engine_down(). */
	void (*engine_gone)(void *arg, dray_handle engine);
	void *arg;
};

/* 0 or -errno with reterr. */
int rails_new(struct rails **ret, const struct rails_deps *deps, struct dray_err *reterr);
/* After the workers have ended. A job that hangs in a device keeps its memory until the process ends. */
struct rails *rails_free(struct rails *r);
DRAY_DEFINE_CLEANUP(struct rails *, rails_free);

/* A new scan by netdetect; takes a reference. */
void rails_follow(struct rails *r, struct nd_scan *scan);

/*
 * An operator disables or enables the port. Work in flight on it moves to other rails or the next transport. -ENOENT: no
 * such port is known.
 */
int rails_disable(struct rails *r, const char *device, uint32_t port, bool disable);

/* A message from transport rdma of a worker. */
void rails_handle_message(struct rails *r, unsigned worker, const struct transport_message *m);

/*
 * Registers the memory of a region with every device. dmabufs: of each extent of device memory, which is not registered
 * without them; NULL for host memory. They and the view must live until `done` of rails_region_remove(). For REGION_RDMA
 * region_registered() reports the result, never inside this call. -ENOMEM: it is not registered, and nothing is reported.
 */
int rails_region_add(struct rails *r, const struct region_view *view,
		     const struct region_dmabuf *dmabufs);
/* No worker and no peer uses the region any more. done(arg) when no device has its memory; possibly inside the call. */
void rails_region_remove(struct rails *r, dray_handle region, void (*done)(void *arg), void *arg);
/*
 * Tokens of the region were revoked: registers its memory anew, so that the keys that peers have seen become invalid, and runs
 * done(arg) when they are; not inside the call. False: it is not registered, and done() does not run.
 */
bool rails_region_revoked(struct rails *r, dray_handle region, void (*done)(void *arg), void *arg);
/* Describes the registration of a region with each device; "" without rails. Fills and returns buf. */
const char *rails_region_text(struct rails *r, dray_handle region, char *buf, size_t size);

/*
 * The same for a segment of the store, which rails_region_remove() removes. Devices write to it for this agent alone; lends: and peers
 * read it.
 */
void rails_store_add(struct rails *r, const struct region_view *view, bool lends);
/*
 * Writes the keys of a part of the segment for the peer as records of pmsg_rail, whose offsets begin with `at`. Returns their number;
 * 0: the peer has no rails, or there is no room for all pieces of one.
 */
unsigned rails_store_keys(struct rails *r, dray_handle peer, dray_handle segment, uint64_t offset,
			  uint64_t length, uint64_t at, uint8_t *buf, unsigned max);

/* Registers staging memory of a worker until rails_free(), without access for peers. */
void rails_staging_add(struct rails *r, unsigned worker, void *base, uint64_t bytes);

/* The control connection is up. features: PMSG_FEATURE_* that both sides support. */
void rails_peer_up(struct rails *r, dray_handle peer, uint64_t features);
/* The control connection is down. True: grants_peer_gone() follows; false: no queue pair served the peer. */
bool rails_peer_down(struct rails *r, dray_handle peer);
/* No queue pair serves the peer. False after rails_peer_down(): grants_peer_gone() follows. */
bool rails_peer_is_quiet(struct rails *r, dray_handle peer);
void rails_peer_ports(struct rails *r, dray_handle peer, const struct dray_vec *ports);
void rails_peer_connect(struct rails *r, dray_handle peer, uint64_t request_id,
			const struct pmsg_qp_connect *m);
void rails_peer_close(struct rails *r, dray_handle peer, uint64_t request_id, uint64_t qp);
/*
 * Writes the keys of a grant of the peer as records of pmsg_rail. Returns their number. For GPU memory without keys the peer
 * gets a window, unless a device registers the memory later.
 */
unsigned rails_grant_keys(struct rails *r, dray_handle peer, dray_handle grant, uint8_t *buf,
			  unsigned max);
/* The peer announces the window that it has made for this agent. */
void rails_peer_window(struct rails *r, dray_handle peer, const struct pmsg_window *m);
/* The peer requests a copy between its window here and a grant. */
void rails_peer_stage(struct rails *r, dray_handle peer, uint64_t request_id,
		      const struct pmsg_stage *m);

/*
 * Guests: engines that speak Mooncake's protocol, which have no control connection. Their queue pairs and the ranges that owners
 * exported to them are in a protection domain of their own. Without mooncake.protocol rdma there are none.
 */

/* The range was exported to guests: registers it for them until rails_guest_range_end(). */
void rails_guest_range_add(struct rails *r, const struct grant_view *grant);
/* Deregisters the range, then grant_fenced(), possibly inside the call. */
void rails_guest_range_end(struct rails *r, dray_handle grant);

/* No device is being opened, and no range is being registered. */
bool rails_guest_ready(const struct rails *r);
/* Another number after each change of what the two following calls return. */
uint64_t rails_guest_changes(const struct rails *r);

struct rails_guest_device {
	const char *name;
	uint16_t lid;
	struct in6_addr gid;
};
/* The devices that guests may use. Returns their number. */
unsigned rails_guest_devices(const struct rails *r, struct rails_guest_device ret[RAILS_MAX]);
/* Runs fn for each piece of the ranges that all these devices have registered, with its key for each device. */
void rails_guest_buffers(const struct rails *r,
			 void (*fn)(void *arg, uint64_t address, uint64_t length,
				    const uint32_t *keys, unsigned n),
			 void *arg);

#define RAILS_GUEST_PATH 256
/* Queue pairs of one request: the most that its engines make. */
#define RAILS_GUEST_QUEUE_PAIRS 255

struct rails_guest_request {
	struct dray_addr from;
	char path[RAILS_GUEST_PATH]; /* the guest's name of its end: a request by this name replaces the one before */
	char device[ND_DEVICE_NAME_MAX]; /* ours */
	uint16_t lid;
	struct in6_addr gid;
	unsigned n;
	uint32_t qpn[RAILS_GUEST_QUEUE_PAIRS]; /* the guest's */
};

struct rails_guest_reply {
	const char *refused; /* NULL: not refused */
	struct rails_guest_device device;
	unsigned n;
	const uint32_t *qpn; /* ours */
};

/* Makes queue pairs for the guest, then done(), possibly inside the call. Returns a number for rails_guest_forget(), or 0. */
uint64_t rails_guest_connect(struct rails *r, const struct rails_guest_request *request,
			     void (*done)(void *arg, const struct rails_guest_reply *reply),
			     void *arg);
/* The guest does not wait any more: done() does not run, and the queue pairs are destroyed. */
void rails_guest_forget(struct rails *r, uint64_t id);
/* Destroys the queue pairs of all guests but those to keep. */
void rails_guests_end(struct rails *r,
		      bool (*keep)(void *arg, const struct rails_guest_request *guest), void *arg,
		      const char *why);

/*
 * Engines that speak Mooncake's protocol, whose memory this agent reads and writes. Their queue pairs, and what these read from and
 * write to here, are in the protection domain of guests. Nobody but the engine knows its end of a queue pair, and nothing tells it
 * that this end is gone.
 */

/* Devices of one engine. */
#define RAILS_ENGINE_PORTS 16

struct rails_engine {
	struct peer_link *link; /* borrowed until every worker has forgotten the engine */
	const char *segment;
	unsigned n;
	struct rails_engine_port {
		struct in6_addr gid;
		uint16_t lid;
	} ports[RAILS_ENGINE_PORTS];
};

struct rails_engine_request {
	dray_handle engine;
	uint64_t id;
	const char *device; /* ours */
	struct in6_addr gid;
	uint16_t lid;
	uint32_t qpn;
	unsigned port; /* the engine's, index in its ports */
	/* these three, and the devices, tell the queue pair from others that live at the same time */
	unsigned worker, slot;
	enum dmsg_class class;
};

struct rails_engine_reply {
	const char *refused; /* NULL: not refused */
	uint32_t qpn;
	uint16_t lid;
	struct in6_addr gid;
};

/* From now on workers may use it. 0, or -ENOMEM. */
int rails_engine_up(struct rails *r, const struct rails_engine *engine);
void rails_engine_down(struct rails *r, dray_handle engine);
/* Of a request that is not known any more, nothing happens. */
void rails_engine_connected(struct rails *r, uint64_t id, const struct rails_engine_reply *reply);

struct rails_guest_totals {
	uint64_t queue_pairs, refused, lost;
};

/* Fills the fields from rail on for the port that record->device and ->port name, unless no rail uses it. */
void rails_describe(struct rails *r, struct dray_dbus_rail *record);
void rails_each_path(struct rails *r, void (*fn)(void *arg, const struct dray_dbus_path *path),
		     void *arg);
/* Rails in use to reach the peer, and queue pairs that post to it. */
uint32_t rails_peer_count(struct rails *r, dray_handle peer, uint32_t *ret_queue_pairs);
/* What a rail, or all paths to a peer, have moved. */
struct rails_traffic {
	uint64_t sent, received; /* bytes */
	uint64_t moving_ns;      /* of all work requests, added up */
};
struct rails_traffic rails_peer_traffic(struct rails *r, dray_handle peer);
/* Each rail, whatever its state. */
void rails_each(const struct rails *r,
		void (*fn)(void *arg, const char *device, unsigned port,
			   struct rails_traffic moved),
		void *arg);
/* Rails that are up. */
unsigned rails_up(const struct rails *r);
void rails_metrics(const struct rails *r, uint64_t v[DRAY_METRIC_N]);
