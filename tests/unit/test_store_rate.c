/* SPDX-License-Identifier: Apache-2.0 */
/* The rates of a disk are learned from its requests, whatever else happens between them. */
#include "agent/store/disk/rate.h"
#include "tests/unit/cm.h"

#define THREADS 4u
#define MIB (1ull << 20)
#define MS DRAY_NS_PER_MS

struct rig {
	struct rate reads, writes;
	int64_t now_ns;
};

static struct rig rig_new(void)
{
	return (struct rig){ .reads.threads = THREADS, .writes.threads = THREADS, .now_ns = 5 };
}

/* THREADS requests at once, of so many bytes each, which take so long. */
static void round_of(struct rig *r, uint64_t bytes, int64_t ns)
{
	for (unsigned i = 0; i < THREADS; i++)
		rate_begin(&r->reads, &r->writes, r->now_ns);
	r->now_ns += ns;
	for (unsigned i = 0; i < THREADS; i++)
		rate_end(&r->reads, &r->writes, r->now_ns, bytes);
}

static void rounds(struct rig *r, unsigned n, uint64_t bytes, int64_t ns)
{
	while (n--)
		round_of(r, bytes, ns);
}

static void is_about(uint64_t value, uint64_t rate)
{
	assert_in_range(value, rate - rate / 50, rate + rate / 50);
}

static void test_busy_disk(void **state)
{
	struct rig r = rig_new();

	rounds(&r, 4, MIB, 10 * MS);
	assert_int_equal(r.reads.value, 0);
	rounds(&r, 11, MIB, 10 * MS);
	is_about(r.reads.value, 400 * MIB);
	assert_int_equal(r.writes.value, 0);
}

static void test_slow_disk(void **state)
{
	struct rig r = rig_new();

	rounds(&r, 4, 4096, 100 * MS);
	is_about(r.reads.value, 40 * 4096);
}

/* Between the requests nothing is asked of the disk for a long time. */
static void test_idle_periods(void **state)
{
	struct rig r = rig_new();

	for (unsigned i = 0; i < 20; i++) {
		round_of(&r, MIB, 10 * MS);
		r.now_ns += 3600 * DRAY_NS_PER_SEC;
	}
	is_about(r.reads.value, 400 * MIB);
}

/* One request after the other measures what one thread gets, not the disk. */
static void test_lone_requests(void **state)
{
	struct rig r = rig_new();

	for (unsigned i = 0; i < 100; i++) {
		rate_begin(&r.reads, &r.writes, r.now_ns);
		r.now_ns += 10 * MS;
		rate_end(&r.reads, &r.writes, r.now_ns, MIB);
	}
	assert_int_equal(r.reads.value, 0);
}

/* A cache of the device takes some windows a hundred times as fast; then the disk has become slower for good. */
static void test_bursts(void **state)
{
	struct rig r = rig_new();

	rounds(&r, 5 * RATE_WINDOWS, MIB, 10 * MS);
	rounds(&r, 5 * (RATE_WINDOWS / 2), 100 * MIB, 10 * MS);
	is_about(r.reads.value, 400 * MIB);
	rounds(&r, 5 * RATE_WINDOWS, MIB / 4, 10 * MS);
	is_about(r.reads.value, 100 * MIB);
}

/* Requests that fail at once do not make the disk fast, and those that hang do not make it slow. */
static void test_failures(void **state)
{
	struct rig r = rig_new();

	rounds(&r, 15, MIB, 10 * MS);
	rounds(&r, 100, 0, MS / 100);
	rounds(&r, 1, 0, 100 * DRAY_NS_PER_SEC);
	is_about(r.reads.value, 400 * MIB);
	rounds(&r, 15, MIB, 10 * MS);
	is_about(r.reads.value, 400 * MIB);
}

/* Beside writes, reads have a part of the disk. That counts until they have it alone. */
static void test_both_kinds(void **state)
{
	struct rig r = rig_new();

	for (unsigned i = 0; i < 10; i++) {
		rate_begin(&r.writes, &r.reads, r.now_ns);
		round_of(&r, MIB, 20 * MS);
		rate_pass(&r.reads, &r.writes, r.now_ns);
		rate_end(&r.writes, &r.reads, r.now_ns, MIB);
	}
	is_about(r.reads.value, 200 * MIB);
	rounds(&r, 15, MIB, 10 * MS);
	is_about(r.reads.value, 400 * MIB);
	rate_begin(&r.writes, &r.reads, r.now_ns);
	rounds(&r, 100, MIB, 20 * MS);
	is_about(r.reads.value, 400 * MIB);
}

/* What was remembered holds until the disk was measured, and is not replaced by a part of the disk. */
static void test_remembered(void **state)
{
	struct rig r = rig_new();

	r.reads.value = 300 * MIB;
	rate_begin(&r.writes, &r.reads, r.now_ns);
	rounds(&r, 10, MIB, 20 * MS);
	assert_int_equal(r.reads.value, 300 * MIB);
	rate_pass(&r.reads, &r.writes, r.now_ns);
	rate_end(&r.writes, &r.reads, r.now_ns, MIB);
	rounds(&r, 15, MIB, 10 * MS);
	is_about(r.reads.value, 400 * MIB);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_busy_disk),    cmocka_unit_test(test_slow_disk),
		cmocka_unit_test(test_idle_periods), cmocka_unit_test(test_lone_requests),
		cmocka_unit_test(test_bursts),       cmocka_unit_test(test_failures),
		cmocka_unit_test(test_both_kinds),   cmocka_unit_test(test_remembered),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
