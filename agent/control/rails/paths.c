/* SPDX-License-Identifier: Apache-2.0 */
/* Peers: the rails that they announce, and the rails here that reach them. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/rails/internal.h"
#include "agent/model/peer_link.h"
#include "lib/assert.h"
#include "lib/ballast.h"
#include "lib/log.h"

/* What an engine uses unless its MC_MTU says less. The smaller one of both ends counts, so that it has to be known (rdma.mtu). */
#define ENGINE_MTU 4096
#define ENGINE_PKEY 0xffff

struct rail_peer *rail_peer_get(struct rails *r, dray_handle handle)
{
	return dray_map_entry(dray_map_find(&r->by_handle, &handle, sizeof(handle)),
			      struct rail_peer, by_handle);
}

static void rail_peer_unlist(struct rail_peer *peer)
{
	struct rails *r = peer->rails;

	dray_map_del(peer->down ? &r->down : &r->by_handle, &peer->by_handle);
	dray_heap_del(&r->retries, &peer->retry);
	dray_list_del(&peer->awaits_window);
}

/* From now on only rails_peer_is_quiet() finds the peer by its handle. */
static void rail_peer_leave(struct rail_peer *peer)
{
	struct rails *r = peer->rails;

	rail_peer_unlist(peer);
	peer->down = true;
	dray_map_add(&r->down, &peer->by_handle, &peer->handle, sizeof(peer->handle));
}

void rail_peer_free(struct rail_peer *peer)
{
	const struct verbs *v = peer->rails->verbs;

	dray_list_for_each(&peer->paths, path, struct path, link)
		free(path);
	/* queue pairs are left only at the end of the agent */
	dray_list_splice(&peer->qps, &peer->serving);
	dray_list_for_each(&peer->qps, q, struct qp, link) {
		if (q->qp)
			v->destroy_qp(q->qp);
		free(q);
	}
	dray_list_del(&peer->link);
	rail_peer_unlist(peer);
	nd_scan_free(peer->scan);
	free(peer->found);
	free(peer->segment);
	free(peer);
}

void rail_peer_check(struct rail_peer *peer)
{
	struct rails *r = peer->rails;

	if (peer->quiet_due && dray_list_empty(&peer->serving)) {
		peer->quiet_due = false;
		grants_peer_gone(r->deps.regions, peer->handle);
		if (r->deps.peer_quiet)
			r->deps.peer_quiet(r->deps.arg, peer->handle);
	}
	if (peer->down && !peer->matching && dray_list_empty(&peer->qps) &&
	    dray_list_empty(&peer->serving))
		rail_peer_free(peer);
}

static void list_ports(struct rails *r)
{
	uint8_t buf[sizeof(r->ports)];
	uint32_t n = 0;

	for (unsigned i = 0; i < r->n; i++) {
		const struct rail *rail = r->v[i];
		struct pmsg_port p = { .rail = rail->number, .mtu = rail->mtu };

		if (rail->state != RAIL_UP || !device_is_open(rail->device))
			continue;
		memcpy(p.gid, &rail->gid.gid, sizeof(p.gid));
		p.gid_type = (uint8_t)rail->gid.type;
		p.layer = (uint8_t)rail->layer;
		p.pkey = rail->pkey;
		p.lid = rail->lid;
		p.flush_rkey = rail->device->flush_mr->rkey;
		p.flush_address = (uintptr_t)rail->device->flush;
		pmsg_port_put(buf + (size_t)n++ * PMSG_PORT_SIZE, &p);
	}
	if (r->ports_version && n == r->n_ports &&
	    !memcmp(buf, r->ports, (size_t)n * PMSG_PORT_SIZE))
		return;
	memcpy(r->ports, buf, (size_t)n * PMSG_PORT_SIZE);
	r->n_ports = n;
	r->ports_version++;
}

static void tell_ports(struct rail_peer *peer)
{
	struct rails *r = peer->rails;

	if (peer->ports_told == r->ports_version)
		return;
	peer->ports_told = r->ports_version;
	peers_send(r->deps.peers, peer->handle, PMSG_PORTS, 0,
		   &(union pmsg_body){ .ports = { { r->ports, r->n_ports } } });
}

