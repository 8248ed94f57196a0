/* SPDX-License-Identifier: Apache-2.0 */
/* Real sockets and descriptors. Each test checks that it leaves no descriptor open. */
#include "lib/seqpacket.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "tests/unit/cm.h"

struct fixture {
	int s[2], fds_before;
	struct dray_fds got;
	bool cut_data, cut_fds;
};

static int setup(void **state)
{
	static struct fixture f;

	f = (struct fixture){ .fds_before = cm_fds_count() };
	*state = &f;
	return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, f.s);
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	dray_fds_close(&f->got);
	dray_close(f->s[0]);
	dray_close(f->s[1]);
	assert_int_equal(cm_fds_count(), f->fds_before);
	return 0;
}

static ssize_t receive(struct fixture *f, void *buf, size_t cap)
{
	return dray_seqpacket_recv(f->s[1], buf, cap, &f->got, &f->cut_data, &f->cut_fds);
}

static void packets_keep_their_boundaries(void **state)
{
	struct fixture *f = *state;
	char buf[16];

	assert_int_equal(dray_seqpacket_send(f->s[0], "one", 3, NULL, 0), 0);
	assert_int_equal(dray_seqpacket_send(f->s[0], "three", 5, NULL, 0), 0);
	assert_int_equal(receive(f, buf, sizeof(buf)), 3);
	assert_memory_equal(buf, "one", 3);
	assert_int_equal(receive(f, buf, sizeof(buf)), 5);
	assert_int_equal(f->got.n, 0);
	assert_false(f->cut_data || f->cut_fds);
}

static void empty_socket_does_not_block(void **state)
{
	struct fixture *f = *state;
	char buf[16];

	/* the socket itself is blocking */
	assert_int_equal(receive(f, buf, sizeof(buf)), -EAGAIN);
}

static void closed_socket_is_end_or_error(void **state)
{
	struct fixture *f = *state;
	char buf[16];

	f->s[0] = dray_close(f->s[0]);
	assert_int_equal(receive(f, buf, sizeof(buf)), 0);
	/* without SIGPIPE */
	assert_int_equal(dray_seqpacket_send(f->s[1], "x", 1, NULL, 0), -EPIPE);
}

static void a_too_long_packet_is_reported(void **state)
{
	struct fixture *f = *state;
	char buf[4];

	assert_int_equal(dray_seqpacket_send(f->s[0], "longer", 6, NULL, 0), 0);
	assert_int_equal(receive(f, buf, sizeof(buf)), 4);
	assert_true(f->cut_data);
	assert_false(f->cut_fds);
}

static void a_full_socket_is_reported(void **state)
{
	struct fixture *f = *state;
	char buf[4096] = "";
	int n, r = 0;

	for (n = 0; n < 100000 && !r; n++)
		r = dray_seqpacket_send(f->s[0], buf, sizeof(buf), NULL, 0);
	assert_int_equal(r, -EAGAIN);
	for (int i = 0; i < n - 1; i++)
		assert_int_equal(receive(f, buf, sizeof(buf)), sizeof(buf));
}

static void descriptors_come_close_on_exec(void **state)
{
	struct fixture *f = *state;
	int fd = memfd_create("x", 0);
	int two[] = { fd, fd };
	char buf[4];

	assert_true(fd >= 0);
	assert_int_equal(dray_seqpacket_send(f->s[0], "fd", 2, two, 2), 0);
	assert_int_equal(receive(f, buf, sizeof(buf)), 2);
	assert_int_equal(f->got.n, 2);
	for (unsigned i = 0; i < 2; i++)
		assert_true(fcntl(f->got.fd[i], F_GETFD) & FD_CLOEXEC);
	dray_close(fd);
	dray_fds_close(&f->got);
	assert_int_equal(f->got.n, 0);
}

static void the_kernels_limit_of_descriptors_is_reached(void **state)
{
	struct fixture *f = *state;
	int fds[DRAY_FDS_MAX + 1];
	char buf[4];

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(fds); i++)
		fds[i] = f->s[0];
	assert_int_equal(dray_seqpacket_send(f->s[0], "fd", 2, fds, DRAY_FDS_MAX + 1), -EINVAL);
	assert_int_equal(dray_seqpacket_send(f->s[0], "fd", 2, fds, DRAY_FDS_MAX), 0);
	assert_int_equal(receive(f, buf, sizeof(buf)), 2);
	assert_int_equal(f->got.n, DRAY_FDS_MAX);
	assert_false(f->cut_fds);
	/* closes them, so that the other end sees the close */
	dray_fds_close(&f->got);
}

/*
 * At the limit of open files the kernel drops descriptors and reports it; the others are not lost.
 */
static void lost_descriptors_are_reported(void **state)
{
	struct fixture *f = *state;
	struct rlimit saved, tight;
	int fds[8];
	char buf[4];

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(fds); i++)
		fds[i] = f->s[1];
	assert_int_equal(dray_seqpacket_send(f->s[0], "fd", 2, fds, 8), 0);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &saved), 0);
	tight = saved;
	tight.rlim_cur = (rlim_t)f->s[1] + 4;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
	assert_int_equal(receive(f, buf, sizeof(buf)), 2);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &saved), 0);
	assert_true(f->cut_fds);
	assert_true(f->got.n < 8);
}

/*
 * Credentials, if another program has enabled them, come in the same control buffer and are
 * ignored.
 */
static void other_control_messages_are_ignored(void **state)
{
	struct fixture *f = *state;
	int on = 1, fd = f->s[0];
	char buf[4];

	assert_int_equal(setsockopt(f->s[1], SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)), 0);
	assert_int_equal(dray_seqpacket_send(f->s[0], "fd", 2, &fd, 1), 0);
	assert_int_equal(receive(f, buf, sizeof(buf)), 2);
	assert_int_equal(f->got.n, 1);
	assert_false(f->cut_fds);
}

#define TEST(t) cmocka_unit_test_setup_teardown(t, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(packets_keep_their_boundaries),
		TEST(empty_socket_does_not_block),
		TEST(closed_socket_is_end_or_error),
		TEST(a_too_long_packet_is_reported),
		TEST(a_full_socket_is_reported),
		TEST(descriptors_come_close_on_exec),
		TEST(the_kernels_limit_of_descriptors_is_reached),
		TEST(lost_descriptors_are_reported),
		TEST(other_control_messages_are_ignored),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
