/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One large copy by several workers. To control the order of events, the core rig is the worker
 * that shares, and the test takes tasks as the other workers would. Real workers follow at the end.
 */
#include "agent/data/transfer/workshare.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/fault.h"
#include "agent/data/transfer/object.h"
#include "agent/data/transfer/transport.h"
#include "lib/cleanup.h"
#include "lib/cpu.h"
#include "lib/time.h"
#include "tests/unit/cm.h"
#include "tests/unit/core_rig.h"
#include "tests/unit/worker_rig.h"

#define MIB (1ull << 20)
#define BYTES (24 * MIB)
#define A (1ull << 32 | 1)
#define B (1ull << 32 | 2)

struct lab {
	struct rig rig;
	struct rig_session s;
	struct rig_region a, b;
	struct remote_view *remote;
	struct workshare *workshare;
	int fds[WORKSHARE_MAX];
	unsigned n;
};

static void lab_init(struct lab *l, unsigned workers, unsigned helpers)
{
	rig_init(&l->rig);
	rig_session_init(&l->rig, &l->s, 5);
	rig_region_init(&l->rig, &l->a, A, 5, BYTES, 1);
	rig_region_init(&l->rig, &l->b, B, 6, BYTES, 3);
	l->remote = rig_remote(&l->rig, A, &l->b, 5);
	l->n = workers;
	assert_int_equal(workshare_new(&l->workshare, workers, helpers), 0);
	for (unsigned i = 0; i < workers; i++) {
		l->fds[i] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		assert_int_equal(workshare_join(l->workshare, i, l->fds[i]), 0);
	}
	l->rig.core.workshare = l->workshare;
	for (uint64_t i = 0; i < BYTES; i++)
		l->a.memory[i] = (uint8_t)(i * 31 >> 3);
}

static void lab_deinit(struct lab *l)
{
	xfer_session_deinit(&l->s.xs);
	rig_deinit(&l->rig);
	rig_region_deinit(&l->a);
	rig_region_deinit(&l->b);
	free(l->remote);
	workshare_free(l->workshare);
	for (unsigned i = 0; i < l->n; i++)
		close(l->fds[i]);
}

static void submit(struct lab *l, uint64_t id, uint64_t bytes)
{
	struct xfer_request r = { .request_id = id, .spec.local = A, .spec.remote = A };
	const uint64_t op[1][3] = { { 0, 0, bytes } };
	struct dray_err err = DRAY_ERR_NULL;

	assert_int_equal(rig_submit(&l->rig, &l->s, &r, op, 1, &err), 0);
}

static struct xfer *only_xfer(struct lab *l)
{
	struct xfer *x = dray_list_first(&l->s.xs.xfers, struct xfer, session_link);

	assert_non_null(x);
	return x;
}

static bool woken(struct lab *l, unsigned worker)
{
	uint64_t n;

	return read(l->fds[worker], &n, sizeof(n)) == sizeof(n);
}

/* Takes tasks as `worker` would; returns the number of bytes. */
static uint64_t help(struct lab *l, unsigned worker, unsigned times)
{
	uint64_t sum = 0, bytes;
	bool member = false;

	for (unsigned i = 0; i < times; i++) {
		if (workshare_help(l->workshare, worker, &member, &bytes) == WORKSHARE_NOTHING)
			break;
		sum += bytes;
	}
	workshare_leave(l->workshare, &member);
	return sum;
}

/* Checks that no worker stays awake for this owner. */
static void assert_at_rest(struct lab *l)
{
	bool member = false;
	uint64_t bytes;

	assert_int_equal(workshare_help(l->workshare, 1, &member, &bytes), WORKSHARE_NOTHING);
}

static void assert_copied(struct lab *l)
{
	for (uint64_t at = 0; at < BYTES; at += 4096)
		assert_memory_equal(rig_at(&l->b, at), l->a.memory + at, 4096);
}

