/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys of the terminal, each as soon as it is pressed, and not shown. The terminal is in that mode only during a wait, so that a
 * signal which ends drayctl leaves it as it was.
 */
#pragma once

#include "ctl/ctl.h"

struct ctl_keyboard {
	int fd;      /* -1: there is none */
	bool screen; /* the size of the terminal matters */
	char keys[16];
	unsigned at, n; /* keys from `at` are still to be returned */
	sigset_t former;
};

/* True if a verb that runs until a signal ends it can read keys: input and output are terminals, and the output is for people. */
bool ctl_keyboard_usable(const struct ctl *c);

/* From now on a change of the terminal's size ends the next wait. */
void ctl_keyboard_open(struct ctl_keyboard *k, const struct ctl *c);
void ctl_keyboard_close(struct ctl_keyboard *k);

/*
 * Waits as ctl_interrupt_wait() does, and for keys. CTL_WAKE_READY: *ret_key was pressed. CTL_WAKE_SIGNAL: the terminal has
 * another size, or drayctl was stopped and continues.
 */
int ctl_keyboard_wait(struct ctl *c, struct ctl_keyboard *k, int64_t timeout_ns, char *ret_key);
