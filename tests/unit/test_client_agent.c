/* SPDX-License-Identifier: Apache-2.0 */
/* libdray with a real agent, and with two for bytes over TCP. Skipped if drayd was not built. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/dray.h"
#include "tests/unit/cm.h"

#define MIB (1u << 20)

static char drayd[512];

struct agent {
	char dir[CM_DIR_BYTES], socket[128];
	pid_t pid;
};

static void agent_start(struct agent *a)
{
	char state[128], control[128];

	snprintf(a->socket, sizeof(a->socket), "%s/data.sock", a->dir);
	snprintf(state, sizeof(state), "%s/state", a->dir);
	snprintf(control, sizeof(control), "%s/control.sock", a->dir);
	a->pid = fork();
	assert_true(a->pid >= 0);
	if (a->pid)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	execl(drayd, "drayd", "--socket", a->socket, "--state-dir", state, "--control", control,
	      "--listen", "127.0.0.1:0", "--log-level", "error", "--set", "peer.heartbeat=100ms",
	      "--set", "http.listen=none", (char *)NULL);
	_exit(127);
}

static void agent_kill(struct agent *a, int signal)
{
	int status;

	if (a->pid <= 0)
		return;
	kill(a->pid, signal);
	waitpid(a->pid, &status, 0);
	a->pid = 0;
}

static struct dray *client(const struct agent *a, const char *group, unsigned int flags)
{
	struct dray_options o = { .socket = a->socket,
				  .group = group,
				  .name = "test",
				  .flags = flags | DRAY_OPTION_WAIT,
				  .reconnect_max_ms = 50,
				  .connect_ms = 20000 };
	struct dray *d = NULL;
	char why[256] = "";
	int error = dray_connect(&o, &d, why, sizeof(why));

	if (error)
		print_error("%s: %s\n", dray_strerrorname(error), why);
	assert_int_equal(error, 0);
	return d;
}

static struct agent agents[2];

static int setup(void **state)
{
	for (int i = 0; i < 2; i++) {
		cm_dir_make(agents[i].dir);
		agent_start(&agents[i]);
	}
	return 0;
}

static int teardown(void **state)
{
	for (int i = 0; i < 2; i++) {
		agent_kill(&agents[i], SIGKILL);
		cm_dir_remove(agents[i].dir);
	}
	return 0;
}

/* Owner and importer, each with a region. */
struct pair {
	struct dray *owner, *user;
	struct dray_memory from, to;
	dray_region theirs, ours;
	dray_remote remote;
	struct dray_token token;
};

static void ok(const struct dray *d, int error)
{
	if (error)
		print_error("%s: %s\n", dray_strerrorname(error), dray_last_error(d));
	assert_int_equal(error, 0);
}

static void pair_make(struct pair *p, const struct agent *owner, const struct agent *user,
		      unsigned int flags)
{
	memset(p, 0, sizeof(*p));
	p->owner = client(owner, "a", DRAY_OPTION_NOTIFICATIONS);
	p->user = client(user, "b", flags);
	assert_int_equal(dray_memory_alloc(16 * MIB, 0, &p->from), 0);
	assert_int_equal(dray_memory_alloc(16 * MIB, 0, &p->to), 0);
	for (size_t i = 0; i < p->from.length / 4; i++)
		((uint32_t *)p->from.address)[i] = (uint32_t)i * 2654435761u;
	ok(p->owner,
	   dray_region_add_memory(p->owner, &p->from, DRAY_READ | DRAY_WRITE, &p->theirs));
	ok(p->user, dray_region_add_memory(p->user, &p->to, DRAY_READ | DRAY_WRITE, &p->ours));
	ok(p->owner, dray_region_export(p->owner, p->theirs, NULL, &p->token));
	ok(p->user, dray_remote_import(p->user, &p->token, 0, &p->remote));
}

static void pair_end(struct pair *p)
{
	dray_disconnect(p->owner);
	dray_disconnect(p->user);
	dray_memory_free(&p->from);
	dray_memory_free(&p->to);
}

static struct dray_transfer pull(const struct pair *p, const struct dray_op *ops, size_t n)
{
	return (struct dray_transfer){ .direction = DRAY_DIRECTION_READ,
				       .local = p->ours,
				       .remote = p->remote,
				       .ops = ops,
				       .count = n,
				       .deadline_ms = 20000 };
}

static struct dray_event event(struct dray *d, enum dray_event_type type)
{
	struct dray_event e;