/* Tells the workers the active paths to the peer. */
static void paths_tell(struct rail_peer *peer)
{
	struct rails *r = peer->rails;
	unsigned n = 0;

	dray_list_for_each(&peer->paths, path, struct path, link)
		n += path->active;
	for (unsigned i = 0; i < r->deps.pool->n; i++) {
		struct rdma_paths *w = dray_calloc_sure(1, sizeof(*w) + n * sizeof(w->v[0]));

		dray_list_for_each(&peer->paths, path, struct path, link) {
			if (!path->active)
				continue;
			w->v[w->n++] = (struct rdma_pair){ path->rail->number, path->to.rail };
			for (unsigned class = 0; class < DRAY_ARRAY_SIZE(path->given_up); class ++)
				w->unreachable[class] |= (uint64_t)(path->given_up[class] >> i & 1)
							 << path->rail->number;
		}
		rails_tell(r, i, RDMA_PATHS, peer->handle, 0, w);
	}
}

/* Asks the kernel for routes, and so may block. */
static void match_run(struct dray_job *j)
{
	struct rail_peer *peer = dray_container_of(j, struct rail_peer, job);

	peer->match_error = nd_rails_to(&ND_SOURCE_LIVE, &peer->scan->links, &peer->scan->devices,
					peer->ports, peer->n_ports, &peer->found, &peer->n_found);
}

static struct rail *rail_at(const struct rail_peer *peer, const struct nd_rail *f)
{
	const struct nd_device *d = &peer->scan->devices.v[f->device];
	struct rail *rail = rail_find(peer->rails, d->name, d->ports[f->port].number);

	return rail && rail->state == RAIL_UP ? rail : NULL;
}

static uint32_t path_mtu(const struct rails *r, uint32_t mtu)
{
	uint32_t fixed = (uint32_t)r->cfg->rdma.mtu;

	return fixed && fixed < mtu ? fixed : mtu;
}

static struct path *path_get(struct rail_peer *peer, struct rail *rail, const struct pmsg_port *to,
			     const struct nd_gid *gid, uint32_t mtu)
{
	struct path *path;

	dray_list_for_each(&peer->paths, it, struct path, link)
		if (it->rail == rail && !memcmp(&it->to, to, sizeof(*to)) &&
		    it->gid_index == gid->index && !memcmp(&it->gid, &gid->gid, sizeof(it->gid)) &&
		    it->mtu == mtu)
			return it;
	path = calloc(1, sizeof(*path));
	if (!path)
		return NULL;
	path->peer = peer;
	path->rail = rail;
	path->to = *to;
	path->gid = gid->gid;
	path->gid_index = (uint8_t)gid->index;
	path->mtu = mtu;
	dray_list_add(&peer->paths, &path->link);
	return path;
}

/*
 * Pairs each rail here with a rail of the peer, best first. The first round uses each rail of the peer once; rails that
 * are left over then share them. Returns the number of pairs.
 */
static unsigned choose(struct rail_peer *peer)
{
	uint64_t ours = 0, theirs = 0;
	unsigned n = 0;

	for (unsigned round = 0; round < 2; round++) {
		for (size_t i = 0; i < peer->n_found; i++) {
			const struct nd_rail *f = &peer->found[i];
			struct rail *rail = f->reachable ? rail_at(peer, f) : NULL;
			const struct nd_gid *gid;
			struct path *path;

			if (!rail || ours >> rail->number & 1 ||
			    (round == 0 && theirs >> f->remote & 1))
				continue;
			gid = &peer->scan->devices.v[f->device].ports[f->port].gids.v[f->gid];
			path = path_get(peer, rail, &peer->matched[f->remote], gid,
					path_mtu(peer->rails, f->mtu));
			if (!path)
				continue;
			ours |= 1ull << rail->number;
			theirs |= 1ull << f->remote;
			path->active = true;
			path->rank = n++;
			snprintf(path->reason, sizeof(path->reason), "%s", f->reason);
		}
	}
	return n;
}

static bool is_matched(const struct rail_peer *peer, const struct pmsg_port *to)
{
	for (uint32_t i = 0; i < peer->n_ports; i++)
		if (!memcmp(&peer->matched[i], to, sizeof(*to)))
			return true;
	return false;
}

