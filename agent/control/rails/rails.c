/* SPDX-License-Identifier: Apache-2.0 */
/* Rails and their states, which follow the ports in the scans of netdetect. */
#include "agent/control/rails/rails.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/rails/internal.h"
#include "lib/assert.h"
#include "lib/backoff.h"
#include "lib/log.h"
#include "lib/time.h"
#include "schema/gen/errors.h"

int64_t rails_now(struct rails *r)
{
	uint64_t usec;

	return sd_event_now(r->deps.event, CLOCK_MONOTONIC, &usec) < 0 ? dray_now().ns :
									 (int64_t)usec * 1000;
}

void rails_timer(struct rails *r, int64_t when_ns)
{
	if (when_ns >= r->timer_ns)
		return;
	r->timer_ns = when_ns;
	/* rounded up, since an early timer would have to be set again */
	sd_event_source_set_time(r->timer, (uint64_t)when_ns / 1000 + 1);
	sd_event_source_set_enabled(r->timer, SD_EVENT_ONESHOT);
}

void rails_retry(struct rail_peer *peer, int64_t when_ns)
{
	struct rails *r = peer->rails;

	if (peer->down || (dray_heap_has(&peer->retry) && peer->retry.key <= when_ns))
		return;
	dray_assert(dray_heap_set(&r->retries, &peer->retry, when_ns) == 0);
	rails_timer(r, when_ns);
}

int64_t rails_backoff(struct rails *r, uint32_t fails)
{
	const struct dray_config *cfg = r->cfg;

	return backoff_spread(backoff_pause(fails, cfg->peer.backoff_min, cfg->peer.backoff_max));
}

void rails_tell(const struct rails *r, unsigned worker, enum rdma_command type, dray_handle peer,
		uint64_t id, void *arg)
{
	worker_post(r->deps.pool->workers[worker],
		    &(struct command){ .type = COMMAND_TRANSPORT,
				       .message = { .transport = DMSG_TRANSPORT_RDMA,
						    .type = type,
						    .peer = peer,
						    .id = id,
						    .arg = arg } });
}

static void lose_queue_pairs(const struct rail *rail)
{
	dray_list_for_each(&rail->rails->peers, peer, struct rail_peer, link) {
		dray_list_for_each(&peer->qps, q, struct qp, link)
			if (q->rail == rail)
				connect_lose(q);
		dray_list_for_each(&peer->serving, q, struct qp, link)
			if (q->rail == rail)
				qp_die(q);
	}
	guests_rail_lost(rail);
}

static void rail_actions(struct rail *rail, unsigned actions)
{
	struct rails *r = rail->rails;

	if (actions & RAIL_ACTION_LOSE) {
		r->lost_total++;
		lose_queue_pairs(rail);
	}
	if (actions & RAIL_ACTION_OPEN)
		device_open(rail);
	if (actions & RAIL_ACTION_UP)
		rail->fails = 0;
	if (actions & RAIL_ACTION_CLOSE)
		device_close(rail->device);
	if (actions & RAIL_ACTION_WAIT) {
		rail->retry_ns = rails_now(r) + rails_backoff(r, ++rail->fails);
		rails_timer(r, rail->retry_ns);
	}
	if (actions & (RAIL_ACTION_UP | RAIL_ACTION_LOSE)) {
		rail_regions_publish(r, NULL);
		paths_refresh(r, true);
	}
}

void rail_event(struct rail *rail, enum rail_event e, const char *why, ...)
{
	struct rail_step s = rail_step(rail->state, e, rail->usable);
	enum rail_state old = rail->state;
	va_list ap;

	va_start(ap, why);
	vsnprintf(rail->reason, sizeof(rail->reason), why, ap);
	va_end(ap);
	rail->state = s.state;
	if (s.state != old && rail->rails->deps.changed)
		rail->rails->deps.changed(rail->rails->deps.arg, rail->device_name, rail->port,
					  rail_state_name(old), rail_state_name(s.state),
					  rail->reason);
	if (s.state != old || s.actions)
		dray_log(s.state == RAIL_FAILED ? DRAY_LOG_WARNING : DRAY_LOG_INFO, AREA,
			 "rail %u: %s -> %s (%s): %s device=%s port=%u", rail->number,
			 rail_state_name(old), rail_state_name(s.state), rail_event_name(e),
			 rail->reason, rail->device_name, rail->port);
	rail_actions(rail, s.actions);
	rail_regions_decide(rail->rails, NULL);
	guests_changed(rail->rails);
}

