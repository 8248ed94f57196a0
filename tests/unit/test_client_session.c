/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libdray: opening, losing and restoring a session, with its regions, tokens, remotes and events.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/client_rig.h"
#include "tests/unit/cm.h"

static void opening_gives_the_sessions_properties(void **state)
{
	int fds = cm_fds_count();
	struct dray *d = client_connect(0);
	struct dray_info info;

	assert_int_equal(dray_get_info(d, &info), 0);
	assert_true(info.connected);
	assert_int_equal(info.session, 7);
	assert_int_equal(info.incarnation, 1);
	assert_int_equal(info.agent_id[3], 0xa9);
	assert_string_equal(info.segment, "127.0.0.1:7411");
	assert_string_equal(info.version, "fake");
	assert_int_equal(info.ring_entries, 256);
	assert_int_equal(info.arena_bytes, 4 << 20);
	assert_true(client_fake.last_hello_flags & DMSG_HELLO_FLAG_PIDFD);
	assert_int_equal(dray_process(d, 0), 0);
	dray_disconnect(d);
	dray_disconnect(NULL);
	/* the fake has its own end, and closes it when the client's end is closed */
	assert_int_equal(fake_count(&client_fake, DMSG_HELLO), 1);
	fake_do(&client_fake, client_hang_up, NULL);
	assert_int_equal(cm_fds_count(), fds);
}

/* A program that was built before the struct had its last field. */
static void options_may_end_before_the_gpu(void **state)
{
	const size_t old = offsetof(struct dray_options, gpu), page = (size_t)sysconf(_SC_PAGESIZE);
	struct dray_options o = client_options();
	uint8_t *p =
		mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct dray *d;
	void *short_one;

	assert_true(p != MAP_FAILED);
	assert_int_equal(mprotect(p + page, page, PROT_NONE), 0);
	short_one = memcpy(p + page - old, &o, old);
	assert_int_equal(dray_connect(short_one, &d, NULL, 0), 0);
	dray_disconnect(d);
	munmap(p, 2 * page);
}

static bool refuse_hello(struct fake *f, const struct dmsg_header *h, const uint8_t *body,
			 struct dray_fds *fds)
{
	fake_send_error(f, h->request_id, DRAY_E_QUOTA, "limits.sessions is 1");
	fake_hang_up(f);
	return true;
}

static bool say_nothing(struct fake *f, const struct dmsg_header *h, const uint8_t *body,
			struct dray_fds *fds)
{
	return true;
}

static void refuses_to_open(void **state)
{
	int fds = cm_fds_count();
	struct dray_options o = client_options();
	struct dray *d = NULL;
	char why[200], long_name[66];

	o.socket = "/nonexistent/sock";
	assert_int_equal(dray_connect(&o, &d, why, sizeof(why)), -DRAY_E_PEER_UNREACHABLE);
	assert_non_null(strstr(why, "/nonexistent/sock"));
	assert_int_equal(dray_connect(&o, &d, NULL, 0), -DRAY_E_PEER_UNREACHABLE);
	o = client_options();
	memset(long_name, 'x', 65);
	long_name[65] = '\0';
	o.name = long_name;
	assert_int_equal(dray_connect(&o, &d, why, sizeof(why)), -DRAY_E_TOO_LARGE);
	o = client_options();
	o.ring_entries = 3;
	assert_int_equal(dray_connect(&o, &d, why, sizeof(why)), -DRAY_E_INVALID);
	o = client_options();
	o.flags = 1u << 20;
	assert_int_equal(dray_connect(&o, &d, why, sizeof(why)), -DRAY_E_UNSUPPORTED);
	o = client_options();
	client_fake.hook = refuse_hello;
	assert_int_equal(dray_connect(&o, &d, why, sizeof(why)), -DRAY_E_QUOTA);
	assert_string_equal(why, "limits.sessions is 1");
	client_fake.hook = say_nothing;
	o.connect_ms = 50;
	assert_int_equal(dray_connect(&o, &d, why, sizeof(why)), -DRAY_E_TIMEOUT);
	assert_null(d);
	fake_do(&client_fake, client_hang_up, NULL);
	assert_int_equal(cm_fds_count(), fds);
}

