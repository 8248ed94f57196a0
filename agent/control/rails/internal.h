/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the files of this folder alone.
 *
 * Ownership: struct rails owns everything. A device is open while a rail uses it, and closes when it has no users left:
 * queue pairs, memory regions, completion queues, jobs. The device counts them, and the code that removes one calls
 * device_check().
 */
#pragma once

#include "agent/control/gpu/gpus.h"
#include "agent/control/peer/peer.h"
#include "agent/control/rails/rail_fsm.h"
#include "agent/control/rails/rails.h"
#include "agent/control/rails/verbs.h"
#include "agent/control/region/region.h"
#include "agent/model/keys.h"
#include "agent/model/rdma_message.h"
#include "agent/process/jobs.h"
#include "lib/handle.h"
#include "lib/heap.h"
#include "lib/list.h"
#include "lib/map.h"
#include "netdetect/choose/rail.h"

#define AREA "rdma"
#define REASON_MAX ND_REASON_MAX
/* Memory of a device for the read that proves earlier writes to be in place. */
#define FLUSH_BYTES 4096
/* Most pieces in one message. */
#define RAILS_KEYS_MAX ((PMSG_KEYS_BODY_MAX - PMSG_KEYS_MIN) / PMSG_RAIL_SIZE)

struct rail;
struct rail_region;
struct guest_range;
struct window;

struct device {
	struct dray_list link;
	struct rails *rails;
	struct dray_list used_by; /* of struct rail, from OPENING to ABSENT */
	char name[ND_DEVICE_NAME_MAX];
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *serve_cq; /* of serving queue pairs; it stays empty */
	struct ibv_pd *guest_pd; /* of guests and engines; NULL: there are none */
	struct ibv_cq *guest_cq; /* for the probes of guests */
	struct ibv_mr *flush_mr;
	struct ibv_mr
		*engine_flush_mr; /* the same for queue pairs to engines; NULL: there are none */
	uint8_t *flush;
	struct ibv_device_attr attr;
	/*
	 * Soft-RoCE (drivers/infiniband/sw/rxe of Linux 6.1). Requests that are posted while a read is being answered
	 * overtake each other, and are sent again (hw_counters: out_of_seq_request, duplicate_request). A read whose
	 * answer is sent again from its middle ends with success and without its bytes: check_ack() fails the queue
	 * pair but leaves the status of the work request as it was; the work requests behind such a read are flushed.
	 * So reads are posted alone, are short, and are confirmed by another one behind them.
	 */
	bool soft_roce;
	sd_event_source *async;
	uint32_t qps, mrs, jobs; /* its users */
	struct dray_list stuck; /* queue pairs that it did not destroy, which end with its context */
	uint32_t key_sets;      /* that name its memory regions */
	bool open;              /* its objects may be used */
	bool closing, close_begun;
	bool withdrawn;     /* regions have been published without its keys */
	_Atomic bool hurry; /* long jobs end early */
	struct dray_job job;
};

struct rail {
	struct rails *rails;
	uint32_t number;
	char device_name[ND_DEVICE_NAME_MAX];
	uint32_t port;
	enum rail_state state;
	char reason[REASON_MAX];
	struct device *device;        /* NULL: none */
	struct dray_list device_link; /* on device->used_by */
	/* results of the last scan */
	bool usable, present;
	bool disabled;         /* by an operator */
	uint32_t device_index; /* the kernel's; a new device has a new one */
	int numa;
	enum nd_link_layer layer;
	struct nd_gid gid;
	uint32_t mtu, lid;
	uint16_t pkey, pkey_index;
	/* for the workers */
	struct rdma_cq cqs[WORKERS_MAX];
	uint32_t cq_used[WORKERS_MAX]; /* work requests that may complete there */
	bool cqs_told;
	unsigned cqs_in_use; /* workers that have not released theirs, after RDMA_RAIL_DOWN */
	struct rdma_counters counters;
	uint32_t serving;
	uint32_t fails;
	int64_t retry_ns;
	int open_error;
	const char *open_step; /* the one that failed */
	struct dray_job job;
};

