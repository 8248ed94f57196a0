/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The importing side of windows: remotes whose owner's devices do not know their memory, which is a GPU's there. The owner
 * has given us memory that rails reach, a window, which is cut into buffers here. A WRITE goes by RDMA into a buffer, is flushed there, and
 * then the owner is asked to scatter it; a READ begins with the owner gathering, and then is read from the buffer. For what
 * lies between, a slice is one like others, with the buffer for its remote. Its local memory may be staged, too.
 *
 * A buffer is busy as long as a device may still use it, or the owner has not answered. What was asked for cannot be called
 * off, so a slice waits for the answer; where it may not wait, the buffer does, and holds the remote: its owner is not
 * told that we are done with it while it still copies.
 *
 * Seen by rdma*.c, and sched.c, which gives back what a slice has. Worker thread only.
 */
#ifndef DRAY_AGENT_DATA_TRANSPORT_RDMA_WINDOW_H
#define DRAY_AGENT_DATA_TRANSPORT_RDMA_WINDOW_H

#include "agent/model/rdma_message.h"
#include "agent/data/transport/stage/post.h"

struct rdma_channel;
struct rdma_peer;
struct rdma_window;

struct window_buffer {
	struct dray_list link; /* on window->free */
	struct rdma_window *window;
	uint64_t offset;       /* in the whole window */
	struct slice *slice;   /* waits for the answer; NULL: nobody does */
	struct object *remote; /* held until the answer */
	struct rdma_stage_request ask;
};

/* This worker's share. */
struct rdma_window {
	struct dray_list link; /* on peer->windows */
	struct rdma_peer *peer;
	uint64_t id, offset, length;
	struct rail_keys *keys; /* NULL: no rail reaches it now */
	uint64_t unit;          /* bytes of a buffer */
	uint32_t n, n_free;
	struct dray_list free;
	struct window_buffer v[];
};

/* Of one channel of transport rdma. */
struct window_channel {
	struct channel ch;         /* transfers from and to memory that devices know */
	struct stage_post staging; /* and those whose local memory is staged */
	bool staged_next;
	struct dray_list again;  /* slices without a buffer, that have had one */
	struct dray_list asking; /* the owner is copying for them */
};

void window_channel_init(struct rdma_channel *ch, enum dmsg_class class, struct peer_link *link,
			 struct stage_account *account);
void window_channel_deinit(struct window_channel *wc);

bool window_channel_has_work(const struct rdma_channel *ch);
/* Takes the channel's next slices as far as there are buffers. Returns one to be posted, or NULL. */
struct slice *window_channel_next(struct rdma_channel *ch);
/* The slice is written to its buffer. */
void window_landed(struct rdma_channel *ch, struct slice *s);
/* It begins anew, with another buffer or by another transport. */
void window_again(struct rdma_channel *ch, struct slice *s);
/* Nothing uses the buffer any more. */
void window_put(struct core *c, struct window_buffer *b);
/* The slice ends: gives back the buffers that its bytes passed through, here and at the peer. */
void slice_release_buffers(struct core *c, struct slice *s);
/* Takes slices of x that need not go on; urgent: those that wait for an answer too. */
void window_channel_stop(struct rdma_channel *ch, const struct xfer *x, bool urgent,
			 struct dray_list *over);
/* Slices of x that were not posted leave their buffers, and can go by another transport. */
void window_channel_leave(struct core *c, struct dray_list *slices);

/* Consumes it. */
void window_take_share(struct rdma_peer *peer, struct rdma_share *share);
void window_answered(struct rdma_peer *peer, struct rdma_stage_request *ask, uint32_t code);
/* Without a word to anybody. */
void window_free(struct rdma_window *w);

#endif
