/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent's modules, and its state running, draining or drained. Control thread only.
 */
#pragma once

#include <systemd/sd-event.h>

#include "agent/config/config.h"
#include "agent/control/history.h"
#include "agent/control/mailbox/mailbox.h"
#include "agent/control/peer/peer.h"
#include "agent/control/region/region.h"
#include "agent/control/session/session.h"
#include "agent/data/data.h"
#include "agent/placement/environment/env_file.h"
#include "agent/state/identity.h"
#include "lib/cpu.h"
#include "lib/list.h"
#include "lib/log.h"

enum agent_state { AGENT_RUNNING, AGENT_DRAINING, AGENT_DRAINED, AGENT_STATE_N };

struct bus_server;
struct detect;
struct directory;
struct exchange;
struct gpus;
struct hints;
struct mooncake_client;
struct mooncake_server;
struct health;
struct http;
struct notify;
struct rails;
struct segments;
struct state;
struct store;
struct watchdog;

/* What the agent asks of the D-Bus server; bus_server_new() sets it. */
struct bus_signals {
	/* A signal of the schema to every connection; for agent_signal(). */
	void (*emit)(struct bus_server *c, const char *signal, const char *types, va_list ap);
	/* Sends queued messages before exit, for at most 100 ms. */
	void (*flush)(struct bus_server *c);
};

struct transfers_query {
	struct dray_list link; /* in no list, unless the query is pending */
	void (*fn)(struct transfers_query *q, struct snapshot *const *snapshots, unsigned n);
};

struct transfer_cancel {
	struct dray_list link;
	void (*fn)(struct transfer_cancel *c, bool ended, uint32_t code);
	uint64_t id; /* agent_cancel() sets it */
};

/* Each kind has a listing of its own, so that a health check never waits for the listing of another caller. */
enum listing_kind {
	LISTING_IN_FLIGHT, /* transfers in flight */
	LISTING_ENDED,     /* the records of transfers that ended last */
	LISTING_HEALTH,    /* number and first_due of transfers in flight */
	LISTING_N
};

/* transfer_queries.c */
struct listing {
	struct dray_list asked,
		waiting;  /* queries that it answers, and queries that the next one answers */
	uint32_t missing; /* workers without an answer, a bit each */
	unsigned n;       /* 0: none is under way */
	struct snapshot *snapshots[WORKERS_MAX];
};

struct agent {
	struct config *config;
	const struct config_args *config_args;
	sd_event *event;
	struct identity identity;
	struct worker_pool pool;
	struct turn_meter turns; /* of the control thread */
	sd_event_source *worker_events[WORKERS_MAX];
	struct rails *rails;
	struct gpus *gpus;
	struct owners *owners;
	struct regions *regions;
	struct peers *peers;
	struct mailboxes *mailboxes;
	struct sessions *sessions;
	struct store *store;                     /* NULL: there is none */
	struct exchange *exchange;               /* NULL: likewise */
	struct directory *directory;             /* NULL: without store.directory */
	const char *directory_state;             /* NULL: it has never changed */
	struct mooncake_server *mooncake;        /* NULL: likewise */
	struct mooncake_client *mooncake_client; /* NULL: without mooncake.import */
	const char *disk_state;                  /* of its disk tier; NULL: it has never changed */
	struct bus_server *bus;                  /* NULL: not listening */
	const struct bus_signals *bus_signals;
	struct history *history;
	struct notify *notify; /* NULL: no service manager */
	struct detect *detect;
	struct health *health;
	struct http *http;
	struct watchdog *watchdog;     /* NULL: the service manager has none */
	struct dray_cpus cpus;         /* at the last count */
	int worker_nodes[WORKERS_MAX]; /* NUMA node of each worker, -1: anywhere */
	bool nodes_checked;            /* those of agent.numa_nodes, at the first scan */
	struct listing listings[LISTING_N];
	struct dray_list cancels; /* of struct transfer_cancel */
	uint64_t last_cancel;
	int64_t started_ns;

	/* placement.c */
	struct state *state_db;
	struct hints *hints;
	struct segments *segments;
	struct env_file env_file;
	sd_event_source *env_write;

