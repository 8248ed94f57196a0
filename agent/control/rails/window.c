/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows. A peer that was granted GPU memory which no device of ours takes gets pinned host memory of its own, registered
 * under keys that it alone is told. It decides what lies where in it, and asks for copies between it and what it was granted;
 * those are made by the workers. So a peer that does not keep to the rules spoils nobody's bytes but those of
 * its own transfers.
 *
 * A window goes when the peer is down, no device knows the memory and no copy of it is under way. One that a lost GPU may still write
 * to stays, and nobody gets it, until the GPUs are given back.
 *
 * The other way round, what a peer says of its window for us goes to the workers, and what they ask of it to the peer.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/rails/internal.h"
#include "lib/assert.h"
#include "lib/log.h"
#include "schema/gen/errors.h"

/* Copies of one peer that may be under way: more than its workers have buffers. */
#define COPIES_MAX 512

struct window {
	struct dray_list link;
	struct rails *rails;
	dray_handle peer;
	uint64_t id, bytes;
	struct gpu_host *host;
	uint8_t *base;
	struct rail_region *region; /* its registration */
	bool making;                /* its memory is awaited */
	bool ending, removing;
	bool lost; /* a GPU that was given up may write to it */
	uint64_t copying;
	uint32_t n_copies;
	struct dray_list copies;
};

/* --- its life ------------------------------------------------------------------------------------------- */

static void window_free(struct window *w)
{
	dray_list_del(&w->link);
	free(w);
}

static void window_step(struct window *w);

static void handle_removed(void *arg)
{
	struct window *w = arg;

	w->region = NULL;
	window_step(w);
}

/* It is ending: goes on with that as far as it can. */
static void window_step(struct window *w)
{
	struct rails *r = w->rails;

	if (w->making)
		return;
	if (w->region && !w->removing) {
		w->removing = true;
		registration_remove(w->region, handle_removed, w);
		return;
	}
	if (w->region || w->n_copies)
		return;
	if (!w->lost) {
		r->window_bytes -= w->bytes;
		if (w->host)
			r->deps.unpin(r->deps.arg, w->host);
	}
	window_free(w);
	dray_list_for_each(&r->peers, peer, struct rail_peer, link)
		if (peer->awaits_window)
			window_check(peer);
}

static void tell(const struct window *w, uint64_t length, const struct rail_keys *keys)
{
	struct pmsg_window m = { .window = w->id, .length = length };
	uint8_t *buf = malloc((size_t)RAILS_KEYS_MAX * PMSG_RAIL_SIZE);

	if (!buf)
		return;
	m.rails.p = buf;
	m.rails.n = registration_wire(keys, 0, length, buf, RAILS_KEYS_MAX);
	peers_send_window(w->rails->deps.peers, w->peer, &m);
	free(buf);
}

void window_published(struct window *w, const struct rail_keys *keys)
{
	if (!w->ending && !w->lost)
		tell(w, w->bytes, keys);
}

static void handle_made(void *arg, struct gpu_host *h, void *base, const struct dray_err *err)
{
	struct window *w = arg;
	struct rails *r = w->rails;
	struct rail_peer *peer = rail_peer_get(r, w->peer);

	w->making = false;
	w->host = h;
	w->base = base;
	if (!h)
		log_limited(DRAY_LOG_WARNING, AREA,
			    "a peer has no window, transfers of GPU memory go by the next "
			    "transport: %s peer=%" PRIx64,
			    err->msg, w->peer);
	if (h && !w->ending) {
		w->region = registration_window(w, r, base, w->bytes);
		if (w->region)
			return;
	}
	if (peer && peer->window == w) {
		peer->window = NULL;
		/* it would fail again */
		peer->no_window = true;
	}
	w->ending = true;
	window_step(w);
}

static bool has_path(const struct rail_peer *peer)
{
	dray_list_for_each(&peer->paths, path, struct path, link)
		if (path->active)
			return true;
	return false;
}

