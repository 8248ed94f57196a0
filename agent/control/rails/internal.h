/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the files of this folder alone.
 *
 * Who owns what: struct rails owns all. A device is open as long as one of its rails wants it, and closes
 * when nothing on it is left: queue pairs, memory regions, completion queues, jobs. Each of those is counted
 * in the device, and whoever takes one away calls device_check().
 */
#ifndef DRAY_AGENT_CONTROL_RAILS_INTERNAL_H
#define DRAY_AGENT_CONTROL_RAILS_INTERNAL_H

#include "agent/process/jobs.h"
#include "agent/control/rails/rail_fsm.h"
#include "agent/control/rails/rails.h"
#include "agent/model/keys.h"
#include "lib/handle.h"
#include "lib/list.h"
#include "netdetect/choose/rail.h"

#define AREA "rdma"
#define REASON_MAX ND_REASON_MAX
/* Of a device, for the read that proves earlier writes to be in place. */
#define FLUSH_BYTES 4096

struct rail;
struct window;
struct rail_region;

struct device {
	struct dray_list link;
	struct rails *rails;
	char name[ND_DEVICE_NAME_MAX];
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *serve_cq; /* of queue pairs that serve: nothing is ever put there */
	struct ibv_mr *flush_mr;
	uint8_t *flush;
	struct ibv_device_attr attr;
	/*
	 * Soft-RoCE (drivers/infiniband/sw/rxe of Linux 6.1). Requests that are posted while a read is being answered
	 * overtake each other, and are sent again (hw_counters: out_of_seq_request, duplicate_request). A read whose
	 * answer is sent again from its middle ends with success and without its bytes: check_ack() fails the queue
	 * pair and leaves the status of the work request as it was; what is behind such a read is flushed. So reads
	 * are posted alone, are short, and are confirmed by another one behind them.
	 */
	bool soft_roce;
	sd_event_source *async;
	uint32_t qps, mrs, jobs; /* users */
	uint32_t key_sets;       /* that name memory regions of it */
	bool open;               /* what jobs of it made is there to be used */
	bool closing, close_begun;
	_Atomic bool hurry; /* a job that takes long should end */
	/* rails whose completion queues go with it: the closing job cannot look at what the loop changes */
	struct rail *closing_rails[RAILS_MAX];
	unsigned n_closing_rails;
	struct dray_job job;
};

struct rail {
	struct rails *rails;
	uint32_t number;
	char device_name[ND_DEVICE_NAME_MAX];
	uint32_t port;
	enum rail_state state;
	char reason[REASON_MAX];
	struct device *device; /* from OPENING to ABSENT */
	/* by the last scan */
	bool usable, present;
	bool disabled;         /* by an operator */
	uint32_t device_index; /* the kernel's; another one is another device */
	int numa;
	enum nd_link_layer layer;
	struct nd_gid gid;
	uint32_t mtu, lid;
	uint16_t pkey, pkey_index;
	/* for the workers */
	struct rdma_cq cqs[WORKERS_MAX];
	uint32_t cq_used[WORKERS_MAX]; /* work requests that may complete there */
	bool cqs_made, cqs_told;
	unsigned gone_missing; /* workers that have not let go of them */
	struct rdma_counters counters;
	uint32_t serving;
	uint32_t fails;
	int64_t retry_ns;
	int open_error;
	char open_what[32];
	struct dray_job job;
};

/* A rail here and one of a peer that reach each other. */
struct path {
	struct dray_list link;
	struct rail_peer *peer;
	struct rail *rail;
	struct pmsg_port to;
	uint8_t gid_index;
	struct in6_addr gid;
	uint32_t mtu, rank;
	bool active; /* it is one of the present ones */
	char reason[REASON_MAX];
	struct rdma_counters counters;
	uint32_t fails;
	int64_t retry_ns;
};

/* Where a queue pair stands: jobs have their copy, since the loop follows what scans say. */
struct qp_place {
	uint8_t port, gid_index;
	uint16_t pkey_index;
};

enum qp_state {
	QP_CREATING,   /* a job makes it */
	QP_ASKING,     /* the peer was asked for the other end */
	QP_CONNECTING, /* a job brings it to RTS */
	QP_UP,         /* a worker's */
	QP_LOSING,     /* the worker was told to let go of it */
	QP_DYING,      /* both ends are being destroyed */
	QP_STATE_N
};

