/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent as the parts of the control thread see it: its modules, and its state running, draining, drained.
 * Control thread only.
 */
#ifndef DRAY_AGENT_CONTROL_AGENT_H
#define DRAY_AGENT_CONTROL_AGENT_H

#include <systemd/sd-event.h>

#include "agent/config/config.h"
#include "agent/placement/environment/env_file.h"
#include "agent/control/history.h"
#include "agent/state/identity.h"
#include "agent/control/peer/peer.h"
#include "agent/control/region/region.h"
#include "agent/placement/segment/preferred.h"
#include "agent/control/session/session.h"
#include "agent/data/data.h"
#include "lib/cpu.h"
#include "lib/list.h"
#include "lib/log.h"

enum agent_state { AGENT_RUNNING, AGENT_DRAINING, AGENT_DRAINED, AGENT_STATE_N };

struct bus_server;
struct detect;
struct gpus;
struct hints;
struct health;
struct http;
struct notify;
struct rails;
struct segments;
struct state;
struct watchdog;

/* What the control socket signals to its connections; set by bus_server_new(). */
struct bus_signals {
	void (*state_changed)(struct bus_server *c, enum agent_state old, enum agent_state new);
	void (*segment_changed)(struct bus_server *c, const char *segment, const char *before,
				const char *after, const char *why);
	void (*preferred_changed)(struct bus_server *c, const char *before, const char *after,
				  const char *why);
	void (*event_added)(struct bus_server *c, const struct history_event *e);
	/* Sends out what is queued, at most this long; before exit. */
	void (*flush)(struct bus_server *c);
};

struct agent {
	struct config *config;
	const struct config_args *config_args;
	sd_event *event;
	struct identity identity;
	struct worker_pool pool;
	sd_event_source *worker_events[WORKERS_MAX];
	struct rails *rails;
	struct gpus *gpus;
	struct regions *regions;
	struct peers *peers;
	struct sessions *sessions;
	struct bus_server *bus; /* NULL: not listening */
	const struct bus_signals *bus_signals;
	struct history *history;
	struct notify *notify; /* NULL: no service manager asked for it */
	struct detect *detect;
	struct health *health;
	struct http *http;
	struct watchdog *watchdog;          /* NULL without one */
	struct dray_cpus cpus;              /* as last seen */
	int worker_nodes[WORKERS_MAX];      /* NUMA node of each worker, -1: anywhere */
	struct dray_list listings, cancels; /* transfer_queries.c */
	uint64_t last_cancel;
	int64_t started_ns;

	/* placement.c */
	struct state *state_db;
	struct hints *hints;
	struct segments *segments;
	struct env_file env_file;
	sd_event_source *env_write;
	char preferred_reason[PREFERRED_REASON_BYTES]; /* of the answer that is being written */

	/* drain.c */
	enum agent_state state;
	bool stay;        /* stay as drained instead of exiting */
	bool stopping;    /* on the way out */
	bool told_to_end; /* by SIGTERM */
	bool overdue;     /* the deadline has passed */
	int exit_status;
	int64_t drain_deadline_ns;
	uint64_t left_transfers, left_bytes; /* when it last looked */
	sd_event_source *drain_timer, *stop_timer;
	sd_event_source *signals[4];
	unsigned n_signals;
};

/*
 * timeout_ns < 0: the configured limit. -EALREADY while draining or drained, which an earlier wish to stay does
 * not outlive if this one is another.
 */
int agent_drain(struct agent *a, int64_t timeout_ns, bool stay);

/* Takes new work again. 0, also where it is running; -ESHUTDOWN once the end is decided. */
int agent_resume(struct agent *a);

/*
 * Makes the limit of a drain now: it begins one where the agent is running, and stops what is in flight.
 * stay: as with agent_drain(). 0, or -ESHUTDOWN once the end is decided.
 */
int agent_drain_now(struct agent *a, bool stay);

/* How a drain stands; all 0 while the agent is running. */
struct drain_progress {
	uint64_t transfers, bytes; /* in flight, and what they have yet to move */
	uint64_t grants;           /* that peers have yet to give back */
	int64_t left_ns;           /* to its deadline */
};
struct drain_progress agent_drain_progress(struct agent *a);

/* Something has changed: it goes on record, and who listens on the control socket hears of it. */
void agent_record(struct agent *a, enum history_kind kind, const char *subject, const char *before,
		  const char *after, const char *reason);

/* What workers take from the configuration, as far as the CPUs there are allow. */
struct data_config agent_data_config(const struct agent *a);

/* How long workers poll, in nanoseconds. why: "", or why that is 0; NULL with n 0 for who does not ask. */
int64_t agent_poll_time(const struct agent *a, char *why, size_t n);

/* What this process may use of the machine's CPUs now (reload.c); for `cpus` of struct detect_deps. */
void agent_cpus_changed(void *arg, const struct dray_cpus *now);

/* Keeps a connection to the segments that ready.require names, and to no others any more. 0 or -ENOMEM. */
int agent_keep_connected(struct agent *a);

/* Reads the configuration again (reload.c). 0, or -errno with reterr: nothing has changed. */
int agent_reload(struct agent *a, struct config_changes *ret, struct dray_err *reterr);

/* Until the next reload of log.level. who: for the record. */
void agent_set_log_level(struct agent *a, enum dray_log_level level, const char *who);

/* Ends all sessions and connections now, then the loop with this status. Idempotent. */
void agent_stop(struct agent *a, int status);

/* Signal handlers: SIGTERM drains, a second one, or SIGINT, stops at once. 0 or -errno. */
int agent_watch_signals(struct agent *a);

const char *agent_state_name(enum agent_state s);

/*
 * Asks every worker for its transfers in flight, or for the records of transfers that ended last. fn runs once, later; the
 * snapshots are valid until it returns. 0 or -ENOMEM.
 */
typedef void (*agent_transfers_fn)(void *arg, struct snapshot *const *snapshots, unsigned n);
int agent_list_transfers(struct agent *a, bool ended, agent_transfers_fn fn, void *arg);

/*
 * Stops a transfer. fn runs once, later. ended: code is how, `cancelled` or what came first; otherwise
 * `not_found`, or `busy` while somebody else is about it. -ENOENT: there is no such session; -ENOMEM.
 */
typedef void (*agent_cancel_fn)(void *arg, bool ended, uint32_t code);
int agent_cancel(struct agent *a, dray_handle session, uint64_t request, agent_cancel_fn fn,
		 void *arg);
/* What belongs to `arg` will not run. */
void agent_forget_cancel(struct agent *a, void *arg);

/* Callbacks of listings that belong to `arg` will not run. */
void agent_forget_listings(struct agent *a, void *arg);

/* Workers, a bit each, that the oldest listing of `arg` still waits for; 0 where there is none. */
uint32_t agent_listing_missing(struct agent *a, const void *arg);

#endif