static void shared_between_both(void **state)
{
	struct lab l;
	uint64_t helped = 0;

	lab_init(&l, 2, 1);
	assert_int_equal(help(&l, 1, 1), 0);
	submit(&l, 1, BYTES);
	/* one turn offers more than the helper takes before the next turn */
	while (rig_turn(&l.rig))
		helped += help(&l, 1, 2);
	assert_true(helped >= BYTES / 16);
	assert_int_equal(l.rig.n_ended, 1);
	assert_int_equal(l.rig.ended[0].code, 0);
	assert_int_equal(l.rig.ended[0].bytes, BYTES);
	assert_int_equal(atomic_load(&l.rig.counters.v[DRAY_METRIC_LOCAL_BYTES_TOTAL]), BYTES);
	assert_copied(&l);
	assert_int_equal(help(&l, 1, 1), 0);
	lab_deinit(&l);
}

/* A helper that takes no further task delays the owner only by the one task that it holds. */
static void works_without_helpers(void **state)
{
	struct lab l;

	lab_init(&l, 3, 2);
	submit(&l, 1, BYTES);
	while (rig_turn(&l.rig))
		;
	assert_int_equal(l.rig.n_ended, 1);
	assert_copied(&l);
	/* small slices are not shared, and wake no worker */
	workshare_sleep(l.workshare, 1);
	submit(&l, 2, MIB);
	rig_turn(&l.rig);
	assert_int_equal(l.rig.n_ended, 2);
	assert_false(woken(&l, 1));
	lab_deinit(&l);
}

static void wakes_once_for_a_transfer(void **state)
{
	struct lab l;

	lab_init(&l, 4, 2);
	for (unsigned i = 1; i < 4; i++)
		assert_false(workshare_sleep(l.workshare, i));
	submit(&l, 1, BYTES);
	rig_turn(&l.rig);
	/* as many as may help */
	assert_true(woken(&l, 1));
	assert_true(woken(&l, 2));
	assert_false(woken(&l, 3));
	workshare_awake(l.workshare, 1);
	assert_true(workshare_sleep(l.workshare, 1));
	while (rig_turn(&l.rig))
		;
	assert_false(woken(&l, 1) || woken(&l, 2) || woken(&l, 3));
	assert_false(workshare_sleep(l.workshare, 1));
	submit(&l, 2, BYTES);
	while (rig_turn(&l.rig))
		;
	assert_true(woken(&l, 1));
	/* an awake worker needs no wake-up; the next one is woken instead */
	assert_true(woken(&l, 3));
	lab_deinit(&l);
}

static void the_number_of_helpers_is_limited(void **state)
{
	bool first = false, second = false;
	uint64_t bytes;
	struct lab l;

	lab_init(&l, 4, 1);
	submit(&l, 1, BYTES);
	rig_turn(&l.rig);
	assert_int_equal(workshare_help(l.workshare, 1, &first, &bytes), WORKSHARE_HELPED);
	assert_int_equal(bytes, WORKSHARE_TASK);
	assert_int_equal(workshare_help(l.workshare, 2, &second, &bytes), WORKSHARE_NOTHING);
	assert_false(second);
	workshare_leave(l.workshare, &first);
	assert_int_equal(workshare_help(l.workshare, 2, &second, &bytes), WORKSHARE_HELPED);
	workshare_leave(l.workshare, &second);
	while (rig_turn(&l.rig))
		;
	assert_copied(&l);
	lab_deinit(&l);
}

