/* SPDX-License-Identifier: Apache-2.0 */
/* drayctl(1), from the tables of verbs and options, and from texts that are here. */
#include <ctype.h>
#include <string.h>

#include "ctl/command_line/args.h"
#include "ctl/generate/generate.h"
#include "ctl/render/text.h"
#include "lib/cleanup.h"

/* A term with its text, such as an exit status with its meaning. */
struct item {
	const char *tag, *text;
};

struct section {
	const char *title, *text;
	const struct item *items; /* after the text, up to one without a tag; or NULL */
};

static const char summary[] = "inspect and drain the dray agent of this node";

static const char description[] =
	"drayctl talks to drayd(8) over its control socket. The default verb is status. bench alone is a client of "
	"the agent's data socket, as an engine is; detect and doctor need no agent.\n\n"
	"The mode and group of the control socket decide who may inspect the agent. Verbs that change something, "
	"such as drain and resume, are for root, the agent's own user, and members of control.group.\n\n"
	"No call waits longer than --timeout for an agent that does not answer.";

static const char options[] =
	"These options may stand anywhere. If the verb has an option of the same name, they stand before the verb. A "
	"value is the next word, or follows =, as in --timeout=2s. After -- there are no options.";

static const char units[] =
	"A DURATION is a number with a unit, such as 500ms, 2s or 10min. A SIZE is a number of bytes, with or "
	"without a unit, such as 4096, 64KiB or 1.5GiB.";

static const struct item exits[] = {
	{ "0", "Success." },
	{ "1", "Failure." },
	{ "2", "Usage error; one line on standard error describes it." },
	{ "3", "There is no agent, or it does not answer." },
	{ "4", "The kernel or the agent refuses, for lack of permission or in its present state." },
	{ "124", "exec: the preferred segment was not ready in time." },
	{ "126", "exec: the command exists but cannot be run." },
	{ "127", "exec: the command does not exist." },
	{ NULL, NULL },
};

static const struct item environment[] = {
	{ "DRAY_CONTROL_SOCKET",
	  "Control socket if --control is not given; the default is /run/dray/control.sock." },
	{ "DRAY_SOCKET", "Data socket for bench if --socket is not given." },
	{ "PATH", "Directories in which exec looks for its command." },
	{ "NO_COLOR", "No colour if this is set and not empty." },
	{ "TERM", "No colour if this is not set, or dumb." },
	{ NULL, NULL },
};

static const struct item files[] = {
	{ "/run/dray/control.sock", "Default control socket of the agent." },
	{ "/run/dray/dray.sock", "Default data socket of the agent." },
	{ NULL, NULL },
};

static const struct section sections[] = {
	{ "EXIT STATUS", "doctor has its own: 0 without findings, 1 with warnings, 2 with errors.",
	  exits },
	{ "ENVIRONMENT", "", environment },
	{ "FILES", "", files },
	{ "EXAMPLES",
	  "Show the open sessions of engines:\n\n"
	  "  drayctl sessions --json | jq '.sessions[].name'\n\n"
	  "Drain the agent before a node is shut down:\n\n"
	  "  drayctl drain --wait --timeout 30s\n\n"
	  "Start an engine with its environment when the segment of its node is ready:\n\n"
	  "  drayctl exec --wait-ready=60s --profile vllm-mooncake,nccl -- vllm serve MODEL\n\n"
	  "Inspect the agent without drayctl:\n\n"
	  "  busctl --address=unix:path=/run/dray/control.sock introspect dev.dray.Agent1 /dev/dray/Agent",
	  NULL },
	{ "SEE ALSO", "drayd(8), libdray(3), busctl(1)", NULL },
	{ NULL, NULL, NULL },
};

static void escaped(FILE *f, const char *s, size_t n)
{
	static const char *const escapes[128] = {
		['-'] = "\\-",   ['\\'] = "\\e",  ['\''] = "\\(aq",
		['^'] = "\\(ha", ['~'] = "\\(ti", ['`'] = "\\(ga"
	};

	for (size_t i = 0; i < n; i++) {
		unsigned char ch = (unsigned char)s[i];

		if (ch < DRAY_ARRAY_SIZE(escapes) && escapes[ch])
			fputs(escapes[ch], f);
		else
			fputc(ch, f);
	}
}

static void in_bold(FILE *f, const char *s, size_t n)
{
	fputs("\\fB", f);
	escaped(f, s, n);
	fputs("\\fR", f);
}

/* The length of an option in a word, as in --json, or of a page, as in drayd(8). */
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

/* Prints words on one line; \\& keeps it from looking like a request. */
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

/* Prints a line of help as a sentence. */
static void sentence_print(FILE *f, const char *help)
{
	char text[200];
	size_t n = strlen(help);

	snprintf(text, sizeof(text), "%s%s", help, n && help[n - 1] != '.' ? "." : "");
	text[0] = (char)toupper((unsigned char)text[0]);
	words_print(f, (struct ctl_span){ text, strlen(text) });
}

/* Prints literal words and options in bold, and placeholders in italics. */
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

static void section_print(FILE *f, const struct section *s)
{
	fprintf(f, ".SH %s\n", s->title);
	text_print(f, s->text);
	for (const struct item *i = s->items; i && i->tag; i++) {
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
	escaped(f, summary, strlen(summary));
	fputs("\n.SH SYNOPSIS\n\\fBdrayctl\\fR [\\fIOPTION\\fR]... [\\fIVERB\\fR]\n.SH DESCRIPTION\n",
	      f);
	text_print(f, description);
	fputs(".SH VERBS\n", f);
	for (unsigned i = 0; i < ctl_verbs_n; i++)
		verb_print(f, &ctl_verbs[i]);
	fputs(".SH OPTIONS\n", f);
	text_print(f, options);
	for (int i = 0; i < CTL_OPTION_GLOBAL_N; i++)
		option_print(f, &ctl_options[i]);
	fputs(".PP\n", f);
	text_print(f, units);
	for (const struct section *s = sections; s->title; s++)
		section_print(f, s);
}
