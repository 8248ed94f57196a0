/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Long lists of operations: the result of two workers equals that of one worker, including the
 * first fault.
 */
#include "agent/data/transfer/xfer_internal.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/fault.h"
#include "agent/data/transfer/workshare.h"
#include "agent/data/transfer/object.h"
#include "agent/data/transfer/ops_read.h"
#include "lib/cleanup.h"
#include "lib/time.h"
#include "tests/unit/cm.h"
#include "tests/unit/core_rig.h"

#define N DMSG_OPS_MAX
#define STRIDE 8192ull
#define LENGTH (N * STRIDE)
#define WIRE_BYTES ((size_t)N * DMSG_OP_SIZE)

static struct {
	struct rig rig;
	struct rig_session session;
	struct object_view view;
	struct object object;
	struct workshare *workshare;
	int fds[2];
	_Atomic bool stop;
	_Atomic unsigned helped;
	pthread_t helper;
	int memory;
	uint8_t *wire;
	struct xfer_op *room, *alone;
} t;

static void *help(void *arg)
{
	bool member = false;
	uint64_t bytes;

	while (!atomic_load(&t.stop))
		if (workshare_help(t.workshare, 1, &member, &bytes) == WORKSHARE_HELPED)
			atomic_fetch_add(&t.helped, 1);
	workshare_leave(t.workshare, &member);
	return arg;
}

static int set_up(void **state)
{
	rig_init(&t.rig);
	rig_session_init(&t.rig, &t.session, 5);
	t.view = (struct object_view){ .length = LENGTH };
	t.object.view = &t.view;
	t.memory = memfd_create("operations", MFD_CLOEXEC);
	assert_true(t.memory >= 0 && ftruncate(t.memory, (off_t)WIRE_BYTES) == 0);
	t.wire = mmap(NULL, WIRE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, t.memory, 0);
	assert_true(t.wire != MAP_FAILED);
	t.room = calloc(N, sizeof(*t.room));
	t.alone = calloc(N, sizeof(*t.alone));
	assert_true(t.room && t.alone);
	assert_int_equal(workshare_new(&t.workshare, 2, 1), 0);
	for (unsigned i = 0; i < 2; i++) {
		t.fds[i] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		assert_int_equal(workshare_join(t.workshare, i, t.fds[i]), 0);
	}
	return pthread_create(&t.helper, NULL, help, NULL);
}

static int tear_down(void **state)
{
	atomic_store(&t.stop, true);
	pthread_join(t.helper, NULL);
	workshare_free(t.workshare);
	close(t.fds[0]);
	close(t.fds[1]);
	close(t.memory);
	munmap(t.wire, WIRE_BYTES);
	free(t.room);
	free(t.alone);
	xfer_session_deinit(&t.session.xs);
	rig_deinit(&t.rig);
	return 0;
}

static void put(uint32_t i, uint64_t local, uint64_t remote, uint64_t length)
{
	dmsg_op_put(t.wire + (size_t)i * DMSG_OP_SIZE, &(struct dmsg_op){ local, remote, length });
}

/* Pages in random order, none adjacent to the next. */
static void list_make(uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		put(i, i * 40503ull % N * STRIDE, i * 30011ull % N * STRIDE, 1 + i % 4096);
}

/* most: operations in one step. */
static int load(struct workshare *workshare, struct xfer_op *room, uint32_t n, uint32_t most,
		struct xfer *ret, struct dray_err *err)
{
	struct xfer_request r = { .ops = t.wire, .n_ops = n };
	struct ops_progress progress = { 0 };
	int done;

	*ret = (struct xfer){
		.session = &t.session.xs, .local = &t.object, .remote = &t.object, .ops = room
	};
	t.rig.core.workshare = workshare;
	do
		done = ops_load(&t.rig.core, ret, &r, &progress, most, err);
	while (!done);
	return done < 0 ? done : 0;
}

/* Reads the list with and without help, at once and in steps, and compares the results. Returns the result. */
static int compare(uint32_t n, uint32_t most)
{
	struct dray_err a = DRAY_ERR_NULL, b = DRAY_ERR_NULL;
	struct xfer x, y;
	int ret = load(t.workshare, t.room, n, most, &x, &a);

	assert_int_equal(load(NULL, t.alone, n, UINT32_MAX, &y, &b), ret);
	assert_int_equal(a.code, b.code);
	assert_string_equal(a.msg, b.msg);
	if (ret < 0)
		return ret;
	assert_int_equal(x.n_ops, y.n_ops);
	assert_int_equal(x.bytes, y.bytes);
	assert_int_equal(x.longest, y.longest);
	assert_memory_equal(t.room, t.alone, x.n_ops * sizeof(*t.room));
	return ret;
}