/* As after truncation of the file: every access faults. */
static void take_away(struct rig_region *g)
{
	uint8_t *base = g->view->extents[g->view->n_extents - 1].base;
	int fd = memfd_create("cut", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_ptr_equal(
		mmap(base, g->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0), base);
	close(fd);
}

/*
 * The memory of one side is gone. Whether the helper or the owner finds out, the session of that
 * side gets the fault.
 */
static void fault(bool of_local, bool by_helper)
{
	struct lab l;
	lab_init(&l, 2, 1);
	/* cmocka has installed its own handler */
	assert_int_equal(fault_init(), 0);
	submit(&l, 1, BYTES);
	rig_turn(&l.rig);
	take_away(of_local ? &l.a : &l.b);
	if (by_helper)
		assert_true(help(&l, 1, 1) > 0);
	while (rig_turn(&l.rig))
		;
	assert_int_equal(l.rig.n_ended, 1);
	assert_int_equal(l.rig.ended[0].code, DRAY_E_REGION_FAULT);
	assert_true(l.rig.n_faults >= 1);
	assert_int_equal(l.rig.last_fault, of_local ? 5 : 6);
	assert_int_equal(help(&l, 1, 1), 0);
	lab_deinit(&l);
}

static void faults(void **state)
{
	fault(true, true);
	fault(true, false);
	fault(false, true);
	fault(false, false);
}

/* When a stop returns, no worker holds a task, and no task can be taken. */
static void stopped(void **state)
{
	for (unsigned urgent = 0; urgent < 2; urgent++) {
		struct lab l;

		lab_init(&l, 2, 1);
		submit(&l, 1, BYTES);
		rig_turn(&l.rig);
		assert_true(help(&l, 1, 1) > 0);
		xfer_stop(&l.rig.core, only_xfer(&l), DRAY_E_CANCELLED, NULL, urgent);
		assert_int_equal(l.rig.n_ended, 1);
		assert_int_equal(l.rig.ended[0].code, DRAY_E_CANCELLED);
		assert_int_equal(help(&l, 1, 1), 0);
		assert_false(rig_turn(&l.rig));
		assert_at_rest(&l);
		/* other transfers continue */
		submit(&l, 2, BYTES);
		while (rig_turn(&l.rig))
			help(&l, 1, 1);
		assert_int_equal(l.rig.ended[1].code, 0);
		assert_at_rest(&l);
		assert_copied(&l);
		lab_deinit(&l);
	}
}

static void dropped(void **state)
{
	struct lab l;

	lab_init(&l, 2, 1);
	submit(&l, 1, BYTES);
	rig_turn(&l.rig);
	object_drop(&l.rig.core, OBJECT_REGION, B, DRAY_E_SESSION_CLOSED, DROP_URGENT);
	assert_int_equal(l.rig.n_dropped, 1);
	assert_int_equal(l.rig.n_ended, 1);
	assert_int_equal(help(&l, 1, 1), 0);
	assert_at_rest(&l);
	lab_deinit(&l);
}

/* Pieces of all sizes, in random order. */
static void scattered(void **state)
{
	static uint64_t ops[2048][3];
	struct xfer_request r = { .request_id = 1, .spec.local = A, .spec.remote = A };
	struct dray_err err = DRAY_ERR_NULL;
	uint64_t at = 0;
	unsigned n = 0;
	struct lab l;

	lab_init(&l, 2, 1);
	for (; n < 2048 && at < BYTES; n++) {
		uint64_t bytes = dray_min((uint64_t)(n % 7 ? 1000 + n * 13 : 200000), BYTES - at);

		ops[n][0] = at;
		ops[n][1] = BYTES - at - bytes;
		ops[n][2] = bytes;
		at += bytes;
	}
	assert_true(at >= 8 * MIB);
	assert_int_equal(rig_submit(&l.rig, &l.s, &r, ops, n, &err), 0);
	while (rig_turn(&l.rig))
		help(&l, 1, 3);
	assert_int_equal(l.rig.ended[0].code, 0);
	for (unsigned i = 0; i < n; i++)
		for (uint64_t k = 0; k < ops[i][2]; k += 97)
			assert_int_equal(*rig_at(&l.b, ops[i][1] + k), l.a.memory[ops[i][0] + k]);
	lab_deinit(&l);
}

static uint64_t no_task(struct workshare_job *j, unsigned task)
{
	return 0;
}

/* May the worker help owner 0 of these workers with a job for this node? */
static bool suits(struct lab *l, const int *nodes, unsigned worker, int node)
{
	struct workshare_job *j = workshare_job(l->workshare, 0);
	bool found;

	for (unsigned i = 0; i < l->n; i++)
		workshare_place(l->workshare, i, nodes[i]);
	workshare_set(j, 1, WORKSHARE_MAX, no_task, NULL);
	workshare_publish(l->workshare, 0, j, node);
	found = workshare_sleep(l->workshare, worker);
	workshare_drain(j);
	workshare_job_put(j);
	workshare_rest(l->workshare, 0);
	return found;
}

static void by_nodes(void **state)
{
	static const int two[] = { 0, 0, 1, 1 }, mixed[] = { 0, -1, 1, 2 };
	struct lab l;

	lab_init(&l, 4, 3);
	/*
	 * owner 0, destination on the owner's node: the other worker of that node helps, those of
	 * the other node do not
	 */
	assert_true(suits(&l, two, 1, 0));
	assert_false(suits(&l, two, 2, 0));
	/* destination on the other node: the workers there help */
	assert_false(suits(&l, two, 1, 1));
	assert_true(suits(&l, two, 3, 1));
	/* no worker on that node, or an unknown node: every worker helps */
	assert_true(suits(&l, two, 1, 2));
	assert_true(suits(&l, two, 2, -1));
	/* the owner itself does not help */
	assert_true(suits(&l, mixed, 2, 0));
	/* a worker that is not pinned */
	assert_true(suits(&l, mixed, 1, 2));
	assert_false(suits(&l, mixed, 2, 2));
	assert_true(suits(&l, mixed, 3, 2));
	lab_deinit(&l);
}

static void placed(void **state)
{
	struct lab l;

	lab_init(&l, 3, 2);
	workshare_place(l.workshare, 1, 0);
	workshare_place(l.workshare, 2, 1);
	l.b.view->nodes_known = true;
	for (unsigned i = 0; i < 3; i++)
		l.b.view->extents[i].node = 1;
	workshare_sleep(l.workshare, 1);
	workshare_sleep(l.workshare, 2);
	submit(&l, 1, BYTES);
	rig_turn(&l.rig);
	assert_false(woken(&l, 1));
	assert_true(woken(&l, 2));
	assert_false(workshare_sleep(l.workshare, 1));
	assert_int_equal(help(&l, 1, 1), 0);
	assert_int_equal(help(&l, 2, 1), WORKSHARE_TASK);
	while (rig_turn(&l.rig))
		;
	lab_deinit(&l);
}

/* --- real workers -------------------------------------------------------------------------------- */

static _Atomic uint32_t *word(struct wrig *r, uint32_t offset)
{
	return (_Atomic uint32_t *)(void *)(r->ring.ring + offset);
}

static void ring_submit(struct wrig *r, uint32_t i)
{
	uint64_t one = 1;

	dmsg_sqe_put(r->ring.ring + r->ring.sq_offset +
			     (i & (r->ring.sq_entries - 1)) * DMSG_SQE_SIZE,
		     &(struct dmsg_sqe){ .user_data = i,
					 .direction = DMSG_DIRECTION_WRITE,
					 .op_count = 1,
					 .local = WRIG_REGION_A,
					 .remote = WRIG_REMOTE_B,
					 .op_length = r->bytes });
	atomic_store(word(r, DMSG_RING_SQ_TAIL), i + 1);
	assert_true(write(r->doorbell, &one, sizeof(one)) == sizeof(one));
}

static struct dmsg_cqe ring_reap(struct wrig *r, uint32_t i)
{
	struct dmsg_cqe e;

	/* a failure shows as a timeout */
	for (int64_t end = dray_now().ns + 20 * DRAY_NS_PER_SEC;
	     atomic_load(word(r, DMSG_RING_CQ_TAIL)) == i;) {
		assert_true(dray_now().ns < end);
		usleep(200);
	}
	dmsg_cqe_get(r->ring.ring + r->ring.cq_offset +
			     (i & (r->ring.cq_entries - 1)) * DMSG_CQE_SIZE,
		     &e);
	atomic_store(word(r, DMSG_RING_CQ_HEAD), i + 1);
	return e;
}

static uint64_t helped(struct wrig *r)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < r->pool.n; i++)
		sum += atomic_load(&worker_counters(r->pool.workers[i])
					    ->v[DRAY_METRIC_LOCAL_HELPED_BYTES_TOTAL]);
	return sum;
}