void window_check(struct rail_peer *peer)
{
	struct rails *r = peer->rails;
	uint64_t bytes = (uint64_t)r->cfg->gpu.window;
	struct window *w;

	if (!peer->wants_window || !peer->takes_windows || peer->window || peer->no_window ||
	    peer->down || !bytes || !r->deps.pin || !has_path(peer))
		return;
	if (bytes > (uint64_t)r->cfg->gpu.windows ||
	    r->window_bytes > (uint64_t)r->cfg->gpu.windows - bytes) {
		if (peer->awaits_window)
			return;
		peer->awaits_window = true;
		log_limited(DRAY_LOG_WARNING, AREA,
			    "a peer has no window, transfers of GPU memory go by the next "
			    "transport: %" PRIu64 " bytes of windows are in use (gpu.windows) "
			    "peer=%" PRIx64,
			    r->window_bytes, peer->handle);
		return;
	}
	w = calloc(1, sizeof(*w));
	if (!w)
		return;
	w->rails = r;
	w->peer = peer->handle;
	w->id = ++r->last_window;
	w->bytes = bytes;
	dray_list_init(&w->copies);
	if (r->deps.pin(r->deps.arg, bytes, handle_made, w) < 0) {
		free(w);
		return;
	}
	peer->awaits_window = false;
	w->making = true;
	r->window_bytes += bytes;
	dray_list_add(&r->windows, &w->link);
	peer->window = w;
}

void window_want(struct rails *r, dray_handle handle)
{
	struct rail_peer *peer = rail_peer_get(r, handle);

	if (!peer)
		return;
	peer->wants_window = true;
	window_check(peer);
}

void windows_peer_down(struct rails *r, dray_handle handle)
{
	struct rail_peer *peer = rail_peer_get(r, handle);

	if (peer)
		peer->window = NULL;
	dray_list_for_each(&r->windows, w, struct window, link) {
		if (w->peer != handle || w->ending)
			continue;
		w->ending = true;
		window_step(w);
	}
}

void windows_free(struct rails *r)
{
	dray_list_for_each(&r->windows, w, struct window, link) {
		dray_list_for_each(&w->copies, copy, struct rdma_copy, link)
			free(copy);
		window_free(w);
	}
}

/* --- copies that the peer asks for ----------------------------------------------------------------------- */

static bool read_segs(struct rdma_copy *copy, const struct dray_vec *segs)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < segs->n; i++) {
		struct pmsg_seg *seg = &copy->segs[i];

		pmsg_seg_get(segs->p + (size_t)i * PMSG_SEG_SIZE, seg);
		if (!seg->length || seg->length > copy->length)
			return false;
		sum += seg->length; /* no overflow: each is at most frame_bytes_max */
	}
	copy->n_segs = segs->n;
	return sum == copy->length;
}

/* An error code, or 0: it is within the window, and not more than there may be. */
static uint32_t check(const struct window *w, const struct pmsg_stage *m, const char **ret_why)
{
	*ret_why = "there is no such window";
	if (!w || w->id != m->window || !w->region)
		return DRAY_E_NOT_FOUND;
	*ret_why = "the message has a value that cannot be";
	if (!pmsg_stage_kind_valid(m->kind) || !dmsg_class_valid(m->class) || !m->length ||
	    m->length > PMSG_FRAME_BYTES_MAX || !m->segs.n || m->segs.n > PMSG_SEGS_MAX ||
	    m->offset > w->bytes || m->length > w->bytes - m->offset)
		return DRAY_E_INVALID;
	*ret_why = "the peer has too many under way";
	return w->n_copies < COPIES_MAX && m->length <= w->bytes - w->copying ? DRAY_OK :
										DRAY_E_QUOTA;
}

static void refuse(struct rails *r, dray_handle peer, uint64_t request_id, uint32_t code,
		   const char *why)
{
	log_limited(DRAY_LOG_WARNING, AREA, "no copy for a peer: %s peer=%" PRIx64, why, peer);
	peers_refuse(r->deps.peers, peer, request_id, code, why);
}

