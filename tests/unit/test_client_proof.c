/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libdray: transfers, and batches of the store, without an answer. They end as unconfirmed, and their
 * memory is lent until the agent answers or is proven dead. A child process stands for the agent's
 * process.
 */
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/dray.h"
#include "lib/assert.h"
#include "lib/time.h"
#include "tests/unit/client_rig.h"
#include "tests/unit/cm.h"

/* Longer than any test takes. */
#define NEVER_MS 100000
#define CONFIRM_MS 10
/* The default after a deadline. */
#define DEFAULT_MS 80

#define EVENTS_MAX 5

static struct dray *d;
static struct dray_memory m;
static dray_region region;
static dray_remote remote;

static int setup(void **state)
{
	client_setup(state);
	return 0;
}

static int teardown(void **state)
{
	dray_disconnect(d);
	dray_memory_free(&m);
	client_teardown(state);
	fake_end_process(&client_fake);
	return 0;
}

static void hold(struct fake *f, void *arg)
{
	f->hold_transfers = true;
}

/* A session with an agent that answers no transfer. */
static void begin_with(const struct dray_options *o, bool with_process)
{
	char why[200];

	if (with_process)
		fake_do(&client_fake, fake_new_process, NULL);
	assert_int_equal(dray_connect(o, &d, why, sizeof(why)), 0);
	client_region(d, &region, &m);
	client_remote(d, &remote);
	fake_do(&client_fake, hold, NULL);
}

static void begin(unsigned int flags, unsigned int confirm_ms, bool with_process)
{
	struct dray_options o = client_options();

	o.flags = flags;
	o.confirm_ms = confirm_ms;
	begin_with(&o, with_process);
}

static uint64_t submit(unsigned int deadline_ms)
{
	static const struct dray_op ops[] = { { 0, 0, 8 }, { 64, 64, 8 } };
	struct dray_transfer t = { .local = region,
				   .remote = remote,
				   .direction = DRAY_DIRECTION_READ,
				   .ops = ops,
				   .count = 2,
				   .deadline_ms = deadline_ms };
	uint64_t id;

	assert_int_equal(dray_submit(d, &t, &id), 0);
	return id;
}

static void ends(uint64_t id, int status)
{
	struct dray_completion c;

	assert_int_equal(dray_wait(d, id, NEVER_MS, &c), 0);
	assert_int_equal(c.id, id);
	assert_int_equal(c.status, status);
	assert_int_equal(dray_lent(d, id), status == -DRAY_E_UNCONFIRMED);
}

static void is_confirmed(uint64_t id, int code)
{
	struct dray_event e = client_event(d, DRAY_EVENT_CONFIRMED);

	assert_int_equal(e.id, id);
	assert_int_equal(e.code, code);
	assert_int_equal(dray_lent(d, id), 0);
}

static void answer(struct fake *f, void *arg)
{
	fake_complete(f, *(uint64_t *)arg, 0);
}

static void the_agent_is_silent(unsigned int flags)
{
	struct dray_info info;
	uint64_t id;

	begin(flags, 10, true);
	id = submit(10);
	ends(id, -DRAY_E_UNCONFIRMED);
	/* the agent is continued */
	fake_do(&client_fake, answer, &id);
	is_confirmed(id, 0);
	/* the session goes on, with all of its ring and arena */
	dray_get_info(d, &info);
	assert_true(info.connected);
	assert_int_equal(info.in_flight, 0);
	for (int i = 0; i < 1000; i++) {
		id = submit(NEVER_MS);
		fake_do(&client_fake, answer, &id);
		ends(id, 0);
	}
}

static void an_answer_after_the_deadline(void **state)
{
	the_agent_is_silent(0);
}

static void an_answer_before_the_completion_is_taken(void **state)
{
	struct dray_completion c;
	struct dray_event e;
	uint64_t id;

	begin(0, 1, true);
	id = submit(1);
	assert_int_equal(dray_process(d, NEVER_MS), 1);
	assert_int_equal(dray_lent(d, id), 1);
	fake_do(&client_fake, answer, &id);
	while (dray_lent(d, id))
		dray_process(d, 0);
	assert_int_equal(dray_next_completion(d, &c), 1);
	assert_int_equal(c.status, 0);
	assert_int_equal(dray_next_event(d, &e), 0);
}

