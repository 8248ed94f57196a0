/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libdray and a data worker of the agent take turns in one thread, for a tool that counts instructions: neither
 * waits for the other, so nothing spins. The control plane is the tests' fake agent, which answers while the
 * session is set up and sleeps afterwards.
 *
 *   valgrind --tool=callgrind --collect-atstart=no ... one_thread
 *
 * For each shape and each phase (submit, progress, reap) it dumps the instructions of this phase in ROUNDS rounds,
 * named "SHAPE PHASE OPERATIONS". The operations of the transfers have 64 bytes and cannot be merged. Without
 * callgrind it only runs the transfers and checks the bytes.
 */
#include <string.h>
#include <sys/socket.h>
#include <valgrind/callgrind.h>

#include "lib/fault.h"
#include "agent/data/worker/internal.h"
#include "client/dray.h"
#include "lib/assert.h"
#include "tests/bench/bench.h"
#include "tests/unit/client_fake.h"
#include "tests/unit/worker_parts.h"

#define GROUP 3
#define SESSION ((dray_handle)1 << 32 | 1)
#define ROUNDS 64
#define WARM_UP 32
#define SIZE 64u
/* Twice the size, so that no two operations are adjacent. */
#define STRIDE (2u * SIZE)

enum phase { SUBMIT, PROGRESS, REAP, PHASES };
static const char *const phase_names[PHASES] = { "submit", "progress", "reap" };

static const struct shape {
	const char *name;
	unsigned transfers, ops; /* transfers submitted together, and operations of each */
} shapes[] = {
	{ "single", 1, 1 },
	{ "256", 1, 256 },
	{ "4096", 1, 4096 },
	{ "transfers", 256, 1 },
};

static struct {
	struct fake fake;
	struct dray *d;
	struct dray_memory near, far;
	dray_region near_region, far_region;
	dray_remote remote;
	struct worker *w;
	struct quota group;
	struct session_shared shared;
	struct ring_memory ring;
	struct dray_op ops[4096];
	struct dray_transfer transfers[256];
} h;

static struct region_view *publish_region(dray_handle handle, const struct dray_memory *m)
{
	struct region_view *v = worker_part_region(handle, SESSION, GROUP, m->address, m->length);

	worker_post(h.w, &(struct command){ .type = COMMAND_PUBLISH, .view = &v->o });
	return v;
}

static void client_open(void)
{
	struct dray_options options = { .socket = h.fake.path, .name = "one thread" };
	struct dray_token token;
	char why[256];

	if (dray_connect(&options, &h.d, why, sizeof(why)))
		bench_die("connect: %s", why);
	if (dray_memory_alloc(1 << 20, 0, &h.near) || dray_memory_alloc(1 << 20, 0, &h.far) ||
	    dray_region_add_memory(h.d, &h.near, DRAY_READ | DRAY_WRITE, &h.near_region) ||
	    dray_token_from_bytes("token", 5, &token) ||
	    dray_remote_import(h.d, &token, 0, &h.remote))
		bench_die("set-up: %s", dray_last_error(h.d));
}

/* A worker without a thread, with the handles and the ring of the fake agent. */
static void worker_open(void)
{
	struct data_config cfg = worker_part_config(0);
	/* the fake agent numbers its objects in order */
	dray_handle near = h.fake.next_handle - 1, remote = h.fake.next_handle;
	static struct remote_view view;
	int pair[2];

	dray_assert(worker_make(&h.w, 0, &cfg, 100000, NULL) == 0);
	h.shared = worker_part_shared(SESSION, GROUP, &h.group);
	dray_assert(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) ==
		    0);
	publish_region(near, &h.near);
	publish_region(near + 1000, &h.far);
	view = worker_part_remote(remote, SESSION, GROUP, near + 1000, h.far.length);
	worker_post(h.w, &(struct command){ .type = COMMAND_PUBLISH, .view = &view.o });
	worker_post(h.w, &(struct command){
				 .type = COMMAND_SESSION_ADD, .fd = pair[0], .shared = &h.shared });
	h.ring = (struct ring_memory){
		.ring = h.fake.ring,
		.ring_bytes = h.fake.ring_bytes,
		.sq_entries = h.fake.sq_entries,
		.cq_entries = 2 * h.fake.sq_entries,
		.sq_offset = dray_le_get32(h.fake.ring + DMSG_RING_SQ_OFFSET),
		.cq_offset = dray_le_get32(h.fake.ring + DMSG_RING_CQ_OFFSET),
		.arena = h.fake.arena,
		.arena_bytes = h.fake.arena_bytes,
		.doorbell_fd = h.fake.doorbell_fd,
		.completion_fd = h.fake.completion_fd,
	};
	worker_post(h.w, &(struct command){
				 .type = COMMAND_RING_OPEN, .session = SESSION, .ring = &h.ring });
}

