/* SPDX-License-Identifier: Apache-2.0 */
/* Each ring wakes the other side, whether it waits or watches, and needs no answer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "lib/wake.h"
#include "tests/unit/cm.h"

static const uint64_t one = 1;

static void test_wake(void **state)
{
	int fd = dray_wake_new(), copy;
	struct epoll_event ev = { .events = EPOLLIN };
	int loop = epoll_create1(0);

	assert_true(fd >= 0);
	assert_int_equal(epoll_ctl(loop, EPOLL_CTL_ADD, fd, &ev), 0);
	assert_false(dray_wake_clear(fd));
	copy = dup(fd);
	for (int i = 0; i < 3; i++)
		dray_wake(copy);
	assert_int_equal(epoll_wait(loop, &ev, 1, 0), 1);
	assert_true(dray_wake_clear(fd));
	assert_int_equal(epoll_wait(loop, &ev, 1, 0), 0);
	assert_false(dray_wake_clear(fd));
	/* full: another ring neither blocks nor is lost */
	assert_int_equal(eventfd_write(fd, UINT64_MAX - 1), 0);
	dray_wake(fd);
	assert_true(dray_wake_clear(fd));
	close(copy);
	close(fd);
	close(loop);
}

static void test_wait(void **state)
{
	struct epoll_event ev;
	int bell, watch;

	assert_int_equal(dray_doorbell_new(&bell, &watch), 0);
	assert_int_equal(epoll_wait(watch, &ev, 1, 0), 0);
	for (int i = 0; i < 1000; i++) {
		assert_int_equal(write(bell, &one, sizeof(one)), sizeof(one));
		assert_int_equal(epoll_wait(watch, &ev, 1, 0), 1);
		assert_int_equal(epoll_wait(watch, &ev, 1, 0), 0);
	}
	close(bell);
	close(watch);
}

static void test_watched(void **state)
{
	struct epoll_event ev = { .events = EPOLLIN | EPOLLET };
	int bell, watch, outer = epoll_create1(0), outermost = epoll_create1(0);

	assert_int_equal(dray_doorbell_new(&bell, &watch), 0);
	assert_int_equal(epoll_ctl(outer, EPOLL_CTL_ADD, watch, &ev), 0);
	ev.events = EPOLLIN;
	assert_int_equal(epoll_ctl(outermost, EPOLL_CTL_ADD, outer, &ev), 0);
	for (int i = 0; i < 1000; i++) {
		assert_int_equal(write(bell, &one, sizeof(one)), sizeof(one));
		/* as the loop of an engine watches dray_fd() */
		assert_int_equal(epoll_wait(outermost, &ev, 1, 0), 1);
		assert_int_equal(epoll_wait(outer, &ev, 1, 0), 1);
		assert_int_equal(epoll_wait(outer, &ev, 1, 0), 0);
		assert_int_equal(epoll_wait(outermost, &ev, 1, 0), 0);
	}
	/* several rings cause one event */
	for (int i = 0; i < 3; i++)
		assert_int_equal(write(bell, &one, sizeof(one)), sizeof(one));
	assert_int_equal(epoll_wait(outer, &ev, 1, 0), 1);
	assert_int_equal(epoll_wait(outer, &ev, 1, 0), 0);
	close(bell);
	close(watch);
	close(outer);
	close(outermost);
}

static void test_no_descriptors(void **state)
{
	int bell = -7, watch = -7, fds = cm_fds_count(), taken[2];
	struct rlimit former, few;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &former), 0);
	assert_int_equal(dray_doorbell_new(&taken[0], &taken[1]), 0);
	few = former;
	for (int free_ones = 0; free_ones < 2; free_ones++) {
		few.rlim_cur = (rlim_t)taken[1] + 1 + (rlim_t)free_ones;
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
		assert_int_equal(dray_doorbell_new(&bell, &watch), -EMFILE);
		assert_int_equal(bell, -7);
		assert_int_equal(watch, -7);
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &former), 0);
	}
	close(taken[0]);
	close(taken[1]);
	assert_int_equal(cm_fds_count(), fds);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_wake),
		cmocka_unit_test(test_wait),
		cmocka_unit_test(test_watched),
		cmocka_unit_test(test_no_descriptors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
