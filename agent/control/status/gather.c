/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/status/gather.h"

#include <stdio.h>
#include <string.h>

#include "agent/control/agent.h"
#include "agent/control/gpu/gpus.h"
#include "agent/control/peer/peer.h"
#include "agent/control/placement.h"
#include "agent/control/rails/rails.h"
#include "agent/process/process.h"

#ifndef DRAY_VERSION
#define DRAY_VERSION "unknown"
#endif

/* --- readiness ---------------------------------------------------------------------------------- */

static bool segment_ready(void *arg, const char *segment, char reason[READY_REASON_BYTES])
{
	struct agent *a = arg;

	return peers_segment_ready(a->peers, segment, reason, READY_REASON_BYTES);
}

void agent_ready(struct agent *a, struct ready *ret)
{
	const struct dray_config *cfg = &a->config->v;
	const struct dray_strv *listen = &cfg->peer.listen;
	const struct ready_facts facts = {
		.state = a->stopping ? "stopping" : agent_state_name(a->state),
		.running = a->state == AGENT_RUNNING && !a->stopping,
		.wants_listener = !(listen->n == 1 && !strcmp(listen->v[0], "none")),
		.listeners = peers_totals(a->peers).listeners,
		.rdma_enabled = cfg->rdma.enable,
		.rails_up = (unsigned)agent_metric(a, DRAY_METRIC_RAILS_UP),
		.segment = segment_ready,
		.arg = a,
	};

	ready_evaluate(&facts, &cfg->ready.require, ret);
}

/* --- metrics ------------------------------------------------------------------------------------ */

/* Segments, hints and the state database. */
static uint64_t placement_metric(struct agent *a, enum dray_metric m)
{
	struct segments_totals s;
	struct state_info state;

	segments_totals(a->segments, &s);
	state_info(a->state_db, &state);
	const struct {
		enum dray_metric metric;
		uint64_t value;
	} values[] = {
		{ DRAY_METRIC_SEGMENTS, s.known },
		{ DRAY_METRIC_SEGMENT_CHANGES_TOTAL, s.changes },
		{ DRAY_METRIC_SEGMENTS_EXPIRED_TOTAL, s.expired },
		{ DRAY_METRIC_PREFERRED_CHANGES_TOTAL, s.preferred_changes },
		{ DRAY_METRIC_PROBES_TOTAL, s.probes },
		{ DRAY_METRIC_PROBE_FAILURES_TOTAL, s.probe_failures },
		{ DRAY_METRIC_PROBES_IN_FLIGHT, s.probes_in_flight },
		{ DRAY_METRIC_MASTER_READS_TOTAL, s.master_reads },
		{ DRAY_METRIC_MASTER_FAILURES_TOTAL, s.master_failures },
		{ DRAY_METRIC_HINTS, hints_count(a->hints) },
		{ DRAY_METRIC_STATE_WRITES_TOTAL, state.writes },
		{ DRAY_METRIC_STATE_ERRORS_TOTAL, state.errors },
		{ DRAY_METRIC_STATE_IN_MEMORY, state.in_memory },
	};

	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(values); i++)
		if (values[i].metric == m)
			return values[i].value;
	return 0;
}

static uint64_t gpu_metric(struct agent *a, enum dray_metric m)
{
	struct gpus_totals t = gpus_totals(a->gpus);

	if (m == DRAY_METRIC_GPU_LOST_TOTAL)
		return t.lost;
	return m == DRAY_METRIC_GPU_CONTEXTS ? t.contexts : t.pinned_bytes;
}

static uint64_t control_metric(struct agent *a, enum dray_metric m)
{
	struct sessions_totals sessions = sessions_totals(a->sessions);
	struct peers_totals peers = peers_totals(a->peers);
	uint64_t regions, bytes, tokens;

	regions_totals(a->regions, &regions, &bytes, &tokens);
	const struct {
		enum dray_metric metric;
		uint64_t value;
	} values[] = {
		{ DRAY_METRIC_SESSIONS, sessions.open },
		{ DRAY_METRIC_SESSIONS_TOTAL, sessions.opened },
		{ DRAY_METRIC_SESSIONS_REFUSED_TOTAL, sessions.refused },
		{ DRAY_METRIC_REGIONS, regions },
		{ DRAY_METRIC_REGION_BYTES, bytes },
		{ DRAY_METRIC_TOKENS, tokens },
		{ DRAY_METRIC_REMOTES, sessions.remotes },
		{ DRAY_METRIC_PEERS, peers.peers },
		{ DRAY_METRIC_PEERS_READY, peers.up },
		{ DRAY_METRIC_PEERS_LOST_TOTAL, peers.lost },
		{ DRAY_METRIC_STRANGERS_REFUSED_TOTAL, peers.incoming_refused },
		{ DRAY_METRIC_NOTIFICATIONS_DELIVERED_TOTAL, sessions.notified },
		{ DRAY_METRIC_NOTIFICATIONS_REFUSED_TOTAL, sessions.notify_refused },
	};

	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(values); i++)
		if (values[i].metric == m)
			return values[i].value;
	if (m >= DRAY_METRIC_GPU_LOST_TOTAL && m <= DRAY_METRIC_GPU_PINNED_BYTES)
		return gpu_metric(a, m);
	return m >= DRAY_METRIC_SEGMENTS && m <= DRAY_METRIC_STATE_IN_MEMORY ?
		       placement_metric(a, m) :
		       rails_metric(a->rails, m);
}