void rails_peer_stage(struct rails *r, dray_handle handle, uint64_t request_id,
		      const struct pmsg_stage *m)
{
	struct rail_peer *peer = rail_peer_get(r, handle);
	struct window *w = peer ? peer->window : NULL;
	struct worker_pool *pool = r->deps.pool;
	struct rdma_copy *copy;
	const char *why;
	uint32_t code = check(w, m, &why);

	if (code) {
		refuse(r, handle, request_id, code, why);
		return;
	}
	copy = rdma_copy_new();
	if (!copy) {
		refuse(r, handle, request_id, DRAY_E_NO_MEMORY, "no memory");
		return;
	}
	copy->length = m->length;
	if (!read_segs(copy, &m->segs)) {
		free(copy);
		refuse(r, handle, request_id, DRAY_E_INVALID, why);
		return;
	}
	copy->window = w;
	copy->request = request_id;
	copy->peer = handle;
	copy->grant = m->grant;
	copy->scatter = m->kind == PMSG_STAGE_KIND_SCATTER;
	copy->class = (enum dmsg_class)m->class;
	copy->base = w->base + m->offset;
	dray_list_add(&w->copies, &copy->link);
	w->n_copies++;
	w->copying += m->length;
	/* the same part of the window is always the same worker's */
	worker_post(pool->workers[m->offset * pool->n / w->bytes],
		    &(struct command){ .type = COMMAND_TRANSPORT,
				       .message = { .transport = DMSG_TRANSPORT_RDMA,
						    .type = RDMA_COPY,
						    .peer = handle,
						    .arg = copy } });
}

/* What is given to the peer next is other memory. */
static void window_lose(struct window *w)
{
	struct rail_peer *peer = rail_peer_get(w->rails, w->peer);

	if (w->lost)
		return;
	w->lost = true;
	log_warning(AREA,
		    "a GPU was lost while it copied: %" PRIu64
		    " bytes of pinned memory stay unused until the agent ends peer=%" PRIx64,
		    w->bytes, w->peer);
	if (!peer || peer->window != w)
		return;
	peer->window = NULL;
	tell(w, 0, NULL);
	/* for memory of the GPUs that are left */
	window_check(peer);
}

void window_handle_copied(struct rails *r, struct rdma_copy *copy, uint32_t code)
{
	struct window *w = copy->window;

	if (copy->gpu_lost)
		window_lose(w);
	if (code)
		peers_refuse(r->deps.peers, copy->peer, copy->request, code, dray_error_doc(code));
	else
		peers_stage_reply(r->deps.peers, copy->peer, copy->request);
	w->n_copies--;
	w->copying -= copy->length;
	dray_list_del(&copy->link);
	free(copy);
	if (w->ending)
		window_step(w);
}

/* --- the window that the peer gives us ------------------------------------------------------------------- */

void rails_peer_window(struct rails *r, dray_handle handle, const struct pmsg_window *m)
{
	struct worker_pool *pool = r->deps.pool;
	uint64_t length = m->length / pool->n & ~(uint64_t)4095;
	struct rail_keys *keys;

	if (!rail_peer_get(r, handle))
		return;
	keys = registration_read(&m->rails, m->length);
	for (unsigned i = 0; i < pool->n; i++) {
		struct rdma_share *share = calloc(1, sizeof(*share));

		dray_assert(share);
		*share = (struct rdma_share){ .window = m->window,
					      .offset = i * length,
					      .length = length,
					      .keys = keys ? rail_keys_ref(keys) : NULL };
		worker_post(pool->workers[i],
			    &(struct command){ .type = COMMAND_TRANSPORT,
					       .message = { .transport = DMSG_TRANSPORT_RDMA,
							    .type = RDMA_WINDOW,
							    .peer = handle,
							    .arg = share } });
	}
	rail_keys_unref(keys);
}

static void answer(struct rails *r, struct rdma_ask *ask, uint32_t code)
{
	worker_post(r->deps.pool->workers[ask->worker],
		    &(struct command){ .type = COMMAND_TRANSPORT,
				       .message = { .transport = DMSG_TRANSPORT_RDMA,
						    .type = RDMA_ANSWER,
						    .peer = ask->peer,
						    .code = code,
						    .arg = ask } });
}

static void handle_staged(void *arg, uint32_t code)
{
	struct rdma_ask *ask = arg;

	answer(ask->rails, ask, code);
}

void window_handle_ask(struct rails *r, struct rdma_ask *ask)
{
	int ret;

	ask->rails = r;
	ret = peers_stage(r->deps.peers, ask->peer, &ask->m, handle_staged, ask);
	if (ret < 0)
		answer(r, ask, ret == -ENOMEM ? DRAY_E_NO_MEMORY : DRAY_E_PEER_LOST);
}