/* A rail here and a rail of a peer that reach each other. */
struct path {
	struct dray_list link;
	struct rail_peer *peer;
	struct rail *rail;
	struct pmsg_port to;
	uint8_t gid_index;
	struct in6_addr gid;
	uint32_t mtu, rank;
	bool active, was_active; /* results of the last match, and of the one before */
	/* masks of workers */
	uint8_t refused;          /* the last attempt to make a queue pair has failed */
	uint8_t full;             /* their completion queues had no room for a queue pair */
	uint8_t crowded[2];       /* by class: as many former queue pairs are left as may be */
	uint8_t given_up[2];      /* by class: these were told PATH_UNREACHABLE */
	char reason[REASON_MAX];  /* why it was chosen */
	char failure[REASON_MAX]; /* the last one */
	struct rdma_counters counters;
	uint32_t fails;
	int64_t retry_ns;
	/* by worker: failed attempts to make a queue pair, since one of the path was ready */
	uint32_t unmade[WORKERS_MAX];
	/*
	 * Rounds in a row in which queue pairs were ready and lost and no slice was completed. A round ends with the first such loss of
	 * a queue pair that was begun in it.
	 */
	uint32_t futile, round;
	uint64_t slices; /* counters.slices at the end of the last round */
};

#define QP_PSN_MASK 0xffffff
/* Reads in flight that Mooncake's engines ask for and accept. */
#define GUEST_READS 16u
/* Soft-RoCE never gives up with seven retries (COMPST_ERROR_RETRY in drivers/infiniband/sw/rxe/rxe_comp.c of Linux 6.1). */
#define GUEST_RETRIES 6

enum qp_state {
	QP_CREATING,   /* a job creates it; one that serves: makes it ready */
	QP_REQUESTED,  /* the peer was asked for the other end */
	QP_CONNECTING, /* a job brings it to RTS */
	QP_UP,         /* a worker uses it; one that serves: ready */
	QP_LOSING,     /* the worker was told to stop using it */
	QP_DYING,      /* both ends are being destroyed */
	QP_STATE_N
};

/* A queue pair: it posts, or it serves the peer and never posts. */
struct qp {
	struct dray_list link;  /* on peer->qps or peer->serving */
	struct dray_list stuck; /* on device->stuck */
	struct rail_peer *peer;
	struct rail *rail;
	struct device *device; /* NULL: destroyed here */
	dray_handle id;        /* of the agent whose end posts */
	enum qp_state state;
	struct ibv_qp *qp;
	_Atomic bool doomed; /* destroyed as soon as its job has ended, which does nothing any more */
	int error;           /* of the last job */
	/* the local address; a copy for jobs, since scans change the rail */
	uint8_t port, gid_index;
	uint16_t pkey_index;
	uint32_t psn, depth, sges, inline_bytes, reads;
	uint8_t retries;
	struct pmsg_qp_connect remote; /* the other end */
	struct dray_job job;
	struct dray_list turn; /* on peer->turns */
	void (*run)(struct dray_job *j);
	void (*done)(struct dray_job *j);
	/* one that posts */
	struct path *path;
	unsigned worker;
	uint32_t round; /* of its path when it was begun */
	unsigned slot; /* to an engine: no other one of these devices, worker and class that lives has it */
	enum dmsg_class class;
	bool requested; /* the peer knows it */
	bool asked;     /* the answer to QP_CONNECT has not come: its function has the queue pair */
	bool was_up;    /* the worker waits for QP_DEAD */
	bool local_dead, remote_dead;
	uint32_t cq_entries; /* least size of its completion queue */
	int64_t up_ns;
	/* one that serves: requests to answer, 0: none */
	uint64_t connect_request, close_request;
};

static inline struct qp *qp_of(struct dray_job *j)
{
	return dray_container_of(j, struct qp, job);
}

