/* SPDX-License-Identifier: Apache-2.0 */
/* From the command line to the verb and the exit status. */
#include "ctl/bus/list.h"
#include "ctl/command_line/args.h"

static int (*const functions[CTL_VERB_N])(struct ctl *c, struct ctl_err *reterr) = {
#define CTL_FUNCTION(id, function) [CTL_VERB_##id] = (function),
	CTL_VERB_FUNCTIONS(CTL_FUNCTION)
#undef CTL_FUNCTION
};

int ctl_help(struct ctl *c, struct ctl_err *reterr)
{
	const struct ctl_verb *verb = c->n_args ? ctl_verb_find(c->args[0], reterr) : NULL;

	if (c->n_args && !verb)
		return -1;
	fputs(verb ? verb->help : ctl_help_text, c->out);
	return CTL_EXIT_OK;
}

static int dispatch(struct ctl *c, struct ctl_err *reterr)
{
	if (c->values[CTL_OPTION_HELP]) {
		fputs(c->verb ? c->verb->help : ctl_help_text, c->out);
		return CTL_EXIT_OK;
	}
	if (c->values[CTL_OPTION_VERSION]) {
		fputs("drayctl " DRAY_VERSION "\n", c->out);
		return CTL_EXIT_OK;
	}
	if (!c->verb)
		c->verb = &ctl_verbs[0];
	return c->verb->list ? ctl_list_run(c, c->verb->list, reterr) :
			       functions[c->verb - ctl_verbs](c, reterr);
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
