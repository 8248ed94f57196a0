/* SPDX-License-Identifier: Apache-2.0 */
/*
 * System calls that the filter allows, refuses, or answers by ending the process, each in a child.
 */
#include "agent/process/sandbox.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <seccomp.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "agent/placement/net/resolver.h"
#include "tests/unit/cm.h"
#include "tests/unit/state_rig.h"
/* after cmocka, because it uses cmocka's assertions */
#include "tests/unit/child.h"
#include "tests/unit/net_rig.h"

/* newer than the C library's headers may be */
#ifndef SYS_io_uring_setup
#define SYS_io_uring_setup 425
#endif
#ifndef SYS_pidfd_send_signal
#define SYS_pidfd_send_signal 424
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

#define ENFORCE DRAY_CONFIG_AGENT_SECCOMP_ENFORCE
#define LOG DRAY_CONFIG_AGENT_SECCOMP_LOG
#define OFF DRAY_CONFIG_AGENT_SECCOMP_OFF

static void enter(enum dray_config_agent_seccomp mode)
{
	struct dray_err err = DRAY_ERR_NULL;

	CHILD_CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	CHILD_CHECK(sandbox_enter(mode, true, &err) == 0);
}

/* Filters of this process; a container can have one of its own. */
static int filters(void)
{
	FILE *f = fopen("/proc/self/status", "re");
	char line[128];
	int n = -1;

	CHILD_CHECK(f);
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "Seccomp_filters: %d", &n) == 1)
			break;
	fclose(f);
	return n;
}

static void *add_one(void *arg)
{
	++*(int *)arg;
	return NULL;
}

static void do_work(void *arg)
{
	int fds[2], n = 0;
	pthread_t thread;
	void *p;

	enter(*(enum dray_config_agent_seccomp *)arg);
	CHILD_CHECK(filters() > 0);
	for (int i = 0; i < 2; i++) {
		CHILD_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) == 0);
		CHILD_CHECK(socket(i ? AF_INET : AF_NETLINK, i ? SOCK_STREAM : SOCK_RAW, 0) >= 0);
	}
	CHILD_CHECK(write(fds[0], "x", 1) == 1 && read(fds[1], &(char){ 0 }, 1) == 1);
	CHILD_CHECK(epoll_create1(EPOLL_CLOEXEC) >= 0);
	CHILD_CHECK(pthread_create(&thread, NULL, add_one, &n) == 0);
	CHILD_CHECK(pthread_join(thread, NULL) == 0 && n == 1);
	p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHILD_CHECK(p != MAP_FAILED && mprotect(p, 4096, PROT_READ) == 0);
	CHILD_CHECK(memfd_create("x", MFD_CLOEXEC) >= 0);
	/* as libibverbs is loaded when the first device appears */
	CHILD_CHECK(dlopen("libBrokenLocale.so.1", RTLD_NOW));
	errno = 0;
	CHILD_CHECK(getgrnam("there-is-no-such-group") == NULL && errno != EPERM);
	CHILD_CHECK(raise(SIGWINCH) == 0);
	CHILD_CHECK(waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD);
}

/*
 * Creates, writes, reads and replaces the database; likewise one that was opened before the filter.
 */
static void do_state(void *arg)
{
	const char *dir = arg;
	struct rig r = { 0 };

	rig_open(&r, dir);
	enter(ENFORCE);
	rig_start(&r);
	rig_put_hint(&r, 1, 1);
	CHILD_CHECK(rig_flush(&r) == 0 && rig_on_disk(&r));
	for (unsigned i = 0; i < 20000; i++)
		rig_put_hint(&r, i, 2);
	CHILD_CHECK(rig_flush(&r) == 0);
	rig_reopen(&r);
	CHILD_CHECK(r.loaded == 20000);
	rig_close(&r);
	cm_file_write(dir, "state.db", "not a database");
	rig_open(&r, dir);
	rig_start(&r);
	rig_put_hint(&r, 1, 1);
	CHILD_CHECK(rig_flush(&r) == 0 && rig_on_disk(&r));
	rig_close(&r);
}