struct rail_peer {
	struct dray_list link;
	struct dray_map_node by_handle; /* in rails->by_handle, or in rails->down when it is down */
	struct dray_heap_node retry; /* in rails->retries: the first of its paths to be tried again */
	struct rails *rails;
	dray_handle handle;
	char *segment; /* of an engine; NULL: it is an agent */
	bool down;
	bool takes_windows;             /* it supports them */
	bool wants_window;              /* it holds a grant of GPU memory that no rail reaches */
	bool no_window;                 /* there is no memory for it; logged */
	struct dray_list awaits_window; /* in rails->awaiting: gpu.windows is used up; logged */
	struct window *window;          /* NULL: none */
	uint64_t ports_told;            /* the version of the last PORTS to it; 0: there was none */
	bool ports_known, no_path_logged;
	struct pmsg_port announced[RAILS_MAX]; /* its rails, by its last message */
	uint32_t n_announced;
	struct dray_list paths, qps, serving;
	struct dray_list turns;    /* queue pairs that wait for the connector */
	struct qp *has_turn;       /* the connector has this one; NULL: none */
	struct rails_traffic gone; /* moved over paths that were freed */
	uint8_t wanted;            /* mask of workers with transfers to it */
	uint8_t given_up[2];       /* by class: mask of workers that were told UNREACHABLE */
	bool quiet_due;            /* grants_peer_gone() is pending */
	/* the job that matches its rails with ours, and a copy of its rails */
	bool matching;
	bool match_again;
	struct pmsg_port matched[RAILS_MAX];
	struct nd_remote_port ports[RAILS_MAX];
	uint32_t n_ports;
	struct nd_scan *scan;
	struct nd_rail *found;
	size_t n_found;
	int match_error;
	uint32_t match_fails; /* in a row */
	struct dray_job job;
};

/* Engines that speak Mooncake's protocol, and the ranges that owners exported to them. guest.c and guest_memory.c. */
struct guests {
	struct dray_list v, ranges; /* struct guest, struct guest_range */
	sd_event_source *timer;     /* of probes */
	uint64_t last_id, changes;
	struct rails_guest_totals totals;
};

struct rails {
	struct rails_deps deps;
	const struct dray_config *cfg;
	const struct verbs *verbs;
	struct dray_jobs *slow; /* open and close devices, destroy queue pairs */
	/* creates queue pairs, for which the kernel resolves the hardware address of the peer */
	struct dray_jobs *connector;
	/* the same for guests, whose addresses may not answer, so that they do not hold up peers; NULL until the first one */
	struct dray_jobs *guest_connector;
	struct dray_jobs *registrar; /* memory regions */
	sd_event_source *timer;
	int64_t timer_ns;
	int64_t register_again_ns; /* the first mrs.retry_ns, or earlier; INT64_MAX: there is none */
	struct nd_scan *scan;
	struct rail *v[RAILS_MAX];
	unsigned n;
	/* the rails that peers may use, as PORTS has them; the version changes with them */
	uint8_t ports[RAILS_MAX * PMSG_PORT_SIZE];
	uint32_t n_ports;
	uint64_t ports_version;
	struct dray_list devices, peers, regions, registrations, windows;
	struct dray_map shared; /* struct registration of host memory, by place */
	uint64_t shared_levels; /* mask: at these there was one */
	struct guests guests;
	struct dray_map by_handle; /* struct rail_peer that is not down */
	struct dray_map down;      /* struct rail_peer that is, also by handle */
	struct dray_map regions_by_handle;
	struct dray_heap retries;  /* of struct rail_peer */
	struct dray_list awaiting; /* struct rail_peer that waits for room for its window */
	bool engines; /* there was one: memory of regions is registered for them, too */
	struct dray_list renewals; /* rail_region.c */
	struct dray_list unheld;   /* the same: what they waited for is gone */
	struct dray_handles qps;
	uint64_t lost_total, fallbacks_total, registration_failures;
	uint64_t n_mrs, mr_bytes, n_serving;
	uint64_t window_bytes, last_window;
	bool deciding;              /* decide_job is under way */
	bool decide_all;            /* it looks at all regions, else at these: */
	struct dray_list to_decide; /* struct rail_region */
	struct dray_job decide_job;
};

