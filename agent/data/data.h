/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface of the data plane for the control plane: single workers, and the pool of all workers, which sends a
 * command to each and counts the answers. Control thread only.
 */
#pragma once

#include <sched.h>

#include "agent/model/counters.h"
#include "agent/model/turn_meter.h"
#include "agent/model/message.h"
#include "lib/err.h"
#include "lib/map.h"
#include "lib/time.h"

#define WORKERS_MAX 8
/* Longest wait for a worker's thread to end. */
#define WORKER_QUIT_LIMIT_NS (3 * DRAY_NS_PER_SEC)

struct delegates;
struct workshare;
struct peer_link;
struct store;
struct worker;

struct worker_pool {
	struct worker *workers[WORKERS_MAX];
	unsigned n;
	struct workshare *workshare; /* NULL: each works alone */
	struct delegates *delegates; /* likewise */
	struct dray_map broadcasts;  /* commands that wait for answers, by object */
	unsigned next;               /* worker to pick */
};

/* Makes n workers without threads; commands may be posted to them. 0, or -errno with reterr and everything freed. */
int pool_new(struct worker_pool *p, unsigned n, const struct data_config *cfg,
	     uint32_t max_transfers, struct dray_err *reterr);
/* Starts their threads. 0 or -errno with reterr; pool_stop() stops those that run. */
int pool_start(struct worker_pool *p, struct dray_err *reterr);
/* Before pool_start(): workers serve requests to the store; NULL: there is none. Borrowed until pool_stop(). */
void pool_store(struct worker_pool *p, struct store *s);
/* False: a worker's thread did not end, so memory that was given to it must stay (see worker_free()). */
bool pool_stop(struct worker_pool *p);

/* Publishes the view to every worker. It must live until `done` of its drop has run. */
void pool_publish(struct worker_pool *p, const struct object_view *view);

/* All memory of the region is open, whose view was published before. */
void pool_opened(struct worker_pool *p, dray_handle region);

/* Replaces the keys of the object; NULL: it has none. The caller keeps its reference. */
void pool_keys(struct worker_pool *p, enum object_kind kind, dray_handle handle,
	       struct rail_keys *keys);

/*
 * Every worker stops using the object; transfers that use it end with `code`. When the last has answered, no
 * byte of it is read or written any more by this agent, and done(arg) runs. urgent: see transport.h.
 * done (may be NULL) never runs inside this call. A second drop of the same object ends with the first.
 */
void pool_drop(struct worker_pool *p, enum object_kind kind, dray_handle handle, uint32_t code,
	       bool urgent, void (*done)(void *arg), void *arg);

/* The same, but transfers that use it may finish. A later pool_drop() stops them after all. */
void pool_retire(struct worker_pool *p, enum object_kind kind, dray_handle handle, uint32_t code,
		 void (*done)(void *arg), void *arg);

/* The link must live until `done` of its pool_peer_down has run. */
void pool_peer_up(struct worker_pool *p, struct peer_link *link);
void pool_peer_down(struct worker_pool *p, dray_handle peer, uint32_t code, void (*done)(void *arg),
		    void *arg);

/* The caller passes on EVENT_DROPPED. */
void pool_handle_dropped(struct worker_pool *p, enum object_kind kind, dray_handle handle);

/* Sends the message to the transport in every worker. Its arg must not pass ownership, because every worker gets it. */
void pool_message(struct worker_pool *p, const struct transport_message *m);

/* Binds a worker to these CPUs, which belong to NUMA node `node` (-1: to several or unknown). 0 or -errno. */
int pool_place(struct worker_pool *p, unsigned worker, const cpu_set_t *cpus, int node);

/* Worker for a new session or stream, in turn. */
unsigned pool_pick(struct worker_pool *p);

/* Queues a command; never fails: an overflow list holds what the ring does not, with memory of the reserve (lib/ballast.h). */
void worker_post(struct worker *w, const struct command *cmd);
/* The same, but a worker that sleeps finds it when something else wakes it up. */
void worker_leave(struct worker *w, const struct command *cmd);

/* Readable when events wait. */
int worker_event_fd(struct worker *w);

/* Takes the next event; also moves overflowed commands on. False when there is none. */
bool worker_next_event(struct worker *w, struct event *ret);

const struct data_counters *worker_counters(struct worker *w);
/* How much processor time its turns use. */
const struct turn_meter *worker_turns(struct worker *w);