static void test_state(void **state)
{
	char dir[CM_DIR_BYTES];

	cm_dir_make(dir);
	assert_int_equal(child_run(do_state, dir), 0);
	cm_dir_remove(dir);
}

static void test_work(void **state)
{
	enum dray_config_agent_seccomp mode[] = { ENFORCE, LOG };

	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(child_run(do_work, &mode[i]), 0);
}

/* The kernel would answer each of these calls differently, or carry it out. */
static void do_refused(void *arg)
{
	int fds[2], fd = (int)syscall(SYS_pidfd_open, getpid(), 0);
	int exec = PROT_READ | PROT_EXEC;
	void *p;

	enter(ENFORCE);
	CHILD_CHECK(syscall(SYS_io_uring_setup, 1, NULL) < 0 && errno == EPERM);
	CHILD_CHECK(syscall(100000) < 0 && errno == EPERM);
	CHILD_CHECK(socket(200, SOCK_STREAM, 0) < 0 && errno == EPERM);
	CHILD_CHECK(socketpair(AF_INET, SOCK_STREAM, 0, fds) < 0 && errno == EPERM);
	p = mmap(NULL, 4096, exec, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHILD_CHECK(p == MAP_FAILED && errno == EPERM);
	p = mmap(NULL, 4096, exec | PROT_WRITE, MAP_PRIVATE, open("/proc/self/exe", O_RDONLY), 0);
	CHILD_CHECK(p == MAP_FAILED && errno == EPERM);
	p = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHILD_CHECK(p != MAP_FAILED && mprotect(p, 4096, exec) < 0 && errno == EPERM);
	CHILD_CHECK(fd < 0 || syscall(SYS_pidfd_send_signal, fd, 0, NULL, 0) == 0);
	CHILD_CHECK(syscall(SYS_pidfd_send_signal, fd, SIGWINCH, NULL, 0) < 0 && errno == EPERM);
	/* a thread may change how it is scheduled, and not how others are */
	CHILD_CHECK(syscall(SYS_sched_setattr, 0, NULL, 0) < 0 && errno == EINVAL);
	CHILD_CHECK(syscall(SYS_sched_setattr, getpid(), NULL, 0) < 0 && errno == EPERM);
}

static void test_refused(void **state)
{
	assert_int_equal(child_run(do_refused, NULL), 0);
}

/* Without a library to come, no file can become code: not a memfd, and not a named one. */
static void do_no_code(void *arg)
{
	int exec = PROT_READ | PROT_EXEC, code = open("/proc/self/exe", O_RDONLY);
	int fd = memfd_create("x", MFD_CLOEXEC);
	struct dray_err err = DRAY_ERR_NULL;
	void *p;

	CHILD_CHECK(fd >= 0 && ftruncate(fd, 4096) == 0 && code >= 0);
	CHILD_CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	CHILD_CHECK(sandbox_enter(ENFORCE, false, &err) == 0);
	p = mmap(NULL, 4096, exec, MAP_PRIVATE, fd, 0);
	CHILD_CHECK(p == MAP_FAILED && errno == EPERM);
	p = mmap(NULL, 4096, exec, MAP_PRIVATE, code, 0);
	CHILD_CHECK(p == MAP_FAILED && errno == EPERM);
	p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHILD_CHECK(p != MAP_FAILED && mprotect(p, 4096, exec) < 0 && errno == EPERM);
	CHILD_CHECK(!dlopen("libBrokenLocale.so.1", RTLD_NOW));
}

static void test_no_code(void **state)
{
	assert_int_equal(child_run(do_no_code, NULL), 0);
}

struct forbidden {
	const char *name;
	long number;
};

#define FORBIDDEN(name)           \
	{                         \
#name, SYS_##name \
	}

static const struct forbidden forbidden[] = {
	FORBIDDEN(execve),    FORBIDDEN(execveat),    FORBIDDEN(mount),
	FORBIDDEN(umount2),   FORBIDDEN(unshare),     FORBIDDEN(setns),
	FORBIDDEN(bpf),       FORBIDDEN(init_module), FORBIDDEN(setuid),
	FORBIDDEN(setgroups), FORBIDDEN(kexec_load),  FORBIDDEN(perf_event_open),
	FORBIDDEN(keyctl),    FORBIDDEN(chroot),      FORBIDDEN(process_vm_writev),
};

static void do_forbidden(void *arg)
{
	const struct forbidden *f = arg;

	enter(ENFORCE);
	syscall(f->number, -1, -1, -1, -1, -1, -1);
}

static void do_logged(void *arg)
{
	const struct forbidden *f = arg;

	enter(LOG);
	CHILD_CHECK(syscall(f->number, -1, -1, -1, -1, -1, -1) < 0);
}

static void test_forbidden(void **state)
{
	for (size_t i = 0; i < sizeof(forbidden) / sizeof(forbidden[0]); i++) {
		struct forbidden f = forbidden[i];
		int status = child_run(do_forbidden, &f);

		if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSYS)
			fail_msg("%s: wait status %#x", f.name, status);
	}
	/*
	 * setuid and similar calls with -1 change nothing, so these two prove whether the call was
	 * carried out
	 */
	assert_int_equal(child_run(do_logged, &(struct forbidden)FORBIDDEN(execve)), 0);
	assert_int_equal(child_run(do_logged, &(struct forbidden)FORBIDDEN(mount)), 0);
}