	while (dray_next_event(d, &e) != 1)
		assert_true(dray_process(d, 20000) > 0);
	assert_int_equal(e.type, type);
	return e;
}

/* Moves blocks of an odd size in reverse order, in one transfer. */
static void scattered(struct pair *p, unsigned transport)
{
	enum { N = 4500, SIZE = 1009 };
	struct dray_op *ops = calloc(N, sizeof(*ops));
	struct dray_completion c;
	struct dray_transfer t = pull(p, ops, N);

	for (size_t i = 0; i < N; i++)
		ops[i] = (struct dray_op){ i * SIZE, (N - 1 - i) * SIZE, SIZE };
	memset(p->to.address, 0, p->to.length);
	ok(p->user, dray_run(p->user, &t, &c));
	assert_int_equal(c.bytes, N * SIZE);
	assert_int_equal(c.transport, transport);
	for (size_t i = 0; i < N; i++)
		assert_memory_equal((char *)p->to.address + i * SIZE,
				    (char *)p->from.address + (N - 1 - i) * SIZE, SIZE);
	free(ops);
}

/* More operations than one submission takes. */
static void a_long_list(struct pair *p)
{
	enum { N = 500000 };
	struct dray_op *ops = calloc(N, sizeof(*ops));
	struct dray_completion c;
	struct dray_transfer t = pull(p, ops, N);

	for (size_t i = 0; i < N; i++)
		ops[i] = (struct dray_op){ i * 8, (N - 1 - i) * 8, 8 };
	memset(p->to.address, 0, p->to.length);
	ok(p->user, dray_run(p->user, &t, &c));
	assert_int_equal(c.bytes, N * 8);
	for (size_t i = 0; i < N; i++)
		assert_int_equal(((uint64_t *)p->to.address)[i],
				 ((uint64_t *)p->from.address)[N - 1 - i]);
	free(ops);
}

static void all_at_once(struct pair *p)
{
	struct dray_op op = { 0, 0, 16 * MIB };
	struct dray_completion c;
	struct dray_transfer t = pull(p, &op, 1);

	memset(p->to.address, 0, p->to.length);
	ok(p->user, dray_run(p->user, &t, &c));
	assert_int_equal(c.bytes, 16 * MIB);
	assert_memory_equal(p->to.address, p->from.address, 16 * MIB);
}

static void push_with_notification(struct pair *p)
{
	struct dray_op op = { 0, 4096, 8192 };
	struct dray_transfer t = pull(p, &op, 1);
	struct dray_event e;

	t.direction = DRAY_DIRECTION_WRITE;
	t.notify = 1;
	t.tag = 77;
	t.payload = "it is there";
	t.payload_length = 11;
	memset(p->to.address, 0x42, 8192);
	ok(p->user, dray_run(p->user, &t, NULL));
	e = event(p->owner, DRAY_EVENT_NOTIFICATION);
	assert_int_equal(e.tag, 77);
	assert_int_equal(e.region.id, p->theirs.id);
	assert_int_equal(e.length, 11);
	assert_memory_equal(e.payload, "it is there", 11);
	assert_memory_equal((char *)p->from.address + 4096, p->to.address, 8192);
	ok(p->user, dray_notify(p->user, p->remote, 78, "alone", 5));
	e = event(p->owner, DRAY_EVENT_NOTIFICATION);
	assert_int_equal(e.tag, 78);
	assert_memory_equal(e.payload, "alone", 5);
}

static void many_small(struct pair *p)
{
	struct dray_op ops[64];
	struct dray_transfer t[64];
	struct dray_completion c;
	unsigned started = 0, ended = 0;

	for (unsigned i = 0; i < 64; i++) {
		ops[i] = (struct dray_op){ i * 100, i * 100, 64 };
		t[i] = pull(p, &ops[i], 1);
	}
	while (started < 5000 || ended < started) {
		int n = started < 5000 ? dray_submit_many(p->user, t, 64, NULL) : 0;

		assert_true(n >= 0 || n == -DRAY_E_BUSY);
		started += n > 0 ? (unsigned)n : 0;
		assert_true(dray_process(p->user, 20000) >= 0);
		while (dray_next_completion(p->user, &c) == 1) {
			assert_int_equal(c.status, 0);
			ended++;
		}
	}
}

