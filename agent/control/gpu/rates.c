/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast GPUs copy, by model. Rates are measured once for the versions of plug-in and driver, when a device has started that is
 * idle, and saved; until then the built-in ones count. A measurement has a thread of its own, because it must wait for nothing
 * and nothing for it; a copy of a worker on the device ends it, and it is tried again later. One that does not end, because
 * the driver does not return, is abandoned: its devices stay started, and if they are lost they are not used again. Only
 * devices whose load decides what copies need rates.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/gpu/internal.h"
#include "agent/state/state.h"
#include "lib/log.h"

#define RETRY_MIN_US UINT64_C(1000000)
#define RETRY_MAX_US (600 * UINT64_C(1000000))
/* Of a measurement: its copies take a quarter of a second, and its memory is allocated and freed besides. */
#define LIMIT_US (5 * UINT64_C(1000000))
/* Models and versions in the database: more of them are not read. */
#define KNOWN_MAX 64
/* The kernel's rate is saved as that of pieces of 0 bytes, and comes first. */
#define ROWS (1 + GPU_RATE_SIZES)
#define ALL_ROWS ((1u << ROWS) - 1)
#define ALWAYS (1u << GPU_BUS_WITHIN | 1u << GPU_BUS_TO_HOST | 1u << GPU_BUS_FROM_HOST)

/* What workers have: never changed, and freed at the end. */
struct published {
	struct dray_list link;
	struct gpu_rates rates;
};

struct known {
	struct dray_list link;
	char *versions, *gpu;
	struct gpu_rates rates;       /* built-in ones where none are measured */
	uint32_t rows[GPU_BUS_N];     /* a bit for each row that is known */
	const struct gpu_rates *last; /* published; NULL: not yet */
};

static void known_free(struct known *k)
{
	dray_list_del(&k->link);
	free(k->versions);
	free(k->gpu);
	free(k);
}

static struct known *known_find(struct gpus *g, const char *versions, const char *gpu)
{
	dray_list_for_each(&g->rates.known, k, struct known, link)
		if (!strcmp(k->versions, versions) && !strcmp(k->gpu, gpu))
			return k;
	return NULL;
}

static struct known *known_new(struct gpus *g, const char *versions, const char *gpu)
{
	struct known *k = g->rates.n_known < KNOWN_MAX ? calloc(1, sizeof(*k)) : NULL;

	if (!k)
		return NULL;
	dray_list_init(&k->link);
	k->rates = gpu_rates_built_in;
	k->versions = strdup(versions);
	k->gpu = strdup(gpu);
	if (!k->versions || !k->gpu) {
		known_free(k);
		return NULL;
	}
	g->rates.n_known++;
	dray_list_add(&g->rates.known, &k->link);
	return k;
}

static bool is_measured(const struct known *k, enum gpu_bus bus)
{
	return k && k->rows[bus] == ALL_ROWS;
}

/* --- in the database -------------------------------------------------------------------------- */

static uint32_t piece_of(unsigned row)
{
	return row ? GPU_RATE_SIZE_MIN << (row - 1) : 0;
}

static uint32_t *rate_of(struct known *k, enum gpu_bus bus, unsigned row)
{
	return row ? &k->rates.engines[bus][row - 1] : &k->rates.kernel[bus];
}

static void save(struct gpus *g, struct known *k, enum gpu_bus bus, bool drop)
{
	for (unsigned row = 0; row < ROWS; row++)
		if (k->rows[bus] >> row & 1)
			state_change(*g->deps.state, STATE_GPU_RATE, drop,
				     &(union state_row){
					     .gpu_rate = { .versions = k->versions,
							   .gpu = k->gpu,
							   .bus = gpu_bus_names[bus],
							   .piece = piece_of(row),
							   .rate = *rate_of(k, bus, row) } });
}

void gpus_rates_refill(struct gpus *g)
{
	dray_list_for_each(&g->rates.known, k, struct known, link)
		for (enum gpu_bus bus = 0; bus < GPU_BUS_N; bus++)
			save(g, k, bus, false);
}

