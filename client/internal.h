/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A handle, as the parts of libdray share it.
 *
 * session.c   connecting, HELLO, the ring, registering regions again; what a loss does
 * receive.c   what the agent sends, to requests and events
 * request.c   requests: queue, send, end, complete
 * engine.c    driving all of it: epoll, spinning, sleeping, timers
 * transfer.c  the way of a transfer: ring, arena or message
 * placement.c hints, the preferred segment, the launcher's environment
 * handle.c, region.c, pool.c, remote.c, token.c, event.c, populate.c, memory.c, error.c: as named
 *
 * Names that the linker sees begin with dc_, so that programs with both ends in them (tests) do not
 * mix up ours and the agent's.
 *
 * A loss of the session can be found anywhere that the engine turns or something is sent. It is
 * only noted there (dc_session_break), and carried out by dc_session_settle() where no caller holds
 * a pointer to what it ends.
 */
#ifndef DRAY_CLIENT_INTERNAL_H
#define DRAY_CLIENT_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/arena.h"
#include "client/dray.h"
#include "client/request.h"
#include "client/ring.h"
#include "lib/err.h"
#include "lib/handle.h"
#include "lib/linger.h"
#include "lib/list.h"
#include "lib/time.h"

#define NAME_MAX_BYTES 64
#define HANDLES_MAX (16384 / DRAY_CUDA_IPC_BYTES) /* of a region; the schema limits their bytes */
#define REGIONS_MAX (1U << 16)
#define REMOTES_MAX (1U << 20)

enum session_state {
	SESSION_DOWN,    /* an attempt is due at retry_at */
	SESSION_HELLO,   /* HELLO is sent */
	SESSION_RING,    /* RING_OPEN is sent */
	SESSION_RESTORE, /* regions are being registered again */
	SESSION_READY,
	SESSION_CLOSED /* for good */
};

enum region_state {
	REGION_ADDING, /* its first REGION_ADD has not been answered */
	REGION_HERE,   /* registered while a session is up, else to be registered again */
	REGION_BROKEN, /* could not be registered again */
	REGION_REMOVING
};

struct region {
	dray_region handle;
	uint64_t agent; /* the agent's handle in this session, 0: not registered */
	enum region_state state;
	int code; /* why it is broken */
	bool borrowed, is_pool;
	uint16_t access, flags;
	uint64_t length;
	char name[NAME_MAX_BYTES];
	uint32_t name_n;
	int *fds;
	uint32_t fds_n;
	uint8_t *extents; /* records in wire form */
	uint32_t extents_n;
	char device[NAME_MAX_BYTES];
	uint32_t device_n;
	uint8_t *handles; /* back to back; named by the extents of kind cuda_ipc */
	uint32_t handles_n;
	uint8_t *allocations; /* of each descriptor, records in wire form */
	bool has_sizes;       /* of some */
	bool needs_gpu;       /* has extents that agents know since 1.2 of the data protocol */
	void *map;            /* pools */
	uint64_t map_bytes;
};

struct remote {
	dray_remote handle;
	uint64_t agent; /* 0 once void */
	int lost;
	bool borrowed, releasing;
	uint64_t length;
	uint32_t access, transport;
};

struct event {
	struct dray_list link;
	struct dray_event e;
	uint8_t data[]; /* payload, then the message */
};

struct dray {
	volatile uint32_t *owner; /* a page of its own that reads 0 in a forked child */
	int owner_pid;            /* where the kernel does not do that; else 0 */

	/* options */
	struct sockaddr_un address;
	char group[NAME_MAX_BYTES + 1], name[NAME_MAX_BYTES + 1];
	uint32_t flags, ring_entries, events_max;
	uint64_t arena_wanted;
	int64_t spin_ns; /* longest */
	bool spin_asked; /* by the caller or the environment, whatever CPUs there are */
	int64_t connect_ns, request_ns, retry_min_ns, retry_max_ns, retry_for_ns;

