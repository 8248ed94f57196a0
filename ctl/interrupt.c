/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/ctl.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/err.h"
#include "lib/time.h"

static int wait_blocked(struct ctl *c, int signals, int fd, int64_t timeout_ns, int *ret_signal)
{
	int64_t ends = dray_now().ns + timeout_ns;
	struct signalfd_siginfo got;
	struct pollfd p[3] = { { signals, POLLIN, 0 },
			       { fd, POLLIN, 0 },
			       /* POLLERR, when the reader closes it, needs no event bit. */
			       { fileno(c->out), 0, 0 } };

	for (;;) {
		int64_t left = dray_max(ends - dray_now().ns, (int64_t)0);
		int ms = timeout_ns < 0 ? -1 : (int)((left + DRAY_NS_PER_MS - 1) / DRAY_NS_PER_MS);
		int n = signals < 0 ? -1 : poll(p, 3, ms);

		if (n < 0 && errno != EINTR)
			return ctl_failed(c, "cannot wait for events and signals: %s",
					  dray_errno_text(errno));
		/* A signal left pending would kill the process when it is unblocked. */
		if (n > 0 && p[0].revents && read(signals, &got, sizeof(got)) > 0) {
			*ret_signal = (int)got.ssi_signo;
			return CTL_WAKE_SIGNAL;
		}
		if (n > 0 && p[2].revents)
			return CTL_WAKE_END;
		if (n > 0 && p[1].revents)
			return CTL_WAKE_READY;
		if (!n && timeout_ns >= 0 && dray_now().ns >= ends)
			return CTL_WAKE_TIME;
	}
}

int ctl_signals_wait(struct ctl *c, const sigset_t *set, int fd, int64_t timeout_ns,
		     int *ret_signal)
{
	sigset_t former;
	int signals, ret;

	sigprocmask(SIG_BLOCK, set, &former);
	signals = signalfd(-1, set, SFD_CLOEXEC | SFD_NONBLOCK);
	ret = wait_blocked(c, signals, fd, timeout_ns, ret_signal);
	dray_close(signals);
	sigprocmask(SIG_SETMASK, &former, NULL);
	return ret;
}

static sigset_t stop_signals(void)
{
	sigset_t stop;

	sigemptyset(&stop);
	sigaddset(&stop, SIGINT);
	sigaddset(&stop, SIGTERM);
	return stop;
}

void ctl_interrupt_hold(sigset_t *ret_former)
{
	sigset_t stop = stop_signals();

	sigprocmask(SIG_BLOCK, &stop, ret_former);
}

void ctl_interrupt_release(const sigset_t *former)
{
	sigprocmask(SIG_SETMASK, former, NULL);
}

int ctl_interrupt_wait(struct ctl *c, int fd, int64_t timeout_ns)
{
	sigset_t stop = stop_signals();
	int signal, ret;

	ret = ctl_signals_wait(c, &stop, fd, timeout_ns, &signal);
	return ret == CTL_WAKE_SIGNAL ? CTL_WAKE_END : ret;
}