void gpus_rates_load(struct gpus *g, const struct state_gpu_rate *r)
{
	struct known *k = known_find(g, r->versions, r->gpu);
	enum gpu_bus bus = 0;
	unsigned row = 0;

	while (bus < GPU_BUS_N && strcmp(gpu_bus_names[bus], r->bus) != 0)
		bus++;
	while (row < ROWS && piece_of(row) != r->piece)
		row++;
	if (bus == GPU_BUS_N || row == ROWS || !r->rate)
		return;
	if (!k)
		k = known_new(g, r->versions, r->gpu);
	if (!k)
		return;
	k->rows[bus] |= 1u << row;
	*rate_of(k, bus, row) = r->rate;
}

/* --- for workers ------------------------------------------------------------------------------ */

static void publish(struct gpus *g, struct known *k)
{
	struct published *p = malloc(sizeof(*p));

	/* without memory the workers keep those that they have */
	if (!p)
		return;
	dray_list_init(&p->link);
	dray_list_add(&g->rates.published, &p->link);
	p->rates = k->rates;
	/* of an incomplete list none counts */
	for (enum gpu_bus bus = 0; bus < GPU_BUS_N; bus++)
		if (!is_measured(k, bus)) {
			p->rates.kernel[bus] = gpu_rates_built_in.kernel[bus];
			memcpy(p->rates.engines[bus], gpu_rates_built_in.engines[bus],
			       sizeof(p->rates.engines[bus]));
		}
	k->last = &p->rates;
	for (unsigned i = 0; i < g->n; i++) {
		struct gpu_device *d = &g->devices[i];

		if (strcmp(d->info.name, k->gpu) != 0)
			continue;
		d->rates = k->last;
		if (d->state != DEVICE_READY)
			continue;
		for (unsigned w = 0; w < g->n_workers; w++)
			gpus_tell(g, w, GPU_RATES, d->index, (void *)(uintptr_t)k->last);
	}
}

void gpu_rates_found(struct gpus *g)
{
	for (unsigned i = 0; i < g->n; i++)
		g->devices[i].rates = &gpu_rates_built_in;
	dray_list_for_each(&g->rates.known, k, struct known, link) {
		if (!strcmp(k->versions, g->plugin_text)) {
			publish(g, k);
			continue;
		}
		for (enum gpu_bus bus = 0; bus < GPU_BUS_N; bus++)
			save(g, k, bus, true);
		g->rates.n_known--;
		known_free(k);
	}
}

/* --- measurements ------------------------------------------------------------------------------ */

/* A started device with which copies pass this bus; NULL: there is none. */
static struct gpu_device *peer_by(const struct gpu_device *d, enum gpu_bus bus)
{
	struct gpus *g = d->gpus;

	for (unsigned i = 0; i < g->n; i++) {
		struct gpu_device *peer = &g->devices[i];
		bool nvlink = d->info.nvlink >> i & 1;

		if (peer != d && peer->state == DEVICE_READY && d->peers >> i & 1 &&
		    peer->info.peers >> d->index & 1 && nvlink == (bus == GPU_BUS_NVLINK))
			return peer;
	}
	return NULL;
}

/* What can be measured on the device now and is not known: buses, with the peer of one between two devices. */
static unsigned buses_missing(const struct gpu_device *d, struct gpu_device **ret_peer)
{
	static const enum gpu_bus between[] = { GPU_BUS_NVLINK, GPU_BUS_PCIE };
	const struct known *k = known_find(d->gpus, d->gpus->plugin_text, d->info.name);
	unsigned buses = 0;

	*ret_peer = NULL;
	if (d->state != DEVICE_READY || !gpu_device_follows_load(d))
		return 0;
	for (enum gpu_bus bus = 0; bus < GPU_BUS_N; bus++)
		if (ALWAYS >> bus & 1 && !is_measured(k, bus))
			buses |= 1u << bus;
	for (unsigned i = 0; i < 2 && !*ret_peer; i++) {
		if (!is_measured(k, between[i]))
			*ret_peer = peer_by(d, between[i]);
		if (*ret_peer)
			buses |= 1u << between[i];
	}
	return buses;
}

