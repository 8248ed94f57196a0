/* SPDX-License-Identifier: Apache-2.0 */
/* Work in bounded parts, beside other sources of the loop. */
#include "agent/process/turn_work.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include "tests/unit/cm.h"

struct rig {
	sd_event *event;
	struct turn_work work;
	unsigned left, parts, others;
};

static int do_part(struct rig *r)
{
	r->parts++;
	while (r->left && turn_work_has_room(&r->work)) {
		r->left--;
		r->work.done++;
	}
	if (r->left)
		turn_work_go_on(&r->work);
	return 0;
}

static int on_turn(sd_event_source *s, uint64_t usec, void *arg)
{
	return do_part(arg);
}

static int on_other(sd_event_source *s, int fd, uint32_t events, void *arg)
{
	((struct rig *)arg)->others++;
	return 0;
}

/* A source that is always ready gets every other turn while there is work. */
static void test_others_go_on(void **state)
{
	struct rig r = { .left = 50 * 4 };
	int fd = eventfd(1, EFD_CLOEXEC);

	assert_true(sd_event_new(&r.event) >= 0);
	assert_int_equal(turn_work_init(&r.work, r.event, 4, on_turn, &r), 0);
	assert_true(sd_event_run(r.event, 0) >= 0);
	assert_int_equal(r.parts, 0);
	assert_true(sd_event_add_io(r.event, NULL, fd, EPOLLIN, on_other, &r) >= 0);
	turn_work_go_on(&r.work);
	for (unsigned turns = 0; r.left; turns++) {
		assert_true(turns < 200);
		assert_true(sd_event_run(r.event, UINT64_MAX) > 0);
		assert_in_range(r.others + 2, r.parts, r.parts + 4);
	}
	assert_int_equal(r.parts, 50);
	turn_work_deinit(&r.work);
	sd_event_unref(r.event);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_others_go_on),
	};

	return cmocka_run_group_tests_name("turn_work", tests, NULL, NULL);
}