/* The rails could not be matched. Returns the number of paths that stay: both their ends are still there. */
static unsigned keep(struct rail_peer *peer)
{
	unsigned n = 0;

	dray_list_for_each(&peer->paths, path, struct path, link) {
		path->active = path->was_active && path->rail->state == RAIL_UP &&
			       is_matched(peer, &path->to);
		n += path->active;
	}
	return n;
}

/* The last match has failed. How one that is under way ends is not known yet. */
static bool match_failed(const struct rail_peer *peer)
{
	return !peer->matching && peer->match_error < 0;
}

static void log_no_path(struct rail_peer *peer, unsigned n)
{
	const char *why = peer->n_found ? peer->found[0].reason :
					  "one of the two agents has no rail that is up";

	if (n || peer->no_path_logged) {
		peer->no_path_logged = peer->no_path_logged && !n;
		return;
	}
	/* without rails on both sides no path is expected */
	if (!peer->n_ports && !peer->rails->n)
		return;
	peer->no_path_logged = true;
	log_of_peer(peer->rails->deps.peers, peer->handle, DRAY_LOG_NOTICE, AREA,
		    "no rail reaches the peer, transfers use the next transport: %s peer=%" PRIx64,
		    why, peer->handle);
}

static bool path_in_use(const struct path *path)
{
	dray_list_for_each(&path->peer->qps, q, struct qp, link)
		if (q->path == path)
			return true;
	return false;
}

/* The path was not active for a while, so its former failures say nothing about it. */
static void path_return(struct path *path)
{
	path->fails = 0;
	path->futile = 0;
	path->retry_ns = 0;
	memset(path->unmade, 0, sizeof(path->unmade));
	memset(path->given_up, 0, sizeof(path->given_up));
}

static void match(struct rail_peer *peer);

static void match_done(struct dray_job *j)
{
	struct rail_peer *peer = dray_container_of(j, struct rail_peer, job);
	struct rails *r = peer->rails;
	unsigned n;

	peer->matching = false;
	if (peer->down) {
		rail_peer_check(peer);
		return;
	}
	dray_list_for_each(&peer->paths, path, struct path, link) {
		path->was_active = path->active;
		path->active = false;
	}
	if (match_failed(peer)) {
		n = keep(peer);
		rails_retry(peer, rails_now(r) + rails_backoff(r, ++peer->match_fails));
		log_of_peer(r->deps.peers, peer->handle, DRAY_LOG_WARNING, AREA,
			    "the rails of both agents cannot be matched now: %s; keeping %u paths, "
			    "trying again peer=%" PRIx64,
			    dray_errno_text(peer->match_error), n, peer->handle);
	} else {
		n = choose(peer);
		peer->match_fails = 0;
		log_no_path(peer, n);
	}
	dray_list_for_each(&peer->paths, path, struct path, link)
		if (path->active && !path->was_active)
			path_return(path);
	dray_list_for_each(&peer->qps, q, struct qp, link)
		if (!q->path->active)
			connect_lose(q);
	dray_list_for_each(&peer->paths, gone, struct path, link) {
		if (gone->active || path_in_use(gone))
			continue;
		dray_list_del(&gone->link);
		traffic_add(&peer->gone, &gone->counters);
		free(gone);
	}
	paths_tell(peer);
	if (n)
		window_check(peer);
	if (peer->match_again)
		match(peer);
	else
		connect_peer(peer);
}

static void take_ports(struct rail_peer *peer)
{
	peer->n_ports = peer->n_announced;
	for (uint32_t i = 0; i < peer->n_ports; i++) {
		const struct pmsg_port *w = &peer->announced[i];
		struct nd_remote_port *p = &peer->ports[i];

		*p = (struct nd_remote_port){
			.type = (enum nd_gid_type)dray_min(w->gid_type, (uint8_t)ND_GID_ROCE_V2),
			.layer = (enum nd_link_layer)w->layer,
			.mtu = w->mtu,
			.pkey = w->pkey,
		};
		memcpy(&p->gid, w->gid, sizeof(p->gid));
		memcpy(&p->subnet, w->gid, sizeof(p->subnet));
		peer->matched[i] = *w;
	}
}

static void match(struct rail_peer *peer)
{
	struct rails *r = peer->rails;

	peer->match_again = peer->matching;
	if (peer->matching || !peer->ports_known || !r->scan)
		return;
	peer->matching = true;
	take_ports(peer);
	free(peer->found);
	peer->found = NULL;
	peer->n_found = 0;
	nd_scan_free(peer->scan);
	peer->scan = nd_scan_ref(r->scan);
	dray_jobs_add(r->slow, &peer->job, match_run, match_done);
}

