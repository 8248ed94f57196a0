/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of this folder. */
#pragma once

#include "agent/control/mooncake/connection.h"
#include "agent/control/mooncake/frame.h"
#include "agent/control/mooncake/gid.h"
#include "agent/control/mooncake/mooncake.h"
#include "agent/control/socket/acceptor.h"
#include "lib/list.h"

#define AREA "mooncake"
/* Bytes of a buffer in the descriptor besides the name of the segment, at most. */
#define DESCRIPTOR_BUFFER 88u
/* The same of the descriptor besides its buffers. */
#define DESCRIPTOR_HEAD 1024u

struct mooncake_server {
	struct mooncake_deps deps;
	const struct dray_config *cfg;
	struct tcp_listeners listeners, data_listeners;
	char name[DRAY_HOST_BYTES + 8]; /* HOST:PORT */
	unsigned data_port;
	bool rdma; /* peers use queue pairs */
	bool draining;
	struct dray_list handshakes; /* the oldest first */
	unsigned n_handshakes;
	sd_event_source *limit; /* end of the first handshake's time */
	struct dray_list conns; /* struct data_conn */
	unsigned conns_max;
	struct {
		char *text; /* NULL: not made yet */
		size_t n;
		uint64_t changes; /* of the buffers, when it was made */
		unsigned buffers; /* in it */
	} descriptor;
	struct publisher *publisher; /* NULL: without mooncake.metadata */
	uint64_t next_id;
	struct mooncake_totals totals;
};

/* The peer may connect now. Otherwise counts and logs that it may not. */
bool mooncake_admits(struct mooncake_server *s, const struct dray_addr *from, const char *what);
/* mooncake.allow has the address of the guest's handshake, and that of its GID. */
bool mooncake_guest_allowed(const struct mooncake_server *s,
			    const struct rails_guest_request *guest);
/* Closes it so that the peer sees an error at once. */
void mooncake_refuse(struct mooncake_server *s, int fd);

/* handshake.c */

/* 0 or -errno. */
int handshakes_init(struct mooncake_server *s);
void handshakes_deinit(struct mooncake_server *s);
/* fd: consumed. */
void handshake_add(struct mooncake_server *s, int fd, const struct dray_addr *from);
/* Closes those whose peers are not in mooncake.allow, or all. Others end by the new mooncake.stall_timeout. */
void handshakes_close(struct mooncake_server *s, bool all);

/* The queue pairs of a handshake, or what a descriptor tells, may be there now. */
void handshakes_resume(struct mooncake_server *s);

/* descriptor.c */

/* Buffers that a descriptor of at most MOONCAKE_FRAME_MAX bytes has room for. */
uint32_t descriptor_buffers_max(const char *name);
/* The descriptor of the segment as JSON, until the next call. It is made anew when buffers have changed. NULL: no memory. */
const char *descriptor_text(struct mooncake_server *s, size_t *ret_n);
/* A number that is another one when the descriptor may have changed. */
uint64_t descriptor_changes(const struct mooncake_server *s);