static void moves(const struct agent *owner, const struct agent *user, unsigned transport,
		  unsigned int flags)
{
	struct pair p;

	pair_make(&p, owner, user, flags);
	if (!(flags & DRAY_OPTION_NO_RING)) {
		scattered(&p, transport);
		a_long_list(&p);
	}
	all_at_once(&p);
	many_small(&p);
	push_with_notification(&p);
	ok(p.user, dray_remote_release(p.user, p.remote));
	ok(p.user, dray_region_remove(p.user, p.ours));
	ok(p.owner, dray_region_revoke(p.owner, p.theirs, &p.token));
	ok(p.owner, dray_region_remove(p.owner, p.theirs));
	pair_end(&p);
}

static void within_one_agent(void **state)
{
	moves(&agents[0], &agents[0], DRAY_TRANSPORT_LOCAL, 0);
	moves(&agents[0], &agents[0], DRAY_TRANSPORT_LOCAL, DRAY_OPTION_NO_RING);
}

static void between_two_agents(void **state)
{
	moves(&agents[0], &agents[1], DRAY_TRANSPORT_TCP, 0);
	moves(&agents[0], &agents[1], DRAY_TRANSPORT_TCP, DRAY_OPTION_NO_RING);
}

static void revoke_is_reported(void **state)
{
	struct dray_op op = { 0, 0, 8 };
	struct dray_transfer t;
	struct dray_event e;
	struct pair p;

	pair_make(&p, &agents[0], &agents[1], 0);
	t = pull(&p, &op, 1);
	ok(p.owner, dray_region_revoke(p.owner, p.theirs, NULL));
	e = event(p.user, DRAY_EVENT_REMOTE_LOST);
	assert_int_equal(e.remote.id, p.remote.id);
	assert_int_equal(e.code, -DRAY_E_REVOKED);
	assert_int_equal(dray_run(p.user, &t, NULL), -DRAY_E_REVOKED);
	ok(p.user, dray_remote_release(p.user, p.remote));
	pair_end(&p);
}

/* The wait word never gets its value, so the transfer waits until it is cancelled. */
static void waiting_is_cancelled(void **state)
{
	struct dray_op op = { 4096, 0, 8 };
	struct dray_completion c;
	struct dray_transfer t;
	struct pair p;
	uint64_t id;

	pair_make(&p, &agents[0], &agents[0], 0);
	t = pull(&p, &op, 1);
	t.wait = (struct dray_word){ p.ours, 0, 0xdead };
	t.set = (struct dray_word){ p.ours, 4, 0xbeef };
	for (int i = 0; i < 50; i++) {
		ok(p.user, dray_submit(p.user, &t, &id));
		ok(p.user, dray_cancel(p.user, id));
		assert_int_equal(dray_wait(p.user, id, 20000, &c), 0);
		assert_int_equal(c.status, -DRAY_E_CANCELLED);
	}
	ok(p.user, dray_submit(p.user, &t, &id));
	assert_int_equal(dray_wait(p.user, id, 20, &c), -DRAY_E_TIMEOUT);
	__atomic_store_n((uint32_t *)p.to.address, 0xdead, __ATOMIC_RELEASE);
	assert_int_equal(dray_wait(p.user, id, 20000, &c), 0);
	assert_int_equal(c.status, 0);
	assert_int_equal(__atomic_load_n((uint32_t *)p.to.address + 1, __ATOMIC_ACQUIRE), 0xbeef);
	t.deadline_ms = 30;
	t.wait.value = 1;
	assert_int_equal(dray_run(p.user, &t, &c), -DRAY_E_DEADLINE);
	pair_end(&p);
}

static void agent_is_killed(void **state)
{
	struct dray_op op = { 4096, 0, 8 };
	struct dray_completion c;
	struct dray_transfer t;
	struct dray_event e;
	struct pair p;
	dray_region pool;
	uint64_t id, bytes;
	void *address;

	pair_make(&p, &agents[1], &agents[0], 0);
	ok(p.user, dray_region_add_pool(p.user, 2 * MIB, DRAY_READ | DRAY_WRITE, 0, &pool));
	ok(p.user, dray_region_map(p.user, pool, &address, &bytes, NULL));
	t = pull(&p, &op, 1);
	t.wait = (struct dray_word){ p.ours, 0, 0xdead };
	ok(p.user, dray_submit(p.user, &t, &id));
	assert_int_equal(dray_wait(p.user, id, 20, &c), -DRAY_E_TIMEOUT);
	agent_kill(&agents[0], SIGKILL);
	assert_int_equal(dray_wait(p.user, id, 20000, &c), 0);
	assert_int_equal(c.status, -DRAY_E_AGENT_RESTARTED);
	agent_start(&agents[0]);
	event(p.user, DRAY_EVENT_LOST);
	e = event(p.user, DRAY_EVENT_RESTORED);
	assert_int_equal(e.restarted, 1);
	/* the regions exist again; the other agent's token is imported anew */
	ok(p.user, dray_remote_release(p.user, p.remote));
	ok(p.user, dray_remote_import(p.user, &p.token, 0, &p.remote));
	scattered(&p, DRAY_TRANSPORT_TCP);
	op = (struct dray_op){ 0, 0, 2 * MIB };
	t = pull(&p, &op, 1);
	t.local = pool;
	ok(p.user, dray_run(p.user, &t, &c));
	assert_memory_equal(address, p.from.address, 2 * MIB);
	ok(p.user, dray_region_remove(p.user, pool));
	pair_end(&p);
}

