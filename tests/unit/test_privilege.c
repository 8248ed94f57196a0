/* SPDX-License-Identifier: Apache-2.0 */
/* Dropping capabilities, each time in a child. Without capabilities it succeeds too. */
#include "agent/process/privilege.h"

#include <pthread.h>
#include <stdbool.h>
#include <sys/capability.h>
#include <sys/prctl.h>

#include "lib/cleanup.h"
#include "tests/unit/cm.h"
/* after cmocka, because it uses cmocka's assertions */
#include "tests/unit/child.h"

/* Effective, permitted and inheritable capabilities of this thread, one bit each. */
struct held {
	uint64_t set[3];
};

static struct held held(void)
{
	cap_t now = cap_get_proc();
	struct held h = { { 0 } };

	CHILD_CHECK(now);
	for (cap_value_t c = 0; cap_get_bound(c) >= 0; c++)
		for (unsigned i = 0; i < 3; i++) {
			cap_flag_value_t v;

			CHILD_CHECK(cap_get_flag(now, c, (cap_flag_t)i, &v) == 0);
			h.set[i] |= (uint64_t)(v == CAP_SET) << c;
		}
	cap_free(now);
	return h;
}

#define BIT(cap) (UINT64_C(1) << (cap))

static const uint64_t work = BIT(CAP_IPC_LOCK);
static const uint64_t start = BIT(CAP_IPC_LOCK) | BIT(CAP_CHOWN) | BIT(CAP_DAC_OVERRIDE) |
			      BIT(CAP_DAC_READ_SEARCH) | BIT(CAP_NET_ADMIN) |
			      BIT(CAP_NET_BIND_SERVICE);

static bool is(struct held h, uint64_t expected)
{
	return h.set[CAP_EFFECTIVE] == expected && h.set[CAP_PERMITTED] == expected &&
	       !h.set[CAP_INHERITABLE];
}

static void *drop(void *arg)
{
	privilege_drop();
	*(struct held *)arg = held();
	return NULL;
}

static void do_drop(void *arg)
{
	uint64_t had = held().set[CAP_PERMITTED];
	struct dray_err err = DRAY_ERR_NULL;
	struct held other;
	pthread_t thread;

	CHILD_CHECK(privilege_init(&err) == 0);
	CHILD_CHECK(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1);
	CHILD_CHECK(is(held(), had & start));
	for (cap_value_t c = 0; had & BIT(CAP_SETPCAP) && cap_get_bound(c) >= 0; c++)
		CHILD_CHECK(cap_get_bound(c) == 0);
	/* each thread drops its own */
	CHILD_CHECK(pthread_create(&thread, NULL, drop, &other) == 0);
	CHILD_CHECK(pthread_join(thread, NULL) == 0);
	CHILD_CHECK(is(other, had & work) && is(held(), had & start));
	for (int i = 0; i < 2; i++) {
		privilege_drop();
		CHILD_CHECK(is(held(), had & work));
	}
}

static void test_drop(void **state)
{
	assert_int_equal(child_run(do_drop, NULL), 0);
}

/*
 * A capability in the permitted set only is made effective first, and the ambient set is cleared.
 */
static void do_ambient(void *arg)
{
	static const cap_value_t caps[] = { CAP_IPC_LOCK, CAP_NET_RAW };
	uint64_t had = held().set[CAP_PERMITTED];
	struct dray_err err = DRAY_ERR_NULL;
	cap_t now = cap_get_proc();

	if (!(had & BIT(CAP_IPC_LOCK)) || !(had & BIT(CAP_NET_RAW)))
		return;
	CHILD_CHECK(cap_clear(now) == 0);
	CHILD_CHECK(cap_set_flag(now, CAP_PERMITTED, 2, caps, CAP_SET) == 0);
	CHILD_CHECK(cap_set_flag(now, CAP_INHERITABLE, 2, caps, CAP_SET) == 0);
	CHILD_CHECK(cap_set_proc(now) == 0);
	CHILD_CHECK(cap_set_ambient(CAP_NET_RAW, CAP_SET) == 0);
	cap_free(now);
	CHILD_CHECK(privilege_init(&err) == 0);
	CHILD_CHECK(is(held(), work));
	CHILD_CHECK(cap_get_ambient(CAP_NET_RAW) == 0);
}

static void test_ambient(void **state)
{
	assert_int_equal(child_run(do_ambient, NULL), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_drop),
		cmocka_unit_test(test_ambient),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
