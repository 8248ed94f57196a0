/* SPDX-License-Identifier: Apache-2.0 */
/* The data socket, connections before HELLO, HELLO, and the ways in which a session ends. */
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "tests/unit/session_fixture.h"

static uint64_t open_sessions(struct lab *l)
{
	return sessions_totals(l->sessions).open;
}

static uint64_t refused(struct lab *l)
{
	return sessions_totals(l->sessions).refused;
}

static void see_one(void *arg, const struct dray_dbus_session *info)
{
	struct dray_dbus_session *ret = arg;

	assert_string_equal(info->name, "test");
	assert_string_equal(info->group, "engine");
	*ret = *info;
}

static void test_hello(void **state)
{
	struct lab *l = *state;
	struct client *c = client_open(l, "engine", 0);
	struct dray_dbus_session info = { 0 };
	struct dmsg_hello again = { .major_min = 1, .major_max = 1 };

	assert_int_equal(c->hello.major, DMSG_MAJOR);
	assert_int_equal(c->hello.incarnation, 5);
	assert_int_equal(c->hello.ops_inline_max, DMSG_OPS_INLINE_MAX);
	assert_memory_equal(c->hello.agent_id, lab_id, 16);
	sessions_each(l->sessions, see_one, &info);
	assert_int_equal(info.session, c->hello.session);
	assert_int_equal(info.uid, getuid());
	assert_int_equal(info.pid, getpid());
	assert_int_equal(session_worker(l->sessions, info.session), info.worker);
	assert_int_equal(session_worker(l->sessions, info.session + 1), -1);

	CLIENT_SEND(c, hello, &again);
	client_expect_error(c, c->id, DRAY_E_OUT_OF_ORDER);
	/* the session continues */
	assert_int_equal(open_sessions(l), 1);
	client_close(c);
	lab_until(l, open_sessions(l) == 0);
}

static void refuse(struct lab *l, struct dmsg_hello m, const int *fds, unsigned n_fds,
		   uint32_t code)
{
	struct client *c = client_connect(l);

	CLIENT_SEND_FDS(c, hello, &m, fds, n_fds);
	client_expect_error(c, 1, code);
	client_expect_end(c);
	client_close(c);
}

static void test_hello_refused(void **state)
{
	struct lab *l = *state;
	struct dmsg_hello m = { .major_min = 2, .major_max = 9, .name = text("x") };
	struct client *c;
	int fd = memory_fd(PAGE, 0);

	refuse(l, m, NULL, 0, DRAY_E_VERSION);
	m.major_min = 0;
	m.major_max = 0;
	refuse(l, m, NULL, 0, DRAY_E_VERSION);
	m.major_max = 1;
	refuse(l, m, &fd, 1, DRAY_E_FD_COUNT);
	m.flags = DMSG_HELLO_FLAG_PIDFD;
	refuse(l, m, NULL, 0, DRAY_E_FD_COUNT);
	refuse(l, m, &fd, 1, DRAY_E_INVALID);
	close(fd);
	sessions_drain(l->sessions, 1000);
	m.flags = 0;
	refuse(l, m, NULL, 0, DRAY_E_DRAINING);
	sessions_resume(l->sessions);
	assert_int_equal(refused(l), 6);

	/* requests directly after HELLO do not hide the reason */
	c = client_connect(l);
	m.major_max = 0;
	CLIENT_SEND(c, hello, &m);
	for (unsigned i = 0; i < 5; i++)
		CLIENT_SEND(c, region_remove, &(struct dmsg_region_remove){ .region = 1 });
	client_expect_error(c, 1, DRAY_E_VERSION);
	client_expect_end(c);
	client_close(c);
	assert_int_equal(open_sessions(l), 0);
}

static void refuse_raw(struct lab *l, const void *p, size_t n, uint64_t id, uint32_t code)
{
	struct client *c = client_connect(l);

	client_send_raw(c, p, n, NULL, 0);
	client_expect_error(c, id, code);
	client_expect_end(c);
	client_close(c);
}

