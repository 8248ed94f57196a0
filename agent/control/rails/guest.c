/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queue pairs of guests. A guest posts, and this side serves: the device carries out what the guest asks for within its protection
 * domain, and this process learns nothing of it. It therefore learns of a guest's death only by asking its device: a write of no
 * bytes, which names no memory, is acknowledged as long as the guest's queue pair exists, also while its process stands still.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/rails/internal.h"
#include "agent/process/jobs.h"
#include "lib/log.h"
#include "lib/share.h"

/* Completions that one round of probes takes from a device, at most. */
#define COMPLETIONS 64

enum guest_state {
	GUEST_MAKING,
	GUEST_UP,
	GUEST_DYING,
};

/* The queue pairs of one request. */
struct guest {
	struct dray_list link; /* in rails->guests.v */
	struct rails *rails;
	struct rail *rail;
	struct device *device;
	uint64_t id;
	enum guest_state state;
	/* it dies as soon as its job has ended, which begins no further queue pair */
	_Atomic bool doomed;
	int error; /* of the last job */
	struct rails_guest_request want;
	void (*done)(void *arg, const struct rails_guest_reply *reply); /* NULL: nobody waits */
	void *arg;
	struct dray_job job;
	unsigned n;
	uint32_t qpn[RAILS_GUEST_QUEUE_PAIRS];
	bool probed[RAILS_GUEST_QUEUE_PAIRS]; /* the acknowledgement is awaited */
	struct qp qps[];
};

static struct guest *guest_of(struct dray_job *j)
{
	return dray_container_of(j, struct guest, job);
}

void guests_changed(struct rails *r)
{
	if (!guests_wanted(r))
		return;
	r->guests.changes++;
	if (r->deps.guests_changed)
		r->deps.guests_changed(r->deps.arg);
}

static struct rails_guest_device device_of(const struct rail *rail)
{
	return (struct rails_guest_device){ .name = rail->device_name,
					    .lid = (uint16_t)rail->lid,
					    .gid = rail->gid.gid };
}

/* The rail that guests use of the device: the first one that is up. */
static struct rail *rail_of_device(const struct rails *r, const char *name)
{
	for (unsigned i = 0; i < r->n; i++) {
		struct rail *rail = r->v[i];

		if (rail->state == RAIL_UP && device_is_open(rail->device) &&
		    rail->device->guest_pd && !strcmp(rail->device_name, name))
			return rail;
	}
	return NULL;
}

unsigned rails_guest_devices(const struct rails *r, struct rails_guest_device ret[RAILS_MAX])
{
	unsigned n = 0;

	for (unsigned i = 0; i < r->n; i++)
		if (rail_of_device(r, r->v[i]->device_name) == r->v[i])
			ret[n++] = device_of(r->v[i]);
	return n;
}

static void answer(struct guest *g, const char *refused)
{
	struct rails_guest_reply reply = { .refused = refused };
	void (*done)(void *arg, const struct rails_guest_reply *reply) = g->done;

	g->done = NULL;
	g->rails->guests.totals.refused += refused != NULL;
	if (!refused) {
		reply.device = device_of(g->rail);
		reply.n = g->n;
		reply.qpn = g->qpn;
	}
	if (done)
		done(g->arg, &reply);
}

/* --- the end ------------------------------------------------------------------------------------------ */

static void destroy_run(struct dray_job *j)
{
	struct guest *g = guest_of(j);

	g->error = 0;
	for (unsigned i = 0; i < g->n; i++) {
		int r = g->qps[i].qp ? g->rails->verbs->destroy_qp(g->qps[i].qp) : 0;

		g->error = r < 0 ? r : g->error;
		g->qps[i].qp = NULL;
	}
}

static void guest_free(struct guest *g)
{
	g->rails->guests.totals.queue_pairs -= g->n;
	dray_list_del(&g->link);
	free(g);
}

