/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows. A peer with a grant of GPU memory that no device here can register gets a window: pinned host memory of its own,
 * with keys that no other peer receives. The peer manages the space in it, and requests copies between the window and its
 * grants, which the workers carry out. So a peer that breaks the rules damages its own transfers only.
 *
 * A window ends when the peer is down, no device has its memory and no copy of it is in flight. If a lost GPU may still
 * write to it, the memory stays unused until the plug-in ends.
 *
 * In the other direction, this file passes the announcement of a window that a peer has made for this agent to the workers,
 * and the requests of the workers to the peer.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "agent/control/rails/internal.h"
#include "lib/assert.h"
#include "lib/ballast.h"
#include "lib/log.h"
#include "schema/gen/errors.h"

/* Most copies in flight for one peer; its workers have fewer buffers. */
#define COPIES_MAX 512

struct window {
	struct dray_list link;
	struct rails *rails;
	dray_handle peer;
	uint64_t id, bytes;
	struct gpu_host *host;
	uint8_t *base;
	struct rail_region *region; /* for its registration */
	bool making;                /* its memory is being pinned */
	bool ending, removing;
	bool lost; /* a lost GPU may still write to it */
	uint64_t copying;
	uint32_t n_copies;
	struct dray_list copies;
};

static void window_free(struct window *w)
{
	dray_list_del(&w->link);
	free(w);
}

static void window_step(struct window *w);

static bool has_room(const struct rails *r)
{
	uint64_t bytes = (uint64_t)r->cfg->gpu.window, max = (uint64_t)r->cfg->gpu.windows;

	return bytes <= max && r->window_bytes <= max - bytes;
}

static void handle_removed(void *arg)
{
	struct window *w = arg;

	w->region = NULL;
	window_step(w);
}

/* Continues the end of a window. */
static void window_step(struct window *w)
{
	struct rails *r = w->rails;

	if (w->making)
		return;
	if (w->region && !w->removing) {
		w->removing = true;
		rail_region_remove(w->region, handle_removed, w);
		return;
	}
	if (w->region || w->n_copies)
		return;
	if (!w->lost) {
		r->window_bytes -= w->bytes;
		if (w->host)
			gpus_host_free(w->host);
	}
	window_free(w);
	dray_list_for_each(&r->awaiting, peer, struct rail_peer, awaits_window) {
		if (!has_room(r))
			break;
		window_check(peer);
	}
}