struct rail *rail_find(struct rails *r, const char *device, uint32_t port)
{
	for (unsigned i = 0; i < r->n; i++)
		if (r->v[i]->port == port && !strcmp(r->v[i]->device_name, device))
			return r->v[i];
	return NULL;
}

/* Adds a rail for the port, unless the port has one or there are RAILS_MAX. */
static void rail_make(struct rails *r, const char *device, uint32_t port)
{
	struct rail *rail =
		r->n == RAILS_MAX || rail_find(r, device, port) ? NULL : calloc(1, sizeof(*rail));

	if (!rail)
		return;
	rail->rails = r;
	dray_list_init(&rail->device_link);
	rail->number = r->n;
	rail->port = port;
	snprintf(rail->device_name, sizeof(rail->device_name), "%s", device);
	r->v[r->n++] = rail;
}

static bool is_usable(const struct rail *rail, const struct nd_device *d, const struct nd_port *p,
		      const struct nd_gid *g, char why[REASON_MAX])
{
	if (rail->disabled)
		snprintf(why, REASON_MAX, "disabled by an operator (drayctl rails --enable)");
	else if (d->open_error)
		snprintf(why, REASON_MAX, "%s cannot be opened: %s",
			 *d->uverbs ? d->uverbs : d->name, nd_device_open_text(d));
	else if (!nd_device_is_usable_kind(d))
		snprintf(why, REASON_MAX, "neither InfiniBand nor RoCE");
	else if (p->state != ND_PORT_ACTIVE)
		snprintf(why, REASON_MAX, "the port is %s", nd_port_state_name(p->state));
	else
		nd_port_why(p, why);
	return !rail->disabled && !d->open_error && nd_device_is_usable_kind(d) &&
	       p->state == ND_PORT_ACTIVE && g;
}

/* The first P_Key of a full member, else the first. */
static void choose_pkey(struct rail *rail, const struct nd_port *p)
{
	rail->pkey = 0xffff;
	rail->pkey_index = 0;
	for (size_t i = 0; p->layer == ND_LAYER_INFINIBAND && i < p->n_pkeys; i++) {
		const struct nd_pkey *k = &p->pkeys[i];

		if (i && !k->full)
			continue;
		rail->pkey = k->value;
		rail->pkey_index = k->index;
		if (k->full)
			break;
	}
}

/* Takes over the results of the scan. True if the port's address has changed. */
static bool learn(struct rail *rail, const struct nd_device *d, const struct nd_port *p,
		  const struct nd_gid *g)
{
	struct rail old = *rail;

	rail->device_index = d->index;
	rail->numa = d->numa;
	rail->layer = p->layer;
	rail->mtu = p->active_mtu;
	rail->lid = p->lid;
	choose_pkey(rail, p);
	if (g)
		rail->gid = *g;
	return g && (memcmp(&old.gid.gid, &g->gid, sizeof(g->gid)) || old.gid.index != g->index ||
		     old.gid.type != g->type || old.mtu != rail->mtu || old.lid != rail->lid ||
		     old.pkey != rail->pkey);
}

/* The rail's port in the last scan; NULL: the scan does not have it. */
static const struct nd_port *port_of(const struct rail *rail, const struct nd_device **ret_device)
{
	const struct nd_devices *devices = &rail->rails->scan->devices;

	for (size_t i = 0; i < devices->n; i++) {
		const struct nd_device *d = *ret_device = &devices->v[i];

		for (size_t k = 0; !strcmp(d->name, rail->device_name) && k < d->n_ports; k++)
			if (d->ports[k].number == rail->port)
				return &d->ports[k];
	}
	return NULL;
}

