/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/status/gather.h"

#include <stdio.h>

#include "agent/control/agent.h"
#include "agent/control/directory/directory.h"
#include "agent/control/exchange/exchange.h"
#include "agent/control/gpu/gpus.h"
#include "agent/control/mooncake/client.h"
#include "agent/control/mooncake/mooncake.h"
#include "agent/control/owner/owner.h"
#include "agent/control/peer/peer.h"
#include "agent/control/placement.h"
#include "agent/control/rails/rails.h"
#include "agent/placement/hint/hints.h"
#include "agent/control/status/ready.h"
#include "agent/process/process.h"
#include "agent/store/store.h"
#include "schema/gen/dbus.h"

/* Segments, hints and the state database. */
static void placement_metrics(struct agent *a, uint64_t v[DRAY_METRIC_N])
{
	struct segments_totals s;
	struct state_info state;

	segments_totals(a->segments, &s);
	state_info(a->state_db, &state);
	v[DRAY_METRIC_SEGMENTS] = s.known;
	v[DRAY_METRIC_SEGMENT_CHANGES_TOTAL] = s.changes;
	v[DRAY_METRIC_SEGMENTS_EXPIRED_TOTAL] = s.expired;
	v[DRAY_METRIC_PREFERRED_CHANGES_TOTAL] = s.preferred_changes;
	v[DRAY_METRIC_PROBES_TOTAL] = s.probes;
	v[DRAY_METRIC_PROBE_FAILURES_TOTAL] = s.probe_failures;
	v[DRAY_METRIC_PROBES_IN_FLIGHT] = s.probes_in_flight;
	v[DRAY_METRIC_MASTER_READS_TOTAL] = s.master_reads;
	v[DRAY_METRIC_MASTER_FAILURES_TOTAL] = s.master_failures;
	v[DRAY_METRIC_HINTS] = hints_count(a->hints);
	v[DRAY_METRIC_STATE_WRITES_TOTAL] = state.writes;
	v[DRAY_METRIC_STATE_ERRORS_TOTAL] = state.errors;
	v[DRAY_METRIC_STATE_IN_MEMORY] = state.in_memory;
}