/* Sets the fields of a record that count traffic. */
#define DESCRIBE_TRAFFIC(record, c)                                     \
	do {                                                            \
		(record)->queue_pairs = atomic_load(&(c)->queue_pairs); \
		(record)->sent_bytes = atomic_load(&(c)->sent);         \
		(record)->received_bytes = atomic_load(&(c)->received); \
		(record)->slices = atomic_load(&(c)->slices);           \
		(record)->retries = atomic_load(&(c)->retries);         \
		(record)->failovers = atomic_load(&(c)->failovers);     \
	} while (0)

/* --- rails.c --- */
int64_t rails_now(struct rails *r);
void traffic_add(struct rails_traffic *t, const struct rdma_counters *c);
void rails_timer(struct rails *r, int64_t when_ns);
/* paths_retry() runs at this time, or earlier. */
void rails_retry(struct rail_peer *peer, int64_t when_ns);
int64_t rails_backoff(struct rails *r, uint32_t fails);
/* NULL: unknown. */
struct rail *rail_find(struct rails *r, const char *device, uint32_t port);
__attribute__((format(printf, 3, 4))) void rail_event(struct rail *rail, enum rail_event e,
						      const char *why, ...);
/* Answers a request of the peer with an error, and logs that. */
void rails_refuse(struct rails *r, dray_handle peer, uint64_t request_id, uint32_t code,
		  const char *what, const char *why);
/* Sends a message to transport rdma of a worker. */
void rails_tell(const struct rails *r, unsigned worker, enum rdma_command type, dray_handle peer,
		uint64_t id, void *arg);

/* --- device.c --- */
/* Opens the rail's device, unless it is open, and its completion queues; RAIL_EVENT_OPENED or _OPEN_FAILED. */
void device_open(struct rail *rail);
/* Closes the device when it has no users left; RAIL_EVENT_CLOSED to its rails. */
void device_close(struct device *d);
/* Its rails end, and with them the device. */
void device_lost(struct device *d, const char *why);
void device_check(struct device *d);
static inline bool device_is_open(const struct device *d)
{
	return d && d->open && !d->closing;
}
/* Adds a job that counts as a user of the device; done() decrements d->jobs. */
void device_job(struct device *d, struct dray_jobs *js, struct dray_job *j,
		void (*run)(struct dray_job *j), void (*done)(struct dray_job *j));
/* At the end of the agent, without jobs and users: closes and frees it. */
void device_end(struct device *d);

/* --- registration.c --- */
enum mrs_state {
	MRS_MAKING,
	MRS_READY,
	MRS_FAILED,
	MRS_DROPPING,
	MRS_STUCK, /* not deregistered: ends with the device's context */
};

/* The memory regions of a registration with one device. */
struct mrs {
	struct dray_list link; /* on registration->mrs */
	struct registration *registration;
	struct device *device;
	enum mrs_state state;
	bool drop; /* as soon as they are made */
	uint32_t n, n_made;
	uint64_t slice;       /* bytes of each but the last */
	int error;            /* 0, or -errno of the last attempt */
	uint32_t fails;       /* attempts that found no page */
	int64_t retry_ns;     /* 0: there is no further attempt */
	char why[REASON_MAX]; /* they failed */
	struct dray_job job;
	struct ibv_mr *v[];
};

enum registration_use {
	REGISTRATION_FOR_PEERS,
	REGISTRATION_LOCAL,       /* staging memory: peers have no access */
	REGISTRATION_FOR_READERS, /* of the store: peers read, and only this agent writes */
	REGISTRATION_FOR_GUESTS,
	REGISTRATION_FOR_ENGINES, /* local in the protection domain of guests: only our queue pairs access it */
};

/* Of host memory that regions share: where it is, in steps that are about as long (registration.c). */
struct registration_place {
	uint64_t index;
	uint32_t level;
	uint16_t access, use;
};
_Static_assert(sizeof(struct registration_place) == sizeof(uint64_t) + 2 * sizeof(uint32_t),
	       "it is a key of a map, so it has no padding");

