/* SPDX-License-Identifier: Apache-2.0 */
/* The way from a command line to a verb. */
#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "ctl/command_line/args.h"
#include "ctl/command_line/help.h"
#include "lib/err.h"
#include "lib/nearest.h"

const struct ctl_verb *ctl_verb_find(const char *name, const char **ret_nearest)
{
	struct dray_nearest nearest = DRAY_NEAREST(name);

	for (unsigned i = 0; i < ctl_verbs_n; i++) {
		if (!strcmp(ctl_verbs[i].name, name))
			return &ctl_verbs[i];
		dray_nearest_offer(&nearest, ctl_verbs[i].name);
	}
	*ret_nearest = nearest.best;
	return NULL;
}

int ctl_err_set(struct ctl_err *e, enum ctl_exit status, const char *fmt, ...)
{
	va_list ap;

	if (!e || e->exit)
		return -1;
	e->exit = status;
	va_start(ap, fmt);
	vsnprintf(e->msg, sizeof(e->msg), fmt, ap);
	va_end(ap);
	return -1;
}

int ctl_fail(struct ctl *c, const struct ctl_err *e)
{
	fprintf(c->err, "drayctl: %s\n", e->msg);
	return (int)e->exit;
}

static int dispatch(struct ctl *c, const struct ctl_verb *verb)
{
	if (c->values[CTL_OPTION_HELP]) {
		if (verb)
			ctl_help_verb(c->out, verb);
		else
			ctl_help_all(c->out);
		return CTL_EXIT_OK;
	}
	if (c->values[CTL_OPTION_VERSION]) {
		fputs("drayctl " DRAY_VERSION "\n", c->out);
		return CTL_EXIT_OK;
	}
	return (verb ? verb : &ctl_verbs[0])->fn(c);
}

int ctl_run(const struct ctl_env *env, FILE *out, FILE *err, int argc, char *const *argv)
{
	struct ctl c = { .env = env, .out = out, .err = err };
	struct ctl_err e = CTL_ERR_NULL;
	const struct ctl_verb *verb = NULL;
	int status;

	if (ctl_args_parse(&c, argc, argv, &verb, &e) < 0)
		return ctl_fail(&c, &e);
	status = dispatch(&c, verb);
	/* a full disk or a closed pipe must not look like a short answer */
	if (status == CTL_EXIT_OK && (fflush(out) != 0 || ferror(out))) {
		ctl_err_set(&e, CTL_EXIT_FAILED, "writing: %s", dray_errno_text(errno));
		return ctl_fail(&c, &e);
	}
	return status;
}