static void client_metrics(struct agent *a, uint64_t v[DRAY_METRIC_N])
{
	struct sessions_totals sessions = sessions_totals(a->sessions);
	struct peers_totals peers = peers_totals(a->peers);
	struct leases_totals leases = leases_totals(a->regions);
	struct mailboxes_totals mailboxes = mailboxes_totals(a->mailboxes);
	struct store_totals store = store_totals(a->store);
	struct exchange_totals exchange = exchange_totals(a->exchange);

	v[DRAY_METRIC_STORE_OBJECTS] = store.objects;
	v[DRAY_METRIC_STORE_BYTES] = store.bytes;
	v[DRAY_METRIC_STORE_MEMORY_BYTES] = store.memory;
	v[DRAY_METRIC_STORE_HELD_BYTES] = store.held_bytes;
	v[DRAY_METRIC_STORE_EVICTIONS_TOTAL] = store.evictions;
	v[DRAY_METRIC_STORE_EVICTED_BYTES_TOTAL] = store.evicted_bytes;
	v[DRAY_METRIC_STORE_EVICTED_COST_TOTAL] = store.evicted_cost_us;
	v[DRAY_METRIC_STORE_LENT_BYTES] = store.lent;
	v[DRAY_METRIC_STORE_SUMMARIES] = exchange.summaries;
	v[DRAY_METRIC_STORE_SUMMARIES_BYTES] = exchange.summary_bytes;
	v[DRAY_METRIC_STORE_SUMMARIES_SKIPPED_TOTAL] = exchange.summary_skipped;
	v[DRAY_METRIC_STORE_LENT_OBJECTS_TOTAL] = store.lent_objects;
	v[DRAY_METRIC_STORE_LENT_BYTES_TOTAL] = store.lent_bytes;
	v[DRAY_METRIC_STORE_DISK_OBJECTS] = store.disk_objects;
	v[DRAY_METRIC_STORE_DISK_BYTES] = store.disk_bytes;
	v[DRAY_METRIC_STORE_DISK_PENDING_BYTES] = store.disk_pending_bytes;
	v[DRAY_METRIC_STORE_DISK_MISSING_OBJECTS] = store.has_disk ? store.unsaved_objects : 0;
	v[DRAY_METRIC_STORE_DISK_DOWN] = store.disk.state != DISK_STATE_OK;
	v[DRAY_METRIC_STORE_DISK_WRITES_TOTAL] = store.disk.writes;
	v[DRAY_METRIC_STORE_DISK_SKIPPED_TOTAL] = store.disk_skipped;
	v[DRAY_METRIC_STORE_DISK_READS_TOTAL] = store.disk.reads;
	v[DRAY_METRIC_STORE_DISK_CORRUPT_TOTAL] = store.disk.corrupt;
	v[DRAY_METRIC_STORE_DISK_ERRORS_TOTAL] = store.disk.errors;
	v[DRAY_METRIC_STORE_DISK_EVICTIONS_TOTAL] = store.disk_evictions;
	v[DRAY_METRIC_STORE_DISK_READ_RATE_BYTES] = store.disk.read_rate;
	v[DRAY_METRIC_STORE_DISK_WRITE_RATE_BYTES] = store.disk.write_rate;
	v[DRAY_METRIC_STORE_DISK_BATCHES_TOTAL] = store.disk_batches;
	v[DRAY_METRIC_STORE_DISK_TURNS_TOTAL] = store.disk_turns;
	v[DRAY_METRIC_LEASES] = leases.leases;
	v[DRAY_METRIC_LEASE_HOLDERS] = leases.holders;
	v[DRAY_METRIC_LEASES_MADE_TOTAL] = leases.made;
	v[DRAY_METRIC_LEASE_RENEWALS_TOTAL] = leases.renewed;
	v[DRAY_METRIC_SESSIONS] = sessions.open;
	v[DRAY_METRIC_SESSIONS_TOTAL] = sessions.opened;
	v[DRAY_METRIC_SESSIONS_REFUSED_TOTAL] = sessions.refused;
	v[DRAY_METRIC_REMOTES] = sessions.remotes;
	v[DRAY_METRIC_PEERS] = peers.peers;
	v[DRAY_METRIC_PEERS_READY] = peers.states[PEER_STATE_READY];
	v[DRAY_METRIC_PEERS_LOST_TOTAL] = peers.lost;
	v[DRAY_METRIC_STRANGERS_REFUSED_TOTAL] = peers.incoming_refused;
	v[DRAY_METRIC_NOTIFICATIONS_DELIVERED_TOTAL] = sessions.notified;
	v[DRAY_METRIC_NOTIFICATIONS_REFUSED_TOTAL] = sessions.notify_refused;
	v[DRAY_METRIC_MAILBOXES] = mailboxes.open;
	v[DRAY_METRIC_LETTERS_WAITING] = mailboxes.letters;
	v[DRAY_METRIC_LETTERS_WAITING_BYTES] = mailboxes.bytes;
	v[DRAY_METRIC_LETTERS_DELIVERED_TOTAL] = mailboxes.delivered;
	v[DRAY_METRIC_LETTERS_REFUSED_TOTAL] = mailboxes.refused;
	regions_totals(a->regions, &v[DRAY_METRIC_REGIONS], &v[DRAY_METRIC_REGION_BYTES],
		       &v[DRAY_METRIC_TOKENS]);
}

static void directory_metrics(struct agent *a, uint64_t v[DRAY_METRIC_N])
{
	struct directory_totals t = directory_totals(a->directory);

	v[DRAY_METRIC_STORE_DIRECTORY_DOWN] = a->directory && t.state != DIRECTORY_OK;
	v[DRAY_METRIC_STORE_DIRECTORY_ASKED_TOTAL] = t.asked;
	v[DRAY_METRIC_STORE_DIRECTORY_NAMED_TOTAL] = t.named;
	v[DRAY_METRIC_STORE_DIRECTORY_UNKNOWN_TOTAL] = t.unknown;
	v[DRAY_METRIC_STORE_DIRECTORY_WAIT_TOTAL] = t.wait_ns / 1000;
	v[DRAY_METRIC_STORE_DIRECTORY_STALE_TOTAL] = t.stale;
	v[DRAY_METRIC_STORE_DIRECTORY_ENTERED_TOTAL] = t.entered;
	v[DRAY_METRIC_STORE_DIRECTORY_REMOVED_TOTAL] = t.removed;
	v[DRAY_METRIC_STORE_DIRECTORY_ERRORS_TOTAL] = t.errors;
}

