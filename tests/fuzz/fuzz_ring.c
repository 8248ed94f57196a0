/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring consumer of a worker, with a client that writes any bytes to entries, indices and arena. The input is a
 * list of {operation, argument, bytes}; the worker runs in between.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/data/worker/internal.h"
#include "agent/data/worker/internal.h"
#include "lib/assert.h"
#include "lib/cleanup.h"
#include "lib/wake.h"
#include "lib/wire.h"
#include "tests/unit/account.h"

#define ENTRIES 8
#define BYTES 65536
#define HANDLE (1ull << 32 | 1)
#define ARENA 8192

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint8_t ring_bytes[DMSG_RING_SIZE + ENTRIES * DMSG_SQE_SIZE + 2 * ENTRIES * DMSG_CQE_SIZE]
	__attribute__((aligned(64)));
static uint8_t arena[ARENA], memory[2][BYTES];

struct rig {
	struct worker *w;
	int client, completion;
	struct ring_memory ring;
	struct session_shared shared;
	struct quota group;
	struct region_view *regions[2];
	struct remote_view remote;
};

static struct region_view *region(unsigned i)
{
	struct region_view *v = calloc(1, sizeof(*v) + sizeof(struct extent_view));

	dray_assert(v);
	v->o = (struct object_view){ OBJECT_REGION, 1ull << 32 | (i + 1), 7, HANDLE,
				     BYTES,         DMSG_ACCESS_ALL };
	v->n_extents = 1;
	v->extents[0] = (struct extent_view){ .length = BYTES, .base = memory[i], .node = -1 };
	return v;
}

static void run(struct rig *r, struct command cmd)
{
	worker_post(r->w, &cmd);
	worker_turn(r->w, false);
}

static void rig_init(struct rig *r)
{
	static const struct data_config cfg = { .slice_size = 65536,
						.slice_timeout_ns = 1000000000,
						.deadline_ns = 1000000000,
						.slices_per_session = 4,
						.tcp_streams = 1,
						.tcp_latency_streams = 1,
						.tcp_slices_in_flight = 4 };
	int data[2], bell;

	memset(r, 0, sizeof(*r));
	memset(ring_bytes, 0, sizeof(ring_bytes));
	memset(arena, 0, sizeof(arena));
	dray_assert(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, data) == 0);
	dray_assert(dray_doorbell_new(&bell, &r->completion) == 0);
	r->client = data[1];
	r->ring = (struct ring_memory){ .ring = ring_bytes,
					.ring_bytes = sizeof(ring_bytes),
					.sq_entries = ENTRIES,
					.cq_entries = 2 * ENTRIES,
					.sq_offset = DMSG_RING_SIZE,
					.cq_offset = DMSG_RING_SIZE + ENTRIES * DMSG_SQE_SIZE,
					.arena = arena,
					.arena_bytes = ARENA,
					.doorbell_fd = eventfd(0, EFD_NONBLOCK),
					.completion_fd = bell };
	r->group.transfers_max = 64;
	r->shared = (struct session_shared){ .session = HANDLE,
					     .group = 7,
					     .own = { .transfers_max = 64 },
					     .group_quota = &r->group,
					     .account = account_without_limits(),
					     .ops_max = 4096,
					     .requests_max = 4 };
	dray_assert(worker_make(&r->w, 0, &cfg, 64, NULL) == 0);
	for (unsigned i = 0; i < 2; i++) {
		r->regions[i] = region(i);
		run(r, (struct command){ .type = COMMAND_PUBLISH, .view = &r->regions[i]->o });
	}
	r->remote.o =
		(struct object_view){ OBJECT_REMOTE, HANDLE, 7, HANDLE, BYTES, DMSG_ACCESS_ALL };
	r->remote.is_local = true;
	r->remote.region = 1ull << 32 | 2;
	run(r, (struct command){ .type = COMMAND_PUBLISH, .view = &r->remote.o });
	run(r,
	    (struct command){ .type = COMMAND_SESSION_ADD, .fd = data[0], .shared = &r->shared });
	run(r, (struct command){ .type = COMMAND_RING_OPEN, .session = HANDLE, .ring = &r->ring });
}