static void ignore_ring(struct fake *f, void *arg)
{
	f->ignore_ring = true;
	/* the worker never sleeps, so the client must not ring */
	*(uint32_t *)(void *)(f->ring + DMSG_RING_AGENT_SLEEPING) = 0;
}

static uint32_t completed(void)
{
	return __atomic_load_n((const uint32_t *)(const void *)(h.fake.ring + DMSG_RING_CQ_TAIL),
			       __ATOMIC_ACQUIRE);
}

static void prepare(const struct shape *s)
{
	for (unsigned i = 0; i < s->ops; i++)
		h.ops[i] =
			(struct dray_op){ i * STRIDE, (s->ops - 1 - i) * (uint64_t)STRIDE, SIZE };
	for (unsigned i = 0; i < s->transfers; i++)
		h.transfers[i] = (struct dray_transfer){ .direction = DRAY_DIRECTION_WRITE,
							 .local = h.near_region,
							 .remote = h.remote,
							 .ops = h.ops,
							 .count = s->ops };
}

/* Runs a round and collects one phase of it; PHASES: no phase. */
static void round_run(const struct shape *s, enum phase collected)
{
	uint32_t until = completed() + s->transfers;
	struct dray_completion c;
	unsigned reaped = 0;
	int n;

	if (collected == SUBMIT)
		CALLGRIND_TOGGLE_COLLECT;
	n = dray_submit_many(h.d, h.transfers, s->transfers, NULL);
	if (collected == SUBMIT)
		CALLGRIND_TOGGLE_COLLECT;
	if (n != (int)s->transfers)
		bench_die("submit: %s", dray_last_error(h.d));
	if (collected == PROGRESS)
		CALLGRIND_TOGGLE_COLLECT;
	while (completed() != until)
		worker_turn(h.w, false);
	if (collected == PROGRESS)
		CALLGRIND_TOGGLE_COLLECT;
	if (collected == REAP)
		CALLGRIND_TOGGLE_COLLECT;
	dray_poll(h.d);
	while (dray_next_completion(h.d, &c) == 1 && !c.status)
		reaped++;
	if (collected == REAP)
		CALLGRIND_TOGGLE_COLLECT;
	if (reaped != s->transfers)
		bench_die("%u of %u transfers ended well", reaped, s->transfers);
}

static void check(const struct shape *s)
{
	const uint8_t *from = h.near.address, *to = h.far.address;

	for (unsigned i = 0; i < s->ops; i++)
		if (memcmp(from + h.ops[i].local, to + h.ops[i].remote, SIZE))
			bench_die("operation %u of shape %s did not arrive", i, s->name);
}

int main(void)
{
	if (fault_init() < 0)
		bench_die_errno("fault_init");
	fake_start(&h.fake);
	client_open();
	fake_do(&h.fake, ignore_ring, NULL);
	worker_open();
	worker_turn(h.w, false);
	for (size_t k = 0; k < DRAY_ARRAY_SIZE(shapes); k++) {
		const struct shape *s = &shapes[k];

		prepare(s);
		memset(h.far.address, 0, h.far.length);
		for (uint64_t i = 0; i < h.near.length; i++)
			((uint8_t *)h.near.address)[i] = (uint8_t)(i * 7 + i / 251 + k + 1);
		for (unsigned i = 0; i < WARM_UP; i++)
			round_run(s, PHASES);
		check(s);
		for (unsigned phase = 0; phase < PHASES; phase++) {
			char label[64];

			CALLGRIND_ZERO_STATS;
			for (unsigned i = 0; i < ROUNDS; i++)
				round_run(s, phase);
			snprintf(label, sizeof(label), "%s %s %u", s->name, phase_names[phase],
				 ROUNDS * s->transfers * s->ops);
			CALLGRIND_DUMP_STATS_AT(label);
		}
	}
	dray_disconnect(h.d);
	fake_stop(&h.fake);
	bench_say("{\"done\": true}");
	return 0;
}