static void mooncake_metrics(struct agent *a, uint64_t v[DRAY_METRIC_N])
{
	struct mooncake_client_totals imported = mooncake_client_totals(a->mooncake_client);
	struct mooncake_totals t = mooncake_server_totals(a->mooncake);

	v[DRAY_METRIC_MOONCAKE_IMPORTS_TOTAL] = imported.imports;
	v[DRAY_METRIC_MOONCAKE_IMPORTS_FAILED_TOTAL] = imported.imports_failed;
	v[DRAY_METRIC_MOONCAKE_ENGINES] = imported.engines;
	v[DRAY_METRIC_MOONCAKE_CONNECTIONS] = t.connections;
	v[DRAY_METRIC_MOONCAKE_CONNECTIONS_REFUSED_TOTAL] = t.connections_refused;
	v[DRAY_METRIC_MOONCAKE_HANDSHAKES_TOTAL] = t.handshakes;
	v[DRAY_METRIC_MOONCAKE_HANDSHAKES_REFUSED_TOTAL] = t.handshakes_refused;
	v[DRAY_METRIC_MOONCAKE_METADATA_PUBLISHED] = t.published;
	v[DRAY_METRIC_MOONCAKE_METADATA_FAILURES_TOTAL] = t.metadata_failures;
	v[DRAY_METRIC_MOONCAKE_BUFFERS] = grants_count(a->regions, MOONCAKE_PEER);
}