/* The state stays, so rail_event() would log nothing. */
static void stay_unusable(struct rail *rail, const char *why)
{
	snprintf(rail->reason, sizeof(rail->reason), "%s", why);
	log_info(AREA, "rail %u: %s, unusable: %s device=%s port=%u", rail->number,
		 rail_state_name(rail->state), why, rail->device_name, rail->port);
}

static void rail_follow(struct rail *rail)
{
	const struct nd_device *d;
	const struct nd_port *p = port_of(rail, &d);
	const struct nd_gid *g = p ? nd_gids_best(&p->gids) : NULL;
	bool was_present = rail->present, was, moved;
	char why[REASON_MAX];

	rail->present = p;
	if (!p) {
		rail->usable = false;
		if (was_present)
			rail_event(rail, RAIL_EVENT_GONE, "the device was removed");
		return;
	}
	if (rail->device && rail->device_index != d->index) {
		rail->usable = false;
		rail_event(rail, RAIL_EVENT_GONE, "another device has replaced it");
	}
	was = rail->usable;
	rail->usable = is_usable(rail, d, p, g, why);
	moved = learn(rail, d, p, g);
	if (rail->usable && was && moved)
		rail_event(rail, RAIL_EVENT_MOVED, "%s", why);
	else if (rail->usable && (!was || rail->state == RAIL_ABSENT || rail->state == RAIL_DOWN))
		rail_event(rail, RAIL_EVENT_USABLE, "%s", why);
	else if (!rail->usable && was)
		rail_event(rail, RAIL_EVENT_UNUSABLE, "%s", why);
	else if (!rail->usable && strcmp(rail->reason, why) != 0)
		stay_unusable(rail, why);
}

void rails_follow(struct rails *r, struct nd_scan *scan)
{
	bool alike;

	if (!r->cfg->rdma.enable)
		return;
	alike = r->scan &&
		nd_rails_alike(&r->scan->links, &r->scan->devices, &scan->links, &scan->devices);
	nd_scan_ref(scan);
	nd_scan_free(r->scan);
	r->scan = scan;
	for (size_t i = 0; i < scan->devices.n; i++)
		for (size_t k = 0; k < scan->devices.v[i].n_ports; k++)
			rail_make(r, scan->devices.v[i].name, scan->devices.v[i].ports[k].number);
	for (unsigned i = 0; i < r->n; i++)
		rail_follow(r->v[i]);
	/* routes may have changed */
	paths_refresh(r, !alike);
	rail_regions_decide(r, NULL);
	guests_changed(r);
}

int rails_disable(struct rails *r, const char *device, uint32_t port, bool disable)
{
	struct rail *rail = rail_find(r, device, port);

	if (!rail)
		return -ENOENT;
	if (rail->disabled == disable)
		return 0;
	rail->disabled = disable;
	log_notice(AREA, "%s by an operator device=%s port=%u", disable ? "disabled" : "enabled",
		   device, port);
	/* a port that is absent now is handled when it comes back */
	if (rail->present)
		rail_follow(rail);
	paths_refresh(r, true);
	return 0;
}

static int on_timer(sd_event_source *source, uint64_t usec, void *arg)
{
	struct rails *r = arg;
	struct dray_heap_node *first;
	int64_t now = rails_now(r);

	r->timer_ns = INT64_MAX;
	for (unsigned i = 0; i < r->n; i++) {
		struct rail *rail = r->v[i];

		if (rail->state != RAIL_FAILED)
			continue;
		if (rail->retry_ns <= now)
			rail_event(rail, RAIL_EVENT_RETRY, "retried after a pause");
		else
			rails_timer(r, rail->retry_ns);
	}
	while ((first = dray_heap_first(&r->retries)) && first->key <= now) {
		struct rail_peer *peer = dray_container_of(first, struct rail_peer, retry);

		dray_heap_del(&r->retries, first);
		paths_retry(peer);
	}
	if (first)
		rails_timer(r, first->key);
	registrations_retry(r, now);
	return 0;
}