static void destroy_done(struct dray_job *j)
{
	struct guest *g = guest_of(j);
	struct device *d = g->device;
	struct rails *r = g->rails;

	d->jobs--;
	d->qps -= g->n;
	if (g->error < 0) {
		/* likewise as for other queue pairs, in qp.c */
		log_error(AREA,
			  "a queue pair of a guest cannot be destroyed, closing the device, which "
			  "ends all queue pairs: %s device=%s",
			  dray_errno_text(g->error), d->name);
		device_lost(d, "a queue pair could not be destroyed");
	} else {
		guest_free(g);
		guest_ranges_check(r);
	}
	device_check(d);
}

void guests_device_closed(struct device *d)
{
	dray_list_for_each(&d->rails->guests.v, g, struct guest, link)
		if (g->device == d)
			guest_free(g);
}

static void guest_die(struct guest *g, const char *why)
{
	char from[DRAY_ADDR_TEXT_MAX];

	if (g->state == GUEST_DYING || g->doomed)
		return;
	log_info(AREA, "%u queue pairs of a guest end: %s device=%s peer=%s", g->n, why,
		 g->device->name, dray_addr_show(&g->want.from, from, sizeof(from)));
	g->doomed = true;
	if (g->state == GUEST_MAKING)
		return;
	g->state = GUEST_DYING;
	device_job(g->device, g->rails->slow, &g->job, destroy_run, destroy_done);
}

static void guest_lose(struct guest *g, const char *why)
{
	if (!g->doomed)
		g->rails->guests.totals.lost += g->n;
	guest_die(g, why);
}

/* --- the beginning ------------------------------------------------------------------------------------ */