void agent_metrics(struct agent *a, uint64_t v[DRAY_METRIC_N])
{
	for (unsigned m = 0; m < DRAY_METRIC_N; m++) {
		v[m] = 0;
		for (unsigned i = 0; i < a->pool.n; i++)
			v[m] += atomic_load_explicit(&worker_counters(a->pool.workers[i])->v[m],
						     memory_order_relaxed);
	}
	client_metrics(a, v);
	placement_metrics(a, v);
	directory_metrics(a, v);
	mooncake_metrics(a, v);
	rails_metrics(a->rails, v);
	gpus_metrics(a->gpus, v);
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

static void lease_samples(struct agent *a, struct metrics_text *t)
{
	struct leases_totals totals = leases_totals(a->regions);

	for (unsigned o = DMSG_LEASE_OUTCOME_USED; o <= DMSG_LEASE_OUTCOME_PEER_LOST; o++)
		metrics_sample(t, (const char *[]){ dmsg_lease_outcome_name(o) }, totals.ended[o]);
}

static void quota_samples(struct agent *a, struct metrics_text *t, enum dray_family f)
{
	for (unsigned i = 0; i < RESOURCE_N; i++) {
		const struct budget *b = &a->owners->budgets.of[i];
		uint64_t value = f == DRAY_FAMILY_QUOTA_USED  ? atomic_load(&b->used) :
				 f == DRAY_FAMILY_QUOTA_LIMIT ? atomic_load(&b->max) :
								atomic_load(&b->refused);

		/* hints outlive their owners, so they are counted elsewhere */
		if (i == RESOURCE_HINTS && f == DRAY_FAMILY_QUOTA_USED)
			value = hints_count(a->hints);
		metrics_sample(t, (const char *[]){ resource_name(i) }, value);
	}
}

static void condition_samples(struct agent *a, struct metrics_text *t)
{
	struct ready ready;

	agent_ready(a, &ready);
	for (size_t i = 0; i < ready.n; i++)
		metrics_sample(t, &ready.conditions[i].name, ready.conditions[i].ok);
}

static void add_histogram(uint64_t *buckets, uint64_t *sum, const struct data_histogram *h)
{
	for (unsigned i = 0; i <= DRAY_FAMILY_BUCKETS_MAX; i++) {
		buckets[i] += atomic_load_explicit(&h->buckets[i].n, memory_order_relaxed);
		*sum += atomic_load_explicit(&h->buckets[i].sum, memory_order_relaxed);
	}
}

static void turn_samples(struct agent *a, struct metrics_text *t)
{
	uint64_t control[DRAY_FAMILY_BUCKETS_MAX + 1] = { 0 }, control_sum = 0;
	uint64_t workers[DRAY_FAMILY_BUCKETS_MAX + 1] = { 0 }, workers_sum = 0;

	add_histogram(control, &control_sum, &a->turns.turns);
	for (unsigned w = 0; w < a->pool.n; w++)
		add_histogram(workers, &workers_sum, &worker_turns(a->pool.workers[w])->turns);
	metrics_histogram(t, (const char *[]){ "control" }, control, control_sum);
	metrics_histogram(t, (const char *[]){ "worker" }, workers, workers_sum);
}

/* Sums over all workers, for each transport, including transports that were not used. */
static void transfer_samples(struct agent *a, struct metrics_text *t, enum dray_family f)
{
	for (unsigned by = DMSG_TRANSPORT_LOCAL; by < DATA_TRANSPORTS; by++) {
		uint64_t buckets[DRAY_FAMILY_BUCKETS_MAX + 1] = { 0 }, sum = 0;

		for (unsigned w = 0; w < a->pool.n; w++) {
			const struct data_counters *c = worker_counters(a->pool.workers[w]);

			add_histogram(buckets, &sum,
				      f == DRAY_FAMILY_TRANSFER_SIZE_BYTES ? &c->size[by] :
									     &c->duration[by]);
		}
		metrics_histogram(t, (const char *[]){ dmsg_transport_name(by) }, buckets, sum);
	}
}

static const char *const phase_names[XFER_PHASE_N] = {
	[XFER_PHASE_QUEUE] = "queue", [XFER_PHASE_MOVE] = "move", [XFER_PHASE_COMPLETE] = "completion"
};

static void phase_samples(struct agent *a, struct metrics_text *t, unsigned transport,
			  unsigned class)
{
	for (unsigned phase = XFER_PHASE_QUEUE; phase < XFER_PHASE_N; phase++) {
		uint64_t buckets[DRAY_FAMILY_BUCKETS_MAX + 1] = { 0 }, sum = 0;
		const char *const labels[] = { dmsg_transport_name(transport),
					       dmsg_class_name(class), phase_names[phase] };

		for (unsigned w = 0; w < a->pool.n; w++) {
			const struct data_phases *p =
				&worker_counters(a->pool.workers[w])->phases[transport][class];

			add_histogram(buckets, &sum, &p->of[phase]);
			if (phase != XFER_PHASE_MOVE)
				buckets[0] +=
					atomic_load_explicit(&p->at_once, memory_order_relaxed);
		}
		metrics_histogram(t, labels, buckets, sum);
	}
}

static uint64_t phase_sum(struct agent *a, unsigned transport, unsigned class,
			  enum xfer_phase phase, uint64_t *ret_transfers)
{
	uint64_t buckets[DRAY_FAMILY_BUCKETS_MAX + 1] = { 0 }, sum = 0;

	*ret_transfers = 0;
	for (unsigned w = 0; w < a->pool.n; w++)
		add_histogram(
			buckets, &sum,
			&worker_counters(a->pool.workers[w])->phases[transport][class].of[phase]);
	for (unsigned i = 0; i <= DRAY_FAMILY_BUCKETS_MAX; i++)
		*ret_transfers += buckets[i];
	return sum;
}

void agent_each_transfer_time(struct agent *a,
			      void (*fn)(void *arg, const struct dray_dbus_transfer_time *t),
			      void *arg)
{
	for (unsigned by = DMSG_TRANSPORT_LOCAL; by < DATA_TRANSPORTS; by++)
		for (unsigned class = 0; class < DATA_CLASSES; class ++) {
			uint64_t n, waited; /* waited: those that waited in the phase */
			struct dray_dbus_transfer_time t = {
				.transport = dmsg_transport_name(by),
				.class = dmsg_class_name(class),
				.queued_ns = phase_sum(a, by, class, XFER_PHASE_QUEUE, &waited),
				.completed_ns =
					phase_sum(a, by, class, XFER_PHASE_COMPLETE, &waited),
				.moved_ns = phase_sum(a, by, class, XFER_PHASE_MOVE, &n),
			};

			t.transfers = n;
			if (n)
				fn(arg, &t);
		}
}

/* Cancelled transfers are counted elsewhere. */
static void error_samples(struct agent *a, struct metrics_text *t)
{
	for (int code = 1; code < DRAY_ERROR_N; code++) {
		uint64_t n = 0;

		for (unsigned w = 0; w < a->pool.n; w++)
			n += atomic_load_explicit(
				&worker_counters(a->pool.workers[w])->errors[code],
				memory_order_relaxed);
		if (code != DRAY_E_CANCELLED)
			metrics_sample(t, (const char *[]){ dray_error_name((uint32_t)code) }, n);
	}
}

struct rail_samples {
	struct metrics_text *text;
	enum dray_family family;
};

static void rail_sample(void *arg, const char *device, unsigned port, struct rails_traffic moved)
{
	const struct rail_samples *s = arg;
	char number[16];
	const char *labels[] = { device, number };

	snprintf(number, sizeof(number), "%u", port);
	if (s->family == DRAY_FAMILY_RAIL_MOVING_SECONDS_TOTAL)
		metrics_sample_real(s->text, labels, (double)moved.moving_ns / 1e9);
	else
		metrics_sample(s->text, labels,
			       s->family == DRAY_FAMILY_RAIL_SENT_BYTES_TOTAL ? moved.sent :
										moved.received);
}

/* Bounds the number of label values. */
#define PEERS_SHOWN 64

static void peer_traffic_samples(struct agent *a, struct metrics_text *t, enum dray_family f)
{
	struct peer_traffic peers[PEERS_SHOWN];
	unsigned n = peers_traffic(a->peers, peers, PEERS_SHOWN);
	bool sent = f == DRAY_FAMILY_PEER_SENT_BYTES_TOTAL;

	for (unsigned i = 0; i < n; i++) {
		const struct peer_traffic *p = &peers[i];
		struct rails_traffic rdma;

		if (f == DRAY_FAMILY_PEER_MOVING_SECONDS_TOTAL) {
			metrics_sample_real(t, &p->segment, (double)p->moving_ns / 1e9);
			continue;
		}
		rdma = rails_peer_traffic(a->rails, p->peer);
		metrics_sample(t, (const char *[]){ p->segment, "tcp" },
			       sent ? p->tcp_sent : p->tcp_received);
		metrics_sample(t, (const char *[]){ p->segment, "rdma" },
			       sent ? rdma.sent : rdma.received);
	}
}

void agent_samples(struct agent *a, enum dray_family f, const struct store_shown *spaces,
		   struct metrics_text *t)
{
	switch (f) {
	case DRAY_FAMILY_TRANSFER_DURATION_SECONDS:
	case DRAY_FAMILY_TRANSFER_SIZE_BYTES:
		transfer_samples(a, t, f);
		break;
	case DRAY_FAMILY_TRANSFER_PHASE_SECONDS:
		for (unsigned by = DMSG_TRANSPORT_LOCAL; by < DATA_TRANSPORTS; by++)
			for (unsigned class = 0; class < DATA_CLASSES; class ++)
				phase_samples(a, t, by, class);
		break;
	case DRAY_FAMILY_TRANSFER_ERRORS_TOTAL:
		error_samples(a, t);
		break;
	case DRAY_FAMILY_RAIL_SENT_BYTES_TOTAL:
	case DRAY_FAMILY_RAIL_RECEIVED_BYTES_TOTAL:
	case DRAY_FAMILY_RAIL_MOVING_SECONDS_TOTAL:
		rails_each(a->rails, rail_sample, &(struct rail_samples){ t, f });
		break;
	case DRAY_FAMILY_PEER_SENT_BYTES_TOTAL:
	case DRAY_FAMILY_PEER_RECEIVED_BYTES_TOTAL:
	case DRAY_FAMILY_PEER_MOVING_SECONDS_TOTAL:
		peer_traffic_samples(a, t, f);
		break;
	case DRAY_FAMILY_TURN_CPU_SECONDS:
		turn_samples(a, t);
		break;
	case DRAY_FAMILY_BUILD_INFO:
		metrics_sample(t, (const char *[]){ DRAY_VERSION }, 1);
		break;
	case DRAY_FAMILY_STATE:
		state_samples(a, t);
		break;
	case DRAY_FAMILY_PEERS_BY_STATE:
		peer_samples(a, t);
		break;
	case DRAY_FAMILY_SEGMENTS_BY_STATE:
		segment_samples(a, t);
		break;
	case DRAY_FAMILY_LEASES_ENDED_TOTAL:
		lease_samples(a, t);
		break;
	case DRAY_FAMILY_QUOTA_USED:
	case DRAY_FAMILY_QUOTA_LIMIT:
	case DRAY_FAMILY_QUOTA_REFUSED_TOTAL:
		quota_samples(a, t, f);
		break;
	case DRAY_FAMILY_STORE_SPACE_OBJECTS:
	case DRAY_FAMILY_STORE_SPACE_BYTES:
	case DRAY_FAMILY_STORE_SPACE_HITS_TOTAL:
	case DRAY_FAMILY_STORE_SPACE_MISSES_TOTAL:
	case DRAY_FAMILY_STORE_SPACE_EVICTIONS_TOTAL:
	case DRAY_FAMILY_STORE_SPACE_EVICTED_COST_TOTAL:
		store_samples(spaces, t, f);
		break;
	case DRAY_FAMILY_READY_CONDITION:
		condition_samples(a, t);
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
