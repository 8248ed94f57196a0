/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/command_line/args.h"
#include "ctl/verbs/verbs.h"
#include "lib/time.h"

int ctl_watch(struct ctl *c, ctl_print_fn print, void *arg)
{
	int64_t interval_ns = c->numbers[CTL_OPTION_INTERVAL], count = c->numbers[CTL_OPTION_TIMES];

	for (int64_t i = 0; !count || i < count; i++) {
		if (i) {
			int ret = ctl_interrupt_wait(c, -1, interval_ns);

			if (ret <= CTL_WAKE_END)
				return ret;
		}
		/* Clears the terminal. */
		if (c->env->terminal && c->format == CTL_TEXT)
			fputs("\033[H\033[2J", c->out);
		if (print(c, arg) < 0 || ctl_flush(c) < 0)
			return -1;
	}
	return CTL_EXIT_OK;
}