static void test_first_message(void **state)
{
	struct lab *l = *state;
	struct dmsg_hello m = { .major_min = 1, .major_max = 1 };
	struct dmsg_notify other = { .remote = 1 };
	uint8_t good[512], bad[8192] = { 0 };
	int n = dmsg_hello_encode(good, sizeof(good), 77, &m);

	assert_true(n > 0);
	refuse_raw(l, "abc", 3, 0, DRAY_E_TRUNCATED);
	refuse_raw(l, "garbage", 7, 0, DRAY_E_BAD_MAGIC);
	memcpy(bad, good, (size_t)n);
	bad[0] ^= 1;
	refuse_raw(l, bad, (size_t)n, 0, DRAY_E_BAD_MAGIC);
	memcpy(bad, good, (size_t)n);
	bad[4] = 9;
	refuse_raw(l, bad, (size_t)n, dmsg_header_id(bad, (size_t)n), DRAY_E_VERSION);
	refuse_raw(l, good, (size_t)n - 1, 77, DRAY_E_TRUNCATED);
	memcpy(bad, good, (size_t)n);
	dray_le_put32(bad + 12, sizeof(bad) - DMSG_HEADER_SIZE);
	refuse_raw(l, bad, sizeof(bad), 77, DRAY_E_TOO_LARGE);
	n = dmsg_notify_encode(bad, sizeof(bad), 78, &other);
	refuse_raw(l, bad, (size_t)n, 78, DRAY_E_OUT_OF_ORDER);
	assert_int_equal(open_sessions(l), 0);
}

/* A later minor version may send more fields than this one knows. */
static void test_longer_hello(void **state)
{
	struct lab *l = *state;
	struct dmsg_hello m = { .major_min = 1, .major_max = 3 };
	struct client *c = client_connect(l);
	int n = dmsg_hello_encode(c->buf, sizeof(c->buf), ++c->id, &m);

	memset(c->buf + n, 0x77, 100);
	dray_le_put32(c->buf + 12, (uint32_t)n - DMSG_HEADER_SIZE + 100);
	client_send_raw(c, c->buf, (size_t)n + 100, NULL, 0);
	CLIENT_REPLY(c, hello_reply, DMSG_HELLO_REPLY, &c->hello);
	client_close(c);
}

static void test_allow_lists(void **state)
{
	struct lab *l = *state;
	struct dmsg_hello m = { .major_min = 1, .major_max = 1 };
	char mine[16];

	dray_strv_add(&l->cfg->data.allow_uids, "4242", 4);
	lab_start(l);
	refuse(l, m, NULL, 0, DRAY_E_DENIED);
	lab_stop(l);
	snprintf(mine, sizeof(mine), "%u", getuid());
	dray_strv_add(&l->cfg->data.allow_uids, mine, strlen(mine));
	dray_strv_add(&l->cfg->data.allow_gids, "4243", 4);
	lab_start(l);
	refuse(l, m, NULL, 0, DRAY_E_DENIED);
	lab_stop(l);
	snprintf(mine, sizeof(mine), "%u", getgid());
	dray_strv_add(&l->cfg->data.allow_gids, mine, strlen(mine));
	lab_start(l);
	client_close(client_open(l, "", 0));
}

static void test_session_limits(void **state)
{
	struct lab *l = *state;
	struct dmsg_hello m = { .major_min = 1, .major_max = 1 };
	struct client *c[3];

	l->cfg->limits.sessions = 3;
	l->cfg->limits.sessions_per_owner = 2;
	lab_limits(l);
	lab_start(l);
	c[0] = client_open(l, "", 0);
	c[1] = client_open(l, "", 0);
	refuse(l, m, NULL, 0, DRAY_E_QUOTA);
	l->cfg->limits.sessions_per_owner = 5;
	lab_limits(l);
	c[2] = client_open(l, "", 0);
	refuse(l, m, NULL, 0, DRAY_E_QUOTA);
	client_close(c[0]);
	lab_until(l, open_sessions(l) == 2);
	/* the place is free once everything of the session has ended */
	for (;;) {
		struct client *again = client_connect(l);

		CLIENT_SEND(again, hello, &m);
		assert_true(client_recv(again) > 0);
		if (dray_le_get16(again->buf + 6) == DMSG_HELLO_REPLY) {
			client_close(again);
			break;
		}
		client_close(again);
	}
	client_close(c[1]);
	client_close(c[2]);
}