/* A thread that started before the filter. */
static void *wait_and_try(void *arg)
{
	int *pipe_end = arg, fds[2];

	CHILD_CHECK(read(*pipe_end, &(char){ 0 }, 1) == 1);
	CHILD_CHECK(socketpair(AF_INET, SOCK_STREAM, 0, fds) < 0 && errno == EPERM);
	return arg;
}

static void do_threads(void *arg)
{
	pthread_t thread;
	void *result;
	int fds[2];

	CHILD_CHECK(pipe2(fds, O_CLOEXEC) == 0);
	CHILD_CHECK(pthread_create(&thread, NULL, wait_and_try, &fds[0]) == 0);
	enter(ENFORCE);
	CHILD_CHECK(write(fds[1], "x", 1) == 1);
	CHILD_CHECK(pthread_join(thread, &result) == 0 && result);
}

static void test_threads(void **state)
{
	assert_int_equal(child_run(do_threads, NULL), 0);
}

static void do_off(void *arg)
{
	int before = filters();

	enter(OFF);
	CHILD_CHECK(filters() == before);
}

static void on_addresses(void *arg, const struct dray_addr *addrs, unsigned n,
			 const struct dray_err *why)
{
	CHILD_CHECK(n == 2 && !why && addrs[0].sa.sa_family == AF_INET);
	++*(unsigned *)arg;
}

/* All of c-ares under the filter, including its configuration files and random numbers. */
static void do_resolve(void *arg)
{
	struct dns_entry table[] = {
		{ .name = "two.test", .v4 = { "127.0.0.1" }, .v6 = { "::1" } },
		{ .name = NULL },
	};
	struct dray_err err = DRAY_ERR_NULL;
	struct resolver *r;
	unsigned answers = 0;
	sd_event *e;

	enter(ENFORCE);
	CHILD_CHECK(sd_event_new(&e) >= 0);
	CHILD_CHECK(resolver_new(&r, e, &err) == 0);
	resolver_pretend(r, dns_server_text(dns_server_new(e, table)), NULL);
	CHILD_CHECK(resolver_lookup(r, "two.test.", 1, NET_LIMIT_MS * DRAY_NS_PER_MS, on_addresses,
				    &answers, NULL, &err) == 0);
	CHILD_CHECK(net_until(e, answers == 1));
	resolver_free(r);
}