static void stop_process(struct fake *f, void *arg)
{
	fake_hang_up(f);
	unlink(f->path);
	kill(f->process, SIGSTOP);
}

static void kill_process(struct fake *f, void *arg)
{
	fake_hang_up(f);
	unlink(f->path);
	fake_end_process(f);
}

static void kill_process_only(struct fake *f, void *arg)
{
	fake_end_process(f);
}

static void a_dead_process_is_proof(void **state)
{
	uint64_t id;

	begin(0, NEVER_MS, true);
	id = submit(0);
	fake_do(&client_fake, kill_process, NULL);
	ends(id, -DRAY_E_AGENT_RESTARTED);
}

static void the_end_of_the_socket_is_no_proof(void **state)
{
	uint64_t id;

	begin(0, 10, true);
	id = submit(0);
	fake_do(&client_fake, stop_process, NULL);
	ends(id, -DRAY_E_UNCONFIRMED);
	assert_int_equal(dray_process(d, 20), 1); /* DRAY_EVENT_LOST */
	client_event(d, DRAY_EVENT_LOST);
	assert_int_equal(dray_lent(d, id), 1);
	fake_do(&client_fake, kill_process, NULL);
	is_confirmed(id, -DRAY_E_AGENT_RESTARTED);
}

/* What the next look at the descriptors does, by --wrap: time passes behind it, and the agent dies. */
static int64_t time_passes_ns;
static bool agent_dies;

int __real_epoll_wait(int fd, struct epoll_event *ev, int max, int timeout_ms);
int __wrap_epoll_wait(int fd, struct epoll_event *ev, int max, int timeout_ms);

int __wrap_epoll_wait(int fd, struct epoll_event *ev, int max, int timeout_ms)
{
	int n = __real_epoll_wait(fd, ev, max, time_passes_ns ? 0 : timeout_ms);
	int64_t until = dray_now().ns + time_passes_ns;

	if (agent_dies)
		fake_do(&client_fake, kill_process_only, NULL);
	while (time_passes_ns && dray_now().ns < until)
		;
	time_passes_ns = 0;
	agent_dies = false;
	return n;
}

static void proof_that_came_while_the_client_did_not_run(void **state)
{
	uint64_t id;

	begin(DRAY_OPTION_NO_RECONNECT, CONFIRM_MS, true);
	id = submit(0);
	fake_do(&client_fake, stop_process, NULL);
	client_event(d, DRAY_EVENT_LOST);
	time_passes_ns = CONFIRM_MS * DRAY_NS_PER_MS;
	agent_dies = true;
	ends(id, -DRAY_E_AGENT_RESTARTED);
}

static void the_default_is_longer_after_a_loss(void **state)
{
	struct dray_completion c;
	int64_t lost;
	uint64_t id;

	begin(DRAY_OPTION_NO_RECONNECT, 0, true);
	id = submit(0);
	lost = dray_now().ns;
	fake_do(&client_fake, stop_process, NULL);
	client_event(d, DRAY_EVENT_LOST);
	time_passes_ns = 2 * DEFAULT_MS * DRAY_NS_PER_MS;
	dray_process(d, 0);
	/* unless this machine has stood still */
	if (dray_now().ns - lost < 10 * DEFAULT_MS * DRAY_NS_PER_MS)
		assert_int_equal(dray_wait(d, id, 0, &c), -DRAY_E_TIMEOUT);
	fake_do(&client_fake, kill_process_only, NULL);
	assert_int_equal(dray_wait(d, id, NEVER_MS, &c), 0);
	assert_true(c.status == -DRAY_E_AGENT_RESTARTED || c.status == -DRAY_E_UNCONFIRMED);
}

