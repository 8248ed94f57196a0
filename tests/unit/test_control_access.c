/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/bus/internal.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/unit/cm.h"

static void changes_need_permission(void **state)
{
	struct access_rules rules = { .owner = geteuid() };
	struct bus_client who;
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	assert_int_equal(bus_client_get(pair[0], &rules, &who), 0);
	assert_int_equal(who.uid, geteuid());
	assert_int_equal(who.gid, getegid());
	assert_int_equal(who.pid, getpid());
	assert_true(who.may_change);

	rules.owner = geteuid() + 1;
	assert_int_equal(bus_client_get(pair[0], &rules, &who), 0);
	assert_int_equal(who.may_change, geteuid() == 0);
	rules.has_group = true;
	rules.group = getegid();
	assert_int_equal(bus_client_get(pair[0], &rules, &who), 0);
	assert_true(who.may_change);
	rules.group = 3999999999u;
	assert_int_equal(bus_client_get(pair[0], &rules, &who), 0);
	assert_int_equal(who.may_change, geteuid() == 0);
	close(pair[0]);
	close(pair[1]);
	assert_int_equal(bus_client_get(-1, &rules, &who), -EBADF);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(changes_need_permission) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
