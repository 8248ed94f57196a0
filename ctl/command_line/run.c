/* SPDX-License-Identifier: Apache-2.0 */
/* From the command line to the verb and the exit status. */
#include "ctl/bus/bus.h"
#include "ctl/command_line/args.h"
#include "ctl/command_line/help.h"

static int dispatch(struct ctl *c, struct ctl_err *reterr)
{
	if (c->values[CTL_OPTION_HELP]) {
		ctl_help_print(c->out, c->verb);
		return CTL_EXIT_OK;
	}
	if (c->values[CTL_OPTION_VERSION]) {
		fputs("drayctl " DRAY_VERSION "\n", c->out);
		return CTL_EXIT_OK;
	}
	if (!c->verb)
		c->verb = &ctl_verbs[0];
	return c->verb->fn(c, reterr);
}

int ctl_run(const struct ctl_env *env, FILE *out, FILE *err, int argc, char *const *argv)
{
	struct ctl c = { .env = env, .out = out, .err = err };
	struct ctl_err e = CTL_ERR_NULL;
	int status = ctl_args_parse(&c, argc, argv, &e);

	if (!status)
		status = dispatch(&c, &e);
	ctl_bus_close(&c);
	if (status == CTL_EXIT_OK)
		status = ctl_flush(&c, &e);
	if (status >= 0)
		return status;
	fprintf(err, "drayctl: %s\n", e.msg);
	return (int)e.exit;
}
