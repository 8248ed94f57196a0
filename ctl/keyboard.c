/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/keyboard.h"

#include <termios.h>
#include <unistd.h>

#define ESCAPE '\033'

bool ctl_keyboard_usable(const struct ctl *c)
{
	return c->env->terminal && c->format == CTL_TEXT && c->env->in >= 0 && isatty(c->env->in);
}

void ctl_keyboard_open(struct ctl_keyboard *k, const struct ctl *c)
{
	sigset_t resized;

	*k = (struct ctl_keyboard){ .fd = ctl_keyboard_usable(c) ? c->env->in : -1,
				    .screen = c->env->terminal && c->format == CTL_TEXT };
	sigemptyset(&resized);
	/* While it is blocked, it waits for the next ctl_keyboard_wait() instead of being ignored. */
	if (k->screen)
		sigaddset(&resized, SIGWINCH);
	sigprocmask(SIG_BLOCK, &resized, &k->former);
}

void ctl_keyboard_close(struct ctl_keyboard *k)
{
	sigprocmask(SIG_SETMASK, &k->former, NULL);
}

/* In the background, the terminal belongs to another program, and the kernel stops processes that change it or read from it. */
static bool is_foreground(int fd)
{
	return fd >= 0 && tcgetpgrp(fd) == getpgrp();
}

/* True: the terminal gives single keys; *ret_former is its mode before. */
static bool single_keys(int fd, struct termios *ret_former)
{
	struct termios mode;

	if (!is_foreground(fd) || tcgetattr(fd, ret_former) < 0)
		return false;
	mode = *ret_former;
	mode.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
	mode.c_cc[VMIN] = 1;
	mode.c_cc[VTIME] = 0;
	return !tcsetattr(fd, TCSANOW, &mode);
}

/* Reads what has been typed. CTL_WAKE_READY, CTL_WAKE_END at the end of the terminal, or CTL_WAKE_SIGNAL: no key. */
static int keys_read(struct ctl_keyboard *k)
{
	ssize_t n = read(k->fd, k->keys, sizeof(k->keys));

	if (n <= 0)
		return CTL_WAKE_END;
	/* an arrow or another special key, whose letters stand for no keys */
	if (k->keys[0] == ESCAPE)
		return CTL_WAKE_SIGNAL;
	k->at = 0;
	k->n = (unsigned)n;
	return CTL_WAKE_READY;
}

/* All signals of `set` are blocked. */
static int wait_blocked(struct ctl *c, struct ctl_keyboard *k, const sigset_t *set,
			int64_t timeout_ns)
{
	struct termios former;
	bool single = single_keys(k->fd, &former);
	int signal = 0, ret = ctl_signals_wait(c, set, single ? k->fd : -1, timeout_ns, &signal);

	if (ret == CTL_WAKE_READY)
		ret = keys_read(k);
	if (single && is_foreground(k->fd))
		tcsetattr(k->fd, TCSANOW, &former);
	/* these stop or end drayctl as soon as they are not blocked any more; in a session without a shell, the kernel ignores SIGTSTP */
	if (signal == SIGTSTP || signal == SIGQUIT || signal == SIGHUP)
		raise(signal);
	return signal == SIGINT || signal == SIGTERM ? CTL_WAKE_END : ret;
}

int ctl_keyboard_wait(struct ctl *c, struct ctl_keyboard *k, int64_t timeout_ns, char *ret_key)
{
	sigset_t set, former;
	int ret = CTL_WAKE_READY;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	if (k->screen)
		sigaddset(&set, SIGWINCH);
	if (k->fd >= 0) {
		sigaddset(&set, SIGTSTP);
		sigaddset(&set, SIGQUIT);
		sigaddset(&set, SIGHUP);
		sigaddset(&set, SIGCONT);
	}
	sigprocmask(SIG_BLOCK, &set, &former);
	if (k->at == k->n)
		ret = wait_blocked(c, k, &set, timeout_ns);
	if (ret == CTL_WAKE_READY)
		*ret_key = k->keys[k->at++];
	sigprocmask(SIG_SETMASK, &former, NULL);
	return ret;
}