static void tell(const struct window *w, uint64_t length, const struct rail_keys *keys)
{
	struct pmsg_window m = { .window = w->id, .length = length };
	uint8_t *buf dray_auto_free = malloc((size_t)RAILS_KEYS_MAX * PMSG_RAIL_SIZE);

	if (!buf)
		return;
	m.rails.p = buf;
	m.rails.n = rail_keys_write(keys, 0, length, buf, RAILS_KEYS_MAX);
	peers_send(w->rails->deps.peers, w->peer, PMSG_WINDOW, 0,
		   &(union pmsg_body){ .window = m });
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
		log_of_peer(r->deps.peers, w->peer, DRAY_LOG_WARNING, AREA,
			    "a peer gets no window, transfers of GPU memory use the next "
			    "transport: %s peer=%" PRIx64,
			    err->msg, w->peer);
	if (h && !w->ending) {
		w->region = rail_region_own(r, base, w->bytes, 0, w);
		if (w->region)
			return;
	}
	if (peer && peer->window == w) {
		peer->window = NULL;
		/* another attempt would fail, too */
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
	    peer->down || !bytes || !has_path(peer))
		return;
	if (!has_room(r)) {
		if (!dray_list_empty(&peer->awaits_window))
			return;
		dray_list_add(&r->awaiting, &peer->awaits_window);
		log_of_peer(r->deps.peers, peer->handle, DRAY_LOG_WARNING, AREA,
			    "a peer gets no window, transfers of GPU memory use the next "
			    "transport: %" PRIu64
			    " bytes of windows are in use; raise gpu.windows peer=%" PRIx64,
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
	if (gpus_host_new(r->deps.gpus, bytes, handle_made, w) < 0) {
		free(w);
		return;
	}
	dray_list_del(&peer->awaits_window);
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

/* False: a segment is empty, or their sum is not the length. */
static bool read_segs(struct rdma_copy *copy, const struct pmsg_stage *m)
{
	uint64_t sum = 0;

	copy->length = m->length;
	copy->n_segs = m->segs.n;
	for (uint32_t i = 0; i < m->segs.n; i++) {
		struct pmsg_seg *seg = &copy->segs[i];

		pmsg_seg_get(m->segs.p + (size_t)i * PMSG_SEG_SIZE, seg);
		if (!seg->length || seg->length > m->length)
			return false;
		sum += seg->length; /* no overflow: each is at most frame_bytes_max */
	}
	return sum == m->length;
}

/* 0 if the copy lies within the window and the limits, or an error code. */
static uint32_t check(const struct window *w, const struct pmsg_stage *m, const char **ret_why)
{
	*ret_why = "the window does not exist";
	if (!w || w->id != m->window || !w->region)
		return DRAY_E_NOT_FOUND;
	*ret_why = "a field of the message has an invalid value";
	if (!pmsg_stage_kind_valid(m->kind) || !dmsg_class_valid(m->class) || !m->length ||
	    m->length > PMSG_FRAME_BYTES_MAX || !m->segs.n || m->segs.n > PMSG_SEGS_MAX ||
	    m->offset > w->bytes || m->length > w->bytes - m->offset)
		return DRAY_E_INVALID;
	*ret_why = "the peer has too many copies in flight";
	return w->n_copies < COPIES_MAX && m->length <= w->bytes - w->copying ? DRAY_OK :
										DRAY_E_QUOTA;
}

void rails_peer_stage(struct rails *r, dray_handle handle, uint64_t request_id,
		      const struct pmsg_stage *m)
{
	struct rail_peer *peer = rail_peer_get(r, handle);
	struct window *w = peer ? peer->window : NULL;
	struct rdma_copy *copy = NULL;
	const char *why;
	uint32_t code = check(w, m, &why);

	if (!code) {
		copy = rdma_copy_new();
		if (!copy) {
			code = DRAY_E_NO_MEMORY;
			why = "no memory";
		} else if (!read_segs(copy, m)) {
			code = DRAY_E_INVALID;
		}
	}
	if (code) {
		free(copy);
		rails_refuse(r, handle, request_id, code, "a copy", why);
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
	/* each part of the window has its worker */
	rails_tell(r, (unsigned)(m->offset * r->deps.pool->n / w->bytes), RDMA_COPY, handle, 0,
		   copy);
}

/* The peer gets another window, in other memory. */
static void window_lose(struct window *w)
{
	struct rail_peer *peer = rail_peer_get(w->rails, w->peer);

	if (w->lost)
		return;
	w->lost = true;
	log_warning(AREA,
		    "a GPU was lost during a copy: %" PRIu64
		    " bytes of pinned memory stay unused until the agent restarts peer=%" PRIx64,
		    w->bytes, w->peer);
	if (!peer || peer->window != w)
		return;
	peer->window = NULL;
	tell(w, 0, NULL);
	/* memory of the other GPUs needs a new window */
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
		peers_send(r->deps.peers, copy->peer, PMSG_STAGE_REPLY, copy->request, NULL);
	w->n_copies--;
	w->copying -= copy->length;
	dray_list_del(&copy->link);
	free(copy);
	if (w->ending)
		window_step(w);
}

void rails_peer_window(struct rails *r, dray_handle handle, const struct pmsg_window *m)
{
	unsigned n = r->deps.pool->n;
	uint64_t length = m->length / n & ~(uint64_t)4095;
	struct rail_keys *keys;

	if (!rail_peer_get(r, handle))
		return;
	keys = rail_keys_read(&m->rails, m->length);
	for (unsigned i = 0; i < n; i++) {
		struct rdma_share *share = dray_calloc_sure(1, sizeof(*share));

		*share = (struct rdma_share){ .window = m->window,
					      .offset = i * length,
					      .length = length,
					      .keys = keys ? rail_keys_ref(keys) : NULL };
		rails_tell(r, i, RDMA_WINDOW, handle, 0, share);
	}
	rail_keys_unref(keys);
}

static void handle_staged(void *arg, uint32_t code, const union pmsg_body *reply)
{
	struct rdma_stage_request *request = arg;
	const struct rails *r = request->rails;

	worker_post(r->deps.pool->workers[request->worker],
		    &(struct command){ .type = COMMAND_TRANSPORT,
				       .message = { .transport = DMSG_TRANSPORT_RDMA,
						    .type = RDMA_STAGED,
						    .peer = request->peer,
						    .code = code,
						    .arg = request } });
}

void window_handle_stage(struct rails *r, struct rdma_stage_request *request)
{
	int ret;

	request->rails = r;
	ret = peers_request(r->deps.peers, request->peer, PMSG_STAGE,
			    &(union pmsg_body){ .stage = request->m }, handle_staged, request);
	if (ret < 0)
		handle_staged(request, ret == -ENOMEM ? DRAY_E_NO_MEMORY : DRAY_E_PEER_LOST, NULL);
}