	/* session */
	enum session_state state;
	int epoll_fd, timer_fd, sock;
	bool reading, writing; /* what epoll watches the socket for */
	bool fds_lost;       /* the message at hand came without its descriptors: we have no room */
	uint32_t restoring;  /* REGION_ADDs under way */
	int64_t state_until; /* when we give up; READY: INT64_MAX */
	int64_t retry_at, retry_ns, lost_at;
	int64_t timer_at;      /* what the timer is set to, INT64_MAX: off */
	bool segments_asked;   /* by the last HELLO */
	bool segments_refused; /* by an agent too old for them: HELLO goes again without */
	bool ever_ready, broken;
	int break_code; /* negated; goes with broken */
	char break_text[DRAY_ERR_MSG_MAX];
	uint64_t epoch; /* counts sessions */
	uint64_t lost_incarnation;
	uint8_t lost_agent_id[16];
	int lost_code;

	/* what HELLO and RING_OPEN told */
	uint64_t session, incarnation, features;
	uint8_t minor;
	bool segments; /* their changes are delivered */
	uint8_t agent_id[16];
	char segment[257], version[65];
	uint32_t ops_inline_max;
	struct ring ring;
	uint8_t *arena_base; /* NULL: no arena */
	uint64_t arena_bytes;
	struct arena arena;

	struct requests requests;
	struct dray_handles regions, remotes;
	struct dray_list events;
	uint32_t events_n;
	struct event *event_taken; /* what the last dray_next_event() showed */

	/* engine */
	struct dray_linger linger;
	uint64_t spun, slept; /* waits that ended by spinning; the others */
	uint32_t turns;
	bool rung; /* the last look found the doorbell rung */
	bool in_callback;
	bool fd_given;        /* the program may wait for dray_fd() */
	bool armed;           /* dray_fd() wakes for completions of the ring */
	uint32_t must_read;   /* a caller waits for an answer: events do not stop us reading */
	uint32_t called_back; /* callbacks run */

	/* what the last call gave out */
	struct dray_err error;
	char *message;
	struct dray_token *token;
	void *answer; /* of placement.c */

	uint8_t *out, *in; /* DMSG_MESSAGE_MAX each */
	uint8_t *ops;      /* DMSG_OPS_INLINE_MAX records on their way into a message */
};

