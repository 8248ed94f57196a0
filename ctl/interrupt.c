/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/interrupt.h"

#include <errno.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/err.h"
#include "lib/time.h"

static sigset_t stop_signals(void)
{
	sigset_t stop;

	sigemptyset(&stop);
	sigaddset(&stop, SIGINT);
	sigaddset(&stop, SIGTERM);
	return stop;
}

int ctl_interrupt_begin(struct ctl_interrupt *i, struct ctl_err *reterr)
{
	sigset_t stop = stop_signals();

	i->fd = signalfd(-1, &stop, SFD_CLOEXEC | SFD_NONBLOCK);
	if (i->fd < 0)
		return ctl_err_set(reterr, CTL_EXIT_FAILED, "signals: %s", dray_errno_text(errno));
	return 0;
}

void ctl_interrupt_end(struct ctl_interrupt *i)
{
	dray_close(i->fd);
}

static int wait_blocked(struct ctl_interrupt *i, FILE *out, int fd, int64_t timeout_ns,
			struct ctl_err *reterr)
{
	int64_t ends = dray_now().ns + timeout_ns;
	struct signalfd_siginfo got;
	struct pollfd p[3] = { { i->fd, POLLIN, 0 },
			       { fd, POLLIN, 0 },
			       /* the reader went away: POLLERR comes unasked */
			       { fileno(out), 0, 0 } };

	for (;;) {
		int64_t left = dray_max(ends - dray_now().ns, (int64_t)0);
		int ms = timeout_ns < 0 ? -1 : (int)((left + DRAY_NS_PER_MS - 1) / DRAY_NS_PER_MS);
		int n = poll(p, 3, ms);

		if (n < 0 && errno != EINTR)
			return ctl_err_set(reterr, CTL_EXIT_FAILED, "waiting: %s",
					   dray_errno_text(errno));
		/* taken, or it would end the process when it is no longer blocked */
		if (n > 0 && p[0].revents && read(i->fd, &got, sizeof(got)) > 0)
			return CTL_WAKE_END;
		if (n > 0 && p[2].revents)
			return CTL_WAKE_END;
		if (n > 0 && p[1].revents)
			return CTL_WAKE_READY;
		if (!n && (timeout_ns >= 0 && dray_now().ns >= ends))
			return CTL_WAKE_TIME;
	}
}

int ctl_interrupt_wait(struct ctl_interrupt *i, FILE *out, int fd, int64_t timeout_ns,
		       struct ctl_err *reterr)
{
	sigset_t stop = stop_signals(), former;
	int ret;

	sigprocmask(SIG_BLOCK, &stop, &former);
	ret = wait_blocked(i, out, fd, timeout_ns, reterr);
	sigprocmask(SIG_SETMASK, &former, NULL);
	return ret;
}
