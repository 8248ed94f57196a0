/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring of one client and one agent, for weak.c: client/ring.c, agent/data/worker/ring.c and turn.c as they are
 * compiled, on a memory that reorders whatever C11 allows. This file has the client's loop, which follows
 * client/engine.c; ring_agent.c has the rest of the worker.
 *
 * Checked: no wake-up is lost (no state in which both sides wait for ever), no access to an entry or to a transfer's
 * memory races with the other side's, every transfer completes once, and no index is ever invalid.
 *
 * usage: ring ENTRIES COMPLETIONS TRANSFERS [OPTION...] [ADDRESS...]
 *   greedy  the client submits also without a free completion entry
 *   polls   the program also polls dray_fd(), or calls dray_poll()
 *   events  other sessions wake the worker, once
 *   trace   prints the way to an error
 *
 * Prints a line for each atomic operation that is stronger than relaxed, then "states N" or "error TEXT". The operations
 * at these addresses are made one step weaker.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ring.h"
#include "tests/model/ring_model.h"

struct ring_model model;
static struct ring ring;
static struct {
	uint32_t submitted, taken;
	uint32_t in_flight; /* bit of each transfer */
	bool waiting, armed, kick;
} client;

static void submit(unsigned n)
{
	struct dray_err err = DRAY_ERR_NULL;

	while (n-- && client.submitted < model.transfers) {
		uint32_t in_flight = ring.in_flight, id;
		int room;

		if (model.greedy)
			ring.in_flight = 0;
		room = dc_ring_room(&ring, &err);
		ring.in_flight = in_flight;
		weak_check(room >= 0, "the client finds an impossible submission head");
		if (!room)
			break;
		id = ++client.submitted;
		client.in_flight |= 1u << id;
		weak_write(bytes_block(id), id);
		dc_ring_put(&ring, &(struct dmsg_sqe){ .user_data = id, .op_count = 1 });
	}
	dc_ring_submit(&ring);
}

/* dc_transfer_take_ring(): true if there was a completion */
static bool take(void)
{
	struct dray_err err = DRAY_ERR_NULL;
	bool any = false;
	struct dmsg_cqe e;
	int n;

	while ((n = dc_ring_take(&ring, &e, &err)) > 0) {
		uint32_t id = (uint32_t)e.user_data;

		weak_check(id && id <= model.transfers && (client.in_flight >> id & 1),
			   "a completion of a transfer that is not in flight");
		client.in_flight &= ~(1u << id);
		weak_check(weak_read(bytes_block(id)) == id, "the memory of another transfer");
		client.taken++;
		any = true;
	}
	weak_check(n == 0, "the client finds an impossible completion tail");
	return any;
}

static void arm(void)
{
	if (client.armed)
		return;
	client.armed = true;
	if (dc_ring_set_sleeping(&ring, true))
		client.kick = true;
}

static void disarm(void)
{
	client.armed = false;
	dc_ring_set_sleeping(&ring, false);
}

/* dc_engine_wait() returns to the program, which may have called dray_fd() */
static void waited(void)
{
	client.waiting = false;
	if (model.polls && weak_choose(2))
		arm();
}

/* sleep_until() */
static void sleep_until(void)
{
	bool pending = dc_ring_set_sleeping(&ring, true);

	weak_wait(COMPLETION, !pending, 0);
	dc_ring_set_sleeping(&ring, false);
	if (take())
		waited();
}

static void spin(void)
{
	if (dc_ring_pending(&ring) && take())
		waited();
}

/* The program polls dray_fd(), then calls dray_process(d, 0). */
static void program_polls(void)
{
	arm();
	weak_wait(COMPLETION, !client.kick, 0);
	client.kick = false;
	take();
}

static void dray_poll(void)
{
	disarm();
	if (dc_ring_pending(&ring))
		take();
}