static int make_one(const struct guest *g, struct qp *q)
{
	int r = qp_create(q, g->device->guest_pd, g->device->guest_cq, 0);

	if (r == 0)
		r = qp_to_init(q, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
	if (r == 0)
		r = qp_to_rtr(q);
	return r == 0 ? qp_to_rts(q) : r;
}

static void make_run(struct dray_job *j)
{
	struct guest *g = guest_of(j);

	g->error = 0;
	for (unsigned i = 0; g->error == 0 && i < g->n; i++) {
		g->error = g->doomed ? -ECANCELED : make_one(g, &g->qps[i]);
		g->qpn[i] = g->qps[i].qp ? g->qps[i].qp->qp_num : 0;
	}
}

static void probes_arm(struct rails *r);

static void make_done(struct dray_job *j)
{
	struct guest *g = guest_of(j);
	bool doomed = g->doomed;
	char from[DRAY_ADDR_TEXT_MAX];

	g->device->jobs--;
	g->state = GUEST_UP;
	g->doomed = false;
	if (doomed || g->error < 0) {
		answer(g, doomed ? "the request was withdrawn" : dray_errno_text(g->error));
		guest_die(g, g->error < 0 ? dray_errno_text(g->error) :
					    "they are not wanted any more");
		return;
	}
	log_info(AREA, "%u queue pairs for a guest device=%s peer=%s", g->n, g->device->name,
		 dray_addr_show(&g->want.from, from, sizeof(from)));
	answer(g, NULL);
	probes_arm(g->rails);
}

static void qp_prepare(const struct guest *g, struct qp *q, uint32_t qpn)
{
	const struct rail *rail = g->rail;
	uint32_t most = (uint32_t)dray_max(g->device->attr.max_qp_rd_atom, 1);
	uint32_t mtu = (uint32_t)g->rails->cfg->rdma.mtu;

	q->rail = g->rail;
	q->device = g->device;
	q->port = (uint8_t)rail->port;
	q->gid_index = (uint8_t)rail->gid.index;
	q->pkey_index = rail->pkey_index;
	q->depth = 1;
	q->reads = 1;
	q->retries = (uint8_t)dray_min(g->rails->cfg->rdma.retry_count, GUEST_RETRIES);
	q->remote = (struct pmsg_qp_connect){ .qpn = qpn,
					      .mtu = mtu ? dray_min(mtu, rail->mtu) : rail->mtu,
					      .lid = g->want.lid,
					      .reads = dray_min(most, GUEST_READS) };
	memcpy(q->remote.gid, &g->want.gid, sizeof(q->remote.gid));
}

/* The living guest of this name. */
static struct guest *find(struct rails *r, const struct rails_guest_request *want,
			  const struct rail *rail)
{
	dray_list_for_each(&r->guests.v, g, struct guest, link)
		if (!g->doomed && g->rail == rail && !strcmp(g->want.path, want->path) &&
		    dray_addr_same_host(&g->want.from, &want->from))
			return g;
	return NULL;
}

static const char *admit(const struct rails *r, const struct rails_guest_request *want,
			 const struct rail *rail)
{
	uint64_t all = (uint64_t)r->cfg->mooncake.queue_pairs, held = 0, here = 0;

	if (!rail)
		return "this segment does not use the device";
	if (!want->n || want->n > RAILS_GUEST_QUEUE_PAIRS)
		return "the number of queue pairs is not valid";
	dray_list_for_each(&r->guests.v, g, const struct guest, link) {
		held += dray_addr_same_host(&g->want.from, &want->from) ? g->n : 0;
		here += g->device == rail->device ? g->n : 0;
	}
	if (here + want->n > (uint64_t)rail->device->attr.max_cqe)
		return "the device has no room for more queue pairs";
	if (!dray_share_fits(all - dray_min(all, r->guests.totals.queue_pairs), held, want->n))
		return "too many queue pairs; see mooncake.queue_pairs";
	return NULL;
}

uint64_t rails_guest_connect(struct rails *r, const struct rails_guest_request *want,
			     void (*done)(void *arg, const struct rails_guest_reply *reply),
			     void *arg)
{
	struct rail *rail = rail_of_device(r, want->device);
	struct guest *g = rail ? find(r, want, rail) : NULL;
	const char *why;

	/*
	 * Also if it names the same queue pairs: an engine resets them when its port is lost, and then begins with the first packet
	 * number again, which a queue pair that has served would take for a repetition, and acknowledge without its bytes.
	 */
	if (g)
		guest_die(g, "the guest makes others in their place");
	why = admit(r, want, rail);
	if (!why && !r->guest_connector &&
	    jobs_new(&r->guest_connector, r->deps.event, "dray-guests", 0) < 0)
		why = "no thread";
	g = why ? NULL : calloc(1, sizeof(*g) + want->n * sizeof(g->qps[0]));
	if (!g) {
		r->guests.totals.refused++;
		done(arg, &(struct rails_guest_reply){ .refused = why ? why : "no memory" });
		return 0;
	}
	g->rails = r;
	g->rail = rail;
	g->device = rail->device;
	g->id = ++r->guests.last_id;
	g->want = *want;
	g->done = done;
	g->arg = arg;
	g->n = want->n;
	for (unsigned i = 0; i < g->n; i++)
		qp_prepare(g, &g->qps[i], want->qpn[i]);
	g->device->qps += g->n;
	r->guests.totals.queue_pairs += g->n;
	dray_list_add(&r->guests.v, &g->link);
	device_job(g->device, r->guest_connector, &g->job, make_run, make_done);
	return g->id;
}

static struct guest *guest_by_id(struct rails *r, uint64_t id)
{
	dray_list_for_each(&r->guests.v, g, struct guest, link)
		if (g->id == id)
			return g;
	return NULL;
}

void rails_guest_forget(struct rails *r, uint64_t id)
{
	struct guest *g = guest_by_id(r, id);

	if (!g)
		return;
	g->done = NULL;
	guest_die(g, "the guest closed its handshake");
}

/* --- what ends guests --------------------------------------------------------------------------------- */

void rails_guests_end(struct rails *r,
		      bool (*keep)(void *arg, const struct rails_guest_request *guest), void *arg,
		      const char *why)
{
	dray_list_for_each(&r->guests.v, g, struct guest, link)
		if (!keep || !keep(arg, &g->want))
			guest_die(g, why);
}

void guests_rail_lost(const struct rail *rail)
{
	dray_list_for_each(&rail->rails->guests.v, g, struct guest, link)
		if (g->rail == rail)
			guest_lose(g, "the rail is lost");
}

bool guests_queue_pair_failed(struct device *d, const struct ibv_qp *qp, const char *why)
{
	dray_list_for_each(&d->rails->guests.v, g, struct guest, link)
		/* in other states a job may be writing qp */
		for (unsigned i = 0; g->state == GUEST_UP && g->device == d && i < g->n; i++)
			if (g->qps[i].qp == qp) {
				guest_lose(g, why);
				return true;
			}
	return false;
}

static void handle_completion(struct rails *r, const struct ibv_wc *wc)
{
	/* the identifier of the guest, then the index of the queue pair */
	struct guest *g = guest_by_id(r, wc->wr_id >> 8);

	if (!g || g->state != GUEST_UP)
		return;
	g->probed[wc->wr_id & 0xff] = false;
	if (wc->status != IBV_WC_SUCCESS)
		guest_lose(g, "the guest does not acknowledge any more");
}

static void poll_device(struct device *d)
{
	struct ibv_wc wc[COMPLETIONS];
	int n;

	if (!d->guest_cq)
		return;
	/* no more come than there are queue pairs, each with one probe */
	do {
		n = ibv_poll_cq(d->guest_cq, COMPLETIONS, wc);
		for (int i = 0; i < n; i++)
			handle_completion(d->rails, &wc[i]);
	} while (n == COMPLETIONS);
}

static bool is_silent(const struct guest *g)
{
	for (unsigned i = 0; i < g->n; i++)
		if (g->probed[i])
			return true;
	return false;
}

void guests_end_silent(struct device *d)
{
	poll_device(d);
	dray_list_for_each(&d->rails->guests.v, g, struct guest, link)
		if (g->device == d && g->state == GUEST_UP && is_silent(g))
			guest_lose(g, "the guest is silent while memory is taken back");
}

bool guests_are_ending(const struct device *d)
{
	dray_list_for_each(&d->rails->guests.v, g, const struct guest, link)
		if (g->device == d && g->doomed)
			return true;
	return false;
}

/* --- probes ------------------------------------------------------------------------------------------- */

static void probe(struct guest *g)
{
	for (unsigned i = 0; i < g->n; i++) {
		struct ibv_send_wr *bad, wr = { .wr_id = g->id << 8 | i,
						.opcode = IBV_WR_RDMA_WRITE,
						.send_flags = IBV_SEND_SIGNALED };

		if (g->probed[i])
			continue;
		if (ibv_post_send(g->qps[i].qp, &wr, &bad)) {
			guest_lose(g, "a probe cannot be posted");
			return;
		}
		g->probed[i] = true;
	}
}

static void probes_arm(struct rails *r)
{
	int enabled = SD_EVENT_OFF;

	sd_event_source_get_enabled(r->guests.timer, &enabled);
	if (enabled != SD_EVENT_OFF)
		return;
	sd_event_source_set_time(r->guests.timer,
				 (uint64_t)(rails_now(r) + r->cfg->mooncake.probe_interval) / 1000);
	sd_event_source_set_enabled(r->guests.timer, SD_EVENT_ONESHOT);
}

static int on_probe(sd_event_source *source, uint64_t usec, void *arg)
{
	struct rails *r = arg;

	dray_list_for_each(&r->devices, d, struct device, link)
		if (device_is_open(d))
			poll_device(d);
	dray_list_for_each(&r->guests.v, g, struct guest, link)
		if (g->state == GUEST_UP && device_is_open(g->device))
			probe(g);
	if (!dray_list_empty(&r->guests.v))
		probes_arm(r);
	return 0;
}

int guests_init(struct rails *r)
{
	int e = sd_event_add_time(r->deps.event, &r->guests.timer, CLOCK_MONOTONIC, UINT64_MAX, 0,
				  on_probe, r);

	return e < 0 ? e : sd_event_source_set_enabled(r->guests.timer, SD_EVENT_OFF);
}

void guests_free(struct rails *r)
{
	dray_list_for_each(&r->guests.v, g, struct guest, link) {
		destroy_run(&g->job);
		free(g);
	}
}