/* One that posts. */
struct qp {
	struct dray_list link; /* on peer->qps */
	struct rail_peer *peer;
	struct path *path;
	struct rail *rail;
	struct device *device; /* NULL: dead on this side */
	dray_handle id;
	unsigned worker;
	enum dmsg_class class;
	enum qp_state state;
	struct ibv_qp *qp;
	bool doomed; /* its job is under way; then it dies */
	bool asked;  /* the peer knows of it */
	bool was_up; /* the worker waits for QP_DEAD */
	bool local_dead, remote_dead;
	int error; /* of the last job */
	struct qp_place at;
	uint32_t cq_entries; /* that its completion queue must have */
	uint32_t psn, depth, sges, inline_bytes, reads;
	struct pmsg_qp_connect_reply remote;
	int64_t up_ns;
	struct dray_job job;
};

/* One that serves the peer. */
struct serve {
	struct dray_list link; /* on peer->serving */
	struct rail_peer *peer;
	struct rail *rail;
	struct device *device;
	uint64_t id; /* the peer's */
	struct ibv_qp *qp;
	struct pmsg_qp_connect m;
	uint64_t connect_request, close_request; /* 0: answered, or not asked */
	bool making, dying;
	struct qp_place at;
	uint32_t psn, reads, mtu;
	int error;
	struct dray_job job;
};

struct rail_peer {
	struct dray_list link;
	struct rails *rails;
	dray_handle handle;
	bool rdma, down;
	bool takes_windows;    /* it knows what they are */
	bool wants_window;     /* it holds a grant of GPU memory that no rail reaches */
	bool no_window;        /* there is no memory for it, and that was said */
	bool awaits_window;    /* gpu.windows is used up, and that was said */
	struct window *window; /* the one it has; NULL: none */
	bool ports_known, no_path_said;
	struct pmsg_port said[RAILS_MAX]; /* its rails, as it said last */
	uint32_t n_said;
	/* the same as it was when the job was given out */
	struct pmsg_port wire[RAILS_MAX];
	struct nd_remote_port ports[RAILS_MAX];
	uint32_t n_ports;
	struct dray_list paths, qps, serving;
	uint8_t wanted;      /* by which workers */
	uint8_t given_up[2]; /* by class: workers that were told that it is unreachable */
	bool matching;       /* the job is under way */
	bool match_again;
	bool quiet_due;       /* peer_quiet() is owed */
	struct nd_scan *scan; /* of the job */
	struct nd_rail *found;
	size_t n_found;
	int match_error;
	struct dray_job job;
};

/* --- rails.c --- */
int64_t rails_now(struct rails *r);
void rails_timer(struct rails *r, int64_t when_ns);
int64_t rails_backoff(struct rails *r, uint32_t fails);
__attribute__((format(printf, 3, 4))) void rail_event(struct rail *rail, enum rail_event e,
						      const char *why, ...);

struct rails {
	struct rails_deps deps;
	const struct dray_config *cfg;
	const struct verbs *verbs;
	struct dray_jobs *slow; /* devices, and what ends */
	struct dray_jobs *
		connector; /* queue pairs that begin: the kernel looks for the peer's hardware address */
	struct dray_jobs *registrar; /* memory regions */
	sd_event_source *timer;
	int64_t timer_ns;
	struct nd_scan *scan;
	struct rail *v[RAILS_MAX];
	unsigned n;
	struct dray_list devices, peers, regions, registrations, windows;
	struct dray_handles qps;
	uint64_t lost_total, fallbacks_total, registration_failures;
	uint64_t n_mrs, mr_bytes, n_serving;
	uint64_t window_bytes, last_window;
	bool settling; /* registrations_settle() is due */
	struct dray_job settle_job;
};

/* --- device.c --- */
/* Opens the rail's device if it is not open, and its completion queues; RAIL_EVENT_OPENED or _OPEN_FAILED. */
void device_open(struct rail *rail);
/* Closes it once nothing is left on it; RAIL_EVENT_CLOSED to its rails. */
void device_close(struct device *d);
void device_check(struct device *d);
static inline bool device_is_open(const struct device *d)
{
	return d && d->open && !d->closing;
}
/* A worker has let go of the rail's completion queue. */
void device_rail_gone(struct rail *rail);
void device_free(struct device *d);
/* At the end, when no job runs any more and nothing is left on it: closes and frees it. */
void device_end(struct device *d);

