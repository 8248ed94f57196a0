/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages between the control thread and a worker: plain structs over two bounded rings for each worker. The comments
 * say which side owns the memory behind a pointer. Commands that find the ring full wait on the control side. A worker
 * stops reading from clients while its event ring is nearly full.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "agent/model/quota.h"
#include "agent/model/transfer.h"
#include "agent/model/view.h"
#include "lib/handle.h"
#include "lib/list.h"
#include "schema/gen/data.h"

/* The part of the configuration that workers use. */
struct data_config {
	uint64_t slice_size; /* bytes */
	int64_t slice_timeout_ns;
	int64_t fence_timeout_ns;
	int64_t deadline_ns; /* default */
	uint32_t slices_per_session;
	uint32_t tcp_streams, tcp_latency_streams;
	uint32_t tcp_slices_in_flight; /* each stream */
	uint64_t tcp_buffer;           /* bytes, 0: autotuning */
	int64_t connect_timeout_ns;
	int64_t backoff_min_ns, backoff_max_ns;
	int64_t poll_time_ns;
	int64_t slow_ns; /* longer transfers are logged; 0: none */
	int64_t mooncake_stall_ns, mooncake_idle_ns;
	uint32_t mooncake_streams; /* for class bulk */
	bool report_all;
	bool report_batches; /* of the store */
};

/* What a worker reports, by EVENT_SENT, when it has sent a packet. */
enum packet_report { PACKET_REPORT_NONE, PACKET_REPORT_SEGMENTS, PACKET_REPORT_LETTER };

/* A packet with descriptors from or to a client. packet_free() closes the descriptors that are still in fds. */
struct packet {
	struct dray_list link; /* the holder's */
	uint32_t length;
	uint16_t n_fds;
	bool is_notification;
	bool fds_lost; /* the kernel dropped descriptors (MSG_CTRUNC) */
	enum packet_report report;
	int *fds; /* behind data */
	uint8_t data[];
};

struct peer_link;
struct rail_keys;
struct store_ask;
struct store_keep;

struct packet *packet_new(uint32_t capacity, unsigned n_fds);
/* ERROR; with request id 0 it means the end of the session. NULL: no memory. */
struct packet *packet_new_error(uint64_t request_id, uint32_t code, const char *message);
void packet_free(struct packet *p);

/* Memory of a session's ring and arena. The control thread maps and unmaps it. */
struct ring_memory {
	uint8_t *ring; /* NULL without a ring */
	uint64_t ring_bytes;
	uint32_t sq_entries, cq_entries;
	uint32_t sq_offset, cq_offset;
	uint8_t *arena;
	uint64_t arena_bytes;
	int doorbell_fd;   /* eventfd of the client: watched, never read */
	int completion_fd; /* eventfd that wakes the client (lib/wake.h) */
};

/* The state of a transfer at one moment. */
struct transfer_info {
	struct transfer_record record; /* as if it ended now; slices: in flight */
	uint8_t state;                 /* enum xfer_state */
	int64_t left_ns;               /* below 0 once the deadline has passed */
};

/* At most `cap` transfers of one worker: in flight, or the records of ended ones. */
struct snapshot {
	void *owner;
	uint32_t cap, n;
	struct transfer_info *transfers; /* one of the two is NULL */
	struct transfer_record *records;
	uint64_t in_flight;  /* transfers */
	uint64_t bytes_left; /* of them; this and asking only with room for some */
	uint32_t asking; /* requests to the store that are no transfer yet: their keys are looked at, or other agents are asked for them */
	struct transfer_info first_due; /* the one with the earliest deadline */
};

/* One allocation. NULL: no memory. */
struct snapshot *snapshot_new(void *owner, bool ended, uint32_t cap);

/* An ended transfer for the log. */
struct report {
	struct transfer_record record;
	bool slow, all; /* all: log.transfers is on */
};

/* A batch of the store for the log. */
struct store_report {
	dray_handle session;
	uint64_t request;
	uint16_t type; /* DMSG_STORE_PUT, _GET, _EXISTS or _READ */
	uint32_t code; /* that ended the copy; 0: ok */
	char space[DMSG_STORE_SPACE_MAX + 1];
	struct store_keys {
		uint32_t n;
		uint64_t bytes;
	} ok, existed, unknown, failed;
	struct store_tier_keys {
		struct store_keys keys; /* of those that are ok */
		int64_t ns; /* memory: of the copy; the others: until all were in memory */
	} tiers[DMSG_STORE_TIER_AGENT + 1];
	uint32_t turns; /* of the disk */
	int64_t took_ns;
};

/* Between a transport in a worker and the module of the control thread that belongs to it, which define its meaning. */
struct transport_message {
	enum dmsg_transport transport;
	uint32_t type, code;
	dray_handle peer;
	uint64_t id;
	void *arg; /* the type says whether the receiver frees it */
};

/* What happens to the users of an object that is dropped; later modes are stricter. */
enum drop_mode {
	DROP_RETIRE, /* they may finish */
	DROP_STOP,   /* they end, with some grace for what is in flight */
	DROP_URGENT, /* its owner is dead: they end at once */
};

