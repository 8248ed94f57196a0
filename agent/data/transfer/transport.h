/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transport interface. One instance of each transport in each worker, on the worker's thread; nothing
 * blocks, nothing allocates on the data path, nothing logs.
 *
 * Rules every transport keeps:
 * - A slice taken from sched_next() ends with exactly one xfer_slice_done().
 * - xfer_slice_done() is called only when no byte of the slice can be read from or written to memory any
 *   more on this side, and for a WRITE that is reported failed as anything but peer_lost, none on the
 *   remote side either.
 * - A slice is sent again only after both ends know that the first attempt is dead.
 */
#ifndef DRAY_AGENT_DATA_TRANSFER_TRANSPORT_H
#define DRAY_AGENT_DATA_TRANSFER_TRANSPORT_H

#include "agent/data/transfer/core.h"

struct peer_link;

struct transport_ops {
	const char *name;
	enum dmsg_transport id;
	/* it takes slices as stretches of at most so many of their transfers' operations; 0: as lists of pieces */
	uint32_t walks_ops;

	int (*init)(struct core *c, void **ret_state);
	void (*deinit)(struct core *c, void *state);

	/* Channel for the transfer's regions and class, or NULL where this transport cannot carry it (now). */
	struct channel *(*channel)(struct core *c, void *state, const struct xfer *x);

	/*
	 * Carries the transfer out before it returns, all of its operations, which are few and small: true, with
	 * its code and detail set where it failed. False, with nothing done, where this transport cannot. May be NULL.
	 */
	bool (*at_once)(struct core *c, void *state, struct xfer *x);

	/* A slice of a transfer that was moved to `ch` from another transport; it is dead there. May be NULL. */
	void (*adopt)(struct core *c, void *state, struct channel *ch, struct slice *s);

	/* The channel has new work. */
	void (*kick)(struct core *c, void *state, struct channel *ch);

	/*
	 * Called once a turn. Does a bounded amount of work; true if there is more to do at once, so
	 * that the worker does not sleep.
	 */
	bool (*progress)(struct core *c, void *state);

	/*
	 * Called after a turn in which nobody had anything to do: work that another worker would else do alone, a
	 * bounded piece of it. True if there may be more. May be NULL.
	 */
	bool (*assist)(struct core *c, void *state);

	/*
	 * The worker is about to sleep: whatever may happen from here on must wake it. True if there is work
	 * after all, or was just now: clients are told of what ended in the next turn. May be NULL.
	 */
	bool (*announce)(struct core *c, void *state);

	/*
	 * The transfer is stopping: slices not yet sent end now; others end as soon as the rules above
	 * allow. urgent: its session is gone, and every slice of it has ended when the call returns; the memory
	 * must not be touched any more, whatever that costs (a READ's answer is thrown away, a stream in the
	 * middle of a WRITE from it is torn down), except by devices that hold the keys (agent/model/keys.h), which
	 * keep it registered until they are done.
	 */
	void (*stop)(struct core *c, void *state, struct xfer *x, bool urgent);

	/* The object (grant, or region behind grants) is being dropped: stop serving it, likewise. May be NULL. */
	void (*drop)(struct core *c, void *state, struct object *o);

	/* Time-outs; returns the next one in ns (INT64_MAX: none). May be NULL. */
	int64_t (*tick)(struct core *c, void *state);

	/* Peers. May be NULL. The link is borrowed until up->peer_gone(). */
	int (*peer_up)(struct core *c, void *state, struct peer_link *link);
	/*
	 * Every slice to it ends with `code` (peer_lost, ...), now or as soon as the rules above allow; all
	 * streams close; then up->peer_gone(), possibly from inside this call.
	 */
	void (*peer_down)(struct core *c, void *state, dray_handle peer, uint32_t code);
	/* An authenticated data stream from the peer; the fd is consumed. */
	void (*stream_adopt)(struct core *c, void *state, dray_handle peer, int fd,
			     uint64_t stream_id, enum dmsg_class class);
	/* The peer asks to close a stream it made; ends with up->stream_closed() (at once if unknown). */
	void (*stream_reset)(struct core *c, void *state, dray_handle peer, uint64_t stream_id);
	/* Both ends of our lost stream are dead: its slices may be sent again. */
	void (*stream_dead)(struct core *c, void *state, dray_handle peer, uint64_t stream_id);

	/* From the transport's part of the control thread. May be NULL. */
	void (*message)(struct core *c, void *state, const struct transport_message *m);
};

extern const struct transport_ops transport_gpu;
extern const struct transport_ops transport_local;
extern const struct transport_ops transport_rdma;
extern const struct transport_ops transport_tcp;

#endif
