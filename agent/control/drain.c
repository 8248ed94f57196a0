/* SPDX-License-Identifier: Apache-2.0 */
/*
 * States running -> draining -> drained, then exit unless a stay was requested. A draining agent refuses new work,
 * informs clients and peers, and waits until no worker has a transfer, and the objects of the store are on its disk. At the
 * deadline it stops the remaining transfers.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "agent/control/agent.h"
#include "agent/control/exchange/exchange.h"
#include "agent/control/mooncake/mooncake.h"
#include "agent/process/service_manager.h"
#include "agent/store/store.h"
#include "lib/log.h"
#include "schema/gen/dbus.h"
#include "schema/gen/errors.h"

/* How often the workers are asked for their transfers in flight, and the next look after a deadline that comes sooner. */
#define DRAIN_POLL_NS (10 * DRAY_NS_PER_MS)
/* Longest wait for sessions and peers to end before exit, and for a worker that is late. */
#define STOP_LIMIT_NS (3 * DRAY_NS_PER_SEC)

static const char *const state_names[AGENT_STATE_N] = {
	[AGENT_RUNNING] = "running",
	[AGENT_DRAINING] = "draining",
	[AGENT_DRAINED] = "drained",
};

const char *agent_state_name(enum agent_state s)
{
	return state_names[s];
}

static void set_state(struct agent *a, enum agent_state next, const char *why)
{
	enum agent_state old = a->state;

	if (old == next)
		return;
	a->state = next;
	log_notice("agent", "state %s -> %s: %s", state_names[old], state_names[next], why);
	notify_status(a->notify, "%s", state_names[next]);
	agent_record(a, "state", "agent", state_names[old], state_names[next], why);
	agent_signal(a, DRAY_DBUS_SIGNAL_STATE_CHANGED, "ss", state_names[old], state_names[next]);
}

static int timer_start(struct agent *a, sd_event_source **source, int64_t ns,
		       sd_event_time_handler_t fn)
{
	if (*source) {
		sd_event_source_set_time_relative(*source, (uint64_t)ns / 1000);
		return sd_event_source_set_enabled(*source, SD_EVENT_ONESHOT);
	}
	return sd_event_add_time_relative(a->event, source, CLOCK_MONOTONIC, (uint64_t)ns / 1000, 0,
					  fn, a);
}

static void segment_removed(void *arg)
{
	struct agent *a = arg;

	if (a->bus)
		a->bus_signals->flush(a->bus);
	sd_event_exit(a->event, a->exit_status);
}

static void peers_stopped(void *arg)
{
	struct agent *a = arg;

	mooncake_server_stop(a->mooncake, segment_removed, a);
}

static void sessions_stopped(void *arg)
{
	struct agent *a = arg;

	peers_stop(a->peers, peers_stopped, a);
}

static int stop_limit(sd_event_source *s, uint64_t usec, void *arg)
{
	struct agent *a = arg;

	log_warning(
		"agent",
		"sessions, peers or keys at a metadata server did not end within 3 s; exiting without them");
	return sd_event_exit(a->event, a->exit_status);
}

/* Ends all sessions and connections, then the event loop with this exit status. Idempotent. */
static void stop(struct agent *a, int status)
{
	if (a->stopping)
		return;
	a->stopping = true;
	a->exit_status = status;
	a->drain_timer = sd_event_source_disable_unref(a->drain_timer);
	notify_stopping(a->notify);
	if (timer_start(a, &a->stop_timer, STOP_LIMIT_NS, stop_limit) < 0)
		sd_event_exit(a->event, status);
	sessions_stop(a->sessions, sessions_stopped, a);
}

static int poll_workers(sd_event_source *s, uint64_t usec, void *arg);

/* Objects of the store are still being written to its disk, and there is time for that. */
static bool flushing(struct agent *a)
{
	return store_flush(a->store) && dray_now().ns < a->drain_deadline_ns;
}

/* What the disk of the store has not taken is lost when the agent ends: it has no room or cannot be written, or time was short. */
static void add_unsaved(struct agent *a, char *why, size_t n)
{
	struct store_totals t = store_totals(a->store);
	size_t used = strlen(why);

	if (!t.has_disk || !t.unsaved_objects)
		return;
	log_warning(
		"store",
		"%" PRIu64 " objects with %" PRIu64
		" bytes are only in memory, and are lost when the agent ends; disk tier: %s%s%s",
		t.unsaved_objects, t.unsaved_bytes, disk_state_name(t.disk.state),
		t.disk.why[0] ? ": " : "", t.disk.why);
	snprintf(why + used, n - used, "; %" PRIu64 " objects of the store are not on its disk",
		 t.unsaved_objects);
}

static void drained(struct agent *a)
{
	char why[160];

	snprintf(why, sizeof(why), "%s",
		 a->overdue ? "transfers in flight were stopped at the deadline" :
			      "nothing is in flight");
	add_unsaved(a, why, sizeof(why));
	set_state(a, AGENT_DRAINED, why);
	sd_event_source_set_enabled(a->drain_timer, SD_EVENT_OFF);
	if (!a->stay)
		stop(a, 0);
}

