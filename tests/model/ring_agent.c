/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's side of the modelled ring: a worker with one session, and transfers that end at any time. */
#include <stdlib.h>
#include <time.h>

#include "agent/data/transfer/transport.h"
#include "agent/data/worker/internal.h"
#include "agent/process/process.h"
#include "tests/model/ring_model.h"

enum { EVENT_DONE, EVENT_OTHER }; /* what wakes the worker other than the doorbell */

static struct worker worker;
static struct wsession session;
static struct xfer_owner owner;
static struct ring_memory ring_memory;
static struct loop_source *bell_source;
static struct {
	uint32_t others;
	uint32_t n;
	uint32_t id[COMPLETIONS_MAX]; /* transfers in flight */
} work;

int loop_add(struct loop *l, struct loop_source *s, int fd, uint32_t events, loop_fn fn)
{
	s->fd = fd;
	s->fn = fn;
	bell_source = s;
	return 0;
}

void loop_del(struct loop *l, struct loop_source *s)
{
}

/* Sleeps, or looks for a doorbell. */
int loop_turn(struct loop *l, int64_t timeout_ns)
{
	unsigned others = 0;
	int event;

	if (timeout_ns) {
		others |= work.n ? 1u << EVENT_DONE : 0;
		others |= !work.others && model.events ? 1u << EVENT_OTHER : 0;
		/* the timer of a worker that waits for free completion entries; earlier, it finds none */
		others |= timeout_ns > 0 ? WEAK_NEWS(CQ_HEAD) : 0;
	}
	event = weak_wait(DOORBELL, timeout_ns != 0, others);
	if (event == 0)
		bell_source->fn(bell_source, EPOLLIN);
	if (event == 1 + EVENT_OTHER)
		work.others++;
	return event == 0 || event == 1 + EVENT_DONE || event == 1 + EVENT_OTHER;
}

static void complete(uint32_t i)
{
	uint32_t id = work.id[i];

	weak_read(bytes_block(id));
	weak_write(bytes_block(id), id);
	work.id[i] = work.id[--work.n];
	work.id[work.n] = 0;
	ring_complete(&session, &(struct dmsg_cqe){ .user_data = id });
}

/* The transfer ends at once or later. */
void request_start(struct wsession *s, const struct xfer_request *r, struct dray_err *err)
{
	uint32_t id = (uint32_t)r->request_id;

	weak_check(id && id <= model.transfers, "the agent reads an entry that was not submitted");
	weak_check(weak_read(bytes_block(id)) == id,
		   "the agent reads operations of another transfer");
	weak_check(work.n < model.completions, "more transfers in flight than completion entries");
	work.id[work.n++] = id;
	if (weak_choose(2))
		complete(work.n - 1);
}

void store_entry(struct wsession *s, const uint8_t *entry)
{
	weak_check(false, "the agent reads an entry with a message");
}

void cancels_taken(struct wsession *s, uint64_t request)
{
}

void wsession_break(struct wsession *s, const struct dray_err *err)
{
	weak_check(false, "the agent finds an impossible index");
}

/* Some transfers end. True: the worker also had work of other sessions. */
static bool progress(struct core *c, void *state)
{
	while (work.n && weak_choose(2))
		complete(weak_choose(work.n));
	return weak_choose(2);
}

int64_t xfers_tick(struct core *c)
{
	return INT64_MAX;
}

/* A turn without work of other sessions ends with a sleep. */
bool dray_linger_idle(struct dray_linger *l, int64_t now_ns)
{
	return false;
}

void dray_linger_worked(struct dray_linger *l, int64_t now_ns)
{
}

int64_t directs_tick(struct worker *w)
{
	return INT64_MAX;
}

int64_t sources_step(struct worker *w)
{
	return INT64_MAX;
}

int64_t silences_tick(struct worker *w)
{
	return INT64_MAX;
}

void readings_check(struct worker *w, bool all)
{
}

void keeps_check(struct worker *w)
{
}

bool worker_run_commands(struct worker *w)
{
	return false;
}

bool wsession_read(struct wsession *s)
{
	return false;
}

void wsessions_again(struct worker *w)
{
}

int process_limit_time_slice(uint64_t ns, uint64_t *ret_before)
{
	*ret_before = 0;
	return 0;
}

int process_restore_time_slice(uint64_t before)
{
	return 0;
}

void turn_meter_read(struct turn_meter *m, int64_t now_ns)
{
}

void dray_spsc_send(struct dray_spsc *s, const void *slot)
{
}

uint32_t dray_spsc_room(const struct dray_spsc *s)
{
	return 1 << 20;
}

bool dray_spsc_flush(struct dray_spsc *s)
{
	return true;
}

bool dray_spsc_empty(const struct dray_spsc *s)
{
	return true;
}

int weak_clock_gettime(clockid_t clock, struct timespec *ret);
int weak_clock_gettime(clockid_t clock, struct timespec *ret)
{
	*ret = (struct timespec){ 0 };
	return 0;
}

ssize_t weak_write_fd(int fd, const void *p, size_t n);
ssize_t weak_write_fd(int fd, const void *p, size_t n)
{
	weak_ring((unsigned)fd);
	return (ssize_t)n;
}

static void agent_step(void)
{
	/* always time for a look at the descriptors: loop_turn() decides whether it finds something */
	worker.look_ns = worker.looked_ns = 0;
	worker_turn(&worker, true);
}

void agent_init(void)
{
	static const struct transport_ops ops = { .progress = progress };

	ring_memory = (struct ring_memory){
		.ring = model.memory,
		.ring_bytes = sizeof(model.memory),
		.sq_entries = model.entries,
		.cq_entries = model.completions,
		.sq_offset = SQ_OFFSET,
		.cq_offset = CQ_OFFSET,
		.doorbell_fd = DOORBELL,
		.completion_fd = COMPLETION,
	};
	dray_list_init(&worker.core.owners);
	dray_list_init(&owner.ready);
	dray_list_init(&owner.polled);
	dray_list_add(&worker.core.owners, &owner.link);
	dray_list_init(&worker.completed);
	worker.core.counters = &worker.counters;
	worker.core.transports[0] = &ops;
	worker.core.n_transports = 1;
	session.worker = &worker;
	session.xs.owner = &owner;
	if (ring_open(&session, &ring_memory) < 0)
		exit(2);
	session.ring->sq_head = session.ring->cq_tail = session.ring->cq_head = FIRST;
	weak_thread("agent ", agent_step, WEAK_MAY_WAIT);
	weak_private(&work, sizeof(work));
	weak_private(&session, sizeof(session));
	weak_private(session.ring, sizeof(*session.ring));
	weak_private(&owner, sizeof(owner));
	weak_private(&worker.completed,
		     offsetof(struct worker, counters) - offsetof(struct worker, completed));
}
