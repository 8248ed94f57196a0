/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/command_line/help.h"

#include "ctl/command_line/args.h"
#include "ctl/render/text.h"

#define COLUMNS 80

static void option_help(FILE *f, enum ctl_option_id id)
{
	const struct ctl_option *o = &ctl_options[id];
	char left[48];

	snprintf(left, sizeof(left), "%s%s%s%s", o->name,
		 o->optional ? "[=" :
		 o->value    ? " " :
			       "",
		 o->value ? o->value : "", o->optional ? "]" : "");
	fprintf(f, "  %-24s %s\n", left, o->help);
}

void ctl_help_verb(FILE *f, const struct ctl_verb *v)
{
	fprintf(f, "Usage: drayctl [OPTION]... %s%s%s\n%s\n\n", v->name, *v->args ? " " : "",
		v->args, v->help);
	ctl_text_wrap(f, v->more, COLUMNS);
	fputc('\n', f);
	if (v->options[0])
		fputs("Options of its own, after the word:\n", f);
	for (unsigned i = 0; v->options[i]; i++)
		option_help(f, v->options[i]);
	fprintf(f, "%sOptions of every verb:\n", v->options[0] ? "\n" : "");
	for (int i = 0; i < CTL_OPTION_GLOBAL_N; i++)
		option_help(f, (enum ctl_option_id)i);
	fprintf(f, "\nExample: %s\n", v->example);
}

void ctl_help_all(FILE *f)
{
	fputs("Usage: drayctl [OPTION]... [VERB]\n"
	      "Looks at the dray agent of this node, and drains it. Without a verb: status.\n\nVerbs:\n",
	      f);
	for (unsigned i = 0; i < ctl_verbs_n; i++)
		fprintf(f, "  %-10s %s\n", ctl_verbs[i].name, ctl_verbs[i].help);
	fputs("\nOptions:\n", f);
	for (int i = 0; i < CTL_OPTION_GLOBAL_N; i++)
		option_help(f, (enum ctl_option_id)i);
	fputs("\nExit status: 0 ok, 1 failed, 2 wrong use, 3 agent unreachable, 4 refused.\n", f);
}

int ctl_help(struct ctl *c)
{
	const struct ctl_verb *verb = NULL;
	struct ctl_err err = CTL_ERR_NULL;
	const char *nearest = NULL;

	if (c->n_args) {
		verb = ctl_verb_find(c->args[0], &nearest);
		if (!verb) {
			ctl_err_set(&err, CTL_EXIT_USAGE, "unknown verb %.60s%s%s%s", c->args[0],
				    nearest ? ", did you mean " : "; drayctl --help lists all",
				    nearest ? nearest : "", nearest ? "?" : "");
			return ctl_fail(c, &err);
		}
		ctl_help_verb(c->out, verb);
	} else {
		ctl_help_all(c->out);
	}
	return CTL_EXIT_OK;
}