void paths_refresh(struct rails *r, bool anew)
{
	list_ports(r);
	dray_list_for_each(&r->peers, peer, struct rail_peer, link) {
		if (peer->down)
			continue;
		if (!peer->segment)
			tell_ports(peer);
		if (anew || match_failed(peer))
			match(peer);
	}
}

void paths_retry(struct rail_peer *peer)
{
	if (match_failed(peer))
		match(peer);
	else
		connect_peer(peer);
}

/* NULL: no memory. */
static struct rail_peer *rail_peer_new(struct rails *r, dray_handle handle)
{
	struct rail_peer *peer;

	/* retries have room for each peer, so that setting one cannot fail */
	if (dray_heap_reserve(&r->retries, (uint32_t)r->by_handle.n + 1) < 0)
		return NULL;
	peer = calloc(1, sizeof(*peer));
	if (!peer)
		return NULL;
	peer->rails = r;
	peer->handle = handle;
	dray_list_init(&peer->paths);
	dray_list_init(&peer->qps);
	dray_list_init(&peer->serving);
	dray_list_init(&peer->turns);
	dray_list_init(&peer->awaits_window);
	dray_list_add(&r->peers, &peer->link);
	dray_map_add(&r->by_handle, &peer->by_handle, &peer->handle, sizeof(peer->handle));
	return peer;
}

void rails_peer_up(struct rails *r, dray_handle handle, uint64_t features)
{
	struct rail_peer *peer = features & PMSG_FEATURE_RDMA ? rail_peer_new(r, handle) : NULL;

	if (!peer)
		return;
	peer->takes_windows = features & PMSG_FEATURE_WINDOW;
	list_ports(r);
	tell_ports(peer);
}

/* The peer is down. The worker of a queue pair that is up detects that by itself, and sends QP_LOST. */
static void lose_unused(struct rail_peer *peer)
{
	dray_list_for_each(&peer->qps, q, struct qp, link)
		if (q->state < QP_UP)
			qp_die(q);
}

bool rails_peer_down(struct rails *r, dray_handle handle)
{
	struct rail_peer *peer = rail_peer_get(r, handle);

	if (!peer)
		return false;
	windows_peer_down(r, handle);
	rail_peer_leave(peer);
	peer->quiet_due = !dray_list_empty(&peer->serving);
	if (!peer->quiet_due && dray_list_empty(&peer->qps)) {
		rail_peer_check(peer);
		return false;
	}
	dray_list_for_each(&peer->serving, serving, struct qp, link)
		qp_die(serving);
	lose_unused(peer);
	return peer->quiet_due;
}

bool rails_peer_is_quiet(struct rails *r, dray_handle handle)
{
	const struct rail_peer *peer = rail_peer_get(r, handle);

	if (peer && !dray_list_empty(&peer->serving))
		return false;
	dray_map_for_each_of(&r->down, &handle, sizeof(handle), gone, const struct rail_peer,
			     by_handle)
		if (!dray_list_empty(&gone->serving))
			return false;
	return true;
}

/* An engine does not say more: InfiniBand has LIDs, and it always uses RoCE v2 otherwise. */
static struct pmsg_port port_of(const struct rails_engine_port *p, uint32_t number)
{
	bool infiniband = p->lid != 0;
	struct pmsg_port w = {
		.rail = number,
		.mtu = ENGINE_MTU,
		.gid_type = infiniband ? ND_GID_IB : ND_GID_ROCE_V2,
		.layer = infiniband ? ND_LAYER_INFINIBAND : ND_LAYER_ETHERNET,
		.pkey = ENGINE_PKEY,
		.lid = p->lid,
	};

	memcpy(w.gid, &p->gid, sizeof(w.gid));
	return w;
}

