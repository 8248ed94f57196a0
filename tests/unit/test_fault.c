/* SPDX-License-Identifier: Apache-2.0 */
/* Accesses to client memory without pages fail, and allocate no page at the agent's expense. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/fault.h"
#include "lib/cleanup.h"
#include "tests/unit/cm.h"

#define PAGE 4096ul

/* Installs the handler in every test, because cmocka installs its own for each. */
static void ready(void)
{
	assert_int_equal(fault_init(), 0);
	assert_int_equal(fault_init(), 0);
}

/* Pages of a file, of which only the first exist. */
struct memory {
	int fd;
	uint8_t *p;
	size_t bytes;
};

static struct memory make(size_t pages, size_t present)
{
	struct memory m = { memfd_create("fault", MFD_CLOEXEC), NULL, pages * PAGE };

	assert_true(m.fd >= 0);
	assert_int_equal(ftruncate(m.fd, (off_t)m.bytes), 0);
	m.p = mmap(NULL, m.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, m.fd, 0);
	assert_ptr_not_equal(m.p, MAP_FAILED);
	memset(m.p, 0x5a, present * PAGE);
	return m;
}

static void drop(struct memory *m)
{
	munmap(m->p, m->bytes);
	close(m->fd);
}

/* A mapping past the end of its file faults with and without userfaultfd. */
static struct memory make_cut(void)
{
	struct memory m = make(2, 2);

	assert_int_equal(ftruncate(m.fd, PAGE), 0);
	return m;
}

static uint64_t allocated(int fd)
{
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	return (uint64_t)st.st_blocks * 512;
}

static void test_copy(void **state)
{
	struct memory m = make_cut();
	uint8_t *buf dray_auto_free = calloc(2, PAGE);

	ready();
	assert_non_null(buf);
	assert_int_equal(fault_copy(buf, m.p, PAGE), 0);
	assert_int_equal(buf[PAGE - 1], 0x5a);
	assert_int_equal(fault_copy(m.p + 5, "abc", 3), 0);
	assert_memory_equal(m.p + 5, "abc", 3);
	assert_int_equal(fault_copy(buf, m.p, 0), 0);

	assert_int_equal(fault_copy(buf, m.p, 2 * PAGE), -EFAULT);
	assert_int_equal(fault_copy(buf, m.p + PAGE, 1), -EFAULT);
	assert_int_equal(fault_copy(m.p + PAGE - 4, buf, 8), -EFAULT);
	/* again: the handler has restored everything */
	assert_int_equal(fault_copy(m.p + PAGE, buf, 8), -EFAULT);
	assert_int_equal(fault_copy(buf, m.p, PAGE), 0);
	drop(&m);
}

/* One guard for a whole list; the address tells the piece and the side of the fault. */
static void test_copy_pieces(void **state)
{
	static const size_t lengths[] = { 1, 64, 200, 1000, PAGE, 16 * PAGE };
	struct memory m = make(128, 128);
	uint8_t *buf dray_auto_free = calloc(128, PAGE);
	const void *at = NULL;

	ready();
	assert_non_null(buf);
	assert_int_equal(ftruncate(m.fd, 64 * PAGE), 0);
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(lengths); i++) {
		size_t n = lengths[i];
		struct dray_piece v[3] = { { buf, m.p, n },
					   { buf + 32 * PAGE, m.p + 32 * PAGE, n },
					   { buf + 64 * PAGE, m.p + 48 * PAGE, n } };

		/* prefetching missing pages is no access */
		assert_int_equal(fault_copy_pieces(v, 3, false, &at), 0);
		assert_memory_equal(v[2].to, v[2].from, n);
		v[1].from = m.p + 64 * PAGE - (n - 1);
		assert_int_equal(fault_copy_pieces(v, 3, false, &at), -EFAULT);
		assert_ptr_equal(at, m.p + 64 * PAGE);
		v[1].from = m.p + 32 * PAGE;
		v[2] = (struct dray_piece){ m.p + 80 * PAGE, buf, n };
		assert_int_equal(fault_copy_pieces(v, 3, false, &at), -EFAULT);
		assert_true((const uint8_t *)at >= v[2].to && (const uint8_t *)at < v[2].to + n);
	}
	drop(&m);
}

static void test_copy_stream(void **state)
{
	size_t bytes = 128 * PAGE;
	struct memory m = make(128, 128);
	uint8_t *buf dray_auto_free = calloc(1, bytes);
	struct dray_piece in = { buf, m.p, bytes - PAGE }, out = { m.p, buf, bytes - PAGE };
	const void *at = NULL;

	ready();
	assert_non_null(buf);
	assert_int_equal(ftruncate(m.fd, (off_t)(bytes - PAGE)), 0);
	assert_int_equal(fault_copy_pieces(&in, 1, true, &at), 0);
	assert_memory_equal(buf, m.p, bytes - PAGE);
	assert_int_equal(fault_copy_pieces(&out, 1, true, &at), 0);
	in.bytes = out.bytes = bytes;
	assert_int_equal(fault_copy_pieces(&in, 1, true, &at), -EFAULT);
	assert_in_range((uintptr_t)at, (uintptr_t)m.p + bytes - PAGE, (uintptr_t)m.p + bytes - 1);
	assert_int_equal(fault_copy_pieces(&out, 1, true, &at), -EFAULT);
	assert_in_range((uintptr_t)at, (uintptr_t)m.p + bytes - PAGE, (uintptr_t)m.p + bytes - 1);
	drop(&m);
}