/* They return their grants, and what the store lends them, when their transfers here have finished. */
static bool peers_use(const struct agent *a)
{
	return grants_total(a->regions) || store_totals(a->store).lent;
}

/* Time in which transfers that were stopped end, as for health, and workers answer. */
static int64_t end_limit(const struct agent *a)
{
	const struct dray_config *cfg = &a->config->v;

	return cfg->transfer.slice_timeout + cfg->peer.heartbeat_limit + STOP_LIMIT_NS;
}

static void stop_transfers(struct agent *a)
{
	a->overdue = true;
	a->drain_end_ns = dray_now().ns + end_limit(a);
	log_warning("agent",
		    "the drain deadline has passed: stopping %" PRIu64 " transfers in flight",
		    a->left_transfers);
	for (unsigned i = 0; i < a->pool.n; i++)
		worker_post(a->pool.workers[i], &(struct command){ .type = COMMAND_STOP_TRANSFERS,
								   .code = DRAY_E_DEADLINE });
}

static void workers_answered(struct transfers_query *q, struct snapshot *const *snapshots,
			     unsigned n)
{
	struct agent *a = dray_container_of(q, struct agent, drain_query);
	uint64_t left = 0, bytes = 0;

	if (a->stopping || a->state != AGENT_DRAINING)
		return;
	if (!n) {
		stop(a, 1);
		return;
	}
	for (unsigned i = 0; i < n; i++) {
		left += snapshots[i]->in_flight + snapshots[i]->asking;
		bytes += snapshots[i]->bytes_left;
	}
	a->left_transfers = left;
	a->left_bytes = bytes;
	if (left || (peers_use(a) && dray_now().ns < a->drain_deadline_ns)) {
		if (!a->overdue && dray_now().ns >= a->drain_deadline_ns)
			stop_transfers(a);
		if (timer_start(a, &a->drain_timer, DRAIN_POLL_NS, poll_workers) < 0)
			stop(a, 1);
		return;
	}
	if (flushing(a)) {
		if (timer_start(a, &a->drain_timer, DRAIN_POLL_NS, poll_workers) < 0)
			stop(a, 1);
		return;
	}
	drained(a);
}

static int poll_workers(sd_event_source *s, uint64_t usec, void *arg)
{
	struct agent *a = arg;
	bool silent = !dray_list_empty(&a->drain_query.link);
	int64_t now = dray_now().ns, next_ns;

	/* the workers that answer need not wait for the one that does not */
	if (silent && !a->overdue && now >= a->drain_deadline_ns)
		stop_transfers(a);
	if (a->overdue && now >= a->drain_end_ns && !a->stay) {
		log_error("agent", "the drain does not end, because %s; exiting without it",
			  silent ? "a worker does not answer" :
				   "transfers that were stopped have not ended");
		stop(a, 1);
		return 0;
	}
	if (!silent)
		agent_list_transfers(a, LISTING_IN_FLIGHT, &a->drain_query);
	/* the answer brings the next look forward */
	next_ns = (a->overdue ? a->drain_end_ns : a->drain_deadline_ns) - now;
	if (!a->stopping && timer_start(a, &a->drain_timer, next_ns > 0 ? next_ns : STOP_LIMIT_NS,
					poll_workers) < 0)
		stop(a, 1);
	return 0;
}

int agent_drain(struct agent *a, int64_t timeout_ns, bool stay)
{
	uint32_t ms;

	if (a->stopping || a->state != AGENT_RUNNING)
		return -EALREADY;
	if (timeout_ns < 0)
		timeout_ns = a->config->v.agent.drain_timeout;
	ms = (uint32_t)(timeout_ns / DRAY_NS_PER_MS);
	a->stay = stay;
	a->drain_query.fn = workers_answered;
	dray_list_init(&a->drain_query.link);
	a->drain_deadline_ns = dray_now().ns + timeout_ns;
	set_state(a, AGENT_DRAINING,
		  a->told_to_end ? "SIGTERM" : "requested over the control socket");
	for (unsigned i = 0; i < a->pool.n; i++)
		worker_post(a->pool.workers[i], &(struct command){ .type = COMMAND_DRAIN });
	regions_drain(a->regions, true);
	sessions_drain(a->sessions, ms);
	peers_drain(a->peers, ms);
	mooncake_server_drain(a->mooncake, true);
	/* each worker answers after it has seen COMMAND_DRAIN, so it cannot accept a transfer after its answer */
	poll_workers(NULL, 0, a);
	return 0;
}