/* --- registration.c --- */
/* The device is open: everything is registered with it. */
void registrations_device_up(struct device *d);
/* The device closes: keys of it are withdrawn, then its memory regions go. */
void registrations_device_down(struct device *d);
/* Rails of a device have come up: keys name them too. */
void registrations_publish(struct rails *r);
/* Rails have changed: regions that wait for a device may have waited for nothing. */
void registrations_settle(struct rails *r);
void registrations_free(struct rails *r);
/* Memory that peers reach as they do a region's; window_published() tells of its keys. NULL: no memory. */
struct rail_region *registration_window(struct window *w, struct rails *r, void *base,
					uint64_t bytes);
/* done(arg) once no device knows it; possibly inside the call. */
void registration_remove(struct rail_region *region, void (*done)(void *arg), void *arg);
/* Keys of [offset, offset + length) as wire records of pmsg_rail, and back; NULL: there are none. */
unsigned registration_wire(const struct rail_keys *k, uint64_t offset, uint64_t length,
			   uint8_t *buf, unsigned max);
struct rail_keys *registration_read(const struct dray_vec *rails, uint64_t length);

/* --- paths.c --- */
struct rail_peer *rail_peer_get(struct rails *r, dray_handle peer);
void rail_peer_free(struct rail_peer *peer);
/* Frees one that is down and has nothing left. */
void rail_peer_check(struct rail_peer *peer);
/* Rails have changed: peers are told, and paths found anew. */
void paths_refresh(struct rails *r);
/* Paths to this peer are gone or new: the workers hear which there are. */
void paths_tell(struct rail_peer *peer);

/* --- connect.c --- */
/* Makes what queue pairs the peer's paths lack and workers want. */
void connect_peer(struct rail_peer *peer);
void connect_tick(struct rails *r);
/* Queue pairs on it are of no use any more. */
void connect_lose_rail(struct rail *rail);
void connect_lose_path(struct path *path);
void connect_lose(struct qp *q);
/* The peer is down: those that no worker has die now. */
void connect_peer_down(struct rail_peer *peer);
/* From the worker. */
void connect_handle_lost(struct rails *r, dray_handle id, uint32_t code);
bool path_in_use(const struct path *path);

/* --- serve.c --- */
void serve_lose_rail(struct rail *rail);
void serve_peer_down(struct rail_peer *peer);

/* --- window.c --- */
/* It was granted GPU memory that no rail reaches. */
void window_want(struct rails *r, dray_handle peer);
/* It is reached: it gets a window if it lacks one that it wants. */
void window_check(struct rail_peer *peer);
void window_published(struct window *w, const struct rail_keys *keys);
/* The peer is down: what it had goes. */
void windows_peer_down(struct rails *r, dray_handle peer);
void windows_free(struct rails *r);
/* From a worker: a copy that we serve is over; a copy is to be asked for. */
void window_handle_copied(struct rails *r, struct rdma_copy *copy, uint32_t code);
void window_handle_ask(struct rails *r, struct rdma_ask *ask);

/* --- qp.c: the verbs of a queue pair's life; on a job's thread --- */
struct qp_end {
	uint32_t qpn, psn, mtu, lid, reads;
	uint8_t gid[16];
};
int qp_create(const struct verbs *v, const struct device *d, struct ibv_cq *cq, uint32_t depth,
	      uint32_t inline_bytes, struct ibv_qp_cap *ret_cap, struct ibv_qp **ret);
int qp_to_init(const struct verbs *v, const struct qp_place *at, struct ibv_qp *qp, bool serves);
int qp_to_rtr(const struct verbs *v, const struct qp_place *at, struct ibv_qp *qp,
	      const struct qp_end *remote, const struct dray_config *cfg);
int qp_to_rts(const struct verbs *v, struct ibv_qp *qp, uint32_t psn, uint32_t reads,
	      const struct dray_config *cfg);
uint32_t qp_random_psn(void);
struct qp_place qp_place(const struct rail *rail, uint8_t gid_index);

#endif