static void test_words(void **state)
{
	struct memory m = make_cut();
	uint32_t *word = (uint32_t *)(void *)m.p, v = 7;

	ready();
	assert_int_equal(fault_store32(word, 42), 0);
	assert_int_equal(fault_load32(word, &v), 0);
	assert_int_equal(v, 42);
	assert_int_equal(fault_load32(word + PAGE / 4, &v), -EFAULT);
	assert_int_equal(v, 42);
	assert_int_equal(fault_store32(word + PAGE / 4, 1), -EFAULT);
	drop(&m);
}

static void test_guarded(void **state)
{
	struct memory m = make(4, 2);
	uint8_t byte;

	ready();
	if (!fault_guard_memory(m.p, m.bytes)) {
		drop(&m);
		skip();
	}
	assert_int_equal(fault_copy(&byte, m.p + 2 * PAGE, 1), -EFAULT);
	assert_int_equal(fault_copy(m.p + 3 * PAGE, &byte, 1), -EFAULT);
	assert_int_equal(allocated(m.fd), 2 * PAGE);
	assert_int_equal(fault_copy(&byte, m.p + PAGE, 1), 0);

	assert_int_equal(fallocate(m.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE), 0);
	assert_int_equal(fault_copy(&byte, m.p, 1), -EFAULT);
	assert_int_equal(allocated(m.fd), PAGE);
	/* the client writes the page again */
	assert_int_equal(pwrite(m.fd, "x", 1, 0), 1);
	assert_int_equal(fault_copy(&byte, m.p, 1), 0);
	assert_int_equal(byte, 'x');
	drop(&m);
}

/* System calls on missing pages fail too, in both directions, and take no page. */
static void kernel_contract_guarded_socket(void **state)
{
	struct memory m = make(2, 0);
	uint8_t buf[64] = { 0 };
	int pair[2];

	if (!fault_guard_memory(m.p, m.bytes)) {
		drop(&m);
		skip();
	}
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
	assert_int_equal(send(pair[0], m.p, sizeof(buf), 0), -1);
	assert_int_equal(errno, EFAULT);
	assert_int_equal(send(pair[0], buf, sizeof(buf), 0), sizeof(buf));
	assert_int_equal(recv(pair[1], m.p, sizeof(buf), 0), -1);
	assert_int_equal(errno, EFAULT);
	assert_int_equal(allocated(m.fd), 0);
	close(pair[0]);
	close(pair[1]);
	drop(&m);
}

struct copier {
	struct memory m;
	int expect;
	unsigned wrong;
};

static void *copy_often(void *arg)
{
	struct copier *c = arg;
	uint8_t buf[256];

	for (unsigned i = 0; i < 2000; i++)
		if (fault_copy(buf, c->m.p + (c->expect ? PAGE : 0), sizeof(buf)) != c->expect)
			c->wrong++;
	return NULL;
}

/* A guard belongs to its thread. */
static void test_threads(void **state)
{
	struct copier c[4];
	pthread_t t[4];

	ready();
	for (unsigned i = 0; i < 4; i++) {
		c[i] = (struct copier){ .m = make_cut(), .expect = i % 2 ? -EFAULT : 0 };
		assert_int_equal(pthread_create(&t[i], NULL, copy_often, &c[i]), 0);
	}
	for (unsigned i = 0; i < 4; i++) {
		pthread_join(t[i], NULL);
		assert_int_equal(c[i].wrong, 0);
		drop(&c[i].m);
	}
}

static void expect_death(void (*fn)(void *arg), void *arg)
{
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (!pid) {
		/* hides the sanitizer's report */
		close(STDERR_FILENO);
		signal(SIGBUS, SIG_DFL);
		if (fault_init() == 0)
			fn(arg);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), SIGBUS);
}

static void touch(void *arg)
{
	struct memory *m = arg;
	uint8_t byte;

	/* a finished guard must not catch later faults */
	fault_copy(&byte, m->p + PAGE, 1);
	*(volatile uint8_t *)(m->p + PAGE) = 1;
}

static void send_signal(void *arg)
{
	raise(SIGBUS);
}

static void test_foreign(void **state)
{
	struct memory m = make_cut();
	expect_death(touch, &m);
	expect_death(send_signal, NULL);
	drop(&m);
}

static void exit_quietly(int sig)
{
	_exit(7);
}

/* Faults that are not ours still go to the previous handler. */
static void test_chained(void **state)
{
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (!pid) {
		struct memory m = make_cut();
		uint8_t byte;

		signal(SIGBUS, exit_quietly);
		if (fault_init() < 0 || fault_copy(&byte, m.p + PAGE, 1) != -EFAULT)
			_exit(1);
		*(volatile uint8_t *)(m.p + PAGE) = 1;
		_exit(2);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 7);
}

int main(void)
{
	const struct CMUnitTest before[] = {
		cmocka_unit_test(test_chained),
	};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_copy),
		cmocka_unit_test(test_copy_pieces),
		cmocka_unit_test(test_copy_stream),
		cmocka_unit_test(test_words),
		cmocka_unit_test(test_guarded),
		cmocka_unit_test(kernel_contract_guarded_socket),
		cmocka_unit_test(test_threads),
		cmocka_unit_test(test_foreign),
	};
	int failed = cmocka_run_group_tests_name("chained", before, NULL, NULL);

	return failed + cmocka_run_group_tests_name("fault", tests, NULL, NULL);
}