static void agent_is_stopped(void **state)
{
	struct dray_op op = { 4096, 0, 8 };
	struct dray_completion c;
	struct dray_transfer t;
	struct dray_event e;
	struct pair p;
	uint64_t id;
	int status;

	pair_make(&p, &agents[1], &agents[0], 0);
	t = pull(&p, &op, 1);
	t.deadline_ms = 50;
	kill(agents[0].pid, SIGSTOP);
	assert_int_equal(waitpid(agents[0].pid, &status, WUNTRACED), agents[0].pid);
	assert_true(WIFSTOPPED(status));
	ok(p.user, dray_submit(p.user, &t, &id));
	assert_int_equal(dray_wait(p.user, id, -1, &c), 0);
	assert_int_equal(c.status, -DRAY_E_UNCONFIRMED);
	assert_int_equal(dray_lent(p.user, id), 1);
	kill(agents[0].pid, SIGCONT);
	e = event(p.user, DRAY_EVENT_CONFIRMED);
	assert_int_equal(e.id, id);
	assert_true(e.code == 0 || e.code == -DRAY_E_DEADLINE);
	assert_int_equal(dray_lent(p.user, id), 0);
	t.deadline_ms = 0;
	ok(p.user, dray_run(p.user, &t, &c));
	pair_end(&p);
}

