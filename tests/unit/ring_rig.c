/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/ring_rig.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/assert.h"
#include "lib/cleanup.h"
#include "lib/time.h"
#include "tests/unit/worker_parts.h"

#define GROUP 7
#define WORD 2048 /* offset in the region of the wait word */
#define GO 5

const struct dmsg_sqe ring_rig_write64 = { .direction = DMSG_DIRECTION_WRITE,
					   .op_count = 1,
					   .local = RING_RIG_FROM,
					   .remote = RING_RIG_TO,
					   .op_length = 64 };

static dray_handle handle_of(unsigned i)
{
	return 1ull << 32 | (i + 1);
}

static void run(struct ring_rig *r, struct command cmd)
{
	worker_post(r->worker, &cmd);
	if (!r->threaded)
		worker_turn(r->worker, false);
}

static void objects(struct ring_rig *r)
{
	for (unsigned i = 0; i < 2; i++) {
		struct region_view *v = worker_part_region(handle_of(i), handle_of(0), GROUP,
							   r->memory[i], RING_RIG_BYTES);

		r->regions[i] = v;
		run(r, (struct command){ .type = COMMAND_PUBLISH, .view = &v->o });
	}
	r->remote =
		worker_part_remote(RING_RIG_TO, handle_of(0), GROUP, handle_of(1), RING_RIG_BYTES);
	run(r, (struct command){ .type = COMMAND_PUBLISH, .view = &r->remote.o });
}

static void session(struct ring_rig *r, unsigned i, uint32_t entries, struct owner_account *account)
{
	int pair[2];

	dray_assert(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) ==
		    0);
	r->clients[i] = pair[1];
	r->shared[i] = worker_part_shared(handle_of(i), GROUP, &r->group);
	if (account)
		r->shared[i].account = account;
	run(r, (struct command){
		       .type = COMMAND_SESSION_ADD, .fd = pair[0], .shared = &r->shared[i] });
	r->ends[i] = ring_end_new(entries, &r->rings[i]);
	run(r, (struct command){
		       .type = COMMAND_RING_OPEN, .session = handle_of(i), .ring = &r->rings[i] });
}

void ring_rig_init(struct ring_rig *r, unsigned n, uint32_t entries, int64_t poll_time_ns,
		   bool threaded)
{
	const struct data_config cfg = worker_part_config(poll_time_ns);

	memset(r, 0, sizeof(*r));
	r->n = n;
	r->threaded = threaded;
	r->group.transfers_max = 100000;
	dray_assert(n && n <= RING_RIG_SESSIONS);
	dray_assert(worker_make(&r->worker, 0, &cfg, 100000, NULL) == 0);
	if (threaded)
		dray_assert(worker_start(r->worker, NULL) == 0);
	objects(r);
	for (unsigned i = 0; i < n; i++)
		session(r, i, entries, NULL);
}

unsigned ring_rig_add(struct ring_rig *r, uint32_t entries)
{
	dray_assert(r->n < RING_RIG_SESSIONS);
	account_init_other(&r->other);
	session(r, r->n, entries, &r->other);
	return r->n++;
}

void ring_rig_submit(struct ring_rig *r, unsigned i, unsigned n)
{
	while (n--) {
		dray_assert(ring_end_room(r->ends[i]));
		ring_end_put(r->ends[i], &ring_rig_write64);
	}
	ring_end_submit(r->ends[i]);
}

void ring_rig_submit_waiting(struct ring_rig *r, unsigned i)
{
	struct dmsg_sqe waits = ring_rig_write64;

	waits.flags = DMSG_TRANSFER_FLAG_WAIT;
	waits.wait_region = RING_RIG_FROM;
	waits.wait_offset = WORD;
	waits.wait_value = GO;
	ring_end_put(r->ends[i], &waits);
	ring_end_submit(r->ends[i]);
}

void ring_rig_let_go(struct ring_rig *r)
{
	r->memory[0][WORD] = GO;
}

bool ring_rig_announced(struct ring_rig *r, unsigned i)
{
	return atomic_load(
		(_Atomic uint32_t *)(void *)(r->rings[i].ring + DMSG_RING_AGENT_SLEEPING));
}

struct wsession *ring_rig_session(struct ring_rig *r, unsigned i)
{
	struct wsession *s = wsession_get(r->worker, handle_of(i));

	dray_assert(s);
	return s;
}

static void wait_gone(struct ring_rig *r)
{
	struct pollfd p = { .fd = worker_event_fd(r->worker), .events = POLLIN };
	unsigned gone = 0;
	struct event ev;

	while (gone < r->n) {
		if (worker_next_event(r->worker, &ev)) {
			if (ev.type == EVENT_SESSION_EOF)
				packet_free(ev.packet);
			if (ev.type == EVENT_SESSION_GONE) {
				gone++;
				dray_close(ev.fd);
			}
		} else if (!r->threaded)
			worker_turn(r->worker, false);
		else
			dray_assert(poll(&p, 1, 20000) == 1);
	}
}

void ring_rig_deinit(struct ring_rig *r)
{
	for (unsigned i = 0; i < r->n; i++)
		run(r, (struct command){ .type = COMMAND_SESSION_CLOSE,
					 .session = handle_of(i),
					 .code = DRAY_E_SESSION_CLOSED });
	wait_gone(r);
	dray_assert(worker_stop(r->worker));
	worker_release(r->worker);
	for (unsigned i = 0; i < r->n; i++) {
		dray_assert(r->shared[i].own.transfers == 0);
		ring_end_free(r->ends[i]);
		close(r->clients[i]);
	}
	for (unsigned i = 0; i < 2; i++)
		free(r->regions[i]);
}