static void a_closed_session_still_waits_for_proof(void **state)
{
	uint64_t id;

	begin(DRAY_OPTION_NO_RECONNECT, 10, true);
	id = submit(0);
	fake_do(&client_fake, stop_process, NULL);
	ends(id, -DRAY_E_UNCONFIRMED);
	client_event(d, DRAY_EVENT_LOST);
	client_event(d, DRAY_EVENT_CLOSED);
	assert_int_equal(dray_process(d, 10), 0);
	fake_do(&client_fake, kill_process, NULL);
	is_confirmed(id, -DRAY_E_AGENT_RESTARTED);
	assert_int_equal(dray_process(d, NEVER_MS), -DRAY_E_SESSION_CLOSED);
}

/* A child that the agent forked can keep the socket open. */
static void a_dead_process_with_an_open_socket(void **state)
{
	uint64_t id;

	begin(DRAY_OPTION_NO_RECONNECT, NEVER_MS, true);
	id = submit(0);
	fake_do(&client_fake, kill_process_only, NULL);
	ends(id, -DRAY_E_AGENT_RESTARTED);
}

/* The child shares the epoll instance, and must not remove the pidfd from it. */
static void a_childs_disconnect_changes_nothing(void **state)
{
	uint64_t id;
	pid_t pid;

	begin(DRAY_OPTION_NO_RECONNECT, NEVER_MS, true);
	id = submit(0);
	pid = fork();
	dray_assert(pid >= 0);
	if (!pid) {
		dray_disconnect(d);
		_exit(0);
	}
	waitpid(pid, NULL, 0);
	fake_do(&client_fake, kill_process_only, NULL);
	ends(id, -DRAY_E_AGENT_RESTARTED);
}

static void the_same_agent_closed_the_session(void **state)
{
	uint64_t id;

	begin(0, NEVER_MS, true);
	id = submit(0);
	fake_do(&client_fake, client_close_with_error, NULL);
	ends(id, -DRAY_E_SESSION_CLOSED);
}

static void restart_beside_the_old_process(struct fake *f, void *arg)
{
	fake_hang_up(f);
	f->incarnation++;
	f->process = *(pid_t *)arg;
}

static void another_agent_is_no_proof(void **state)
{
	struct dray_completion c;
	uint64_t id, remove_id;
	pid_t old, mine = getpid();

	begin(0, 1, true);
	old = client_fake.process;
	id = submit(0);
	fake_do(&client_fake, restart_beside_the_old_process, &mine);
	ends(id, -DRAY_E_UNCONFIRMED);
	client_event(d, DRAY_EVENT_LOST);
	client_event(d, DRAY_EVENT_RESTORED);
	assert_int_equal(dray_lent(d, id), 1);
	/* the new agent removes the region, which the old one may still write to */
	assert_int_equal(dray_region_remove_start(d, region, NULL, &remove_id), 0);
	assert_int_equal(dray_wait(d, remove_id, 100, &c), -DRAY_E_TIMEOUT);
	client_fake.process = old;
	fake_end_process(&client_fake);
	assert_int_equal(dray_wait(d, remove_id, NEVER_MS, &c), 0);
	assert_int_equal(c.status, 0);
	is_confirmed(id, -DRAY_E_AGENT_RESTARTED);
}

static void flood(struct fake *f, void *arg)
{
	uint8_t buf[64];

	for (int i = 0; i < 20; i++)
		fake_send(f,
			  dmsg_draining_encode(buf, sizeof(buf), 0, &(struct dmsg_draining){ 1 }),
			  buf);
}