/* A sleeping worker is woken, helps, and goes to sleep again. */
static void workers_help(void **state)
{
	struct dray_cpus cpus;
	struct wrig r;
	uint32_t i = 0;

	dray_cpus_get(&cpus);
	if (dray_cpus_whole(&cpus) < 2)
		skip();
	wrig_init_workers(&r, 3, 8, 32 * MIB);
	assert_non_null(r.pool.workshare);
	for (int64_t end = dray_now().ns + 20 * DRAY_NS_PER_SEC; !helped(&r); i++) {
		memset(r.a, (int)i + 1, r.bytes);
		ring_submit(&r, i);
		assert_int_equal(ring_reap(&r, i).status, 0);
		assert_memory_equal(r.a, r.b, r.bytes);
		assert_true(dray_now().ns < end);
	}
	wrig_deinit(&r);
}

static void count_gone(void *arg)
{
	++*(volatile unsigned *)arg;
}

/*
 * When every worker has dropped a region, its memory may be unmapped; a late helper would crash
 * this program.
 */
static void workers_drop(void **state)
{
	for (unsigned round = 0; round < 20; round++) {
		volatile unsigned gone = 0;
		struct wrig r;

		wrig_init_workers(&r, 2, 8, 32 * MIB);
		memset(r.a, 1, r.bytes);
		memset(r.b, 2, r.bytes);
		ring_submit(&r, 0);
		while (r.b[0] == 2 && !atomic_load(word(&r, DMSG_RING_CQ_TAIL)))
			usleep(20);
		pool_drop(&r.pool, OBJECT_REGION, WRIG_REGION_B, DRAY_E_REVOKED, round % 2,
			  count_gone, (void *)(uintptr_t)&gone);
		for (unsigned i = 0; !gone; i ^= 1) {
			struct event ev;

			usleep(20);
			while (worker_next_event(r.pool.workers[i], &ev))
				if (ev.type == EVENT_DROPPED)
					pool_handle_dropped(&r.pool, ev.kind, ev.handle);
		}
		assert_int_equal(mprotect(r.b, r.bytes, PROT_NONE), 0);
		wrig_deinit(&r);
	}
}

