/* SPDX-License-Identifier: Apache-2.0 */
/* Segments that clients of an owner name and where no agent has proved the key. */
#include <stdio.h>

#include "agent/control/peer/reach.h"
#include "lib/time.h"
#include "tests/unit/cm.h"

#define MAX 8

static struct reaches reaches;

static int setup(void **state)
{
	reaches_init(&reaches);
	return 0;
}

static int teardown(void **state)
{
	reaches_deinit(&reaches);
	return 0;
}

static enum reach_result take(uint32_t uid, unsigned port, int64_t now_ns)
{
	struct peer_client client = peer_client_of("default", 7, uid);
	char segment[32];

	snprintf(segment, sizeof(segment), "10.0.0.1:%u", port);
	return reach_take(&reaches, &client, segment, MAX, now_ns);
}

static void a_uid_has_a_number_of_places(void **state)
{
	for (unsigned i = 0; i < MAX; i++)
		assert_int_equal(take(1, 7000 + i, i), REACH_OK);
	assert_int_equal(take(1, 8000, MAX), REACH_FULL);
	/* a segment that has its place, and another uid */
	assert_int_equal(take(1, 7000, MAX), REACH_OK);
	assert_int_equal(take(2, 8000, MAX), REACH_OK);
	/* a place is free again a minute after the last attempt */
	assert_int_equal(take(1, 8000, REACH_NS), REACH_FULL);
	assert_int_equal(take(1, 8000, REACH_NS + 1), REACH_OK);
	assert_int_equal(take(1, 8001, REACH_NS + 1), REACH_FULL);
}

static void a_proof_frees_the_places_of_all_uids(void **state)
{
	for (uint32_t uid = 1; uid <= 3; uid++)
		for (unsigned i = 0; i < MAX; i++)
			assert_int_equal(take(uid, 7000 + i, 0), REACH_OK);
	reach_proved(&reaches, "10.0.0.1:7003");
	reach_proved(&reaches, "10.0.0.1:9999");
	for (uint32_t uid = 1; uid <= 3; uid++) {
		assert_int_equal(take(uid, 8000, 0), REACH_OK);
		assert_int_equal(take(uid, 8001, 0), REACH_FULL);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_uid_has_a_number_of_places, setup, teardown),
		cmocka_unit_test_setup_teardown(a_proof_frees_the_places_of_all_uids, setup,
						teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
