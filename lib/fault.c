/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The guard is a jump buffer of the thread, armed during one copy. If a memory access of this thread raises the signal
 * while the buffer is armed, the handler jumps there. Any other SIGBUS goes to the handler that was installed
 * before, and in the end to the default action, which ends the process.
 *
 * The jump does not restore the signal mask, because saving the mask would cost each copy a system call. The handler
 * unblocks the signal itself.
 */
#include "lib/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib/cleanup.h"

/* older C libraries lack it */
#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

struct guard {
	sigjmp_buf jump;
	volatile sig_atomic_t armed;
	const void *volatile address; /* of the last access that failed */
};

/* initial-exec: the handler must not run the allocator for its first access */
static _Thread_local struct guard guard __attribute__((tls_model("initial-exec")));

static struct sigaction former;

static void pass_on(int sig, siginfo_t *info, void *context)
{
	if (former.sa_flags & SA_SIGINFO) {
		former.sa_sigaction(sig, info, context);
	} else if (former.sa_handler != SIG_DFL && former.sa_handler != SIG_IGN) {
		former.sa_handler(sig);
	} else {
		/* the access is repeated under the default action; a signal sent by a process is sent again */
		signal(sig, SIG_DFL);
		if (info->si_code <= 0)
			raise(sig);
	}
}

static void handle_sigbus(int sig, siginfo_t *info, void *context)
{
	/* the kernel found a broken page that no access has needed yet */
	if (info->si_code == BUS_MCEERR_AO)
		return;
	if (guard.armed && info->si_code > 0) {
		sigset_t mask;

		sigemptyset(&mask);
		sigaddset(&mask, sig);
		pthread_sigmask(SIG_UNBLOCK, &mask, NULL);
		guard.armed = 0;
		guard.address = info->si_addr;
		siglongjmp(guard.jump, 1);
	}
	pass_on(sig, info, context);
}

int fault_init(void)
{
	struct sigaction sa = { .sa_flags = SA_SIGINFO }, now;

	if (sigaction(SIGBUS, NULL, &now) < 0)
		return -errno;
	if (now.sa_flags & SA_SIGINFO && now.sa_sigaction == handle_sigbus)
		return 0;
	sa.sa_sigaction = handle_sigbus;
	sigemptyset(&sa.sa_mask);
	former = now;
	return sigaction(SIGBUS, &sa, NULL) < 0 ? -errno : 0;
}

/*
 * Runs a statement under the guard; 0 or -EFAULT. The fences keep the compiler from moving accesses out of it. The
 * accessing instruction raises the signal on its own thread, so no fence of the processor is needed.
 */
#define GUARDED(statement)                                         \
	({                                                         \
		int ret_ = -EFAULT;                                \
		if (!sigsetjmp(guard.jump, 0)) {                   \
			guard.armed = 1;                           \
			atomic_signal_fence(memory_order_seq_cst); \
			statement;                                 \
			atomic_signal_fence(memory_order_seq_cst); \
			guard.armed = 0;                           \
			ret_ = 0;                                  \
		}                                                  \
		ret_;                                              \
	})

int fault_copy(void *dst, const void *src, size_t n)
{
	/* memmove: both sides may lie in one mapping and overlap */
	return GUARDED(memmove(dst, src, n));
}

int fault_copy_pieces(const struct dray_piece *v, unsigned n, bool stream, const void **ret_address)
{
	int ret = GUARDED(dray_copy_pieces(v, n, stream));

	if (ret)
		*ret_address = guard.address;
	return ret;
}

int fault_run(void (*fn)(void *arg), void *arg)
{
	return GUARDED(fn(arg));
}

int fault_load32(const uint32_t *p, uint32_t *ret)
{
	return GUARDED(*ret = __atomic_load_n(p, __ATOMIC_ACQUIRE));
}

int fault_store32(uint32_t *p, uint32_t v)
{
	return GUARDED(__atomic_store_n(p, v, __ATOMIC_RELEASE));
}

/* -1 where the kernel or a system call filter refuses. */
static int uffd_open(void)
{
	struct uffdio_api api = {
		.api = UFFD_API,
		.features = UFFD_FEATURE_SIGBUS | UFFD_FEATURE_MISSING_SHMEM |
			    UFFD_FEATURE_MISSING_HUGETLBFS,
	};
	int fd dray_auto_close =
		(int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);

	if (fd < 0 || ioctl(fd, UFFDIO_API, &api) < 0)
		return -1;
	return dray_take_fd(fd);
}

/* One for the process, never closed: closing it would remove every guard. */
static int uffd = -1;

static void guard_open(void)
{
	uffd = uffd_open();
}

bool fault_guard_memory(void *p, uint64_t bytes)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct uffdio_register reg = {
		.range = { .start = (uintptr_t)p, .len = bytes },
		.mode = UFFDIO_REGISTER_MODE_MISSING,
	};

	pthread_once(&once, guard_open);
	return uffd >= 0 && ioctl(uffd, UFFDIO_REGISTER, &reg) == 0;
}