int rails_new(struct rails **ret, const struct rails_deps *deps, struct dray_err *reterr)
{
	dray_auto(rails_free) struct rails *r = calloc(1, sizeof(*r));
	int e;

	if (!r)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for RDMA rails");
	r->deps = *deps;
	r->cfg = deps->cfg;
	r->verbs = deps->verbs;
	r->timer_ns = r->register_again_ns = INT64_MAX;
	dray_list_init(&r->devices);
	dray_list_init(&r->peers);
	dray_list_init(&r->awaiting);
	dray_map_init(&r->by_handle);
	dray_map_init(&r->down);
	dray_list_init(&r->regions);
	dray_map_init(&r->regions_by_handle);
	dray_list_init(&r->registrations);
	dray_map_init(&r->shared);
	dray_list_init(&r->renewals);
	dray_list_init(&r->unheld);
	dray_list_init(&r->to_decide);
	dray_list_init(&r->windows);
	dray_list_init(&r->guests.v);
	dray_list_init(&r->guests.ranges);
	dray_handles_init(&r->qps, DRAY_HANDLES_MAX, 0);
	e = sd_event_add_time(deps->event, &r->timer, CLOCK_MONOTONIC, UINT64_MAX, 1000, on_timer,
			      r);
	if (e >= 0)
		e = guests_init(r);
	if (e >= 0)
		e = jobs_new(&r->slow, deps->event, "dray-verbs", 0);
	if (e >= 0)
		e = jobs_new(&r->connector, deps->event, "dray-connector", 0);
	if (e >= 0)
		e = jobs_new(&r->registrar, deps->event, "dray-registrar", 0);
	if (e < 0)
		return dray_err_set(reterr, e, DRAY_E_NO_MEMORY,
				    "RDMA rails cannot start a thread or a timer: %s",
				    dray_errno_text(e));
	*ret = dray_take(r);
	return 0;
}

struct rails *rails_free(struct rails *r)
{
	bool ended;

	if (!r)
		return NULL;
	ended = jobs_free(r->registrar);
	ended &= jobs_free(r->connector);
	ended &= !r->guest_connector || jobs_free(r->guest_connector);
	ended &= jobs_free(r->slow);
	sd_event_source_disable_unref(r->timer);
	sd_event_source_disable_unref(r->guests.timer);
	/* a job that hangs in the kernel keeps the memory that it may use until the process ends */
	if (!ended)
		return NULL;
	dray_list_for_each(&r->peers, peer, struct rail_peer, link)
		rail_peer_free(peer);
	guests_free(r);
	guest_ranges_free(r);
	rail_regions_free(r);
	registrations_free(r);
	windows_free(r);
	dray_list_for_each(&r->devices, d, struct device, link)
		device_end(d);
	for (unsigned i = 0; i < r->n; i++)
		free(r->v[i]);
	dray_handles_deinit(&r->qps);
	dray_map_deinit(&r->by_handle);
	dray_map_deinit(&r->down);
	dray_map_deinit(&r->regions_by_handle);
	dray_map_deinit(&r->shared);
	dray_heap_deinit(&r->retries);
	nd_scan_free(r->scan);
	free(r);
	return NULL;
}

void rails_refuse(struct rails *r, dray_handle peer, uint64_t request_id, uint32_t code,
		  const char *what, const char *why)
{
	log_of_peer(r->deps.peers, peer, DRAY_LOG_WARNING, AREA,
		    "a peer's request for %s is refused: %s peer=%" PRIx64, what, why, peer);
	peers_refuse(r->deps.peers, peer, request_id, code, why);
}

static void log_fallback(struct rails *r, dray_handle peer, uint32_t code)
{
	static const char *const why[] = {
		[RDMA_FALLBACK_PATHS] = "no rail here reaches a rail of the peer",
		[RDMA_FALLBACK_LOCAL] =
			"the local region is not registered with a device that reaches the peer",
		[RDMA_FALLBACK_REMOTE] =
			"the owner has neither registered the region with a device in reach "
			"nor given a window for it",
		[RDMA_FALLBACK_UNREACHABLE] =
			"no queue pair works between devices that have registered the memory",
	};

	if (code == RDMA_FALLBACK_NONE) {
		log_of_peer(r->deps.peers, peer, DRAY_LOG_INFO, AREA,
			    "transfers use rdma peer=%" PRIx64, peer);
		return;
	}
	r->fallbacks_total++;
	/* without an RDMA device here nobody expects rdma */
	if (!r->n)
		return;
	log_of_peer(
		r->deps.peers, peer, DRAY_LOG_WARNING, AREA,
		"transfers use the next transport: %s (see drayctl rails, paths, regions) peer=%" PRIx64,
		code < DRAY_ARRAY_SIZE(why) && why[code] ? why[code] : "", peer);
}

