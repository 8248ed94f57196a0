/* SPDX-License-Identifier: Apache-2.0 */
/* From the command line to the verb and the exit status. */
#include "ctl/bus/list.h"

static int (*const functions[CTL_VERB_N])(struct ctl *c) = {
#define CTL_FUNCTION(id, function) [CTL_VERB_##id] = (function),
	CTL_VERB_FUNCTIONS(CTL_FUNCTION)
#undef CTL_FUNCTION
};

int ctl_help(struct ctl *c)
{
	const struct ctl_verb *verb = c->n_args ? ctl_verb_find(c, c->args[0]) : NULL;

	if (c->n_args && !verb)
		return -1;
	fputs(verb ? verb->help : ctl_help_text, c->out);
	return CTL_EXIT_OK;
}

static int dispatch(struct ctl *c)
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
	return c->verb->list ? ctl_list_run(c, c->verb->list) : functions[c->verb - ctl_verbs](c);
}

int ctl_run(const struct ctl_env *env, FILE *out, FILE *err, int argc, char *const *argv)
{
	struct ctl c = { .env = env, .out = out, .err = err };
	int status = ctl_args_parse(&c, argc, argv);

	if (!status)
		status = dispatch(&c);
	ctl_bus_close(&c);
	if (status == CTL_EXIT_OK)
		status = ctl_flush(&c);
	if (status >= 0)
		return status;
	fprintf(err, "drayctl: %s\n", c.failure.msg);
	return (int)c.failure.exit;
}