uint64_t agent_metric(struct agent *a, enum dray_metric m)
{
	uint64_t sum = 0;

	if (dray_metrics[m].owner != DRAY_METRIC_OWNER_WORKER)
		return control_metric(a, m);
	for (unsigned i = 0; i < a->pool.n; i++)
		sum += atomic_load_explicit(&worker_counters(a->pool.workers[i])->v[m],
					    memory_order_relaxed);
	return sum;
}

static uint64_t value(void *arg, enum dray_metric m)
{
	return agent_metric(arg, m);
}

static void state_samples(const struct agent *a, struct metrics_text *t)
{
	for (int s = 0; s < AGENT_STATE_N; s++)
		metrics_sample(t, (const char *[]){ agent_state_name((enum agent_state)s) },
			       a->state == (enum agent_state)s);
}

static void peer_samples(struct agent *a, struct metrics_text *t)
{
	struct peers_totals totals = peers_totals(a->peers);

	/* closed peers are forgotten, so they are not counted */
	for (int s = 0; s < PEER_STATE_CLOSED; s++)
		metrics_sample(t, (const char *[]){ peer_state_name((enum peer_state)s) },
			       totals.states[s]);
}

static void segment_samples(struct agent *a, struct metrics_text *t)
{
	struct segments_totals totals;

	segments_totals(a->segments, &totals);
	for (unsigned s = 0; s < SEGMENT_STATES; s++)
		metrics_sample(t, (const char *[]){ dmsg_segment_state_name(s) },
			       totals.by_state[s]);
}

static void condition_samples(struct agent *a, struct metrics_text *t)
{
	struct ready ready;

	agent_ready(a, &ready);
	for (size_t i = 0; i < ready.n; i++)
		metrics_sample(t, &ready.conditions[i].name, ready.conditions[i].ok);
}

/* Sums over all workers, for each transport, including transports that were not used. */
static void transfer_samples(struct agent *a, struct metrics_text *t, enum dray_family f)
{
	for (unsigned by = DMSG_TRANSPORT_LOCAL; by < DATA_TRANSPORTS; by++) {
		uint64_t buckets[DRAY_FAMILY_BUCKETS_MAX + 1] = { 0 }, sum = 0;

		for (unsigned w = 0; w < a->pool.n; w++) {
			const struct data_counters *c = worker_counters(a->pool.workers[w]);
			const struct data_histogram *h = f == DRAY_FAMILY_TRANSFER_SIZE_BYTES ?
								 &c->size[by] :
								 &c->duration[by];

			for (unsigned i = 0; i <= dray_families[f].n_bounds; i++)
				buckets[i] +=
					atomic_load_explicit(&h->buckets[i], memory_order_relaxed);
			sum += atomic_load_explicit(&h->sum, memory_order_relaxed);
		}
		metrics_histogram(t, (const char *[]){ dmsg_transport_name(by) }, buckets, sum);
	}
}

static void samples(void *arg, enum dray_family f, struct metrics_text *t)
{
	switch (f) {
	case DRAY_FAMILY_TRANSFER_DURATION_SECONDS:
	case DRAY_FAMILY_TRANSFER_SIZE_BYTES:
		transfer_samples(arg, t, f);
		break;
	case DRAY_FAMILY_BUILD_INFO:
		metrics_sample(t, (const char *[]){ DRAY_VERSION }, 1);
		break;
	case DRAY_FAMILY_STATE:
		state_samples(arg, t);
		break;
	case DRAY_FAMILY_PEERS_BY_STATE:
		peer_samples(arg, t);
		break;
	case DRAY_FAMILY_SEGMENTS_BY_STATE:
		segment_samples(arg, t);
		break;
	case DRAY_FAMILY_READY_CONDITION:
		condition_samples(arg, t);
		break;
	case DRAY_FAMILY_PROCESS_START_TIME_SECONDS:
		metrics_sample_real(t, NULL, process_start_time());
		break;
	case DRAY_FAMILY_PROCESS_CPU_SECONDS_TOTAL:
		metrics_sample_real(t, NULL, process_cpu_seconds());
		break;
	case DRAY_FAMILY_PROCESS_RESIDENT_MEMORY_BYTES:
		metrics_sample(t, NULL, process_resident_bytes());
		break;
	case DRAY_FAMILY_PROCESS_OPEN_FDS:
		metrics_sample(t, NULL, process_open_fds());
		break;
	case DRAY_FAMILY_PROCESS_MAX_FDS:
		metrics_sample(t, NULL, process_max_fds());
		break;
	case DRAY_FAMILY_N:
		break;
	}
}

struct metrics_source agent_metrics_source(struct agent *a)
{
	return (struct metrics_source){ .value = value, .samples = samples, .arg = a };
}