int rails_engine_up(struct rails *r, const struct rails_engine *e)
{
	dray_handle handle = e->link->peer;
	struct rail_peer *peer = rail_peer_new(r, handle);

	if (!peer)
		return -ENOMEM;
	peer->segment = strdup(e->segment);
	if (!peer->segment) {
		rail_peer_free(peer);
		return -ENOMEM;
	}
	rail_regions_for_engines(r);
	for (unsigned i = 0; i < r->deps.pool->n; i++)
		rails_tell(r, i, RDMA_ENGINE_UP, handle, 0, e->link);
	for (unsigned i = 0; i < e->n; i++)
		peer->announced[i] = port_of(&e->ports[i], i);
	peer->n_announced = e->n;
	peer->ports_known = true;
	match(peer);
	return 0;
}

void rails_engine_down(struct rails *r, dray_handle handle)
{
	struct rail_peer *peer = rail_peer_get(r, handle);

	for (unsigned i = 0; i < r->deps.pool->n; i++)
		rails_tell(r, i, RDMA_ENGINE_DOWN, handle, 0, NULL);
	rail_peer_leave(peer);
	lose_unused(peer);
	rail_peer_check(peer);
}

void rails_peer_ports(struct rails *r, dray_handle handle, const struct dray_vec *ports)
{
	struct rail_peer *peer = rail_peer_get(r, handle);
	struct pmsg_port list[RAILS_MAX];
	size_t bytes = ports->n * sizeof(list[0]);

	if (!peer)
		return;
	memset(list, 0, bytes);
	for (uint32_t i = 0; i < ports->n; i++)
		pmsg_port_get(ports->p + (size_t)i * PMSG_PORT_SIZE, &list[i]);
	if (peer->ports_known && peer->n_announced == ports->n &&
	    !memcmp(peer->announced, list, bytes))
		return;
	memcpy(peer->announced, list, bytes);
	peer->n_announced = ports->n;
	peer->ports_known = true;
	match(peer);
}

static const char *state_of(const struct path *path, bool *ret_up)
{
	bool up = false, begun = path->crowded[0] || path->crowded[1];

	dray_list_for_each(&path->peer->qps, q, struct qp, link) {
		if (q->path != path)
			continue;
		up |= q->state == QP_UP;
		begun = true;
	}
	*ret_up = up;
	return up ? "up" : path->fails || path->full ? "failed" : begun ? "connecting" : "idle";
}

static const char *segment_of(const struct rail_peer *peer)
{
	return peer->segment ? peer->segment :
			       peers_segment_of(peer->rails->deps.peers, peer->handle);
}

void rails_each_path(struct rails *r, void (*fn)(void *arg, const struct dray_dbus_path *path),
		     void *arg)
{
	dray_list_for_each(&r->peers, peer, struct rail_peer, link)
		dray_list_for_each(&peer->paths, path, struct path, link) {
			char gid[INET6_ADDRSTRLEN], to_gid[INET6_ADDRSTRLEN], buf[REASON_MAX];
			struct in6_addr to;
			bool up;
			const char *state = state_of(path, &up);
			struct dray_dbus_path i = {
				.peer = peer->handle,
				.segment = segment_of(peer),
				.device = path->rail->device_name,
				.port = path->rail->port,
				.gid = nd_gid_text(&path->gid, gid),
				.to_rail = path->to.rail,
				.mtu = path->mtu,
				.state = path->active ? state : "gone",
				.reason = path_reason(path, up, buf),
			};

			memcpy(&to, path->to.gid, sizeof(to));
			i.to_gid = nd_gid_text(&to, to_gid);
			DESCRIBE_TRAFFIC(&i, &path->counters);
			if (!peer->down)
				fn(arg, &i);
		}
}

struct rails_traffic rails_peer_traffic(struct rails *r, dray_handle handle)
{
	struct rail_peer *peer = rail_peer_get(r, handle);
	struct rails_traffic moved;

	if (!peer)
		return (struct rails_traffic){ .sent = 0 };
	moved = peer->gone;
	dray_list_for_each(&peer->paths, path, struct path, link)
		traffic_add(&moved, &path->counters);
	return moved;
}

uint32_t rails_peer_count(struct rails *r, dray_handle handle, uint32_t *ret_queue_pairs)
{
	struct rail_peer *peer = rail_peer_get(r, handle);
	uint32_t n = 0, qps = 0;

	if (peer)
		dray_list_for_each(&peer->paths, path, struct path, link) {
			uint32_t active = atomic_load(&path->counters.queue_pairs);

			n += active > 0;
			qps += active;
		}
	*ret_queue_pairs = qps;
	return n;
}
