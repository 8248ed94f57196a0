/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of this folder. Worker thread only, except the two rings. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "agent/data/data.h"
#include "agent/data/transfer/core.h"
#include "agent/data/transfer/owner.h"
#include "agent/data/transfer/xfer.h"
#include "agent/model/message.h"
#include "agent/model/store_ask.h"
#include "agent/store/store.h"
#include "lib/err.h"
#include "lib/handle.h"
#include "lib/idset.h"
#include "lib/linger.h"
#include "lib/seqpacket.h"
#include "lib/spsc.h"
#include "lib/wake.h"

/* A ring of a session. The client can write to all shared memory, so the worker keeps its indices here. */
struct ring {
	const struct ring_memory *m;
	uint32_t sq_head;     /* next submission to take */
	uint32_t cq_tail;     /* next completion to fill */
	uint32_t cq_head;     /* the client's index when last loaded */
	uint32_t outstanding; /* taken and not completed; each has a reserved completion entry */
	uint32_t idle_polls;  /* polls since the last submission, while there was work elsewhere */
	bool announced;       /* "agent sleeping" is set */
	struct wsession *session;
	struct dray_list polled_link;    /* on owner->polled; not while it rests */
	struct dray_list completed_link; /* on worker->completed until its client is woken */
	struct loop_source doorbell;
};

/* A session of this worker. */
struct wsession {
	struct xfer_session xs;
	struct worker *worker;
	struct dray_list ready_link; /* on owner->ready while there is input */
	struct dray_list again_link; /* on worker->again */
	struct loop_source source;
	int fd;
	struct idset ids;     /* requests that have not ended */
	uint32_t requests;    /* pending at the control thread */
	struct dray_list out; /* struct packet, to be sent */
	uint32_t n_out;
	bool readable, writable;
	bool dead; /* end of file, protocol broken or closing: nothing is read or sent any more */
	struct ring *ring;
	struct dray_list cancels;   /* that wait for an entry of the ring, oldest first */
	struct dray_map cancels_of; /* the same, by the request they cancel */
	uint32_t n_cancels;
	const struct ring_memory *memory; /* arena, also without a ring */
	struct store_user *store;         /* NULL before its first request to the store */
	struct store_begin *begins; /* its PUT or GET whose keys are being looked at; NULL: none */
	struct dray_list fetches;   /* requests whose keys other agents may have, or get */
	struct dray_map fetches_of; /* the same, by their requests */
	struct dray_map fetches_numbered; /* and by their numbers */
	struct dray_map holdings; /* what EXISTS found there, by the numbers of their asks */
	struct dray_map held;     /* the same, by key */
};

struct worker {
	struct core core; /* first: upcalls cast core to worker */
	pthread_t thread;
	bool started; /* the thread exists; written by the control thread */
	struct dray_spsc commands, events;
	int command_fd;         /* eventfd, control to worker */
	int event_fd;           /* eventfd, worker to control */
	bool event_pending;     /* events pushed this turn */
	_Atomic bool want_room; /* control waits for room in `commands` */
	struct loop_source command_source;
	struct dray_slots sessions; /* struct wsession */
	struct dray_list completed; /* rings whose clients are told at the end of the turn */
	/* sessions that wait for the kernel to take descriptors, or for memory to read; struct wsession */
	struct dray_list again;
	int64_t again_ns; /* when they were tried last */
	bool draining, quit;
	bool stalled;   /* submissions wait for their client to reap completions */
	bool busy;      /* the last turn did something */
	bool announced; /* rings that are polled may be announced */
	struct dray_linger linger;
	int64_t looked_ns;    /* when it last looked at its descriptors */
	int64_t look_ns;      /* interval between looks while it polls rings */
	bool moves;           /* it moved data lately */
	uint64_t usual_slice; /* while it moves data: its time slices otherwise; 0: the same */
	struct data_counters counters;
	struct turn_meter turns;
	uint8_t *buffer; /* one message */
	struct dray_fds fds;
	struct packet *unneeded; /* for descriptors that no request takes; NULL: to be made */
	struct store *store;     /* NULL: the agent has none */
	struct object store_region, store_remote; /* its memory */
	struct store_scratch *store_scratch;      /* NULL before the first request */
	struct dray_list begins;                  /* struct store_begin: those of its sessions */
	struct dray_list
		asking; /* requests whose keys other agents are asked for, and those on `steps` */
	struct dray_list
		watched; /* struct silence: those that read from another agent now, by look_ns */
	struct dray_list
		steps; /* struct fetch: that evict for their places, or whose wrong bytes are zeroed */
	struct dray_slots keep_sessions; /* struct wsession: sessions of keeps, by their handles */
	struct dray_list keeps, kept; /* struct store_keep: in progress, and ended in this turn */
	struct dray_list readings; /* of these, whose memory a transfer or a device may still use */
	struct dray_map
		lingering; /* of these, that devices go on with: struct reading, by its grant */
	uint64_t fetches;
	struct store_direct direct; /* agents that it may ask itself */
	int64_t direct_ns;          /* not before this time */
	struct dray_list directs;   /* struct direct: questions to them, until these are answered */
};