/* error.c: sets the text for dray_last_error(); returns -code. */
int dc_fail(struct dray *d, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/*
 * The same, with what a module of lib/ or the schema said; err's code, or `code` where it has none.
 */
int dc_fail_err(struct dray *d, const struct dray_err *err, int code);
/* From errno after a system call that has no code of its own. */
int dc_code_of_errno(int error);

/* Entry of every public function: 0, or what it returns in a forked child. */
static inline int dc_enter(const struct dray *d)
{
	if (*d->owner && (!d->owner_pid || d->owner_pid == getpid()))
		return 0;
	return -DRAY_E_OUT_OF_ORDER;
}

/* Which of epoll's three */
enum { ENGINE_SOCKET, ENGINE_DOORBELL, ENGINE_TIMER };

/* session.c */
void dc_session_start(struct dray *d);
void dc_session_break(struct dray *d, int code, const char *text, size_t n);
/* Carries out what dc_session_break() noted. True if there was something. */
bool dc_session_settle(struct dray *d);
void dc_session_tick(struct dray *d, int64_t now);
int64_t dc_session_next_tick(const struct dray *d);
void dc_session_hello_reply(struct dray *d, const struct dmsg_hello_reply *m);
void dc_session_ring_reply(struct dray *d, const struct dmsg_ring_open_reply *m, int *fds,
			   unsigned n);
void dc_session_ring_refused(struct dray *d);
void dc_session_restored(struct dray *d);
void dc_session_free(struct dray *d);
/*
 * Sends one message: 0, -EAGAIN (the socket is watched for room then), or -EPIPE after
 * dc_session_break().
 */
int dc_session_send(struct dray *d, size_t n, const int *fds, unsigned n_fds);

static inline bool dc_session_is_up(const struct dray *d)
{
	return d->state == SESSION_READY && !d->broken;
}

/* receive.c: takes messages off the socket until it is empty. */
void dc_receive_all(struct dray *d);

/* engine.c */
typedef bool (*engine_ready_fn)(struct dray *d, const void *arg);
/* Turns until ready() or `until` (0: one look; INT64_MAX: for ever). True if ready. */
bool dc_engine_wait(struct dray *d, engine_ready_fn ready, const void *arg, int64_t until);
/* One look at everything, without sleeping, for a caller whose program may wait for dray_fd() next. */
void dc_engine_look(struct dray *d);
int64_t dc_engine_until(int timeout_ms);
/* On the way out of a blocking function: dray_fd() tells of what it leaves behind. */
void dc_engine_leave(struct dray *d);
/* How long it may spin, by the options and the CPUs there are now. */
void dc_engine_limit(struct dray *d);
/* What epoll is to watch the data socket for, after reading or writing changed. */
void dc_engine_watch(struct dray *d);

/* transfer.c */
void dc_transfer_take_ring(struct dray *d);
void dc_transfer_ended(struct dray *d, struct request *r);
void dc_transfer_cancel_failed(struct dray *d, struct request *cancel, int status);

/* region.c */
struct region *dc_region_find(struct dray *d, dray_region handle);
/* The same for callers: not while it is being added or removed. */
struct region *dc_region_get(struct dray *d, dray_region handle);
struct region *dc_region_find_agent(struct dray *d, uint64_t agent);
void dc_region_free(struct dray *d, struct region *g);
int dc_region_encode_add(struct dray *d, const struct region *g, uint64_t id);
/* Answer to a REGION_ADD. Takes the pool's descriptor out of fds. 0, a negated code, or -EPROTO. */
int dc_region_added(struct dray *d, struct request *r, const struct dmsg_region_add_reply *m,
		    int *fds, unsigned n_fds, struct dray_err *reterr);
/* A request about a region has ended. */
void dc_region_ended(struct dray *d, struct request *r, const char *message, size_t n);
void dc_regions_lost(struct dray *d);
/* Queues what a new session must register again, and counts it in d->restoring. */
void dc_regions_restore(struct dray *d);

/* pool.c: maps the agent's memory, which is a memfd region from then on. Consumes fd. */
int dc_pool_map(struct region *g, int fd, uint64_t bytes, struct dray_err *reterr);

/* populate.c: touches every page of an extent of a memfd. 0, or negative with reterr. */
int dc_populate_extent(int fd, uint64_t offset, uint64_t length, struct dray_err *reterr);

/* token.c */
int dc_token_made(struct dray *d, struct request *r, const struct dmsg_region_export_reply *m);
void dc_token_ended(struct dray *d, struct request *r);

/* placement.c */
int dc_placement_encode(struct dray *d, const struct request *r);
/* 0, a negated code, or -EPROTO. */
int dc_placement_answered(struct request *r, const uint8_t *body, size_t len,
			  struct dray_err *reterr);

/* remote.c */
struct remote *dc_remote_find(struct dray *d, dray_remote handle);
int dc_remote_imported(struct dray *d, struct request *r, const struct dmsg_remote_import_reply *m);
void dc_remote_lost(struct dray *d, const struct dmsg_remote_lost *m, int code);
void dc_remote_ended(struct dray *d, struct request *r);
void dc_remotes_lost(struct dray *d, int code);
void dc_remotes_free(struct dray *d);

/* event.c: NULL: no memory. payload may be NULL. Text is copied. */
struct dray_event *dc_event_add(struct dray *d, enum dray_event_type type, const void *payload,
				size_t length, const char *text, size_t text_n);
void dc_event_notification(struct dray *d, const struct dmsg_notification *m);
void dc_event_segment(struct dray *d, const struct dmsg_segment_changed *m);
void dc_events_free(struct dray *d);

#endif
