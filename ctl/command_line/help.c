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

static void global_help(FILE *f)
{
	for (int i = 0; i < CTL_OPTION_GLOBAL_N; i++)
		option_help(f, (enum ctl_option_id)i);
}

static void verb_help(FILE *f, const struct ctl_verb *v)
{
	fprintf(f, "Usage: drayctl [OPTION]... %s%s%s\n%s\n\n", v->name, *v->args ? " " : "",
		v->args, v->help);
	ctl_text_wrap(f, v->more, COLUMNS);
	fputc('\n', f);
	if (v->options[0])
		fputs("Options of this verb, which follow it:\n", f);
	for (unsigned i = 0; v->options[i]; i++)
		option_help(f, v->options[i]);
	fprintf(f, "%sOptions of every verb:\n", v->options[0] ? "\n" : "");
	global_help(f);
	fprintf(f, "\nExample: %s\n", v->example);
}

static void list_help(FILE *f)
{
	fputs("Usage: drayctl [OPTION]... [VERB]\n"
	      "Inspects and drains the dray agent of this node. The default verb is status.\n\nVerbs:\n",
	      f);
	for (unsigned i = 0; i < ctl_verbs_n; i++)
		fprintf(f, "  %-10s %s\n", ctl_verbs[i].name, ctl_verbs[i].help);
	fputs("\nOptions:\n", f);
	global_help(f);
	fputs("\nExit status: 0 success, 1 failure, 2 usage error, 3 agent unreachable, 4 refused.\n",
	      f);
}

void ctl_help_print(FILE *f, const struct ctl_verb *v)
{
	if (v)
		verb_help(f, v);
	else
		list_help(f);
}

int ctl_help(struct ctl *c, struct ctl_err *reterr)
{
	const struct ctl_verb *verb = c->n_args ? ctl_verb_find(c->args[0], reterr) : NULL;

	if (c->n_args && !verb)
		return -1;
	ctl_help_print(c->out, verb);
	return CTL_EXIT_OK;
}
