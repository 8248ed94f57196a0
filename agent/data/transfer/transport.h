/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transport interface. Each worker has one instance of each transport, on the worker's thread. Nothing blocks, nothing
 * allocates on the data path, nothing logs.
 *
 * Rules for every transport:
 * - A slice taken from sched_next() ends with exactly one xfer_slice_done(), or xfer_slice_recalled() if another worker has it.
 * - xfer_slice_done() is called only when this side can no longer read or write a byte of the slice. If a
 *   WRITE fails with any code except peer_lost, the remote side can no longer write a byte of it either. Engines with
 *   Mooncake are excepted: their protocol over TCP cannot recall what was sent, so a WRITE that stops may still be carried
 *   out.
 * - A slice is sent again only after both ends know that the first attempt is dead.
 */
#pragma once

#include "agent/data/transfer/core.h"

struct transport_ops {
	enum dmsg_transport id;
	/* it takes slices as ranges of at most this many operations; 0: as lists of pieces */
	uint32_t walks_ops;

	int (*init)(struct core *c, void **ret_state);
	void (*deinit)(struct core *c, void *state);

	/* Channel for the transfer's regions and class; NULL: this transport cannot carry it now. */
	struct channel *(*channel)(struct core *c, void *state, const struct xfer *x);

	/*
	 * No transport has a channel for the transfer, and this is the only one for its remote: why it has none, with the code that
	 * the transfer ends with. NULL: it is not the only one. May be NULL.
	 */
	const char *(*refusal)(struct core *c, void *state, const struct xfer *x,
			       uint32_t *ret_code);

	/*
	 * Carries out the whole transfer, whose operations are few and small, before it returns: true, with its code and
	 * detail set on failure. False: this transport cannot, and nothing was done. May be NULL.
	 */
	bool (*at_once)(struct core *c, void *state, struct xfer *x);

	/* A slice of a transfer that moved to `ch` from another transport, which no longer uses it. May be NULL. */
	void (*adopt)(struct core *c, void *state, struct channel *ch, struct slice *s);

	/* The channel has new work. May be NULL. */
	void (*kick)(struct core *c, void *state, struct channel *ch);

	/*
	 * Called once a turn. Does a bounded amount of work; true if there is more to do at once, so
	 * that the worker does not sleep.
	 */
	bool (*progress)(struct core *c, void *state);

	/*
	 * Called after a turn without work: does a bounded part of another worker's job. True if there may be more. May be
	 * NULL.
	 */
	bool (*assist)(struct core *c, void *state);

	/*
	 * The worker is about to sleep: from now on every event must wake it. True: there is work, or some was done just now, so
	 * the worker takes another turn to complete transfers. May be NULL.
	 */
	bool (*announce)(struct core *c, void *state);

	/*
	 * The transfer is stopping. Slices not yet sent end now; others end as soon as the rules above allow. urgent: its
	 * session is gone, and all its slices have ended when the call returns. The memory must not be touched any more: a
	 * READ's answer is discarded, and a stream in the middle of a WRITE is closed. Devices that hold the keys
	 * (model/keys.h) are excepted, since the memory stays registered until they are done.
	 */
	void (*stop)(struct core *c, void *state, struct xfer *x, bool urgent);

	/* The object was published. May be NULL. */
	void (*publish)(struct core *c, void *state, const struct object_view *view);
	/* The object (a grant, or a region with grants) is being dropped: stops serving it, as stop() does. May be NULL. */
	void (*drop)(struct core *c, void *state, struct object *o);

	/*
	 * Somebody waits until nothing here uses this remote: what devices still do with it, also for transfers that have ended, ends within
	 * this time, or its queue pair is lost. May be NULL.
	 */
	void (*hasten)(struct core *c, void *state, const struct object *remote, int64_t ns);
	/*
	 * The keys of this region or remote are others, or NULL: then the owner of a remote waits until no device here uses the former ones.
	 * May be NULL.
	 */
	void (*keys)(struct core *c, void *state, const struct object *o);

	/* Handles timeouts; returns the time of the next one in ns (INT64_MAX: none). May be NULL. */
	int64_t (*tick)(struct core *c, void *state);

	/* Peers. May be NULL. The link is borrowed until up->peer_gone(). */
	void (*peer_up)(struct core *c, void *state, struct peer_link *link);
	/*
	 * Every slice to it ends with `code` (peer_lost, ...), now or as soon as the rules above allow; all
	 * streams close; then up->peer_gone(), possibly from inside this call.
	 */
	void (*peer_down)(struct core *c, void *state, dray_handle peer, uint32_t code);
	/*
	 * COMMAND_STREAM_ADOPT: an authenticated data stream from the peer; the fd is consumed. _RESET: the peer asks to close a
	 * stream that it made; answered by EVENT_STREAM_CLOSED, at once if the stream is unknown. _DEAD: both ends of a
	 * lost stream of ours are closed, so its slices may be sent again. May be NULL.
	 */
	void (*stream)(struct core *c, void *state, const struct command *cmd);

	/* It has paths of devices to the peer, which transfers of memory with keys take. May be NULL. */
	bool (*reaches)(struct core *c, void *state, dray_handle peer);

	/* Sends the question to the peer: true, and ended() follows, not inside the call. False: not now. May be NULL. */
	bool (*seek)(struct core *c, void *state, dray_handle peer, struct seek *k);

	/* From the control thread. May be NULL. */
	void (*message)(struct core *c, void *state, const struct transport_message *m);
};

/* The transports that have this operation. */
#define transports_each(c, i, op)                        \
	for (unsigned i = 0; i < (c)->n_transports; i++) \
		if ((c)->transports[i]->op)
