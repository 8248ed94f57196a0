/* SPDX-License-Identifier: Apache-2.0 */
/* Queue pairs and memory of engines with Mooncake linked in, on simulated verbs. */
#include "tests/unit/rails_fixture.h"

#define ADDRESS 0x700000000000ull

static struct {
	unsigned n, n_buffers;
	char refused[80];
	uint32_t qpn;
	uint64_t address, length;
	uint32_t key;
} got;

static int guests_setup(void **state)
{
	static char listen[] = "10.0.0.1:15000";

	memset(&got, 0, sizeof(got));
	setup(state);
	lab->cfg.mooncake.listen = listen;
	lab->cfg.mooncake.protocol = DRAY_CONFIG_MOONCAKE_PROTOCOL_RDMA;
	lab->cfg.mooncake.queue_pairs = 8;
	lab->cfg.mooncake.probe_interval = 3600ll * 1000000000;
	see(1, 1, 0);
	UNTIL(IS(0, "up"));
	assert_int_equal(dev.pds, 2);
	return 0;
}

static void answered(void *arg, const struct rails_guest_reply *reply)
{
	(void)arg;
	got.n++;
	snprintf(got.refused, sizeof(got.refused), "%s", reply->refused ? reply->refused : "");
	got.qpn = reply->n ? reply->qpn[0] : 0;
}

static uint64_t ask(const char *from, const char *path, unsigned n, uint32_t qpn)
{
	struct rails_guest_request want = { .device = "dev0", .n = n };

	assert_int_equal(dray_addr_parse(from, &want.from), 0);
	snprintf(want.path, sizeof(want.path), "%s", path);
	for (unsigned i = 0; i < n; i++)
		want.qpn[i] = qpn + i;
	return rails_guest_connect(lab->rails, &want, answered, NULL);
}

static void buffer(void *arg, uint64_t address, uint64_t length, const uint32_t *keys, unsigned n)
{
	(void)arg;
	assert_int_equal(n, 1);
	got.n_buffers++;
	got.address = address;
	got.length = length;
	got.key = keys[0];
}

static unsigned buffers(void)
{
	got.n_buffers = 0;
	rails_guest_buffers(lab->rails, buffer, NULL);
	return got.n_buffers;
}

static void add_range(dray_handle grant, dray_handle region, uint64_t offset, uint64_t length,
		      uint16_t access)
{
	rails_guest_range_add(lab->rails,
			      &(struct grant_view){
				      .o = { .handle = grant, .length = length, .access = access },
				      .peer = MOONCAKE_PEER,
				      .region = region,
				      .offset = offset,
				      .mooncake = ADDRESS,
			      });
}

static bool ready(void)
{
	return rails_guest_ready(lab->rails);
}

/* An export has memory regions of its own with its access, at its address, which end before its owner hears of the end. */
static void test_range(void **state)
{
	struct region_view *v =
		view_new(REGION(1), 0x10000000, 1 << 20, DMSG_ACCESS_READ | DMSG_ACCESS_WRITE);
	uint64_t changes = rails_guest_changes(lab->rails);
	int before;

	(void)state;
	rails_region_add(lab->rails, v, NULL);
	UNTIL(dev.registered == 1);
	before = dev.mrs;
	add_range(5, REGION(1), 4096, 8192, DMSG_ACCESS_READ);
	assert_false(ready());
	assert_int_equal(buffers(), 0);
	UNTIL(ready());
	assert_int_equal(dev.mrs, before + 1);
	assert_int_equal(dev.last_access & (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE),
			 IBV_ACCESS_REMOTE_READ);
	assert_int_equal(buffers(), 1);
	assert_int_equal(got.address, ADDRESS);
	assert_int_equal(got.length, 8192);
	assert_int_equal(got.key, dev.next_key + 1000);
	assert_true(rails_guest_changes(lab->rails) != changes);
	rails_guest_range_end(lab->rails, 5);
	assert_int_equal(buffers(), 0);
	assert_int_equal(lab->ended, 0);
	UNTIL(lab->ended == 5);
	assert_int_equal(dev.mrs, before);
	/* one that is not known has ended */
	rails_guest_range_end(lab->rails, 6);
	assert_int_equal(lab->ended, 6);
	remove_region(v);
}

/* A range ends while it is being registered; another one cannot be registered, and is not offered. */
static void test_range_fails(void **state)
{
	struct region_view *v = view_new(REGION(1), 0x10000000, 1 << 20, DMSG_ACCESS_READ);

	(void)state;
	rails_region_add(lab->rails, v, NULL);
	UNTIL(dev.registered == 1);
	add_range(5, REGION(1), 0, 8192, DMSG_ACCESS_READ);
	rails_guest_range_end(lab->rails, 5);
	UNTIL(lab->ended == 5);
	dev.reg_error = -ENOMEM;
	add_range(6, REGION(1), 0, 8192, DMSG_ACCESS_READ);
	UNTIL(ready());
	assert_int_equal(buffers(), 0);
	rails_guest_range_end(lab->rails, 6);
	UNTIL(lab->ended == 6);
	add_range(7, REGION(9), 0, 8192, DMSG_ACCESS_READ);
	rails_guest_range_end(lab->rails, 7);
	assert_int_equal(lab->ended, 7);
	dev.reg_error = 0;
	remove_region(v);
}