static void workers_fault(void **state)
{
	for (unsigned round = 0; round < 10; round++) {
		struct wrig r;

		assert_int_equal(fault_init(), 0);
		wrig_init_workers(&r, 2, 8, 32 * MIB);
		memset(r.a, 1, r.bytes);
		memset(r.b, 2, r.bytes);
		assert_int_equal(
			ftruncate(round % 2 ? r.fd_a : r.fd_b, (off_t)(r.bytes * round / 10)), 0);
		ring_submit(&r, 0);
		assert_int_equal(ring_reap(&r, 0).status, DRAY_E_REGION_FAULT);
		assert_int_equal(wrig_event(&r).type, EVENT_SESSION_FAULT);
		wrig_deinit(&r);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(shared_between_both),
		cmocka_unit_test(works_without_helpers),
		cmocka_unit_test(wakes_once_for_a_transfer),
		cmocka_unit_test(the_number_of_helpers_is_limited),
		cmocka_unit_test(faults),
		cmocka_unit_test(stopped),
		cmocka_unit_test(dropped),
		cmocka_unit_test(scattered),
		cmocka_unit_test(by_nodes),
		cmocka_unit_test(placed),
		cmocka_unit_test(workers_help),
		cmocka_unit_test(workers_drop),
		cmocka_unit_test(workers_fault),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