static void run(struct dray_job *j)
{
	struct gpus *g = dray_container_of(j, struct gpus, rates.job);

	g->rates.error = gpu_measure(&g->rates.measure, &g->rates.err);
}

static void log_rates(const struct gpu_device *d)
{
	char text[GPU_RATES_BYTES];

	log_info(AREA, "rates of copies by kernels on %s, in GB/s: %s gpu=%s", d->info.name,
		 gpu_device_rates_text(d, text), d->info.uuid);
}

/* False: without memory. */
static bool keep(struct gpu_device *d, const struct gpu_measure *m)
{
	struct gpus *g = d->gpus;
	struct known *k = known_find(g, g->plugin_text, d->info.name);

	if (!k)
		k = known_new(g, g->plugin_text, d->info.name);
	if (!k)
		return false;
	for (enum gpu_bus bus = 0; bus < GPU_BUS_N; bus++) {
		if (!(m->buses >> bus & 1))
			continue;
		k->rows[bus] = ALL_ROWS;
		k->rates.kernel[bus] = m->rates.kernel[bus];
		memcpy(k->rates.engines[bus], m->rates.engines[bus], sizeof(k->rates.engines[bus]));
		save(g, k, bus, false);
	}
	publish(g, k);
	log_rates(d);
	return true;
}

static int handle_retry(sd_event_source *source, uint64_t usec, void *arg)
{
	struct gpus *g = arg;

	g->rates.retry = sd_event_source_disable_unref(g->rates.retry);
	gpu_rates_step(g);
	return 0;
}

static void retry_later(struct gpus *g)
{
	uint64_t us = g->rates.pause_us ? g->rates.pause_us : RETRY_MIN_US;

	g->rates.pause_us = dray_min(2 * us, RETRY_MAX_US);
	/* without the timer the next start of a device tries again */
	if (sd_event_add_time_relative(g->deps.event, &g->rates.retry, CLOCK_MONOTONIC, us, 0,
				       handle_retry, g) < 0)
		g->rates.retry = NULL;
}

bool gpu_rates_hang(const struct gpu_device *d)
{
	return d->measured && d->gpus->rates.abandoned;
}

static int handle_late(sd_event_source *source, uint64_t usec, void *arg)
{
	struct gpus *g = arg;
	struct gpu_device *d = g->rates.device, *peer = g->rates.peer;

	g->rates.late = sd_event_source_disable_unref(g->rates.late);
	g->rates.abandoned = true;
	gpu_rates_stop(g);
	log_error(
		AREA,
		"the measurement of rates on the GPU does not end, because the driver does not return: it is "
		"abandoned, and the agent does not stop the GPU; restart the agent to measure again gpu=%s peer=%s",
		d->info.uuid, peer ? peer->info.uuid : "none");
	gpu_device_check(d);
	if (peer)
		gpu_device_check(peer);
	return 0;
}

/* The end of a device waits for this: that of a lost one, and of an idle one whose timer has passed. */
static void release(struct gpu_device *d)
{
	if (!d)
		return;
	d->measured = false;
	atomic_store_explicit(&d->load.measured, false, memory_order_relaxed);
	if (d->state == DEVICE_ENDED || !d->idle)
		gpu_device_check(d);
}

static void done(struct dray_job *j)
{
	struct gpus *g = dray_container_of(j, struct gpus, rates.job);
	struct gpu_device *d = dray_take(g->rates.device), *peer = dray_take(g->rates.peer);
	bool kept = g->rates.error >= 0 && keep(d, &g->rates.measure);

	g->rates.late = sd_event_source_disable_unref(g->rates.late);
	if (g->rates.abandoned)
		log_notice(AREA, "the measurement of rates on the GPU has ended after all gpu=%s",
			   d->info.uuid);
	g->rates.abandoned = false;
	if (g->rates.error == -EIO)
		gpu_device_lost(d, g->rates.err.msg);
	release(d);
	release(peer);
	if (!kept) {
		retry_later(g);
		return;
	}
	g->rates.pause_us = 0;
	gpu_rates_step(g);
}

static void use(struct gpu_device *d)
{
	d->measured = true;
	atomic_store_explicit(&d->load.measured, true, memory_order_relaxed);
}