static int both(uint32_t n)
{
	int ret = compare(n, UINT32_MAX);

	assert_int_equal(compare(n, DMSG_OPS_INLINE_MAX), ret);
	assert_int_equal(compare(n, 5 * OPS_READ_MAX + 3), ret);
	return ret;
}

static void good_lists(void **state)
{
	static const uint32_t lengths[] = {
		N, N - 1, N / 2 + 3, 8 * OPS_READ_MAX, 8 * OPS_READ_MAX - 1, 5
	};

	list_make(N);
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(lengths); i++)
		assert_int_equal(both(lengths[i]), 0);
}

static void another_worker_helps(void **state)
{
	int64_t ends = dray_now().ns + 20 * DRAY_NS_PER_SEC;

	if (!ops_read_many(OPS_READ_MAX))
		skip();
	list_make(N);
	while (!atomic_load(&t.helped)) {
		assert_true(dray_now().ns < ends);
		assert_int_equal(both(N), 0);
	}
}

/* Operations that take longer to move than to read are read by one worker. */
static void large_operations_are_read_by_one_worker(void **state)
{
	unsigned before = atomic_load(&t.helped);

	for (uint32_t i = 0; i < N; i++)
		put(i, i * 40503ull % N * STRIDE, i * 30011ull % N * STRIDE, STRIDE);
	assert_int_equal(both(N), 0);
	assert_int_equal(atomic_load(&t.helped), before);
}

static void one_operation_is_invalid(void **state)
{
	static const uint32_t places[] = {
		0, 1, OPS_READ_MAX - 1, OPS_READ_MAX, 9 * OPS_READ_MAX + 7, N - 1
	};

	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(places); i++) {
		list_make(N);
		put(places[i], 0, 0, 0);
		assert_int_equal(both(N), -ERANGE);
		put(places[i], LENGTH - 1, 0, 2);
		assert_int_equal(both(N), -ERANGE);
		put(places[i], 0, UINT64_MAX, 1);
		assert_int_equal(both(N), -ERANGE);
	}
}

/* Operations that are adjacent on both sides are merged, inside a task and across tasks. */
static void neighbours(void **state)
{
	static const uint32_t places[] = {
		1, OPS_READ_MAX - 1, OPS_READ_MAX, 2 * OPS_READ_MAX, 20 * OPS_READ_MAX, N - 1
	};
	struct dray_err err = DRAY_ERR_NULL;
	struct xfer x;

	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(places); i++) {
		list_make(N);
		put(places[i] - 1, 0, STRIDE, 100);
		put(places[i], 100, STRIDE + 100, 50);
		assert_int_equal(both(N), 0);
		assert_int_equal(load(t.workshare, t.room, N, UINT32_MAX, &x, &err), 0);
		assert_int_equal(x.n_ops, N - 1);
		assert_int_equal(t.room[places[i] - 1].length, 150);
	}
	for (uint32_t i = 0; i < N; i++)
		put(i, i * 16, i * 16, 16);
	assert_int_equal(both(N), 0);
	assert_int_equal(load(t.workshare, t.room, N, UINT32_MAX, &x, &err), 0);
	assert_int_equal(x.n_ops, 1);
}

static void missing_memory(void **state)
{
	unsigned before = t.rig.n_faults;

	/* cmocka has installed its own handler */
	assert_int_equal(fault_init(), 0);
	list_make(N);
	assert_int_equal(ftruncate(t.memory, (off_t)(WIRE_BYTES / 2)), 0);
	assert_int_equal(both(N), -EFAULT);
	assert_int_equal(t.rig.n_faults, before + 6);
	assert_int_equal(ftruncate(t.memory, (off_t)WIRE_BYTES), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(good_lists),
		cmocka_unit_test(another_worker_helps),
		cmocka_unit_test(large_operations_are_read_by_one_worker),
		cmocka_unit_test(one_operation_is_invalid),
		cmocka_unit_test(neighbours),
		cmocka_unit_test(missing_memory),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