/* A range of memory that regions share; for guests: a range that only one export has. */
struct registration {
	struct dray_list link;         /* on rails->registrations: those without references first */
	struct dray_list waiting;      /* of struct rail_region, until it is gone */
	struct dray_list parts;        /* of regions, which are its references; rail_region.c */
	struct dray_map_node by_place; /* in rails->shared while regions may come to share it */
	struct registration_place place;
	struct rails *rails;
	uint8_t *base;
	uint64_t length, iova;
	struct region_dmabuf dmabuf; /* fd -1: memory at base; else the region's */
	uint16_t access;
	enum registration_use use;
	struct guest_range *range; /* of guests; NULL: of regions */
	uint32_t refs;
	struct dray_list mrs;
};

/* One reference. Not for guests. NULL: no memory. */
struct registration *registration_get(struct rails *r, uint8_t *base, uint64_t length,
				      uint16_t access, const struct region_dmabuf *dmabuf,
				      enum registration_use use);
/* The same for guests, who reach it at iova. It is shared with nobody. */
struct registration *registration_for_guests(struct guest_range *range, struct rails *r,
					     uint8_t *base, uint64_t length, uint16_t access,
					     uint64_t iova);
void registration_unref(struct registration *g);
/* Registers it with the device, unless it is. */
void registration_make(struct registration *g, struct device *d);
/* Deregisters it from every device. True if that takes time: a device has memory regions of it. */
bool registration_drop(struct registration *g);
/* Its memory regions with the device; NULL: none. */
struct mrs *registration_mrs(const struct registration *g, const struct device *d);
/* The device is open: registers everything with it. */
void registrations_device_up(struct device *d);
/* Makes the attempts that are due, and sets the timer for the next one. */
void registrations_retry(struct rails *r, int64_t now);
/* The device closes: withdraws its keys, then deregisters its memory regions. */
void registrations_device_down(struct device *d);
/* Its context is closed, and with it the memory regions that could not be deregistered. */
void registrations_device_closed(struct device *d);
void registrations_free(struct rails *r);

/* --- rail_region.c --- */
/* Publishes new keys of all regions, or of those with the registration, to workers and importers. */
void rail_regions_publish(struct rails *r, const struct registration *g);
/* A registration is gone: continues regions that waited for that. */
void rail_regions_check(struct rails *r);
/* The device is closed, and will be freed: key sets that are still in use name it no longer. */
void rail_regions_device_closed(struct device *d);
/* This registration, or rails (NULL), have changed: decides which regions are usable, and which importers need windows. */
void rail_regions_decide(struct rails *r, const struct registration *g);
void rail_regions_free(struct rails *r);
/* From now on the memory of regions is registered for queue pairs to engines, too. */
void rail_regions_for_engines(struct rails *r);
/* Registers staging memory of a worker, or a window, whose keys window_published() receives. NULL: no memory. */
struct rail_region *rail_region_own(struct rails *r, void *base, uint64_t bytes, unsigned worker,
				    struct window *window);
/* done(arg) when no device has its memory any more; possibly inside the call. */
void rail_region_remove(struct rail_region *region, void (*done)(void *arg), void *arg);
/* Writes the keys of [offset, offset + length) as records of pmsg_rail. Returns their number. */
unsigned rail_keys_write(const struct rail_keys *k, uint64_t offset, uint64_t length, uint8_t *buf,
			 unsigned max);
/* Runs fn for each piece of the range of a region that has memory here. False: the region is not known. */
bool rail_region_pieces(struct rails *r, dray_handle region, uint64_t offset, uint64_t length,
			void (*fn)(void *arg, uint8_t *base, uint64_t offset, uint64_t length),
			void *arg);

/* --- paths.c --- */
/* NULL: unknown, or down. */
struct rail_peer *rail_peer_get(struct rails *r, dray_handle peer);
void rail_peer_free(struct rail_peer *peer);
/* Frees a peer that is down and has no queue pairs and no job left. */
void rail_peer_check(struct rail_peer *peer);
/* Tells the peers the rails here, unless they know them. anew: what reaches a peer may have changed, so matches its paths. */
void paths_refresh(struct rails *r, bool anew);
/* A pause is over: matches the paths again if that failed, else creates queue pairs. */
void paths_retry(struct rail_peer *peer);

