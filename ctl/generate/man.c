/* SPDX-License-Identifier: Apache-2.0 */
/* drayctl(1), from the tables of verbs and options and the texts of manual.c. */
#include <ctype.h>
#include <string.h>

#include "ctl/command_line/args.h"
#include "ctl/generate/generate.h"
#include "ctl/command_line/manual.h"
#include "ctl/render/text.h"

/* --- text into roff ----------------------------------------------------------------------------- */

static void escaped(FILE *f, const char *s, size_t n)
{
	for (size_t i = 0; i < n; i++)
		switch (s[i]) {
		case '-':
			fputs("\\-", f);
			break;
		case '\\':
			fputs("\\e", f);
			break;
		case '\'':
			fputs("\\(aq", f);
			break;
		case '^':
			fputs("\\(ha", f);
			break;
		case '~':
			fputs("\\(ti", f);
			break;
		case '`':
			fputs("\\(ga", f);
			break;
		default:
			fputc(s[i], f);
		}
}

static void in_bold(FILE *f, const char *s, size_t n)
{
	fputs("\\fB", f);
	escaped(f, s, n);
	fputs("\\fR", f);
}

/* How much of a word names an option, as in --json; or a page, as in drayd(8). */
static size_t bold_part(struct ctl_span word)
{
	const char *open = memchr(word.s, '(', word.n);

	if (word.n > 2 && !strncmp(word.s, "--", 2))
		return 2 + strspn(word.s + 2, "abcdefghijklmnopqrstuvwxyz-");
	if (open && open > word.s && isdigit((unsigned char)open[1]) && open[2] == ')')
		return (size_t)(open - word.s);
	return 0;
}

static void word_print(FILE *f, struct ctl_span word)
{
	size_t bold = bold_part(word);

	if (bold)
		in_bold(f, word.s, bold);
	escaped(f, word.s + bold, word.n - bold);
}

/* On one line, which must not begin like a request. */
static void words_print(FILE *f, struct ctl_span paragraph)
{
	struct ctl_span word;

	fputs("\\&", f);
	for (bool first = true; ctl_text_word(&paragraph, &word); first = false) {
		fputs(first ? "" : " ", f);
		word_print(f, word);
	}
	fputc('\n', f);
}

static void commands_print(FILE *f, struct ctl_span lines)
{
	fputs(".RS\n.nf\n", f);
	while (lines.n) {
		const char *end = memchr(lines.s, '\n', lines.n);
		size_t n = end ? (size_t)(end - lines.s) : lines.n;
		size_t indent = n > 2 && !strncmp(lines.s, "  ", 2) ? 2 : 0;

		fputs("\\&", f);
		escaped(f, lines.s + indent, n - indent);
		fputc('\n', f);
		lines.s += n + (end != NULL);
		lines.n -= n + (end != NULL);
	}
	fputs(".fi\n.RE\n", f);
}

static void text_print(FILE *f, const char *text)
{
	struct ctl_span p;

	for (bool first = true; ctl_text_paragraph(&text, &p); first = false) {
		if (!first)
			fputs(".PP\n", f);
		if (ctl_text_is_commands(p))
			commands_print(f, p);
		else
			words_print(f, p);
	}
}

/* A line of help as a sentence. */
static void sentence_print(FILE *f, const char *help)
{
	char text[200];
	size_t n = strlen(help);

	snprintf(text, sizeof(text), "%s%s", help, n && help[n - 1] != '.' ? "." : "");
	text[0] = (char)toupper((unsigned char)text[0]);
	words_print(f, (struct ctl_span){ text, strlen(text) });
}

/* --- verbs and options -------------------------------------------------------------------------- */

/* Options and words as they are typed in bold, names for something in italics. */
static void synopsis_print(FILE *f, const char *args)
{
	while (*args) {
		size_t n = strspn(args, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_");
		size_t typed = strspn(args, "abcdefghijklmnopqrstuvwxyz0123456789-_=");

		if (n) {
			fputs("\\fI", f);
			escaped(f, args, n);
			fputs("\\fR", f);
		} else if (typed) {
			n = typed;
			in_bold(f, args, n);
		} else {
			n = 1;
			escaped(f, args, n);
		}
		args += n;
	}
}

static void option_print(FILE *f, const struct ctl_option *o)
{
	fputs(".TP\n", f);
	in_bold(f, o->name, strlen(o->name));
	if (o->value) {
		fputs(o->optional ? "[=" : " ", f);
		synopsis_print(f, o->value);
		fputs(o->optional ? "]" : "", f);
	}
	fputc('\n', f);
	sentence_print(f, o->help);
	if (o->more)
		words_print(f, (struct ctl_span){ o->more, strlen(o->more) });
}

static void verb_print(FILE *f, const struct ctl_verb *v)
{
	fputs(".SS \"", f);
	in_bold(f, v->name, strlen(v->name));
	if (*v->args) {
		fputc(' ', f);
		synopsis_print(f, v->args);
	}
	fputs("\"\n", f);
	sentence_print(f, v->help);
	fputs(".PP\n", f);
	text_print(f, v->more);
	for (unsigned i = 0; v->options[i]; i++)
		option_print(f, &ctl_options[v->options[i]]);
	fputs(".PP\nExample:\n.PP\n", f);
	commands_print(f, (struct ctl_span){ v->example, strlen(v->example) });
}

/* --- the page ----------------------------------------------------------------------------------- */

static void section_print(FILE *f, const struct ctl_manual_section *s)
{
	fprintf(f, ".SH %s\n", s->title);
	text_print(f, s->text);
	for (const struct ctl_manual_item *i = s->items; i && i->tag; i++) {
		fputs(".TP\n", f);
		in_bold(f, i->tag, strlen(i->tag));
		fputc('\n', f);
		words_print(f, (struct ctl_span){ i->text, strlen(i->text) });
	}
}

void generate_man(FILE *f)
{
	fputs(".\\\" SPDX-License-Identifier: Apache-2.0\n.\\\" Generated when dray is built.\n"
	      ".TH DRAYCTL 1 \"\" \"dray " DRAY_VERSION "\" dray\n.SH NAME\ndrayctl \\- ",
	      f);
	escaped(f, ctl_manual_summary, strlen(ctl_manual_summary));
	fputs("\n.SH SYNOPSIS\n\\fBdrayctl\\fR [\\fIOPTION\\fR]... [\\fIVERB\\fR]\n.SH DESCRIPTION\n",
	      f);
	text_print(f, ctl_manual_description);
	fputs(".SH VERBS\n", f);
	for (unsigned i = 0; i < ctl_verbs_n; i++)
		verb_print(f, &ctl_verbs[i]);
	fputs(".SH OPTIONS\n", f);
	text_print(f, ctl_manual_options);
	for (int i = 0; i < CTL_OPTION_GLOBAL_N; i++)
		option_print(f, &ctl_options[i]);
	fputs(".PP\n", f);
	text_print(f, ctl_manual_units);
	for (const struct ctl_manual_section *s = ctl_manual_sections; s->title; s++)
		section_print(f, s);
}