static inline struct worker *worker_of(struct core *c)
{
	return (struct worker *)(void *)c;
}

static inline struct wsession *wsession_of(struct xfer_session *xs)
{
	return (struct wsession *)(void *)xs;
}

/* worker.c: control thread only */
/* Makes a worker without a thread; commands may be posted to it. max_transfers: limits.transfers. 0 or -errno with reterr. */
int worker_make(struct worker **ret, unsigned index, const struct data_config *cfg,
		uint32_t max_transfers, struct dray_err *reterr);

/* Starts its thread. 0 or -errno with reterr. */
int worker_start(struct worker *w, struct dray_err *reterr);

/*
 * Sends COMMAND_QUIT, and joins the thread if there is one. Sessions must be gone. False: the thread does not end (a debugger holds it,
 * or a device); it and all that it may look at are left to the end of the process.
 */
bool worker_stop(struct worker *w);

/* Frees a worker whose thread has ended or was never started. */
void worker_release(struct worker *w);

/* command.c */
extern const struct core_upcalls worker_upcalls;
bool worker_run_commands(struct worker *w);

/* turn.c */
void worker_command_ready(struct loop_source *source, uint32_t events);
/* may_sleep: false in tests, which take single turns. */
void worker_turn(struct worker *w, bool may_sleep);
void *worker_main(void *arg);
void worker_event(struct worker *w, const struct event *ev);
/* False while the event ring is so full that clients must not add events. */
bool worker_has_room(const struct worker *w);

/* session.c */
/* Without a client, and not known by its handle. NULL: no memory. */
struct wsession *wsession_new(struct worker *w, struct session_shared *shared);
/* Its transfers and fetches end with the code; nothing is sent any more. */
void wsession_stop(struct wsession *s, uint32_t code);
/* The same, and it ends. */
void wsession_free(struct wsession *s, uint32_t code);
void wsession_add(struct worker *w, int fd, struct session_shared *shared);
/*
 * Its transfers end, and the client is told nothing of that: an RDMA device may go on with their memory. The control thread
 * sends ERROR once nothing of the session can be touched any more.
 */
void wsession_close(struct worker *w, dray_handle session, uint32_t code);
void wsession_send(struct wsession *s, struct packet *p);
/* Goes on with the sessions on w->again, at most once a millisecond. */
void wsessions_again(struct worker *w);
struct wsession *wsession_get(struct worker *w, dray_handle session);
/* Stops reading from and sending to the client, and tells the control thread, once. */
void wsession_die(struct wsession *s, uint32_t code);
/* The same, with the reason for the client. */
void wsession_break(struct wsession *s, const struct dray_err *err);
/* The client may be read again, or the operations of its transfer. */
void wsession_go_on(struct wsession *s);
/* Its client does not read what it is sent: nothing more is taken from it. */
bool wsession_is_clogged(const struct wsession *s);
/* Reads available messages while its owner may work. True if there are more. */
bool wsession_read(struct wsession *s);
void wsession_reply_error(struct wsession *s, uint64_t request_id, const struct dray_err *err);
/* Its operations are refused: answers the request. */
void wsession_xfer_refused(struct xfer *x, const struct dray_err *err);
/* Answers a TRANSFER_CANCEL whose transfer has ended. */
void wsession_cancelled(struct wsession *s, uint64_t request_id);
/* Writes the completion, or queues the event, that tells the client how the transfer ended. */
void wsession_xfer_ended(struct core *c, struct xfer *x);

/* Sends at once if nothing is queued; copies the message only if it cannot be sent. n below 0: does nothing. */
void wsession_send_bytes(struct wsession *s, const uint8_t *p, int n);

/* n bytes at this offset of the session's arena. NULL: they exceed it. */
static inline const uint8_t *arena_at(const struct wsession *s, uint64_t offset, uint64_t n)
{
	const struct ring_memory *m = s->memory;

	return m && offset <= m->arena_bytes && n <= m->arena_bytes - offset ? m->arena + offset :
									       NULL;
}

/* request.c */
/* Handles one message of a client. */
void request_handle(struct wsession *s, const uint8_t *p, size_t n, bool truncated, bool fds_lost);
/* The request id is used from here on. 0, or -errno with reterr. */
int request_take_id(struct wsession *s, uint64_t id, struct dray_err *reterr);
/* Starts a transfer; the agent is not draining. */
void request_start(struct wsession *s, const struct xfer_request *r, struct dray_err *err);

/* A request to the store, and where its answer goes. */
struct store_call {
	uint64_t request_id;
	uint16_t type; /* DMSG_STORE_* */
	bool from_ring;
	uint32_t room; /* from_ring: bytes of the arena for the answer, which lie inside of it */
	uint64_t offset;
	int64_t begin_ns; /* from_ring: when its entry was taken */
};

