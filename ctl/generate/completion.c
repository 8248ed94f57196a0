/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables for the completion in bash and zsh. The options of a verb are under its name, the global ones under a dot.
 */
#include <string.h>

#include "ctl/command_line/values.h"
#include "ctl/generate/generate.h"

#define EVERY "."

/* Calls fn for each option of the verb; NULL: for the global options. */
static void each_option(FILE *f, const struct ctl_verb *v,
			void (*fn)(FILE *f, const struct ctl_verb *v, const struct ctl_option *o))
{
	if (!v)
		for (int i = 0; i < CTL_OPTION_GLOBAL_N; i++)
			fn(f, NULL, &ctl_options[i]);
	for (unsigned i = 0; v && v->options[i] >= CTL_OPTION_GLOBAL_N; i++)
		fn(f, v, &ctl_options[v->options[i]]);
}

static void words_print(FILE *f, struct ctl_span words)
{
	struct ctl_span word;

	while (ctl_values_word(&words, &word))
		fprintf(f, " %.*s", (int)word.n, word.s);
}

static void verbs_print(FILE *f)
{
	for (unsigned i = 0; i < ctl_verbs_n; i++)
		fprintf(f, " %s", ctl_verbs[i].name);
}

static void bash_option(FILE *f, const struct ctl_verb *v, const struct ctl_option *o)
{
	fprintf(f, " %s", o->name);
}

static void bash_values(FILE *f, const struct ctl_values *v)
{
	if (v->kind == CTL_KIND_FILE || v->kind == CTL_KIND_DIR) {
		fputs(v->kind == CTL_KIND_FILE ? "file" : "dir", f);
	} else if (v->kind == CTL_KIND_VERB) {
		fputs("words", f);
		verbs_print(f);
	} else if (v->verb) {
		fprintf(f, "ask %s %u", v->verb, v->column);
	} else {
		fputs(v->words.n ? "words" : "free", f);
		words_print(f, v->words);
	}
}

static void bash_option_values(FILE *f, const struct ctl_verb *v, const struct ctl_option *o)
{
	struct ctl_values values;

	/* An optional value is never the next word. */
	if (!o->value || o->optional)
		return;
	values = ctl_values_of_option(o);
	fprintf(f, "\t['%s %s']='", v ? v->name : EVERY, o->name);
	bash_values(f, &values);
	fputs("'\n", f);
}

static void bash_verb_values(FILE *f, const struct ctl_verb *v)
{
	each_option(f, v, bash_option_values);
	for (unsigned i = 0; v && i < v->max_args; i++) {
		struct ctl_values values = ctl_values_of_argument(v, i);

		fprintf(f, "\t['%s %u']='", v->name, i + 1);
		bash_values(f, &values);
		fputs("'\n", f);
	}
}

void generate_bash(FILE *f)
{
	fputs("# SPDX-License-Identifier: Apache-2.0\n# Generated when dray is built. bash 4.4 or "
	      "later.\n\n_drayctl_verbs='",
	      f);
	verbs_print(f);
	fputs("'\n\n# Options by verb; " EVERY ": the global ones.\n"
	      "declare -gA _drayctl_options=(\n\t['" EVERY "']='",
	      f);
	each_option(f, NULL, bash_option);
	fputs("'\n", f);
	for (unsigned i = 0; i < ctl_verbs_n; i++) {
		fprintf(f, "\t['%s']='", ctl_verbs[i].name);
		each_option(f, &ctl_verbs[i], bash_option);
		fputs("'\n", f);
	}
	fputs(")\n\n# Values of an option, or of the first, second, ... argument of a verb.\n"
	      "declare -gA _drayctl_values=(\n",
	      f);
	bash_verb_values(f, NULL);
	for (unsigned i = 0; i < ctl_verbs_n; i++)
		bash_verb_values(f, &ctl_verbs[i]);
	fputs(")\n\n", f);
}