static void waits_for_an_agent(void **state)
{
	struct dray_options o = client_options();
	struct dray *d = NULL;

	o.flags = DRAY_OPTION_WAIT;
	o.socket = "/nonexistent/sock";
	o.connect_ms = 50;
	assert_int_equal(dray_connect(&o, &d, NULL, 0), -DRAY_E_PEER_UNREACHABLE);
}

static void connects_in_the_background(void **state)
{
	struct dray_options o = client_options();
	struct dray_region_info info;
	struct dray_completion c;
	struct dray_event e;
	struct dray_memory m;
	struct dray *d = NULL;
	dray_region region;
	char why[200];
	uint64_t id;

	client_fake.hook = say_nothing;
	assert_int_equal(dray_connect_start(&o, &d, why, sizeof(why)), 0);
	assert_int_equal(dray_process(d, 0), 0);
	assert_int_equal(dray_memory_alloc(65536, 0, &m), 0);
	assert_int_equal(dray_region_add_start(d,
					       &(struct dray_region_spec){ .access = DRAY_READ,
									   .pool_bytes = 4096 },
					       NULL, &id),
			 0);
	dray_disconnect(d);
	fake_do(&client_fake, client_hang_up, NULL);
	client_fake.hook = NULL;
	assert_int_equal(dray_connect_start(&o, &d, why, sizeof(why)), 0);
	assert_int_equal(dray_region_add_start(d,
					       &(struct dray_region_spec){ .access = DRAY_READ,
									   .pool_bytes = 4096 },
					       &o, &id),
			 0);
	client_event(d, DRAY_EVENT_CONNECTED);
	assert_int_equal(dray_wait(d, id, -1, &c), 0);
	assert_int_equal(c.status, 0);
	assert_ptr_equal(c.arg, &o);
	region = c.region;
	assert_int_equal(dray_region_get_info(d, region, &info), 0);
	assert_int_equal(info.length, 4096);
	assert_int_equal(info.access, DRAY_READ);
	assert_int_equal(info.lost, 0);
	assert_true(info.agent_region);
	dray_disconnect(d);
	dray_memory_free(&m);
	/* without an agent, and then with one */
	o.socket = "/nonexistent/sock";
	assert_int_equal(dray_connect_start(&o, &d, why, sizeof(why)), 0);
	e = client_event(d, DRAY_EVENT_CLOSED);
	assert_int_equal(e.code, -DRAY_E_PEER_UNREACHABLE);
	assert_non_null(strstr(e.message, "/nonexistent/sock"));
	assert_int_equal(dray_process(d, -1), -DRAY_E_SESSION_CLOSED);
	dray_disconnect(d);
	o.flags = DRAY_OPTION_WAIT;
	o.reconnect_for_ms = 20;
	assert_int_equal(dray_connect_start(&o, &d, why, sizeof(why)), 0);
	e = client_event(d, DRAY_EVENT_CLOSED);
	assert_int_equal(e.code, -DRAY_E_PEER_UNREACHABLE);
	dray_disconnect(d);
	o.ring_entries = 3;
	assert_int_equal(dray_connect_start(&o, &d, why, sizeof(why)), -DRAY_E_INVALID);
	assert_non_null(strstr(why, "ring_entries is 3"));
}

static bool refuse_ring(struct fake *f, const struct dmsg_header *h, const uint8_t *body,
			struct dray_fds *fds)
{
	if (h->type != DMSG_RING_OPEN)
		return false;
	fake_send_error(f, h->request_id, DRAY_E_QUOTA, "no ring for you");
	return true;
}

static void works_without_ring(void **state)
{
	struct dray_info info;
	struct dray *d;

	client_fake.hook = refuse_ring;
	d = client_connect(0);
	dray_get_info(d, &info);
	assert_true(info.connected);
	assert_int_equal(info.ring_entries, 0);
	assert_int_equal(info.arena_bytes, 0);
	assert_string_equal(info.no_ring, "no ring for you");
	assert_int_equal(fake_count(&client_fake, DMSG_RING_OPEN),
			 2); /* the second one for an arena alone */
	dray_disconnect(d);
}