	/* drain.c */
	enum agent_state state;
	bool stay;        /* do not exit when drained */
	bool stopping;    /* exiting */
	bool told_to_end; /* SIGTERM has come */
	bool overdue;     /* the deadline has passed */
	int exit_status;
	int64_t drain_deadline_ns,
		drain_end_ns;                /* the second one if overdue: the drain is given up */
	uint64_t left_transfers, left_bytes; /* at the last query of the workers */
	struct transfers_query drain_query;
	sd_event_source *drain_timer, *stop_timer;
	sd_event_source *signals[4];
	unsigned n_signals;
};

/*
 * timeout_ns < 0: agent.drain_timeout. stay: do not exit when drained. -EALREADY while draining or drained: the drain that has
 * begun keeps its deadline and its `stay`.
 */
int agent_drain(struct agent *a, int64_t timeout_ns, bool stay);

/* Accepts new work again. 0, also while running; -ESHUTDOWN if the agent is bound to exit. */
int agent_resume(struct agent *a);

/*
 * Drains with its deadline now: transfers in flight are stopped. Starts a drain if there is none. stay: as with
 * agent_drain(), and replaces that of a drain that has begun. 0, or -ESHUTDOWN if the agent is bound to exit.
 */
int agent_drain_now(struct agent *a, bool stay);

/* Progress of a drain; all 0 unless the agent is draining. */
struct drain_progress {
	uint64_t transfers, bytes; /* in flight, and their remaining bytes */
	uint64_t grants;           /* that peers still hold */
	int64_t left_ns;           /* to its deadline */
};
struct drain_progress agent_drain_progress(struct agent *a);

/* Adds a change to the history and signals it to the connections of the control socket. */
void agent_record(struct agent *a, const char *kind, const char *subject, const char *before,
		  const char *after, const char *reason);

/* The same for the end of a session. owner: see history_add(). */
void agent_record_session(struct agent *a, const char *owner, const char *subject,
			  const char *reason);

/*
 * Sends a signal of dev.dray.Agent1, if there is a control socket. types: of the arguments, s, t or u. Bytes of texts that
 * are not UTF-8 are replaced.
 */
void agent_signal(struct agent *a, const char *signal, const char *types, ...);

/* The part of the configuration that workers use; the poll time depends on the CPUs, too. */
struct data_config agent_data_config(const struct agent *a);

/* How long workers poll, in nanoseconds. why: the reason if that is 0, else ""; may be NULL with n 0. */
int64_t agent_poll_time(const struct agent *a, char *why, size_t n);

/* The CPUs that this process may use have changed (reload.c); for `cpus` of struct detect_deps. */
void agent_cpus_changed(void *arg, const struct dray_cpus *now);

/* Keeps connections to exactly the segments that ready.require, store.peers and the directory name. 0 or -ENOMEM. */
int agent_keep_connected(struct agent *a);

/* Reads the configuration again (reload.c). 0, or -errno with reterr; then nothing has changed. */
int agent_reload(struct agent *a, struct config_changes *ret, struct dray_err *reterr);

/* Valid until a reload changes log.level. who: for the log and the history. */
void agent_set_log_level(struct agent *a, enum dray_log_level level, const char *who);

/* Signal handlers: SIGTERM drains, a second one, or SIGINT, stops at once. 0 or -errno. */
int agent_watch_signals(struct agent *a);

const char *agent_state_name(enum agent_state s);

/*
 * Requests a listing from every worker. q->fn runs once: later with the snapshots, which are valid until it returns, or without memory with n 0, possibly inside the call. The caller
 * owns q; dray_list_del(&q->link) cancels it.
 */
void agent_list_transfers(struct agent *a, enum listing_kind kind, struct transfers_query *q);

/*
 * Cancels a transfer. c->fn runs once. ended: the transfer has ended with code, which is `cancelled` unless it ended before.
 * Otherwise code is `not_found`, or `busy` while another call cancels it. The caller owns c; after dray_list_del(&c->link)
 * fn will not run. 0 or -ENOENT (no such session).
 */
int agent_cancel(struct agent *a, dray_handle session, uint64_t request, struct transfer_cancel *c);

/* Start, end and answers of these queries. After the workers have ended, transfer_queries_free() calls no fn. */
void transfer_queries_init(struct agent *a);
void transfer_queries_free(struct agent *a);
void transfer_queries_handle_snapshot(struct agent *a, unsigned worker, struct snapshot *s);
void transfer_queries_handle_cancelled(struct agent *a, uint64_t id, bool ended, uint32_t code);