/* The next session has no answer for a transfer of an earlier one, so it is not read beyond the limit for that. */
static void events_are_held_back_beside_a_transfer_of_an_earlier_session(void **state)
{
	struct dray_options o = client_options();
	pid_t old, mine = getpid();
	struct dray_info info;
	uint64_t id;

	o.confirm_ms = 1;
	o.events_max = EVENTS_MAX;
	begin_with(&o, true);
	old = client_fake.process;
	id = submit(0);
	fake_do(&client_fake, restart_beside_the_old_process, &mine);
	ends(id, -DRAY_E_UNCONFIRMED);
	client_event(d, DRAY_EVENT_LOST);
	client_event(d, DRAY_EVENT_RESTORED);
	client_fake.process = old; /* a failure ends this one, not the test */
	fake_do(&client_fake, flood, NULL);
	assert_int_equal(dray_process(d, 5000), EVENTS_MAX);
	assert_int_equal(dray_process(d, 0), EVENTS_MAX);
	fake_end_process(&client_fake);
	while (dray_lent(d, id))
		dray_process(d, 0);
	dray_get_info(d, &info);
	assert_int_equal(info.events, EVENTS_MAX + 1);
	for (int i = 0; i < 20; i++)
		client_event(d, i == EVENTS_MAX ? DRAY_EVENT_CONFIRMED : DRAY_EVENT_DRAINING);
}

/* Agents of data protocol 1.2 have no pidfd: the next session shows who is there. */
static void an_agent_without_pidfd(void **state)
{
	uint64_t id;

	begin(0, NEVER_MS, false);
	id = submit(0);
	fake_do(&client_fake, client_restart, NULL);
	ends(id, -DRAY_E_AGENT_RESTARTED);
}

static void hang_up_for_good(struct fake *f, void *arg)
{
	fake_hang_up(f);
	unlink(f->path);
}

static void an_agent_without_pidfd_stays_away(void **state)
{
	uint64_t id;

	begin(0, 10, false);
	id = submit(0);
	fake_do(&client_fake, hang_up_for_good, NULL);
	ends(id, -DRAY_E_UNCONFIRMED);
}

static uint32_t batches;

static bool hold_batches(struct fake *f, const struct dmsg_header *h, const uint8_t *body,
			 struct dray_fds *fds)
{
	bool held = h->type == DMSG_STORE_GET || h->type == DMSG_STORE_PUT;

	__atomic_fetch_add(&batches, held, __ATOMIC_RELAXED);
	return held;
}

static void hook_batches(struct fake *f, void *arg)
{
	f->hook = hold_batches;
	batches = 0;
}

static uint64_t start_batch(enum dray_store_operation operation)
{
	static const struct dray_store_range range = { .offset = 64, .length = 8 };
	static const struct dray_store_item item = {
		.key = "k", .key_length = 1, .ranges = &range, .ranges_n = 1
	};
	struct dray_store_batch b = { .region = region, .items = &item, .items_n = 1 };
	uint64_t id;

	assert_int_equal(dray_store_start(d, operation, &b, NULL, &id), 0);
	return id;
}

/* A session with an agent that answers no batch of the store, which has one of each kind. */
static void begin_batches(unsigned int confirm_ms, uint64_t ids[2])
{
	begin(0, confirm_ms, true);
	fake_do(&client_fake, hook_batches, NULL);
	ids[0] = start_batch(DRAY_STORE_GET);
	ids[1] = start_batch(DRAY_STORE_PUT);
}

static void batches_end_with_the_process(void **state)
{
	uint64_t ids[2];

	begin_batches(NEVER_MS, ids);
	fake_do(&client_fake, kill_process, NULL);
	ends(ids[0], -DRAY_E_AGENT_RESTARTED);
	ends(ids[1], -DRAY_E_AGENT_RESTARTED);
}

static void batches_end_when_the_agent_has_closed_the_session(void **state)
{
	uint64_t ids[2];

	begin_batches(NEVER_MS, ids);
	fake_do(&client_fake, client_close_with_error, NULL);
	ends(ids[0], -DRAY_E_SESSION_CLOSED);
	ends(ids[1], -DRAY_E_SESSION_CLOSED);
}

static void send_nonsense(struct fake *f, void *arg)
{
	static const uint8_t nonsense[DMSG_HEADER_SIZE];

	fake_send(f, sizeof(nonsense), nonsense);
}