/* False: the thread or the time limit cannot be started. */
static bool begin(struct gpu_device *d, struct gpu_device *peer, unsigned buses)
{
	struct gpus *g = d->gpus;

	if (!g->rates.thread &&
	    jobs_new(&g->rates.thread, g->deps.event, "dray-gpu-rates", STACK_BYTES) < 0)
		return false;
	if (sd_event_add_time_relative(g->deps.event, &g->rates.late, CLOCK_MONOTONIC, LIMIT_US, 0,
				       handle_late, g) < 0)
		return false;
	g->rates.device = d;
	g->rates.peer = peer;
	g->rates.err = DRAY_ERR_NULL;
	g->rates.measure = (struct gpu_measure){ .ops = g->ops,
						 .plugin = g->plugin,
						 .device = d->index,
						 .peer = peer ? peer->index : 0,
						 .share = (unsigned)g->cfg->gpu.multiprocessors,
						 .memory = d->info.memory,
						 .buses = buses,
						 .go = &d->load.measured,
						 .peer_go = peer ? &peer->load.measured : NULL };
	use(d);
	if (peer)
		use(peer);
	dray_jobs_add(g->rates.thread, &g->rates.job, run, done);
	return true;
}

void gpu_rates_step(struct gpus *g)
{
	if (!g->cfg->gpu.measure || g->rates.device || g->rates.retry)
		return;
	for (unsigned i = 0; i < g->n; i++) {
		struct gpu_device *peer, *d = &g->devices[(g->rates.next + i) % g->n];
		unsigned buses = buses_missing(d, &peer);

		if (!buses)
			continue;
		/* a busy one does not keep others from their turn */
		g->rates.next = d->index + 1;
		if (!begin(d, peer, buses))
			retry_later(g);
		return;
	}
}

void gpu_rates_stop(struct gpus *g)
{
	for (unsigned i = 0; i < g->n; i++)
		atomic_store_explicit(&g->devices[i].load.measured, false, memory_order_relaxed);
}

/* --- for people -------------------------------------------------------------------------------- */

const char *gpu_device_rates(const struct gpu_device *d)
{
	const struct known *k = known_find(d->gpus, d->gpus->plugin_text, d->info.name);
	unsigned n = 0, of = 0;

	if (gpu_rates_hang(d))
		return "abandoned";
	for (enum gpu_bus bus = 0; bus < GPU_BUS_N; bus++) {
		bool nvlink = bus == GPU_BUS_NVLINK && d->info.nvlink;
		bool pcie = bus == GPU_BUS_PCIE && d->info.peers & ~d->info.nvlink;

		if (!(ALWAYS >> bus & 1 || nvlink || pcie))
			continue;
		of++;
		n += is_measured(k, bus);
	}
	return !n ? "built_in" : n < of ? "partly" : "measured";
}

const char *gpu_device_rates_text(const struct gpu_device *d, char ret[GPU_RATES_BYTES])
{
	const struct gpu_rates *r = d->rates ? d->rates : &gpu_rates_built_in;
	size_t at = 0;

	for (enum gpu_bus bus = 0; bus < GPU_BUS_N; bus++)
		at += (size_t)snprintf(ret + at, GPU_RATES_BYTES - at, "%s%s %" PRIu32 ".%" PRIu32,
				       bus ? ", " : "", gpu_bus_names[bus], r->kernel[bus] / 1000,
				       r->kernel[bus] % 1000 / 100);
	return ret;
}

bool gpu_rates_free(struct gpus *g)
{
	g->rates.retry = sd_event_source_disable_unref(g->rates.retry);
	g->rates.late = sd_event_source_disable_unref(g->rates.late);
	gpu_rates_stop(g);
	if (!jobs_free(g->rates.thread))
		return false;
	g->rates.thread = NULL;
	return true;
}

void gpu_rates_end(struct gpus *g)
{
	dray_list_for_each(&g->rates.known, k, struct known, link)
		known_free(k);
	dray_list_for_each(&g->rates.published, p, struct published, link) {
		dray_list_del(&p->link);
		free(p);
	}
}