static void client_step(void)
{
	enum { SPIN, SLEEP, SUBMIT_1, SUBMIT_2, WAIT, PROGRAM_POLLS, POLL } can[8];
	unsigned n = 0;

	if (client.taken == model.transfers)
		weak_end();
	if (client.waiting) {
		can[n++] = SPIN;
		can[n++] = SLEEP;
	} else {
		if (client.submitted < model.transfers)
			can[n++] = SUBMIT_1;
		if (client.submitted + 1 < model.transfers && ring.sq_entries > 1)
			can[n++] = SUBMIT_2;
		if (client.taken < client.submitted) {
			can[n++] = WAIT;
			if (model.polls)
				can[n++] = PROGRAM_POLLS;
			if (client.armed)
				can[n++] = POLL;
		}
	}
	switch (can[weak_choose(n)]) {
	case SPIN:
		spin();
		break;
	case SLEEP:
		sleep_until();
		break;
	case SUBMIT_1:
		submit(1);
		break;
	case SUBMIT_2:
		submit(2);
		break;
	case WAIT:
		disarm();
		client.waiting = true;
		break;
	case PROGRAM_POLLS:
		program_polls();
		break;
	case POLL:
		dray_poll();
		break;
	}
}

static void client_init(void)
{
	ring = (struct ring){
		.base = model.memory,
		.bytes = sizeof(model.memory),
		.sq_entries = model.entries,
		.cq_entries = model.completions,
		.sqes = model.memory + SQ_OFFSET,
		.cqes = model.memory + CQ_OFFSET,
		.sq_tail = FIRST,
		.sq_published = FIRST,
		.sq_head = FIRST,
		.cq_head = FIRST,
		.doorbell_fd = DOORBELL,
		.completion_fd = COMPLETION,
	};
	weak_thread("client", client_step, WEAK_NO_FENCES);
	weak_private(&ring, sizeof(ring));
	weak_private(&client, sizeof(client));
}

/* --- */

int dray_err_set(struct dray_err *e, int ret, int code, const char *fmt, ...)
{
	return ret;
}

const char *dray_errno_text(int error)
{
	return "";
}

static void print_site(uintptr_t address, const char *kind, const char *order)
{
	printf("site %#lx %s %s\n", (unsigned long)address, order, kind);
}

static bool trace;

static bool option(const char *name)
{
	static const struct {
		const char *name;
		bool *on;
	} options[] = {
		{ "greedy", &model.greedy },
		{ "polls", &model.polls },
		{ "events", &model.events },
		{ "trace", &trace },
	};

	for (unsigned i = 0; i < sizeof(options) / sizeof(*options); i++)
		if (!strcmp(name, options[i].name))
			return *options[i].on = true;
	return false;
}

int main(int argc, char **argv)
{
	static const char *const entry_names[] = { "submission entry 0", "submission entry 1",
						   "completion entry 0", "completion entry 1",
						   "completion entry 2", "completion entry 3" };
	static const char *const byte_names[] = { "memory 0", "memory 1", "memory 2" };
	const char *error;

	if (argc < 4)
		return 2;
	weak_reset(NULL);
	model.entries = (uint32_t)strtoul(argv[1], NULL, 10);
	model.completions = (uint32_t)strtoul(argv[2], NULL, 10);
	model.transfers = (uint32_t)strtoul(argv[3], NULL, 10);
	for (int i = 4; i < argc; i++)
		if (!option(argv[i]))
			weak_weaken(strtoul(argv[i], NULL, 16));
	agent_init();
	client_init();
	weak_word("sq_head", model.memory + DMSG_RING_SQ_HEAD, FIRST);
	weak_word("sq_tail", model.memory + DMSG_RING_SQ_TAIL, FIRST);
	weak_word("cq_head", model.memory + DMSG_RING_CQ_HEAD, FIRST);
	weak_word("cq_tail", model.memory + DMSG_RING_CQ_TAIL, FIRST);
	weak_word("agent_sleeping", model.memory + DMSG_RING_AGENT_SLEEPING, 0);
	weak_word("client_sleeping", model.memory + DMSG_RING_CLIENT_SLEEPING, 0);
	for (uint32_t i = 0; i < ring.sq_entries; i++)
		weak_block(entry_names[i], ring.sqes + i * DMSG_SQE_SIZE, DMSG_SQE_SIZE);
	for (uint32_t i = 0; i < ring.cq_entries; i++)
		weak_block(entry_names[2 + i], ring.cqes + i * DMSG_CQE_SIZE, DMSG_CQE_SIZE);
	for (uint32_t i = 0; i < BYTES_MAX; i++)
		model.bytes_of[i] = weak_block(byte_names[i], NULL, 0);
	error = weak_search(trace);
	weak_sites(print_site);
	if (error)
		printf("error %s\n", error);
	else
		printf("states %llu\n", (unsigned long long)weak_states());
	return 0;
}