static void a_session_survives_a_restart(void **state)
{
	struct dray *d = client_connect(0);
	struct dray_event e;
	struct dray_memory m;
	struct dray_token t;
	dray_region region, pool;
	dray_remote remote;
	struct dray_remote_info info;
	uint64_t bytes, before, after;
	void *address, *again;

	client_region(d, &region, &m);
	assert_int_equal(dray_region_add_pool(d, 8192, DRAY_READ | DRAY_WRITE, 0, &pool), 0);
	assert_int_equal(dray_region_map(d, pool, &address, &bytes, NULL), 0);
	assert_int_equal(bytes, 8192);
	memcpy(address, "still here", 11);
	client_remote(d, &remote);
	assert_int_equal(dray_region_export(d, region, NULL, &t), 0);
	before = agent_region(d, region);
	fake_do(&client_fake, client_restart, NULL);
	e = client_event(d, DRAY_EVENT_LOST);
	assert_int_equal(e.code, -DRAY_E_AGENT_RESTARTED);
	e = client_event(d, DRAY_EVENT_RESTORED);
	assert_int_equal(e.restarted, 1);
	/* the pool is back as the client's own memory, at the same address */
	assert_int_equal(fake_count(&client_fake, DMSG_REGION_ADD), 4);
	assert_int_equal(client_fake.last_extents[0].kind, DMSG_KIND_MEMFD);
	assert_int_equal(dray_region_map(d, pool, &again, &bytes, NULL), 0);
	assert_ptr_equal(again, address);
	assert_string_equal(again, "still here");
	after = agent_region(d, region);
	assert_true(after != before);
	/* objects of the old agent are invalid */
	assert_int_equal(dray_region_revoke(d, region, &t), -DRAY_E_NOT_FOUND);
	assert_int_equal(dray_remote_get_info(d, remote, &info), 0);
	assert_int_equal(info.lost, -DRAY_E_AGENT_RESTARTED);
	assert_int_equal(dray_notify(d, remote, 1, NULL, 0), -DRAY_E_AGENT_RESTARTED);
	assert_int_equal(dray_remote_release(d, remote), 0);
	assert_int_equal(fake_count(&client_fake, DMSG_REMOTE_RELEASE), 0);
	assert_int_equal(dray_region_remove(d, region), 0);
	assert_int_equal(dray_region_remove(d, pool), 0);
	dray_memory_free(&m);
	dray_disconnect(d);
}

/*
 * A submission tries to restore a lost session and may succeed. A program that polls must notice
 * that.
 */
static void submitting_finds_the_session(void **state)
{
	struct dray *d = client_connect(0);
	struct dray_op op = { 0, 0, 64 };
	struct dray_transfer t = { .direction = DRAY_DIRECTION_WRITE, .ops = &op, .count = 1 };
	struct pollfd p = { dray_fd(d), POLLIN, 0 };
	struct dray_memory m;

	client_region(d, &t.local, &m);
	client_remote(d, &t.remote);
	fake_do(&client_fake, client_restart, NULL);
	client_event(d, DRAY_EVENT_LOST);
	while (dray_submit(d, &t, NULL) == -DRAY_E_SESSION_CLOSED)
		assert_int_equal(poll(&p, 1, 5000), 1);
	assert_int_equal(poll(&p, 1, 5000), 1);
	assert_int_equal(dray_process(d, 0), 1);
	client_event(d, DRAY_EVENT_RESTORED);
	dray_memory_free(&m);
	dray_disconnect(d);
}

static void an_agent_closes_with_a_reason(void **state)
{
	struct dray *d = client_connect(0);
	struct dray_event e;

	fake_do(&client_fake, client_close_with_error, NULL);
	e = client_event(d, DRAY_EVENT_LOST);
	assert_int_equal(e.code, -DRAY_E_SESSION_CLOSED);
	assert_string_equal(e.message, "a page is gone");
	e = client_event(d, DRAY_EVENT_RESTORED);
	assert_int_equal(e.restarted, 0);
	dray_disconnect(d);
}

