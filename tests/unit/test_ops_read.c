/* SPDX-License-Identifier: Apache-2.0 */
/* Operations checked in groups: a group is accepted exactly if each operation alone is. */
#include "agent/data/transfer/ops_read.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/fault.h"
#include "lib/cleanup.h"
#include "tests/unit/cm.h"

#define NEAR (1ull << 40)
#define FAR ((1ull << 40) - 4096)

static struct xfer_op good(uint64_t i)
{
	return (struct xfer_op){ i * 12289, FAR - (i + 1) * 8192, 1 + i * 7919 % 8192 };
}

/* Checks operations one by one, with integers that hold every sum. */
static bool want(const struct xfer_op *ops, uint32_t n, const struct ops_bounds *b,
		 struct ops_seen *ret)
{
	uint64_t near_end = b->local_end, far_end = b->remote_end;

	*ret = (struct ops_seen){ 0 };
	for (uint32_t i = 0; i < n; i++) {
		unsigned __int128 near = ops[i].local, far = ops[i].remote, bytes = ops[i].length;

		if (!bytes || near + bytes > b->local_length || far + bytes > b->remote_length ||
		    (near == near_end && far == far_end))
			return false;
		near_end = ops[i].local + ops[i].length;
		far_end = ops[i].remote + ops[i].length;
		ret->bytes += ops[i].length;
		ret->longest = dray_max(ret->longest, ops[i].length);
	}
	return true;
}

static void check(const struct xfer_op *ops, uint32_t n, const struct ops_bounds *b)
{
	struct xfer_op got[OPS_READ_MAX];
	uint8_t wire[OPS_READ_MAX * DMSG_OP_SIZE + 1] = { 0 };
	struct ops_seen seen, wanted;
	bool is_good = want(ops, n, b, &wanted);
	int ret;

	memset(got, 0, sizeof(got));
	for (uint32_t i = 0; i < n; i++)
		dmsg_op_put(wire + 1 + (size_t)i * DMSG_OP_SIZE,
			    &(struct dmsg_op){ ops[i].local, ops[i].remote, ops[i].length });
	ret = ops_read(got, wire + 1, n, b, &seen);
	assert_int_equal(ret, is_good);
	assert_memory_equal(got, ops, n * sizeof(*ops));
	if (!is_good)
		return;
	assert_int_equal(seen.bytes, wanted.bytes);
	assert_int_equal(seen.longest, wanted.longest);
}

static void one_operation_is_invalid(void **state)
{
	static const uint64_t odd[] = { 0,
					1,
					4096,
					NEAR,
					FAR,
					FAR + 1,
					1ull << 52,
					1ull << 62,
					(1ull << 62) - 1,
					1ull << 63,
					UINT64_MAX,
					(1ull << 63) - 1,
					NEAR + 1,
					UINT64_MAX - 4095 };
	const struct ops_bounds b = { NEAR, FAR, UINT64_MAX, UINT64_MAX };
	struct xfer_op ops[32];

	if (!ops_read_many(32))
		skip();
	for (uint32_t at = 0; at < 32; at++)
		for (unsigned k = 0; k < 3 * DRAY_ARRAY_SIZE(odd) * DRAY_ARRAY_SIZE(odd); k++) {
			uint64_t *const fields[] = { &ops[at].local, &ops[at].remote,
						     &ops[at].length };

			for (uint32_t i = 0; i < 32; i++)
				ops[i] = good(i);
			*fields[k % 3] = odd[k / 3 % DRAY_ARRAY_SIZE(odd)];
			*fields[(k + 1) % 3] = odd[k / 3 / DRAY_ARRAY_SIZE(odd)];
			check(ops, 32, &b);
		}
}

/* An operation may end at the last byte of a side but not beyond, for any length of the side. */
static void at_the_end(void **state)
{
	static const uint64_t lengths[] = { 16, 4096, FAR, 1ull << 52, 1ull << 63, UINT64_MAX };

	if (!ops_read_many(16))
		skip();
	for (unsigned k = 0; k < 16 * DRAY_ARRAY_SIZE(lengths) * 2; k++) {
		uint64_t length = lengths[k / 32];
		struct ops_bounds b = { length, length, UINT64_MAX, UINT64_MAX };
		struct xfer_op ops[16];

		for (uint32_t i = 0; i < 16; i++)
			ops[i] = (struct xfer_op){ i, 15 - i, 1 };
		for (unsigned over = 0; over < 2; over++) {
			uint64_t *side = k % 2 ? &ops[k / 2 % 16].local : &ops[k / 2 % 16].remote;

			*side = length - 1 + over;
			/* operations of this size are checked one by one */
			if (length < 1ull << 52 || over)
				check(ops, 16, &b);
		}
	}
}

static void joins(void **state)
{
	struct ops_bounds b = { NEAR, FAR, UINT64_MAX, UINT64_MAX };
	struct xfer_op ops[20];

	if (!ops_read_many(20))
		skip();
	for (uint32_t at = 0; at < 20; at++)
		for (unsigned which = 1; which <= 3; which++) {
			for (uint32_t i = 0; i < 20; i++)
				ops[i] = good(i);
			if (!at) {
				b.local_end = which & 1 ? ops[0].local : 5;
				b.remote_end = which & 2 ? ops[0].remote : 5;
			} else {
				b.local_end = b.remote_end = UINT64_MAX;
				if (which & 1)
					ops[at].local = ops[at - 1].local + ops[at - 1].length;
				if (which & 2)
					ops[at].remote = ops[at - 1].remote + ops[at - 1].length;
			}
			check(ops, 20, &b);
		}
}

static void lengths(void **state)
{
	const struct ops_bounds b = { NEAR, FAR, UINT64_MAX, UINT64_MAX };
	struct xfer_op ops[OPS_READ_MAX];

	for (uint32_t n = 0; n <= OPS_READ_MAX; n++) {
		uint32_t many = ops_read_many(n);

		assert_true(many <= n);
		for (uint32_t i = 0; i < many; i++)
			ops[i] = good(i * n + i);
		if (many)
			check(ops, many, &b);
	}
}

static void missing_memory(void **state)
{
	const struct ops_bounds b = { NEAR, FAR, UINT64_MAX, UINT64_MAX };
	int fd dray_auto_close = memfd_create("ops", MFD_CLOEXEC);
	struct xfer_op ops[OPS_READ_MAX];
	struct ops_seen seen;
	uint8_t *p;

	assert_int_equal(fault_init(), 0);
	assert_int_equal(ftruncate(fd, 4096), 0);
	p = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_true(p != MAP_FAILED);
	if (ops_read_many(16)) {
		assert_int_equal(ops_read(ops, p + 4096 - 16 * DMSG_OP_SIZE, 16, &b, &seen), 0);
		assert_int_equal(ops_read(ops, p + 4096 - 15 * DMSG_OP_SIZE, 16, &b, &seen),
				 -EFAULT);
	}
	munmap(p, 8192);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_operation_is_invalid),
		cmocka_unit_test(at_the_end),
		cmocka_unit_test(joins),
		cmocka_unit_test(lengths),
		cmocka_unit_test(missing_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