static void test_resolve(void **state)
{
	assert_int_equal(child_run(do_resolve, NULL), 0);
}

static void test_off(void **state)
{
	assert_int_equal(child_run(do_off, NULL), 0);
}

/* A kernel without filters, here simulated by one that answers so. */
static void do_without(void *arg)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_seccomp, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_prctl, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PR_SET_SECCOMP, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(code) / sizeof(code[0]), code };
	int before;

	CHILD_CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	CHILD_CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
	before = filters();
	enter(*(enum dray_config_agent_seccomp *)arg);
	CHILD_CHECK(filters() == before);
}

/* --- without memory, by --wrap --- */

static enum { FAILS_NOTHING, FAILS_INIT, FAILS_RULE } failing;

scmp_filter_ctx __real_seccomp_init(uint32_t action);
scmp_filter_ctx __wrap_seccomp_init(uint32_t action);
int __real_seccomp_rule_add_array(scmp_filter_ctx ctx, uint32_t action, int call, unsigned n,
				  const struct scmp_arg_cmp *args);
int __wrap_seccomp_rule_add_array(scmp_filter_ctx ctx, uint32_t action, int call, unsigned n,
				  const struct scmp_arg_cmp *args);

scmp_filter_ctx __wrap_seccomp_init(uint32_t action)
{
	if (failing != FAILS_INIT)
		return __real_seccomp_init(action);
	errno = ENOMEM;
	return NULL;
}

int __wrap_seccomp_rule_add_array(scmp_filter_ctx ctx, uint32_t action, int call, unsigned n,
				  const struct scmp_arg_cmp *args)
{
	return failing == FAILS_RULE && call == SYS_close ?
		       -EINVAL :
		       __real_seccomp_rule_add_array(ctx, action, call, n, args);
}

/* The agent does not serve without the filter that it is told to have. */
static void do_no_filter(void *arg)
{
	struct dray_err err = DRAY_ERR_NULL;

	CHILD_CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	failing = FAILS_INIT;
	CHILD_CHECK(sandbox_enter(ENFORCE, true, &err) == -ENOMEM);
	CHILD_CHECK(sandbox_enter(LOG, true, &err) == -ENOMEM);
	failing = FAILS_RULE;
	CHILD_CHECK(sandbox_enter(ENFORCE, true, &err) == -EINVAL);
	CHILD_CHECK(strstr(err.msg, "agent.seccomp"));
}

static void test_no_filter(void **state)
{
	assert_int_equal(child_run(do_no_filter, NULL), 0);
}

static void test_without(void **state)
{
	enum dray_config_agent_seccomp mode[] = { ENFORCE, LOG };

	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(child_run(do_without, &mode[i]), 0);
}

static bool is_in(const char *name, const char *const *list)
{
	for (; *list; list++)
		if (!strcmp(name, *list))
			return true;
	return false;
}

/* The order of rules would decide about a call that is in both lists. */
static void test_lists(void **state)
{
	for (const char *const *a = sandbox_allowed; *a; a++) {
		assert_false(is_in(*a, sandbox_forbidden));
		assert_false(is_in(*a, a + 1));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_work),    cmocka_unit_test(test_no_code),
		cmocka_unit_test(test_refused), cmocka_unit_test(test_forbidden),
		cmocka_unit_test(test_threads), cmocka_unit_test(test_off),
		cmocka_unit_test(test_without), cmocka_unit_test(test_no_filter),
		cmocka_unit_test(test_lists),   cmocka_unit_test(test_resolve),
		cmocka_unit_test(test_state),   cmocka_unit_test(test_work),
		cmocka_unit_test(test_refused), cmocka_unit_test(test_forbidden),
		cmocka_unit_test(test_threads), cmocka_unit_test(test_off),
		cmocka_unit_test(test_without), cmocka_unit_test(test_lists),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