void rails_handle_message(struct rails *r, unsigned worker, const struct transport_message *m)
{
	struct rail_peer *peer;
	struct rail *rail;

	switch ((enum rdma_event)m->type) {
	case RDMA_RAIL_GONE:
		rail = r->v[m->id];
		rail->cqs_in_use--;
		if (rail->device)
			device_check(rail->device);
		break;
	case RDMA_QP_LOST:
		connect_handle_lost(r, m->id, m->code);
		break;
	case RDMA_WANTED:
		peer = rail_peer_get(r, m->peer);
		if (!peer)
			break;
		peer->wanted |= (uint8_t)(1u << worker);
		for (unsigned class = 0; class < DRAY_ARRAY_SIZE(peer->given_up); class ++)
			peer->given_up[class] &= (uint8_t) ~(1u << worker);
		connect_peer(peer);
		break;
	case RDMA_FALLBACK:
		log_fallback(r, m->peer, m->code);
		break;
	case RDMA_STAGE:
		window_handle_stage(r, m->arg);
		break;
	case RDMA_COPIED:
		window_handle_copied(r, m->arg, m->code);
		break;
	case RDMA_ENGINE_GONE:
		r->deps.engine_gone(r->deps.arg, m->peer);
		break;
	}
}

void rails_describe(struct rails *r, struct dray_dbus_rail *record)
{
	const struct rail *rail = rail_find(r, record->device, record->port);

	if (!rail)
		return;
	record->rail = (int32_t)rail->number;
	record->rail_state = rail_state_name(rail->state);
	record->rail_reason = rail->reason;
	record->serving = rail->serving;
	DESCRIBE_TRAFFIC(record, &rail->counters);
}

void traffic_add(struct rails_traffic *t, const struct rdma_counters *c)
{
	t->sent += atomic_load(&c->sent);
	t->received += atomic_load(&c->received);
	t->moving_ns += atomic_load(&c->moving_ns);
}

void rails_each(const struct rails *r,
		void (*fn)(void *arg, const char *device, unsigned port,
			   struct rails_traffic moved),
		void *arg)
{
	for (unsigned i = 0; i < r->n; i++) {
		const struct rail *rail = r->v[i];
		struct rails_traffic moved = { .sent = 0 };

		traffic_add(&moved, &rail->counters);
		fn(arg, rail->device_name, rail->port, moved);
	}
}

unsigned rails_up(const struct rails *r)
{
	unsigned n = 0;

	for (unsigned i = 0; i < r->n; i++)
		n += r->v[i]->state == RAIL_UP;
	return n;
}

void rails_metrics(const struct rails *r, uint64_t v[DRAY_METRIC_N])
{
	v[DRAY_METRIC_RAILS_UP] = rails_up(r);
	v[DRAY_METRIC_RAILS_LOST_TOTAL] = r->lost_total;
	v[DRAY_METRIC_RDMA_SERVING_QUEUE_PAIRS] = r->n_serving;
	v[DRAY_METRIC_MEMORY_REGIONS] = r->n_mrs;
	v[DRAY_METRIC_MEMORY_REGION_BYTES] = r->mr_bytes;
	v[DRAY_METRIC_REGISTRATION_FAILURES_TOTAL] = r->registration_failures;
	v[DRAY_METRIC_FALLBACKS_TOTAL] = r->fallbacks_total;
	v[DRAY_METRIC_GPU_WINDOW_BYTES] = r->window_bytes;
	v[DRAY_METRIC_MOONCAKE_QUEUE_PAIRS] = r->guests.totals.queue_pairs;
	v[DRAY_METRIC_MOONCAKE_QUEUE_PAIRS_REFUSED_TOTAL] = r->guests.totals.refused;
	v[DRAY_METRIC_MOONCAKE_QUEUE_PAIRS_LOST_TOTAL] = r->guests.totals.lost;
}
