/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/verbs/watch.h"

#include <errno.h>
#include <stdint.h>

#include "ctl/command_line/args.h"
#include "ctl/interrupt.h"
#include "lib/err.h"
#include "lib/time.h"

#define INTERVAL_DEFAULT_NS DRAY_NS_PER_SEC
#define INTERVAL_MIN_NS (100 * DRAY_NS_PER_MS)
#define INTERVAL_MAX_NS (3600 * DRAY_NS_PER_SEC)

static int looks(struct ctl *c, struct ctl_bus *b, struct ctl_interrupt *in, int64_t interval_ns,
		 int64_t count, ctl_look_fn look, void *arg, struct ctl_err *reterr)
{
	for (int64_t i = 0; !count || i < count; i++) {
		int ret;

		if (i) {
			ret = ctl_interrupt_wait(in, c->out, -1, interval_ns, reterr);
			if (ret <= CTL_WAKE_END)
				return ret;
		}
		/* home, and what was there before goes */
		if (c->env->terminal && c->format == CTL_TEXT)
			fputs("\033[H\033[2J", c->out);
		ret = look(c, b, arg, reterr);
		if (ret < 0)
			return ret;
		if (fflush(c->out) != 0)
			return ctl_err_set(reterr, CTL_EXIT_FAILED, "writing: %s",
					   dray_errno_text(errno));
	}
	return 0;
}

int ctl_watch(struct ctl *c, ctl_look_fn look, void *arg)
{
	struct ctl_err err = CTL_ERR_NULL;
	struct ctl_bus bus = CTL_BUS_NULL;
	struct ctl_interrupt in;
	int64_t interval_ns, count = 0;
	int ret;

	ret = ctl_option_span(c, CTL_OPTION_INTERVAL, INTERVAL_MIN_NS, INTERVAL_MAX_NS,
			      INTERVAL_DEFAULT_NS, &interval_ns, &err);
	if (!ret)
		ret = ctl_option_count(c, CTL_OPTION_LOOKS, 1, INT32_MAX, 0, &count, &err);
	if (!ret)
		ret = ctl_bus_open(&bus, c->control, c->timeout_ns, &err);
	if (!ret)
		ret = ctl_interrupt_begin(&in, &err);
	if (!ret) {
		ret = looks(c, &bus, &in, interval_ns, count, look, arg, &err);
		ctl_interrupt_end(&in);
	}
	ctl_bus_close(&bus);
	return ret < 0 ? ctl_fail(c, &err) : CTL_EXIT_OK;
}