/* The client has broken the session. The agent lives, and may be copying: its next session is no proof. */
static void batches_of_a_broken_session_stay_lent(void **state)
{
	struct dray_completion c;
	uint64_t ids[2], remove_id;

	begin_batches(1, ids);
	fake_do(&client_fake, send_nonsense, NULL);
	ends(ids[0], -DRAY_E_UNCONFIRMED);
	ends(ids[1], -DRAY_E_UNCONFIRMED);
	client_event(d, DRAY_EVENT_LOST);
	client_event(d, DRAY_EVENT_RESTORED);
	assert_int_equal(dray_lent(d, ids[0]), 1);
	assert_int_equal(dray_lent(d, ids[1]), 1);
	assert_int_equal(dray_region_remove_start(d, region, NULL, &remove_id), 0);
	assert_int_equal(dray_wait(d, remove_id, 20, &c), -DRAY_E_TIMEOUT);
	fake_do(&client_fake, kill_process, NULL);
	assert_int_equal(dray_wait(d, remove_id, NEVER_MS, &c), 0);
	is_confirmed(ids[0], -DRAY_E_PROTOCOL);
	is_confirmed(ids[1], -DRAY_E_PROTOCOL);
}

/* A batch that waits for a session lends nothing: it is sent in the next one. */
static void a_batch_that_was_not_sent_waits(void **state)
{
	uint32_t seen = 0;
	uint64_t id;

	begin(0, 1, true);
	fake_do(&client_fake, hook_batches, NULL);
	fake_do(&client_fake, client_hang_up, NULL);
	client_event(d, DRAY_EVENT_LOST);
	id = start_batch(DRAY_STORE_GET);
	client_event(d, DRAY_EVENT_RESTORED);
	while (!seen) {
		dray_process(d, 0);
		seen = __atomic_load_n(&batches, __ATOMIC_RELAXED);
	}
	assert_int_equal(seen, 1);
	fake_do(&client_fake, kill_process, NULL);
	ends(id, -DRAY_E_AGENT_RESTARTED);
}

static void each_of_many_ends_once(void **state)
{
	enum { N = 200 };
	struct dray_completion c;
	struct dray_event e;
	uint64_t ids[N];
	int unconfirmed = 0, confirmed = 0, left = 0;

	begin(0, 1, true);
	for (int i = 0; i < N; i++)
		ids[i] = submit(i % 2 ? 1 : 0);
	for (int i = 1; i < N; i += 2)
		ends(ids[i], -DRAY_E_UNCONFIRMED);
	fake_do(&client_fake, stop_process, NULL);
	for (int i = 0; i < N; i += 2)
		ends(ids[i], -DRAY_E_UNCONFIRMED);
	fake_do(&client_fake, kill_process, NULL);
	while (confirmed < N) {
		assert_true(dray_process(d, NEVER_MS) > 0);
		while (dray_next_event(d, &e) > 0)
			confirmed += e.type == DRAY_EVENT_CONFIRMED;
	}
	for (int i = 0; i < N; i++) {
		unconfirmed += dray_lent(d, ids[i]);
		left += dray_wait(d, ids[i], 0, &c) != -DRAY_E_NOT_FOUND;
	}
	assert_int_equal(confirmed, N);
	assert_int_equal(unconfirmed, 0);
	assert_int_equal(left, 0);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(an_answer_after_the_deadline),
		TEST(an_answer_before_the_completion_is_taken),
		TEST(a_dead_process_is_proof),
		TEST(the_end_of_the_socket_is_no_proof),
		TEST(proof_that_came_while_the_client_did_not_run),
		TEST(the_default_is_longer_after_a_loss),
		TEST(a_closed_session_still_waits_for_proof),
		TEST(a_dead_process_with_an_open_socket),
		TEST(a_childs_disconnect_changes_nothing),
		TEST(the_same_agent_closed_the_session),
		TEST(another_agent_is_no_proof),
		TEST(events_are_held_back_beside_a_transfer_of_an_earlier_session),
		TEST(an_agent_without_pidfd),
		TEST(an_agent_without_pidfd_stays_away),
		TEST(batches_end_with_the_process),
		TEST(batches_end_when_the_agent_has_closed_the_session),
		TEST(batches_of_a_broken_session_stay_lent),
		TEST(a_batch_that_was_not_sent_waits),
		TEST(each_of_many_ends_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