static void no_reconnect_means_closed(void **state)
{
	struct dray *d = client_connect(DRAY_OPTION_NO_RECONNECT);
	struct dray_memory m;
	struct dray_event e;
	dray_region region;
	struct pollfd p = { dray_fd(d), POLLIN, 0 };

	client_region(d, &region, &m);
	fake_do(&client_fake, client_restart, NULL);
	assert_int_equal(poll(&p, 1, 5000), 1);
	client_event(d, DRAY_EVENT_LOST);
	e = client_event(d, DRAY_EVENT_CLOSED);
	assert_int_equal(e.code, -DRAY_E_AGENT_RESTARTED);
	assert_int_equal(dray_process(d, 0), -DRAY_E_SESSION_CLOSED);
	assert_int_equal(dray_process(d, -1), -DRAY_E_SESSION_CLOSED);
	/* the library can no longer prove that the memory is unused */
	assert_int_equal(dray_region_remove(d, region), -DRAY_E_AGENT_RESTARTED);
	assert_int_equal(dray_region_add_memory(d, &m, DRAY_READ, &region), -DRAY_E_SESSION_CLOSED);
	dray_memory_free(&m);
	dray_disconnect(d);
}

static void gives_up_in_time(void **state)
{
	struct dray_options o = client_options();
	struct dray *d = NULL;

	o.reconnect_for_ms = 30;
	assert_int_equal(dray_connect(&o, &d, NULL, 0), 0);
	unlink(client_fake.path);
	fake_do(&client_fake, client_restart, NULL);
	client_event(d, DRAY_EVENT_LOST);
	client_event(d, DRAY_EVENT_CLOSED);
	dray_disconnect(d);
}

static void requests_end_without_an_agent(void **state)
{
	struct dray_options o = client_options();
	struct dray *d = NULL;
	dray_region region;

	o.patience_ms = 1;
	o.reconnect_min_ms = o.reconnect_max_ms = 3600 * 1000;
	assert_int_equal(dray_connect(&o, &d, NULL, 0), 0);
	unlink(client_fake.path);
	fake_do(&client_fake, client_restart, NULL);
	client_event(d, DRAY_EVENT_LOST);
	/* each request starts an attempt, although the next one is due in an hour */
	for (int i = 0; i < 3; i++) {
		assert_int_equal(dray_region_add_pool(d, 4096, DRAY_READ, 0, &region),
				 -DRAY_E_PEER_UNREACHABLE);
		assert_non_null(strstr(dray_last_error(d), client_fake.path));
	}
	dray_disconnect(d);
}

static bool swallow_remove(struct fake *f, const struct dmsg_header *h, const uint8_t *body,
			   struct dray_fds *fds)
{
	return h->type == DMSG_REGION_REMOVE || h->type == DMSG_REGION_REVOKE;
}

/*
 * A removal in flight: a new incarnation proves that the old agent is dead, the same incarnation
 * does not.
 */
static void a_dead_agent_proves_a_removal(void **state)
{
	struct dray *d = client_connect(0);
	struct dray_completion c;
	struct dray_memory m;
	dray_region a, b;
	uint64_t id;

	client_region(d, &a, &m);
	assert_int_equal(dray_region_add_memory(d, &m, DRAY_READ, &b), 0);
	client_fake.hook = swallow_remove;
	assert_int_equal(dray_region_remove_start(d, a, &id, &id), 0);
	assert_int_equal(dray_wait(d, id, 20, &c), -DRAY_E_TIMEOUT);
	fake_do(&client_fake, client_restart, NULL);
	assert_int_equal(dray_wait(d, id, 5000, &c), 0);
	assert_int_equal(c.status, 0);
	assert_int_equal(c.request, DRAY_REQUEST_REGION_REMOVE);
	assert_ptr_equal(c.arg, &id);
	client_event(d, DRAY_EVENT_LOST);
	client_event(d, DRAY_EVENT_RESTORED);
	assert_int_equal(dray_region_remove_start(d, b, NULL, &id), 0);
	assert_int_equal(dray_wait(d, id, 20, &c), -DRAY_E_TIMEOUT);
	fake_do(&client_fake, client_close_with_error, NULL);
	assert_int_equal(dray_wait(d, id, 5000, &c), 0);
	assert_int_equal(c.status, -DRAY_E_SESSION_CLOSED);
	/* neither region was registered again */
	client_event(d, DRAY_EVENT_LOST);
	client_event(d, DRAY_EVENT_RESTORED);
	assert_int_equal(fake_count(&client_fake, DMSG_REGION_ADD), 3);
	dray_memory_free(&m);
	dray_disconnect(d);
}