enum command_type {
	COMMAND_SESSION_ADD,   /* fd consumed; shared borrowed until EVENT_SESSION_GONE */
	COMMAND_SESSION_CLOSE, /* its transfers end with code; answered by EVENT_SESSION_GONE */
	COMMAND_SESSION_READ,  /* it may be read again */
	COMMAND_SEND,          /* packet consumed, also if the session has ended */
	COMMAND_RING_OPEN,     /* ring borrowed until the session has ended */
	COMMAND_PUBLISH,       /* view borrowed until EVENT_DROPPED */
	COMMAND_OPENED,        /* all memory of the region `handle` is open */
	COMMAND_KEYS,          /* new keys of an object (one reference, or NULL) */
	COMMAND_DROP, /* answered by EVENT_DROPPED, unless it only makes a pending drop stricter */
	COMMAND_PEER_UP,      /* link borrowed until COMMAND_PEER_DOWN is answered */
	COMMAND_PEER_DOWN,    /* answered by EVENT_DROPPED of each transport that knows peers */
	COMMAND_STREAM_ADOPT, /* fd consumed */
	COMMAND_STREAM_RESET, /* answered by EVENT_STREAM_CLOSED */
	COMMAND_STREAM_DEAD,
	COMMAND_TRANSPORT, /* a message for a transport */
	COMMAND_NOTIFIED,  /* answer to EVENT_NOTIFY */
	COMMAND_CANCEL, /* transfer `id` of session, by an operator; answered by EVENT_CANCELLED with the same handle */
	COMMAND_CONFIG,   /* config consumed */
	COMMAND_SNAPSHOT, /* filled by the worker; answered by EVENT_SNAPSHOT */
	COMMAND_DRAIN,    /* refuse new transfers */
	COMMAND_RESUME,
	COMMAND_STORE_ASKED, /* the ask of session is answered; borrowed until EVENT_STORE_ASK_END */
	COMMAND_STORE_LAPSED, /* the leases of the ask `number` of session have ended, if the worker still has it */
	COMMAND_STORE_FENCED, /* the peer `handle` ends the lease `id` that session has of it by the ask `number`: nothing more is read there */
	COMMAND_STORE_KEEP,   /* keep borrowed until EVENT_STORE_KEPT */
	COMMAND_STOP_TRANSFERS, /* every transfer ends with code */
	COMMAND_QUIT,           /* end the thread */
};

struct command {
	enum command_type type;
	uint32_t code;
	dray_handle session; /* session, or peer for the peer commands */
	dray_handle handle;  /* object */
	uint64_t id;         /* stream id, transfer, request id of a reply (0: an event) */
	union {
		struct {
			int fd;
			uint8_t class;
		};
		struct {
			enum object_kind kind;
			enum drop_mode mode;
			bool again; /* a drop of this object is pending */
		};
	};
	union {
		struct session_shared *shared;
		struct packet *packet;
		struct ring_memory *ring;
		const struct object_view *view;
		struct peer_link *link;
		struct snapshot *snapshot;
		struct data_config *config;
		struct rail_keys *keys;
		struct store_ask *ask;
		uint64_t number; /* of an ask, which the worker may have ended */
		struct store_keep *keep;
		struct transport_message message;
	};
};

enum event_type {
	EVENT_REQUEST, /* packet of session; the control thread owns it */
	EVENT_FDS, /* packet of session with unneeded descriptors to close; the control thread owns it */
	EVENT_SESSION_EOF, /* the client closed its connection, or the session cannot go on: code; packet: an ERROR that says why, or NULL */
	EVENT_SESSION_GONE, /* the worker has freed the session; fd: its socket, which the control thread owns; -1: none */
	EVENT_SESSION_REFUSED, /* the worker cannot serve the session: code; fd: as with EVENT_SESSION_GONE, which follows the close */
	EVENT_DROPPED,         /* kind, handle */
	EVENT_PEER_USED,       /* peer: a transfer has started while the peer rests */
	EVENT_STREAM_LOST,     /* peer, id: the stream has failed */
	EVENT_STREAM_CLOSED,   /* peer, id: the stream is closed */
	EVENT_SENT,            /* a packet of session was sent; id: its enum packet_report */
	EVENT_NOTIFY, /* id: transfer; handle: remote; tag; packet: payload, which the control thread owns */
	EVENT_SESSION_FAULT, /* an access to the memory of session has faulted */
	EVENT_SNAPSHOT,
	EVENT_CANCELLED, /* handle of the command; id 1: the transfer has ended with code; 0: code is why it cannot be cancelled */
	EVENT_REPORT,    /* the control thread owns the report */
	EVENT_STORE_REPORT, /* the control thread owns the report */
	EVENT_TRANSPORT,    /* a message of a transport */
	EVENT_STORE_ASK,    /* the control thread owns the ask; answered by COMMAND_STORE_ASKED */
	EVENT_STORE_ASK_STOP, /* the worker does not need the answer to the ask any more, which may be on its way */
	EVENT_STORE_ASK_END,    /* the worker needs it no more */
	EVENT_STORE_SOURCE_END, /* id: of the sources of the ask, from which nothing more is read */
	EVENT_STORE_KEPT,       /* the worker has done with the keep */
	EVENT_QUIT,             /* the last event */
};

struct event {
	enum event_type type;
	uint32_t code;
	dray_handle session; /* or peer */
	dray_handle handle;
	uint64_t id, tag;
	enum object_kind kind;
	union {
		struct packet *packet;
		struct snapshot *snapshot;
		struct report *report;
		struct store_report *store_report;
		struct store_ask *ask;
		struct store_keep *keep;
		struct transport_message message;
		int fd;
	};
};