/* Text within single quotes; special characters of _arguments and _describe get a backslash. */
static void zsh_text(FILE *f, struct ctl_span s, const char *special)
{
	for (size_t i = 0; i < s.n; i++) {
		if (s.s[i] == '\'')
			fputs("'\\'", f);
		else if (strchr(special, s.s[i]))
			fputc('\\', f);
		fputc(s.s[i], f);
	}
}

static struct ctl_span span(const char *s)
{
	return (struct ctl_span){ s, strlen(s) };
}

/* :message:action */
static void zsh_values(FILE *f, const struct ctl_values *v)
{
	fputc(':', f);
	zsh_text(f, v->name, "\\:");
	fputc(':', f);
	if (v->kind == CTL_KIND_FILE || v->kind == CTL_KIND_DIR) {
		fputs(v->kind == CTL_KIND_FILE ? "_files" : "_files -/", f);
	} else if (v->kind == CTL_KIND_VERB) {
		fputs("_drayctl_verbs", f);
	} else if (v->verb) {
		/* After the space, _arguments calls the function with exactly these arguments. */
		fprintf(f, " _drayctl_ask %s %u", v->verb, v->column);
	} else if (v->words.n) {
		fputc('(', f);
		words_print(f, v->words);
		fputc(')', f);
	} else {
		/* There is no completion. */
		fputc(' ', f);
	}
}

static void zsh_option(FILE *f, const struct ctl_verb *v, const struct ctl_option *o)
{
	fprintf(f, "\t\t\t'%s%s[", o->name, o->optional ? "=-" : o->value ? "=" : "");
	zsh_text(f, span(o->help), "\\[]");
	fputc(']', f);
	if (o->value) {
		struct ctl_values values = ctl_values_of_option(o);

		fputs(o->optional ? ":" : "", f);
		zsh_values(f, &values);
	}
	fputs("'\n", f);
}

static void zsh_case(FILE *f, const struct ctl_verb *v)
{
	fprintf(f, "\t%s)\n\t\treply=(\n", v ? v->name : EVERY);
	each_option(f, v, zsh_option);
	fputs("\t\t)\n\t\t;;\n", f);
}

static void zsh_arguments(FILE *f, const struct ctl_verb *v)
{
	if (!v->max_args)
		return;
	fprintf(f, "\t%s)\n\t\treply=(\n", v->name);
	for (unsigned i = 0; i < v->max_args; i++) {
		struct ctl_values values = ctl_values_of_argument(v, i);

		fprintf(f, "\t\t\t'%u", i + 1);
		zsh_values(f, &values);
		fputs("'\n", f);
	}
	fputs("\t\t)\n\t\t;;\n", f);
}

void generate_zsh(FILE *f)
{
	fputs("#compdef drayctl\n# SPDX-License-Identifier: Apache-2.0\n"
	      "# Generated when dray is built.\n\n"
	      "_drayctl_verbs() {\n\tlocal -a verbs=(\n",
	      f);
	for (unsigned i = 0; i < ctl_verbs_n; i++) {
		fprintf(f, "\t\t'%s:", ctl_verbs[i].name);
		zsh_text(f, span(ctl_verbs[i].help), "\\");
		fputs("'\n", f);
	}
	fputs("\t)\n\t_describe -t verbs verb verbs\n}\n\n"
	      "# Sets reply to the options of a verb; " EVERY ": the global ones.\n"
	      "_drayctl_options() {\n\treply=()\n\tcase $1 in\n",
	      f);
	zsh_case(f, NULL);
	for (unsigned i = 0; i < ctl_verbs_n; i++)
		if (ctl_verbs[i].options[0])
			zsh_case(f, &ctl_verbs[i]);
	fputs("\tesac\n}\n\n# Sets reply to the arguments of a verb.\n"
	      "_drayctl_arguments() {\n\treply=()\n\tcase $1 in\n",
	      f);
	for (unsigned i = 0; i < ctl_verbs_n; i++)
		zsh_arguments(f, &ctl_verbs[i]);
	fputs("\tesac\n}\n\n", f);
}