/* How the agent ends, what replaces it, and whether that proves that the old agent is dead. */
static const struct passing {
	bool says_why, other_incarnation, other_id;
	int status;
} passings[] = {
	{ false, true, false, 0 },
	{ false, true, true, 0 },
	{ true, true, false, 0 },
	{ true, true, true, -DRAY_E_SESSION_CLOSED },
	{ true, false, false, -DRAY_E_SESSION_CLOSED },
	{ false, false, false, -DRAY_E_AGENT_RESTARTED },
};

static void pass(struct fake *f, void *arg)
{
	const struct passing *p = arg;

	if (p->says_why)
		fake_send_error(f, 0, DRAY_E_DRAINING, "drained");
	fake_hang_up(f);
	f->incarnation += p->other_incarnation;
	f->agent_id += p->other_id;
}

static void only_a_dead_agent_is_a_proof(void **state)
{
	struct dray *d = client_connect(0);
	struct dray_memory m;

	assert_int_equal(dray_memory_alloc(4096, 0, &m), 0);
	client_fake.hook = swallow_remove;
	for (size_t i = 0; i < sizeof(passings) / sizeof(passings[0]); i++) {
		struct passing p = passings[i];
		struct dray_completion c;
		dray_region region;
		uint64_t id;

		assert_int_equal(dray_region_add_memory(d, &m, DRAY_READ, &region), 0);
		assert_int_equal(dray_region_remove_start(d, region, NULL, &id), 0);
		fake_do(&client_fake, pass, &p);
		assert_int_equal(dray_wait(d, id, 5000, &c), 0);
		assert_int_equal(c.status, p.status);
		client_event(d, DRAY_EVENT_LOST);
		client_event(d, DRAY_EVENT_RESTORED);
	}
	dray_memory_free(&m);
	dray_disconnect(d);
}

static bool refuse_regions(struct fake *f, const struct dmsg_header *h, const uint8_t *body,
			   struct dray_fds *fds)
{
	if (h->type != DMSG_REGION_ADD)
		return false;
	fake_send_error(f, h->request_id, DRAY_E_QUOTA, "no regions today");
	return true;
}

static void a_region_that_cannot_be_restored(void **state)
{
	struct dray *d = client_connect(0);
	struct dray_memory m;
	struct dray_event e;
	struct dray_token t;
	dray_region region;

	client_region(d, &region, &m);
	client_fake.hook = refuse_regions;
	fake_do(&client_fake, client_restart, NULL);
	client_event(d, DRAY_EVENT_LOST);
	e = client_event(d, DRAY_EVENT_REGION_LOST);
	assert_int_equal(e.region.id, region.id);
	assert_int_equal(e.code, -DRAY_E_QUOTA);
	assert_string_equal(e.message, "no regions today");
	client_event(d, DRAY_EVENT_RESTORED);
	assert_int_equal(dray_region_export(d, region, NULL, &t), -DRAY_E_QUOTA);
	assert_int_equal(dray_region_add_memory(d, &m, DRAY_READ, &region), -DRAY_E_QUOTA);
	assert_string_equal(dray_last_error(d), "no regions today");
	dray_memory_free(&m);
	dray_disconnect(d);
}