/* What the device does not give up stays lent until its context is closed, which the agent does. Then the device is opened again. */
static void test_range_stuck(void **state)
{
	struct region_view *v = view_new(REGION(1), 0x10000000, 1 << 20, DMSG_ACCESS_READ);
	unsigned said = lab->n_told;

	(void)state;
	rails_region_add(lab->rails, v, NULL);
	UNTIL(dev.registered == 1);
	add_range(5, REGION(1), 0, 8192, DMSG_ACCESS_READ);
	UNTIL(ready());
	dev.dereg_error = EIO;
	rails_guest_range_end(lab->rails, 5);
	UNTIL(dev.n_stuck);
	dev.dereg_error = 0;
	UNTIL(!IS(0, "up"));
	assert_int_equal(lab->ended, 0);
	UNTIL((let_go(&said), lab->ended == 5));
	assert_int_equal(dev.closed_in_use, 0);
	UNTIL((let_go(&said), IS(0, "up")));
	remove_region(v);
}

static void test_connect(void **state)
{
	unsigned said = lab->n_told;

	(void)state;
	assert_int_not_equal(ask("10.0.0.9:1", "a@x", 2, 100), 0);
	UNTIL(got.n == 1);
	assert_string_equal(got.refused, "");
	assert_int_equal(got.qpn, 17);
	assert_int_equal(dev.qps, 2);
	/* the same again gets others: the guest may have reset its own, and these have served */
	assert_int_not_equal(ask("10.0.0.9:2", "a@x", 2, 100), 0);
	UNTIL(got.n == 2 && metric(DRAY_METRIC_MOONCAKE_QUEUE_PAIRS) == 2);
	assert_string_equal(got.refused, "");
	assert_int_equal(dev.qps, 2);
	/* the name at another address is another guest; with other queue pairs it replaces its own */
	ask("10.0.0.8:1", "a@x", 2, 100);
	UNTIL(got.n == 3);
	ask("10.0.0.9:3", "a@x", 2, 200);
	UNTIL(got.n == 4 && dev.qps == 4);
	assert_string_equal(got.refused, "");
	/* 10.0.0.9 has two, and may have two more of four */
	ask("10.0.0.9:3", "b@x", 3, 300);
	assert_int_equal(got.n, 5);
	assert_non_null(strstr(got.refused, "mooncake.queue_pairs"));
	assert_int_equal(metric(DRAY_METRIC_MOONCAKE_QUEUE_PAIRS_REFUSED_TOTAL), 1);
	see(0, 0, 0);
	UNTIL((let_go(&said), dev.qps == 0 && dev.contexts == 0));
	assert_int_equal(metric(DRAY_METRIC_MOONCAKE_QUEUE_PAIRS), 0);
	assert_int_equal(metric(DRAY_METRIC_MOONCAKE_QUEUE_PAIRS_LOST_TOTAL), 4);
}

static void test_connect_fails(void **state)
{
	uint64_t id;

	(void)state;
	dev.modify_error = -EINVAL;
	ask("10.0.0.9:1", "a@x", 2, 100);
	UNTIL(got.n == 1 && dev.qps == 0);
	assert_string_not_equal(got.refused, "");
	dev.modify_error = 0;
	id = ask("10.0.0.9:1", "a@x", 2, 100);
	rails_guest_forget(lab->rails, id);
	UNTIL(dev.qps == 0 && !metric(DRAY_METRIC_MOONCAKE_QUEUE_PAIRS));
	assert_int_equal(got.n, 1);
	ask("10.0.0.9:1", "a@x", 2, 100);
	rails_guests_end(lab->rails, NULL, NULL, "the test ends them");
	UNTIL(got.n == 2 && dev.qps == 0);
	assert_string_not_equal(got.refused, "");
}

/* Queue pairs that the device does not destroy count as there until its context is closed, which the agent does. */
static void test_queue_pairs_stuck(void **state)
{
	unsigned said = lab->n_told;

	(void)state;
	ask("10.0.0.9:1", "a@x", 2, 100);
	UNTIL(got.n == 1);
	dev.n_to_stick = 2;
	rails_guests_end(lab->rails, NULL, NULL, "the test ends them");
	UNTIL(dev.n_stuck_qps == 2);
	UNTIL(!IS(0, "up"));
	assert_int_equal(metric(DRAY_METRIC_MOONCAKE_QUEUE_PAIRS), 2);
	UNTIL((let_go(&said), !metric(DRAY_METRIC_MOONCAKE_QUEUE_PAIRS)));
	assert_int_equal(dev.qps, 0);
	UNTIL((let_go(&said), IS(0, "up")));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, guests_setup, teardown)

int main(void)
{
	static const struct CMUnitTest tests[] = {
		TEST(test_range),   TEST(test_range_fails),   TEST(test_range_stuck),
		TEST(test_connect), TEST(test_connect_fails), TEST(test_queue_pairs_stuck),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