int agent_resume(struct agent *a)
{
	if (a->stopping || a->told_to_end)
		return -ESHUTDOWN;
	if (a->state == AGENT_RUNNING)
		return 0;
	/* pending answers of the workers belong to this drain, not to the next one */
	dray_list_del(&a->drain_query.link);
	if (a->drain_timer)
		sd_event_source_set_enabled(a->drain_timer, SD_EVENT_OFF);
	a->stay = a->overdue = false;
	for (unsigned i = 0; i < a->pool.n; i++)
		worker_post(a->pool.workers[i], &(struct command){ .type = COMMAND_RESUME });
	regions_drain(a->regions, false);
	sessions_resume(a->sessions);
	peers_resume(a->peers);
	mooncake_server_drain(a->mooncake, false);
	store_flush_again(a->store);
	set_state(a, AGENT_RUNNING, "resumed");
	return 0;
}

/* A drain that runs ends at this time at the latest. */
static void end_sooner(struct agent *a, int64_t ends_ns)
{
	a->drain_deadline_ns = dray_min(a->drain_deadline_ns, ends_ns);
	if (a->state == AGENT_DRAINING &&
	    timer_start(a, &a->drain_timer, DRAIN_POLL_NS, poll_workers) < 0)
		stop(a, 1);
}

int agent_drain_now(struct agent *a, bool stay)
{
	if (a->stopping)
		return -ESHUTDOWN;
	if (a->state == AGENT_RUNNING)
		return agent_drain(a, 0, stay);
	/* after SIGTERM the agent must exit */
	a->stay = stay && !a->told_to_end;
	end_sooner(a, dray_now().ns);
	if (a->state == AGENT_DRAINED && !a->stay)
		stop(a, 0);
	return 0;
}

struct drain_progress agent_drain_progress(struct agent *a)
{
	int64_t left_ns = a->drain_deadline_ns - dray_now().ns;

	if (a->state != AGENT_DRAINING)
		return (struct drain_progress){ .transfers = 0 };
	return (struct drain_progress){ .transfers = a->left_transfers,
					.bytes = a->left_bytes,
					.grants = grants_total(a->regions),
					.left_ns = dray_max(left_ns, (int64_t)0) };
}

/* Longest time from now until the process exits. */
static int64_t longest_end(const struct agent *a)
{
	return a->config->v.agent.drain_timeout + end_limit(a) + 2 * STOP_LIMIT_NS +
	       (int64_t)a->pool.n * WORKER_QUIT_LIMIT_NS;
}

static int handle_signal(sd_event_source *s, const struct signalfd_siginfo *si, void *arg)
{
	struct agent *a = arg;

	if (si->ssi_signo == SIGHUP) {
		struct config_changes changes;

		log_notice("agent", "SIGHUP: reading the configuration again");
		agent_reload(a, &changes, NULL);
		return 0;
	}
	if (si->ssi_signo == SIGTERM && a->state == AGENT_RUNNING && !a->stopping) {
		log_notice("agent", "SIGTERM: draining");
		a->told_to_end = true;
		/* otherwise systemd kills the process after TimeoutStopSec= */
		notify_extend(a->notify, longest_end(a));
		agent_drain(a, -1, false);
		return 0;
	}
	/* the first SIGTERM during a requested drain: it continues, with at most agent.drain_timeout from now */
	if (si->ssi_signo == SIGTERM && a->state == AGENT_DRAINING && !a->told_to_end &&
	    !a->stopping) {
		int64_t ends = dray_now().ns + a->config->v.agent.drain_timeout;

		log_notice("agent", "SIGTERM: draining already; the agent will exit when drained");
		a->told_to_end = true;
		a->stay = false;
		end_sooner(a, ends);
		notify_extend(a->notify, longest_end(a));
		return 0;
	}
	if (si->ssi_signo == SIGTERM && a->state == AGENT_DRAINED && !a->told_to_end) {
		a->told_to_end = true;
		stop(a, 0);
		return 0;
	}
	log_notice("agent", "%s: stopping at once",
		   si->ssi_signo == SIGTERM ? "second SIGTERM" : "SIGINT");
	if (a->stopping)
		return sd_event_exit(a->event, 1);
	stop(a, 1);
	return 0;
}

int agent_watch_signals(struct agent *a)
{
	static const int numbers[] = { SIGTERM, SIGINT, SIGHUP };
	sigset_t set;
	int ret;

	signal(SIGPIPE, SIG_IGN);
	/* the agent has no children; as process 1 of a container it inherits some, which the kernel then reaps */
	signal(SIGCHLD, SIG_IGN);
	while (waitpid(-1, NULL, WNOHANG) > 0)
		continue;
	sigemptyset(&set);
	for (unsigned i = 0; i < 3; i++)
		sigaddset(&set, numbers[i]);
	if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
		return -errno;
	for (unsigned i = 0; i < 3; i++) {
		ret = sd_event_add_signal(a->event, &a->signals[a->n_signals], numbers[i],
					  handle_signal, a);
		if (ret < 0)
			return ret;
		a->n_signals++;
	}
	return 0;
}