/* --- connect.c --- */
/* Creates the queue pairs that the peer's paths lack and workers want. */
void connect_peer(struct rail_peer *peer);
/* Why it has no queue pair, or none for some worker; else why it was chosen. up: it has one. */
const char *path_reason(const struct path *path, bool up, char buf[REASON_MAX]);
/* Its rail or path is lost: makes the worker stop using it, then destroys it. */
void connect_lose(struct qp *q);
/* From the worker. */
void connect_handle_lost(struct rails *r, dray_handle id, uint32_t code);

/* --- window.c --- */
/* The peer was granted GPU memory that no rail reaches. */
void window_want(struct rails *r, dray_handle peer);
/* Makes a window for a peer that wants one, lacks it and is reached. */
void window_check(struct rail_peer *peer);
void window_published(struct window *w, const struct rail_keys *keys);
/* The peer is down: ends its windows. */
void windows_peer_down(struct rails *r, dray_handle peer);
void windows_free(struct rails *r);
/* From a worker: the end of a copy for a peer; a request to a peer for a copy. */
void window_handle_copied(struct rails *r, struct rdma_copy *copy, uint32_t code);
void window_handle_stage(struct rails *r, struct rdma_stage_request *request);

/* --- guest.c --- */
int guests_init(struct rails *r);
void guests_free(struct rails *r);
static inline bool guests_wanted(const struct rails *r)
{
	return r->cfg->mooncake.protocol == DRAY_CONFIG_MOONCAKE_PROTOCOL_RDMA &&
	       *r->cfg->mooncake.listen;
}
/* Devices need a protection domain for engines or guests. */
static inline bool engines_wanted(const struct rails *r)
{
	return r->cfg->mooncake.import;
}
/* Ends the guests of the rail. */
void guests_rail_lost(const struct rail *rail);
/* The device reports an error of this queue pair. False: no guest has it. */
bool guests_queue_pair_failed(struct device *d, const struct ibv_qp *qp, const char *why);
/* Ends the guests that have not acknowledged their last probe. */
void guests_end_silent(struct device *d);
bool guests_are_ending(const struct device *d);
/* The device's context is closed, and with it the queue pairs that could not be destroyed. */
void guests_device_closed(struct device *d);
/* What peers are told has changed. */
void guests_changed(struct rails *r);

/* --- guest_memory.c --- */
/* Memory regions of the range, or queue pairs have ended: continues its end, or that of all. May free the range. */
void guest_range_check(struct guest_range *g);
void guest_ranges_check(struct rails *r);
void guest_ranges_free(struct rails *r);

/* --- qp.c --- */
/* Adds a queue pair, whose peer and id are set, to the list, and starts the job that creates it. */
void qp_begin(struct qp *q, struct rail *rail, uint32_t gid_index, struct dray_list *list,
	      void (*run)(struct dray_job *j), void (*done)(struct dray_job *j));
/* A job of the connector, for the queue pair; a user of its device, as of device_job(). */
void qp_job(struct qp *q, void (*run)(struct dray_job *j), void (*done)(struct dray_job *j));
/* Destroys it, after its job, and the end of the peer if that was requested. Then frees it. */
void qp_die(struct qp *q);
/* Frees it if nothing refers to it any more. */
void qp_check(struct qp *q);
/* The device's context is closed, and with it the queue pairs that could not be destroyed. */
void qps_device_closed(struct device *d);
/* The verbs of a queue pair, on a job's thread. qp_create() sets sges and inline_bytes. 0 or -errno. */
int qp_create(struct qp *q, struct ibv_pd *pd, struct ibv_cq *cq, uint32_t inline_bytes);
int qp_to_init(struct qp *q, unsigned access);
int qp_to_rtr(struct qp *q);
int qp_to_rts(struct qp *q);