/* Silent connections: the oldest is closed if there are too many, and each after five seconds. */
static void test_silent_connections(void **state)
{
	struct lab *l = *state;
	struct client *c[4], *good;
	int64_t before = dray_now().ns;

	l->cfg->limits.strangers = 3;
	lab_start(l);
	for (unsigned i = 0; i < 4; i++)
		c[i] = client_connect(l);
	client_expect_error(c[0], 0, DRAY_E_BUSY);
	client_expect_end(c[0]);
	good = client_open(l, "", 0);
	client_expect_error(c[1], 0, DRAY_E_BUSY);
	client_expect_error(c[3], 0, DRAY_E_TIMEOUT);
	client_expect_end(c[3]);
	client_expect_error(c[2], 0, DRAY_E_TIMEOUT);
	assert_true(dray_now().ns - before >= 4500 * DRAY_NS_PER_MS);
	for (unsigned i = 0; i < 4; i++)
		client_close(c[i]);
	/* a connection that the client closes is forgotten */
	client_close(client_connect(l));
	assert_int_equal(open_sessions(l), 1);
	client_close(good);
}

static void test_flood(void **state)
{
	struct lab *l = *state;
	struct client *good;
	int fds[200], n = 0;
	struct sockaddr_un addr = { .sun_family = AF_UNIX };

	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", l->path);
	for (; n < 200; n++) {
		fds[n] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		if (connect(fds[n], (struct sockaddr *)&addr, sizeof(addr)) < 0) {
			close(fds[n]);
			break;
		}
	}
	assert_true(n > 64);
	good = NULL;
	/* the backlog is full, so a client waits */
	for (unsigned i = 0; i < 50; i++)
		sd_event_run(l->event, 0);
	good = client_open(l, "", 0);
	assert_true(refused(l) > 0);
	while (n--)
		close(fds[n]);
	client_close(good);
}

static void test_out_of_descriptors(void **state)
{
	struct lab *l = *state;
	struct rlimit former, low;
	struct client *c;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &former), 0);
	c = client_connect(l);
	low = former;
	/* that descriptor was the last one allowed */
	low.rlim_cur = (rlim_t)c->fd + 1;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
	for (unsigned i = 0; i < 3; i++)
		sd_event_run(l->event, 0);
	/* no busy loop: the loop ignores the listener for a while */
	assert_int_equal(sd_event_run(l->event, 0), 0);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &former), 0);
	CLIENT_SEND(c, hello, (&(struct dmsg_hello){ .major_min = 1, .major_max = 1 }));
	CLIENT_REPLY(c, hello_reply, DMSG_HELLO_REPLY, &c->hello);
	client_close(c);
}

static void set_group(struct lab *l, const char *name)
{
	free(l->cfg->data.group);
	l->cfg->data.group = strdup(name);
}