/* Answers the worker's events as the control thread does. */
static bool events(struct rig *r)
{
	struct event ev;
	bool gone = false;

	while (worker_next_event(r->w, &ev)) {
		if (ev.type == EVENT_REQUEST || ev.type == EVENT_NOTIFY || ev.type == EVENT_FDS ||
		    ev.type == EVENT_SESSION_EOF)
			packet_free(ev.packet);
		if (ev.type == EVENT_SESSION_GONE)
			dray_close(ev.fd);
		if (ev.type == EVENT_NOTIFY)
			worker_post(r->w,
				    &(struct command){ .type = COMMAND_NOTIFIED, .id = ev.id });
		gone |= ev.type == EVENT_SESSION_GONE;
	}
	return gone;
}

static void rig_deinit(struct rig *r)
{
	bool gone = false;

	worker_post(r->w, &(struct command){
				  .type = COMMAND_SESSION_CLOSE, .session = HANDLE, .code = 36 });
	for (unsigned i = 0; i < 100 && !gone; i++) {
		worker_turn(r->w, false);
		gone = events(r);
	}
	/* whatever the client wrote, the session must end, with all its transfers */
	dray_assert(gone);
	dray_assert(r->shared.own.transfers == 0 && r->group.transfers == 0 &&
		    r->shared.account->budget.of[RESOURCE_TRANSFERS].used == 0);
	worker_release(r->w);
	for (unsigned i = 0; i < 2; i++)
		free(r->regions[i]);
	close(r->ring.doorbell_fd);
	close(r->ring.completion_fd);
	close(r->completion);
	close(r->client);
}

/* A valid submission, changed by the input. */
static uint8_t *transfer(uint8_t *at, uint32_t tail)
{
	dmsg_sqe_put(at, &(struct dmsg_sqe){ .user_data = tail,
					     .direction = DMSG_DIRECTION_WRITE,
					     .op_count = 1,
					     .local = 1ull << 32 | 1,
					     .remote = HANDLE,
					     .wait_region = 1ull << 32 | 1,
					     .set_region = 1ull << 32 | 2,
					     .op_length = 64 });
	return at;
}

/* The agent has no store: what it refuses is answered in the arena. */
static uint8_t *message(uint8_t *at, uint32_t tail)
{
	static const uint8_t key[] = { 1, 'k' };
	int n = dmsg_store_exists_encode(
		arena, ARENA, tail, &(struct dmsg_store_exists){ .keys = { key, sizeof(key) } });

	dmsg_sqe_message_put(at, &(struct dmsg_sqe_message){ .user_data = tail,
							     .flags = DMSG_ENTRY_FLAG_MESSAGE,
							     .length = (uint32_t)n,
							     .room = 512 });
	return at;
}

static void submit(uint8_t *(*fill)(uint8_t *at, uint32_t tail), const uint8_t *patch, size_t n)
{
	uint32_t tail = dray_le_get32(ring_bytes + DMSG_RING_SQ_TAIL);
	uint8_t *at = fill(ring_bytes + DMSG_RING_SIZE + (tail % ENTRIES) * DMSG_SQE_SIZE, tail);

	for (size_t i = 0; i + 1 < n; i += 2)
		at[patch[i] % DMSG_SQE_SIZE] ^= patch[i + 1];
	dray_le_put32(ring_bytes + DMSG_RING_SQ_TAIL, tail + 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct rig r;

	rig_init(&r);
	while (size >= 4) {
		uint16_t at = dray_le_get16(data + 1);
		size_t n = data[3] < size - 4 ? data[3] : size - 4;
		const uint8_t *bytes = data + 4;

		switch (data[0] % 6) {
		case 0:
			submit(transfer, bytes, n);
			break;
		case 1:
			at %= sizeof(ring_bytes);
			memcpy(ring_bytes + at, bytes,
			       n < sizeof(ring_bytes) - at ? n : sizeof(ring_bytes) - at);
			break;
		case 2:
			at %= ARENA;
			memcpy(arena + at, bytes, n < ARENA - (size_t)at ? n : ARENA - (size_t)at);
			break;
		case 3: /* reap all */
			dray_le_put32(ring_bytes + DMSG_RING_CQ_HEAD,
				      dray_le_get32(ring_bytes + DMSG_RING_CQ_TAIL));
			break;
		case 4:
			worker_turn(r.w, false);
			events(&r);
			break;
		case 5:
			submit(message, bytes, n);
			break;
		}
		data += 4 + n;
		size -= 4 + n;
	}
	worker_turn(r.w, false);
	events(&r);
	rig_deinit(&r);
	return 0;
}