/* store.c: STORE_PUT to STORE_RELEASE. It is answered now or later, unless err is set. */
void store_request(struct wsession *s, const struct store_call *q, const uint8_t *body,
		   uint32_t length, struct dray_err *err);
/* store_begin.c */
/* Goes on with session->begins; or drops it, if there is any. */
void store_begin_on(struct wsession *s);
void store_begin_drop(struct wsession *s);
/* Answers all of w->begins. */
void store_begins_stop(struct worker *w, uint32_t code);

/* store_ring.c */
/* An entry of the ring with the flag message, which is a copy. */
void store_entry(struct wsession *s, const uint8_t *entry);
/* The room of a request with so many keys or leases. 0, or -EINVAL with reterr. */
int store_room_check(const struct store_call *q, uint32_t n, struct dray_err *reterr);
/* Answers with a message of n bytes; status: its code, if it is an ERROR. A dead session gets no answer. */
void store_answer(struct wsession *s, const struct store_call *q, uint32_t status, const uint8_t *p,
		  int n);
void store_answer_error(struct wsession *s, const struct store_call *q, const struct dray_err *err);
/* The same with descriptors, which go by the socket. */
void store_answer_packet(struct wsession *s, const struct store_call *q, struct packet *p);

/* store_fetch.c */
/* The control thread has the answer to an ask of the session. */
void fetch_asked(struct worker *w, dray_handle session, struct store_ask *k);
/* The peer ends this lease, which the session may have by the ask of this number. */
void fetch_fenced(struct worker *w, dray_handle session, uint64_t number, dray_handle peer,
		  uint64_t grant);

/* store_pending.c */
/* There is a request with this id whose keys are being looked up at other agents, or whose wrong bytes are zeroed. */
bool fetch_asks(struct wsession *s, uint64_t request);
/* Ends it. */
void fetch_cancel(struct wsession *s, uint64_t request);
/* Ends all of w->asking. */
void fetches_stop(struct worker *w, uint32_t code);
/* The session ends; its transfers have. */
void fetches_close(struct wsession *s);

/* store_direct.c */
/* An agent has come or gone: the control thread is asked again. */
void directs_forget(struct worker *w);
/* Asks the control thread instead where no answer has come in time. When it is to be called again, ns. */
int64_t directs_tick(struct worker *w);

/* store_found.c: `find` of struct core_upcalls. */
uint32_t find_answered(struct core *c, struct peer_link *link, const uint8_t *find, size_t n,
		       uint8_t *found, size_t *ret_n, struct trailing **ret_trailing);

/* store_keep.c */
/* Gets objects of another agent; EVENT_STORE_KEPT follows. */
void keep_begin(struct worker *w, struct store_keep *k);
/* Frees the sessions of those that have ended. */
void keeps_check(struct worker *w);
/* Ends all of them. */
void keeps_close(struct worker *w);

/* store_reading.c: ends those that nothing uses any more. all: no transfer and no device is left. */
void readings_check(struct worker *w, bool all);

/* store_silence.c: ends transfers from agents that are silent. Returns when to call again at the latest. */
int64_t silences_tick(struct worker *w);
/* store_source.c: evicts for one request, or zeroes its wrong bytes, at most for some ten microseconds. Returns when to go on. */
int64_t sources_step(struct worker *w);

/* store_held.c: the session ends; its fetches have. */
void helds_close(struct wsession *s);
/* The leases of the ask of this number, of an EXISTS, have ended, if the session still has it. */
void held_lapsed(struct worker *w, dray_handle session, uint64_t number);

/* cancel.c */
/* A TRANSFER_CANCEL. It never waits: a transfer whose entry the ring still holds is cancelled when the entry is taken. */
void cancel_request(struct wsession *s, const struct dmsg_header *h, const uint8_t *body,
		    struct dray_err *err);
/* The ring's entry for this request was taken: n_cancels is not 0. */
void cancels_taken(struct wsession *s, uint64_t request);
/* Frees the cancellations that wait. */
void cancels_deinit(struct wsession *s);

/* ring.c */
int ring_open(struct wsession *s, const struct ring_memory *m);
/* Submissions that have not been taken, as the client says; they are taken soon. *ret_tail: the index behind the last one. */
bool ring_unread(struct wsession *s, uint32_t *ret_tail);
void ring_close(struct wsession *s);
void ring_complete(struct wsession *s, const struct dmsg_cqe *cqe);
/* Announces the ring. True if there is work after all. */
bool ring_announce(struct ring *r);
/* Ends the announcement. */
void ring_awake(struct ring *r);
/* Takes submissions from the owner's rings while it may work. True if there were any. */
bool rings_poll(struct xfer_owner *o);
/* Some rings are polled in every turn. */
bool rings_polled(const struct worker *w);
/* Wakes the clients of rings with completions. */
void rings_flush(struct worker *w);
/* Announces all rings before the worker sleeps. True if there is work after all. */
bool rings_announce(struct worker *w);
void rings_awake(struct worker *w);