static void test_socket_file(void **state)
{
	struct lab *l = *state;
	struct dray_err err = DRAY_ERR_NULL;
	struct sessions *first;
	struct stat st;
	int fd;

	l->cfg->data.mode = 0640;
	lab_start(l);
	assert_int_equal(stat(l->path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0640);
	/* the socket has a listener */
	first = l->sessions;
	assert_int_equal(lab_open(l, -1, &err), -EADDRINUSE);
	assert_int_equal(err.code, DRAY_E_BUSY);
	assert_int_equal(access(l->path, F_OK), 0);
	sessions_free(first);
	assert_int_equal(access(l->path, F_OK), -1);
	l->sessions = NULL;

	/* the socket has no listener any more */
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	{
		struct sockaddr_un addr = { .sun_family = AF_UNIX };

		snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", l->path);
		assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
		assert_int_equal(listen(fd, 1), 0);
	}
	close(fd);
	lab_start(l);
	client_close(client_open(l, "", 0));
	lab_stop(l);

	cm_file_write(l->dir, "run/dray.sock", "not a socket");
	err = DRAY_ERR_NULL;
	assert_int_equal(lab_open(l, -1, &err), -EEXIST);
	assert_int_equal(access(l->path, F_OK), 0);
	unlink(l->path);
	set_group(l, "no-such-group-here");
	err = DRAY_ERR_NULL;
	assert_int_equal(lab_open(l, -1, &err), -EINVAL);
	assert_non_null(strstr(err.msg, "data.group"));
	set_group(l, "0");
	lab_start(l);
}

static void test_passed_socket(void **state)
{
	struct lab *l = *state;
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	struct dray_err err = DRAY_ERR_NULL;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s/passed", l->dir);
	snprintf(l->path, sizeof(l->path), "%s/passed", l->dir);
	assert_true(lab_open(l, fd, &err) < 0);
	assert_int_equal(err.code, DRAY_E_INVALID);
	assert_int_equal(fcntl(fd, F_GETFD), -1);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	assert_int_equal(listen(fd, 4), 0);
	assert_int_equal(lab_open(l, fd, &err), 0);
	client_close(client_open(l, "", 0));
	lab_stop(l);
	/* systemd removes the file */
	assert_int_equal(access(addr.sun_path, F_OK), 0);
}

/* The process of the pidfd ends while another process keeps the socket open. */
static void test_pidfd(void **state)
{
	struct lab *l = *state;
	struct dmsg_hello m = { .major_min = 1, .major_max = 1, .flags = DMSG_HELLO_FLAG_PIDFD };
	struct client *c = client_connect(l);
	pid_t pid = fork();
	int pidfd, status;

	if (!pid) {
		pause();
		_exit(0);
	}
	pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	assert_true(pidfd >= 0);
	CLIENT_SEND_FDS(c, hello, &m, &pidfd, 1);
	CLIENT_REPLY(c, hello_reply, DMSG_HELLO_REPLY, &c->hello);
	close(pidfd);
	client_add_filled(c, PAGE, 1);
	kill(pid, SIGKILL);
	client_expect_end(c);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(open_sessions(l), 0);
	client_close(c);
}

/* HELLO with these flags; the descriptors of the reply are in c->fds. */
static struct client *open_with(struct lab *l, uint16_t flags)
{
	struct client *c = client_open(l, "", flags);

	assert_int_equal(c->hello.minor, DMSG_MINOR);
	return c;
}

static void test_agent_pidfd(void **state)
{
	struct lab *l = *state;
	struct client *c;
	struct pollfd p = { .events = POLLIN };
	pid_t pid = fork();
	int status;

	if (!pid) {
		pause();
		_exit(0);
	}
	agent_process = pid;
	lab_start(l);
	c = open_with(l, 0);
	assert_int_equal(c->hello.flags, 0);
	assert_int_equal(c->fds.n, 0);
	client_close(c);
	c = open_with(l, DMSG_HELLO_FLAG_AGENT_PIDFD);
	assert_int_equal(c->hello.flags, DMSG_HELLO_REPLY_FLAG_PIDFD);
	assert_int_equal(c->fds.n, 1);
	p.fd = c->fds.fd[0];
	assert_int_equal(poll(&p, 1, 0), 0);
	kill(pid, SIGKILL);
	assert_int_equal(poll(&p, 1, LIMIT_NS / DRAY_NS_PER_MS), 1);
	assert_int_equal(p.revents, POLLIN);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	client_close(c);
	lab_stop(l);
	agent_process = 0;
}

/* An agent whose kernel or sandbox gave it no pidfd. */
static void test_no_agent_pidfd(void **state)
{
	struct lab *l = *state;
	struct client *c = open_with(l, DMSG_HELLO_FLAG_AGENT_PIDFD);

	assert_int_equal(c->hello.flags, 0);
	assert_int_equal(c->fds.n, 0);
	client_close(c);
}

static void test_admin_close(void **state)
{
	struct lab *l = *state;
	struct client *c = client_open(l, "", 0);

	assert_int_equal(sessions_close(l->sessions, c->hello.session + 1, "closed by an operator"),
			 -ENOENT);
	assert_int_equal(sessions_close(l->sessions, c->hello.session, "closed by an operator"), 0);
	assert_int_equal(sessions_close(l->sessions, c->hello.session, "closed by an operator"),
			 -ENOENT);
	client_expect_error(c, 0, DRAY_E_SESSION_CLOSED);
	client_expect_end(c);
	client_close(c);
}

/* A transfer of the session, which stays in flight until its wait word is set. */
static void hold_transfer(struct client *c)
{
	uint64_t region = client_add_filled(c, PAGE, 0);
	struct token t = client_export(c, region, 0, PAGE);
	uint8_t op[DMSG_OP_SIZE];
	struct dmsg_transfer m = {
		.direction = DMSG_DIRECTION_READ,
		.flags = DMSG_TRANSFER_FLAG_WAIT,
		.local = region,
		.remote = client_import(c, &t),
		.wait_region = region,
		.wait_value = 1,
		.ops = { op, 1 },
	};

	dmsg_op_put(op, &(struct dmsg_op){ .local = 8, .remote = 16, .length = 8 });
	CLIENT_SEND(c, transfer, &m);
}

/*
 * The last message to a client proves that its memory is free, so it comes after the last part of the session has ended.
 * Here another worker, whose events nobody reads, has not confirmed yet that it does not use the session's memory.
 */
static void check_goodbye(struct lab *l, bool broken)
{
	struct client *c = client_open(l, "", 0), *other = client_open(l, "", 0);
	struct client *same = client_open(l, "", 0);
	int worker = session_worker(l->sessions, c->hello.session);

	assert_int_equal(session_worker(l->sessions, same->hello.session), worker);
	hold_transfer(c);
	/* the worker has read the transfer when it has read the next request */
	client_add_filled(c, PAGE, 1);
	assert_true(sd_event_source_set_enabled(l->sources[!worker], SD_EVENT_OFF) >= 0);
	if (broken)
		client_send_raw(c, "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", 32, NULL, 0);
	else
		assert_int_equal(sessions_close(l->sessions, c->hello.session, "an operator"), 0);
	lab_until(l, open_sessions(l) == 2);
	/* an answer of the same worker shows that it has closed the session */
	CLIENT_SEND(same, region_remove, &(struct dmsg_region_remove){ .region = 1 });
	client_expect_error(same, same->id, DRAY_E_NOT_FOUND);
	assert_int_equal(recv(c->fd, &(char){ 0 }, 1, MSG_DONTWAIT), -1);
	assert_int_equal(errno, EAGAIN);
	/* nor is a message lost that is on its way when the session ends */
	client_send_raw(c, "yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy", 32, NULL, 0);

	assert_true(sd_event_source_set_enabled(l->sources[!worker], SD_EVENT_ON) >= 0);
	/* the transfer has no answer of its own: the end of the session is its end */
	client_expect_error(c, 0, broken ? DRAY_E_BAD_MAGIC : DRAY_E_SESSION_CLOSED);
	client_expect_end(c);
	client_close(c);
	client_close(other);
	client_close(same);
	lab_until(l, open_sessions(l) == 0);
}

static void test_goodbye(void **state)
{
	check_goodbye(*state, false);
	check_goodbye(*state, true);
}

static void test_broken_protocol(void **state)
{
	struct lab *l = *state;
	struct client *c = client_open(l, "", 0);

	client_send_raw(c, "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", 32, NULL, 0);
	client_expect_error(c, 0, DRAY_E_BAD_MAGIC);
	client_expect_end(c);
	lab_until(l, open_sessions(l) == 0);
	client_close(c);
}

static void test_drain(void **state)
{
	struct lab *l = *state;
	struct client *c = client_open(l, "", 0);
	struct dmsg_draining m;

	sessions_drain(l->sessions, 1234);
	CLIENT_RECV(c, draining, DMSG_DRAINING, &m);
	assert_int_equal(m.deadline_ms, 1234);
	assert_int_equal(c->h.request_id, 0);
	client_close(c);
}

static void test_stop(void **state)
{
	struct lab *l = *state;
	struct client *c = client_open(l, "", 0), *stranger = client_connect(l);
	unsigned before;

	client_add_filled(c, PAGE, 1);
	sessions_stop(l->sessions, lab_stopped, l);
	lab_until(l, l->stopped);
	client_expect_error(c, 0, DRAY_E_SESSION_CLOSED);
	client_expect_end(c);
	client_close(c);
	client_close(stranger);
	assert_int_equal(access(l->path, F_OK), -1);
	before = l->stopped;
	assert_int_equal(before, 1);
}

int main(void)
{
#define T(t) cmocka_unit_test_setup_teardown(t, lab_setup, lab_teardown)
#define CLOSED(t) cmocka_unit_test_setup_teardown(t, lab_setup_closed, lab_teardown)
	const struct CMUnitTest tests[] = {
		T(test_hello),
		T(test_hello_refused),
		T(test_first_message),
		T(test_longer_hello),
		CLOSED(test_allow_lists),
		CLOSED(test_session_limits),
		CLOSED(test_silent_connections),
		T(test_flood),
		T(test_out_of_descriptors),
		CLOSED(test_socket_file),
		CLOSED(test_passed_socket),
		T(test_pidfd),
		CLOSED(test_agent_pidfd),
		T(test_no_agent_pidfd),
		T(test_admin_close),
		T(test_goodbye),
		T(test_broken_protocol),
		T(test_drain),
		T(test_stop),
	};

	return cmocka_run_group_tests_name("session", tests, NULL, NULL);
}