static void a_child_cannot_use_the_session(void **state)
{
	struct dray *d = client_connect(0);
	struct dray_completion c;
	struct dray_info info;
	struct dray_event e;
	dray_remote remote;
	dray_region region;
	int status;
	pid_t pid = fork();

	if (!pid) {
		struct dray_transfer t = { 0 };
		int bad = 0;

		bad += dray_process(d, 0) != -DRAY_E_OUT_OF_ORDER;
		bad += dray_poll(d) != -DRAY_E_OUT_OF_ORDER;
		bad += dray_fd(d) != -DRAY_E_OUT_OF_ORDER;
		bad += dray_submit(d, &t, NULL) != -DRAY_E_OUT_OF_ORDER;
		bad += dray_run(d, &t, NULL) != -DRAY_E_OUT_OF_ORDER;
		bad += dray_wait(d, 1, 0, &c) != -DRAY_E_OUT_OF_ORDER;
		bad += dray_next_event(d, &e) != -DRAY_E_OUT_OF_ORDER;
		bad += dray_next_completion(d, &c) != -DRAY_E_OUT_OF_ORDER;
		bad += dray_get_info(d, &info) != -DRAY_E_OUT_OF_ORDER;
		bad += dray_region_add_pool(d, 4096, 1, 0, &region) != -DRAY_E_OUT_OF_ORDER;
		bad += dray_region_borrow(d, 1, &region) != -DRAY_E_OUT_OF_ORDER;
		dray_disconnect(d);
		_exit(bad);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	/* the parent's session continues */
	client_remote(d, &remote);
	dray_disconnect(d);
}

/*
 * The child keeps the socket open: after the loss of the session, epoll in the parent must not
 * report it for ever.
 */
static void child_keeps_the_socket(void **state)
{
	struct dray *d = client_connect(0);
	struct pollfd p = { dray_fd(d), POLLIN, 0 };
	dray_remote remote;
	int status;
	pid_t pid = fork();

	if (!pid) {
		/* only the library's descriptors, not the fake's */
		close(client_fake.conn);
		close(client_fake.completion_fd);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		pause();
		_exit(0);
	}
	fake_do(&client_fake, client_restart, NULL);
	client_event(d, DRAY_EVENT_LOST);
	client_event(d, DRAY_EVENT_RESTORED);
	assert_int_equal(dray_process(d, 0), 0);
	assert_int_equal(poll(&p, 1, 50), 0);
	client_remote(d, &remote);
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	dray_disconnect(d);
}

static void requests_wait_for_the_session(void **state)
{
	struct dray *d = client_connect(0);
	struct dray_memory m;
	dray_remote remote;
	dray_region region;

	client_region(d, &region, &m);
	for (int i = 0; i < 20; i++) {
		fake_do(&client_fake, client_restart, NULL);
		/*
		 * without dray_process(): the call succeeds, whether the client has noticed the
		 * loss yet or not
		 */
		if (i % 2)
			dray_process(d, 0);
		{
			struct dray_token t;
			int error;

			assert_int_equal(dray_token_from_bytes("token", 5, &t), 0);
			error = dray_remote_import(d, &t, 0, &remote);
			if (error == -DRAY_E_AGENT_RESTARTED)
				error = dray_remote_import(d, &t, 0, &remote);
			assert_int_equal(error, 0);
		}
	}
	dray_memory_free(&m);
	dray_disconnect(d);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, client_setup, client_teardown)

/* An agent of an earlier version would store the objects itself. */
static void puts_at_other_agents_need_an_agent_that_knows_them(void **state)
{
	const struct dray_store_range range = { .length = 1 };
	const struct dray_store_item item = {
		.key = "k", .key_length = 1, .ranges = &range, .ranges_n = 1
	};
	struct dray_store_batch b = { .items = &item, .items_n = 1, .at = "10.0.0.1:1" };
	struct dray *d = client_connect(0);
	struct dray_store_result result;
	struct dray_memory m;

	client_region(d, &b.region, &m);
	assert_int_equal(dray_store(d, DRAY_STORE_PUT, &b, &result), -DRAY_E_UNSUPPORTED);
	assert_non_null(strstr(dray_last_error(d), "too old to put objects at other agents"));
	assert_int_equal(result.status, DRAY_STORE_NOT_TRIED);
	dray_disconnect(d);
	dray_memory_free(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(opening_gives_the_sessions_properties),
		TEST(options_may_end_before_the_gpu),
		TEST(refuses_to_open),
		TEST(waits_for_an_agent),
		TEST(connects_in_the_background),
		TEST(works_without_ring),
		TEST(a_session_survives_a_restart),
		TEST(submitting_finds_the_session),
		TEST(an_agent_closes_with_a_reason),
		TEST(no_reconnect_means_closed),
		TEST(gives_up_in_time),
		TEST(requests_end_without_an_agent),
		TEST(puts_at_other_agents_need_an_agent_that_knows_them),
		TEST(a_dead_agent_proves_a_removal),
		TEST(only_a_dead_agent_is_a_proof),
		TEST(a_region_that_cannot_be_restored),
		TEST(a_child_cannot_use_the_session),
		TEST(child_keeps_the_socket),
		TEST(requests_wait_for_the_session),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
