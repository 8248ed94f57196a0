/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An agent for the tests of libdray: a thread that serves one client on its own socket. It answers
 * everything at once and moves no bytes. A test changes its behaviour by a hook, which gets each
 * message first, and by functions that fake_do() runs on the thread.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/seqpacket.h"
#include "schema/gen/data.h"

#define FAKE_LOG_MAX 4096

struct fake;

/* Returns true if it has handled the message. */
typedef bool (*fake_hook)(struct fake *f, const struct dmsg_header *h, const uint8_t *body,
			  struct dray_fds *fds);
typedef void (*fake_fn)(struct fake *f, void *arg);

struct fake {
	char dir[64], path[96];
	int listen_fd, conn, wake_fd;
	pthread_t thread;

	/* settings: before fake_start(), or by fake_do() */
	fake_hook hook;
	uint64_t incarnation;
	uint8_t agent_id; /* value of each byte of the id */
	uint32_t ops_inline_max;
	bool hold_transfers; /* do not answer TRANSFERs and ring entries */
	bool ignore_ring;    /* do not take ring entries */
	uint64_t features; /* in HELLO_REPLY; entries with messages are kept in last_message, and not answered */
	uint32_t transfer_status;
	bool is_old;   /* speaks data protocol 1.0 */
	bool no_gpu;   /* speaks data protocol 1.1 */
	pid_t process; /* whose pidfd HELLO_REPLY carries; 0: none */

	/* the ring as the agent maps it */
	uint8_t *ring, *arena;
	uint64_t ring_bytes, arena_bytes;
	uint32_t sq_entries, sq_head, cq_tail;
	int doorbell_fd, completion_fd;

	/* what happened; read by fake_do(), or after fake_stop() */
	uint32_t connections, hellos, rings_open, doorbells;
	uint16_t types[FAKE_LOG_MAX];
	uint32_t types_n;
	uint64_t next_handle;
	struct dmsg_region_add last_add;
	uint32_t last_add_fds;
	struct dmsg_extent last_extents[16];
	char last_device[65];
	uint8_t last_handles[4 * 64]; /* the first four handles */
	uint8_t last_allocations[4 * DMSG_ALLOCATION_SIZE];
	uint64_t last_transfer;              /* request id */
	uint32_t last_transfer_ops, all_ops; /* of the last transfer, of all */
	bool last_transfer_on_ring, last_transfer_in_arena;
	struct dmsg_op last_op; /* the last operation of the last transfer */
	uint8_t last_payload[4096];
	uint32_t last_payload_n;
	uint16_t last_hello_flags;
	struct dmsg_sqe_message last_message;
	struct dmsg_header last_message_header;

	/* state of fake_do() */
	pthread_mutex_t lock;
	pthread_cond_t done_cond;
	fake_fn fn;
	void *fn_arg;
	bool stop;
};

void fake_start(struct fake *f);
void fake_stop(struct fake *f);

/* Runs fn on the agent's thread and waits for it. */
void fake_do(struct fake *f, fake_fn fn, void *arg);

/* Call these only on the agent's thread. */
void fake_send(struct fake *f, int n, const uint8_t *buf);
void fake_send_error(struct fake *f, uint64_t id, uint32_t code, const char *text);
/* Rings the completion doorbell. */
void fake_ring(struct fake *f);
void fake_complete(struct fake *f, uint64_t user_data, uint32_t status);
/* The completion of last_message: n bytes of answer are in the arena. */
void fake_complete_message(struct fake *f, uint32_t status, uint64_t n);
void fake_hang_up(struct fake *f);

/* Returns how many messages of this type were received. */
uint32_t fake_count(struct fake *f, uint16_t type);

/* For fake_do(): a process that stands for the agent, and that only fake_end_process() ends. arg is not used. */
void fake_new_process(struct fake *f, void *arg);
/* Any thread. Nothing happens if there is no process. */
void fake_end_process(struct fake *f);
