/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages between the control thread and a data worker: plain structs over two bounded rings for each
 * worker. Pointers in them name who owns what they point to. Commands queue up on the control side when
 * a ring is full; a worker stops taking client input while its event ring is nearly full.
 */
#ifndef DRAY_AGENT_MODEL_MESSAGE_H
#define DRAY_AGENT_MODEL_MESSAGE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "agent/model/view.h"
#include "agent/model/data_config.h"
#include "agent/model/quota.h"
#include "agent/model/record.h"
#include "lib/handle.h"
#include "schema/gen/data.h"

/* A packet with descriptors on its way to or from a client. One allocation; packet_free closes what is left in fds. */
struct packet {
	struct packet *next;
	uint32_t length;
	uint16_t n_fds;
	bool is_notification;
	bool tell_sent; /* EVENT_SENT once it has gone out */
	bool fds_lost;  /* the kernel dropped descriptors (MSG_CTRUNC) */
	int *fds;
	uint8_t data[];
};

struct peer_link;
struct rail_keys;

struct packet *packet_new(uint32_t capacity, unsigned n_fds);
void packet_free(struct packet *p);

/* Memory of a session's ring and arena; made and unmapped by the control thread. */
struct ring_memory {
	uint8_t *ring; /* NULL without a ring */
	uint64_t ring_bytes;
	uint32_t sq_entries, cq_entries;
	uint32_t sq_offset, cq_offset;
	uint8_t *arena;
	uint64_t arena_bytes;
	int doorbell_fd;   /* eventfd from the client: watched, never read */
	int completion_fd; /* what rings the client's (lib/wake.h) */
};

/* A transfer as it stood. */
struct transfer_info {
	dray_handle session;
	uint64_t request;
	uint8_t direction, class, transport, gpu_path, state;
	uint64_t rails;
	uint32_t operations, slices;
	uint64_t bytes, bytes_done;
	int64_t age_ns, left_ns; /* left: below 0 once the deadline has passed */
};

/* The transfers of one worker: those in flight, or the records of those that ended. Others than `cap` are left out. */
struct snapshot {
	void *owner;
	uint32_t cap, n;
	struct transfer_info *transfers; /* one of the two is NULL */
	struct transfer_record *records;
	/* of all that are in flight */
	uint64_t in_flight, bytes_left;
	struct transfer_info first_due; /* the one with the earliest deadline */
};

/* One allocation. NULL: no memory. */
struct snapshot *snapshot_new(void *owner, bool ended, uint32_t cap);

/* An ended transfer to tell of. */
struct report {
	struct transfer_record record;
	bool slow, all; /* all: such lines are wanted for each */
};

/* Between a transport in its worker and its part of the control thread; what they mean is theirs. */
struct transport_message {
	enum dmsg_transport transport;
	uint32_t type, code;
	dray_handle peer;
	uint64_t id;
	void *arg; /* consumed by the receiver where the message's type says so */
};

enum command_type {
	COMMAND_SESSION_ADD,   /* fd consumed; shared borrowed until gone */
	COMMAND_SESSION_CLOSE, /* code: what its transfers end with; answered by EVENT_SESSION_GONE */
	COMMAND_SEND,          /* packet consumed; dropped if the session is gone */
	COMMAND_RING_OPEN,     /* ring borrowed until the session is gone */
	COMMAND_PUBLISH,       /* view borrowed until EVENT_DROPPED */
	COMMAND_KEYS,          /* keys of an object from now on (one reference, or NULL) */
	COMMAND_DROP,          /* answered by EVENT_DROPPED */
	COMMAND_RETIRE,        /* a drop whose users may finish; answered likewise */
	COMMAND_DROP_ESCALATE, /* a drop under way gets stricter; no answer of its own */
	COMMAND_PEER_UP,       /* link borrowed until EVENT_PEER_GONE */
	COMMAND_PEER_DOWN,
	COMMAND_STREAM_ADOPT, /* fd consumed */
	COMMAND_STREAM_RESET, /* answered by EVENT_STREAM_CLOSED */
	COMMAND_STREAM_DEAD,
	COMMAND_TRANSPORT, /* a message for a transport */
	COMMAND_NOTIFIED,  /* answer to EVENT_NOTIFY */
	COMMAND_CANCEL, /* by an operator: transfer `id` of session; answered by EVENT_CANCELLED with handle */
	COMMAND_CONFIG,   /* config consumed */
	COMMAND_SNAPSHOT, /* filled, then EVENT_SNAPSHOT */
	COMMAND_DRAIN,    /* refuse new transfers */
	COMMAND_RESUME,
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
			bool urgent;
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
		struct transport_message message;
	};
};

enum event_type {
	EVENT_REQUEST, /* packet (handed over) from session, for the control thread */
	EVENT_FDS,     /* packet (handed over): descriptors that nobody wants, of unknown kinds */
	EVENT_SESSION_EOF,   /* the client is gone, or broke the protocol (code) */
	EVENT_SESSION_GONE,  /* nothing of it is left in the worker */
	EVENT_DROPPED,       /* kind, handle */
	EVENT_PEER_GONE,     /* peer */
	EVENT_PEER_USED,     /* peer: a transfer starts while this side rests */
	EVENT_STREAM_LOST,   /* peer, id: ours broke */
	EVENT_STREAM_CLOSED, /* peer, id: theirs is closed */
	EVENT_SENT,          /* a packet of session that asked for it is out */
	EVENT_NOTIFY, /* id: transfer; handle: remote; packet (handed over): payload, tag in `tag` */
	EVENT_SESSION_FAULT, /* memory of session faulted */
	EVENT_SNAPSHOT,
	EVENT_CANCELLED, /* handle: of the command; id 1: the transfer ended with code, 0: why it cannot be stopped */
	EVENT_REPORT,    /* report (handed over) */
	EVENT_TRANSPORT, /* a message of a transport */
	EVENT_QUIT,      /* last words */
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
		struct transport_message message;
	};
};

#endif