static void drain_is_reported(void **state)
{
	struct dray *d = client(&agents[0], NULL, 0);
	struct dray_event e;
	int status;

	kill(agents[0].pid, SIGTERM);
	event(d, DRAY_EVENT_DRAINING);
	e = event(d, DRAY_EVENT_LOST);
	assert_true(e.code == -DRAY_E_SESSION_CLOSED || e.code == -DRAY_E_AGENT_RESTARTED);
	assert_int_equal(waitpid(agents[0].pid, &status, 0), agents[0].pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	agent_start(&agents[0]);
	event(d, DRAY_EVENT_RESTORED);
	dray_disconnect(d);
}

static void refusals_have_the_right_code(void **state)
{
	struct dray *d = client(&agents[0], NULL, 0);
	int hole = memfd_create("hole", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct dray_extent e = { .kind = DRAY_KIND_MEMFD, .fd = hole, .length = MIB };
	struct dray_region_spec spec = {
		.access = DRAY_READ, .flags = DRAY_REGION_NO_POPULATE, .extents = &e, .extents_n = 1
	};
	struct dray_token t;
	dray_region region;
	dray_remote remote;

	assert_int_equal(ftruncate(hole, MIB), 0);
	assert_int_equal(dray_region_add(d, &spec, &region), -DRAY_E_REGION_UNSEALED);
	assert_int_equal(fcntl(hole, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	assert_int_equal(dray_region_add(d, &spec, &region), -DRAY_E_REGION_NOT_RESIDENT);
	assert_non_null(strstr(dray_last_error(d), "opulate"));
	spec.flags = 0;
	ok(d, dray_region_add(d, &spec, &region));
	e.kind = DRAY_KIND_DMABUF;
	assert_int_equal(dray_region_add(d, &spec, &region), -DRAY_E_REGION_KIND);
	assert_int_equal(dray_token_from_bytes("nonsense", 8, &t), 0);
	assert_int_equal(dray_remote_import(d, &t, 0, &remote), -DRAY_E_TOKEN_INVALID);
	close(hole);
	dray_disconnect(d);
}

/*
 * More requests at once than limits.requests_per_session: the library sends each when there is
 * room.
 */
static void many_requests(void **state)
{
	struct dray *d = client(&agents[0], NULL, 0);
	struct dray_completion c;
	struct dray_memory m;
	dray_region regions[400];
	int n = 0;

	assert_int_equal(dray_memory_alloc(4096, 0, &m), 0);
	for (int i = 0; i < 400; i++) {
		struct dray_extent e = { .kind = DRAY_KIND_MEMFD, .fd = m.fd, .length = 4096 };
		struct dray_region_spec spec = { .access = DRAY_READ,
						 .extents = &e,
						 .extents_n = 1 };

		ok(d, dray_region_add_start(d, &spec, NULL, NULL));
	}
	while (n < 400) {
		assert_true(dray_process(d, 20000) >= 0);
		while (dray_next_completion(d, &c) == 1) {
			assert_int_equal(c.status, 0);
			regions[n++] = c.region;
		}
	}
	/* again after a restart */
	agent_kill(&agents[0], SIGKILL);
	agent_start(&agents[0]);
	event(d, DRAY_EVENT_LOST);
	event(d, DRAY_EVENT_RESTORED);
	for (int i = 0; i < 400; i++)
		ok(d, dray_region_remove(d, regions[i]));
	dray_memory_free(&m);
	dray_disconnect(d);
}

struct sleeper {
	struct dray *d;
	uint64_t id;
	_Atomic pid_t tid;
};

static void *sleep_in_wait(void *arg)
{
	struct sleeper *s = arg;
	struct dray_completion c;

	s->tid = (pid_t)syscall(SYS_gettid);
	return (void *)(intptr_t)(dray_wait(s->d, s->id, 20000, &c) == 0 && !c.status);
}

static bool is_asleep(pid_t tid)
{
	char path[64], text[256], state = 0;
	const char *end;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)tid);
	f = fopen(path, "r");
	if (!f)
		return false;
	end = fgets(text, sizeof(text), f) ? strrchr(text, ')') : NULL;
	if (end)
		state = end[2];
	fclose(f);
	return state == 'S';
}

/* A thread sleeps in the library, another one begins to rely on dray_fd(), and the first one leaves. */
static void the_descriptor_works_after_another_thread(void **state)
{
	struct dray_op op = { 4096, 0, 8 };
	struct dray_transfer t;
	struct dray_completion c;
	struct sleeper s = { 0 };
	struct pair p;
	struct pollfd fd;
	pthread_t thread;
	uint32_t *word;
	uint64_t id;
	void *done;

	pair_make(&p, &agents[0], &agents[0], 0);
	word = p.to.address;
	t = pull(&p, &op, 1);
	fd = (struct pollfd){ .fd = dray_fd(p.user), .events = POLLIN };
	for (uint32_t round = 0; round < 20; round++) {
		t.wait = (struct dray_word){ p.ours, 0, 2 * round + 1 };
		ok(p.user, dray_submit(p.user, &t, &s.id));
		s.d = p.user;
		s.tid = 0;
		assert_int_equal(pthread_create(&thread, NULL, sleep_in_wait, &s), 0);
		while (!s.tid || !is_asleep(s.tid))
			sched_yield();
		assert_int_equal(dray_process(p.user, 0), 0);
		__atomic_store_n(word, 2 * round + 1, __ATOMIC_RELEASE);
		assert_int_equal(pthread_join(thread, &done), 0);
		assert_true(done != NULL);

		t.wait.value = 2 * round + 2;
		ok(p.user, dray_submit(p.user, &t, &id));
		/* until the descriptor is quiet: nothing is ready, and no earlier ring is left */
		while (poll(&fd, 1, 0) == 1)
			assert_int_equal(dray_process(p.user, 0), 0);
		__atomic_store_n(word, 2 * round + 2, __ATOMIC_RELEASE);
		assert_int_equal(poll(&fd, 1, 20000), 1);
		assert_int_equal(dray_wait(p.user, id, 20000, &c), 0);
	}
	pair_end(&p);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

static void find_drayd(const char *self)
{
	const char *build = getenv("DRAY_BUILD");
	const char *slash = strrchr(self, '/');

	if (build)
		snprintf(drayd, sizeof(drayd), "%s/drayd", build);
	else if (slash)
		snprintf(drayd, sizeof(drayd), "%.*s/../../drayd", (int)(slash - self), self);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(within_one_agent),   TEST(between_two_agents),
		TEST(revoke_is_reported), TEST(waiting_is_cancelled),
		TEST(agent_is_killed),    TEST(agent_is_stopped),
		TEST(drain_is_reported),  TEST(refusals_have_the_right_code),
		TEST(many_requests),      TEST(the_descriptor_works_after_another_thread),
	};

	find_drayd(argv[0]);
	if (access(drayd, X_OK) < 0) {
		print_message("no drayd at %s: skipped\n", drayd);
		return 0;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
