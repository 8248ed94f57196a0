/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent: owns every module, wires their upcalls, pumps the workers' events, and carries the state
 * running, draining, drained. Control thread only.
 */
#ifndef DRAY_AGENT_AGENT_H
#define DRAY_AGENT_AGENT_H

#include <systemd/sd-event.h>

#include "agent/config.h"
#include "agent/identity.h"
#include "agent/peer/peer.h"
#include "agent/region/region.h"
#include "agent/session/session.h"
#include "agent/worker/pool.h"
#include "lib/list.h"

enum agent_state { AGENT_RUNNING, AGENT_DRAINING, AGENT_DRAINED, AGENT_STATE_N };

struct control;
struct detect;
struct rails;

struct agent {
	const struct config *config;
	sd_event *event;
	struct identity identity;
	struct worker_pool pool;
	sd_event_source *worker_events[WORKERS_MAX];
	struct rails *rails;
	struct regions *regions;
	struct peers *peers;
	struct sessions *sessions;
	struct control *control;
	struct detect *detect;
	int worker_nodes[WORKERS_MAX]; /* NUMA node of each worker, -1: anywhere */
	struct dray_list listings;     /* agent_list_transfers() under way */
	int64_t started_ns;

	/* drain.c */
	enum agent_state state;
	bool stay;        /* stay as drained instead of exiting */
	bool stopping;    /* on the way out */
	bool told_to_end; /* by SIGTERM */
	bool overdue;     /* the deadline has passed */
	int exit_status;
	int64_t drain_deadline_ns;
	sd_event_source *drain_timer, *stop_timer;
	sd_event_source *signals[4];
	unsigned n_signals;
};

/* Starts everything; on error nothing is left. The configuration is borrowed. */
int agent_start(struct agent *a, const struct config *config, struct dray_err *reterr);

/* Runs until the end; returns the exit status. */
int agent_run(struct agent *a);
void agent_deinit(struct agent *a);

/* timeout_ns < 0: the configured limit. -EALREADY while draining or drained. */
int agent_drain(struct agent *a, int64_t timeout_ns, bool stay);

/* Takes new work again. 0, also where it is running; -ESHUTDOWN once the end is decided. */
int agent_resume(struct agent *a);

/* Ends all sessions and connections now, then the loop with this status. Idempotent. */
void agent_stop(struct agent *a, int status);

/* Signal handlers: SIGTERM drains, a second one, or SIGINT, stops at once. 0 or -errno. */
int agent_watch_signals(struct agent *a);

const char *agent_state_name(enum agent_state s);

/* Sum over workers, or the control thread's own value, of one metric. */
uint64_t agent_metric(struct agent *a, enum dray_metric m);

/* Asks every worker for its transfers; fn runs later, once, and may not keep them. 0 or -ENOMEM. */
typedef void (*agent_transfers_fn)(void *arg, struct snapshot *const *snapshots, unsigned n);
int agent_list_transfers(struct agent *a, agent_transfers_fn fn, void *arg);

/* Callbacks of listings that belong to `arg` will not run. */
void agent_forget_listings(struct agent *a, void *arg);

#endif
