/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/placement/master/prometheus.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/cleanup.h"
#include "schema/gen/errors.h"

/* Bytes of a number: enough for all decimal digits of any double. */
#define NUMBER_MAX 400
/* A double holds whole numbers below this exactly. */
#define EXACT_MAX 9007199254740992.0

/* One line, read from p to end. Names and values are written to out, each with a NUL. */
struct line {
	const char *p, *end;
	char *out;
	const char *why; /* the first fault */
};

static bool fail(struct line *l, const char *why)
{
	if (!l->why)
		l->why = why;
	return false;
}

static void skip_blanks(struct line *l)
{
	while (l->p < l->end && (*l->p == ' ' || *l->p == '\t'))
		l->p++;
}

static bool at(const struct line *l, char c)
{
	return l->p < l->end && *l->p == c;
}

static bool take(struct line *l, char c)
{
	if (!at(l, c))
		return false;
	l->p++;
	return true;
}

/* isdigit() depends on the locale. */
static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static bool in_name(char c, bool first, bool colons)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
	       (colons && c == ':') || (!first && is_digit(c));
}

/* NULL: there is no name. */
static const char *take_name(struct line *l, bool colons)
{
	const char *start = l->p, *name = l->out;
	size_t n;

	while (l->p < l->end && in_name(*l->p, l->p == start, colons))
		l->p++;
	n = (size_t)(l->p - start);
	if (!n)
		return NULL;
	memcpy(l->out, start, n);
	l->out[n] = '\0';
	l->out += n + 1;
	return name;
}

static const char *take_value(struct line *l)
{
	const char *value = l->out;

	while (l->p < l->end && *l->p != '"') {
		char c = *l->p++;

		if (c == '\\') {
			c = l->p < l->end ? *l->p++ : '\0';
			if (c != '\\' && c != '"' && c != 'n') {
				fail(l,
				     "a backslash in a label value must come before \\, \" or n");
				return NULL;
			}
			c = c == 'n' ? '\n' : c;
		}
		*l->out++ = c;
	}
	if (!take(l, '"')) {
		fail(l, "a label value does not end");
		return NULL;
	}
	*l->out++ = '\0';
	return value;
}

static bool take_label(struct line *l, struct prometheus_sample *s, struct prometheus_label *labels)
{
	struct prometheus_label *label = &labels[s->n_labels];

	if (s->n_labels == PROMETHEUS_LABELS_MAX)
		return fail(l, "there are too many labels");
	label->name = take_name(l, false);
	if (!label->name)
		return fail(l, "a label name is missing");
	if (prometheus_label(s, label->name))
		return fail(l, "a label is there twice");
	skip_blanks(l);
	if (!take(l, '='))
		return fail(l, "a label has no =");
	skip_blanks(l);
	if (!take(l, '"'))
		return fail(l, "a label value is not in quotes");
	label->value = take_value(l);
	if (!label->value)
		return false;
	s->n_labels++;
	return true;
}

/* Called after the opening brace. */
static bool take_labels(struct line *l, struct prometheus_sample *s,
			struct prometheus_label *labels)
{
	for (;;) {
		skip_blanks(l);
		if (take(l, '}'))
			return true;
		if (!take_label(l, s, labels))
			return false;
		skip_blanks(l);
		if (at(l, '}'))
			continue;
		if (!take(l, ','))
			return fail(
				l,
				"a comma or brace is missing after a label; was a quote not escaped?");
	}
}

/* strtod() takes hexadecimal numbers and nan(...), which the format does not have, and a nan with a sign. */
static bool to_double(const char *s, double *ret)
{
	char *end;

	/* in the locale "C", which the agent never changes */
	*ret = strtod(s, &end);
	return end != s && !*end && !strpbrk(s, "xX(") && (!isnan(*ret) || *s == 'n' || *s == 'N');
}

static bool to_int64(const char *s, int64_t *ret)
{
	char *end;
	long long v;

	errno = 0;
	v = strtoll(s, &end, 10);
	if (end == s || *end || errno)
		return false;
	*ret = v;
	return true;
}

/* Takes the next word, up to a blank. False: it is missing or too long. */
static bool take_word(struct line *l, char *word_buf, size_t max)
{
	size_t n = 0;

	while (l->p + n < l->end && l->p[n] != ' ' && l->p[n] != '\t')
		n++;
	if (!n || n >= max)
		return false;
	memcpy(word_buf, l->p, n);
	word_buf[n] = '\0';
	l->p += n;
	return true;
}

static bool take_number(struct line *l, struct prometheus_sample *s)
{
	char text[NUMBER_MAX];
	double value;

	if (!take_word(l, text, sizeof(text)))
		return fail(l, "the value is missing, or too long");
	if (!to_double(text, &value))
		return fail(l, "the value is not a number");
	s->whole = to_int64(text, &s->integer);
	if (!s->whole && fabs(value) < EXACT_MAX && trunc(value) == value) {
		s->whole = true;
		s->integer = (int64_t)value;
	}
	return true;
}

/* The time stamp may be missing. */
static bool skip_timestamp(struct line *l)
{
	char text[32];
	int64_t ms;

	if (l->p == l->end)
		return true;
	if (!take_word(l, text, sizeof(text)) || !to_int64(text, &ms))
		return fail(l, "the time stamp is not a whole number");
	skip_blanks(l);
	return l->p == l->end || fail(l, "something follows the time stamp");
}

static bool take_sample(struct line *l, struct prometheus_sample *s,
			struct prometheus_label *labels)
{
	*s = (struct prometheus_sample){ .labels = labels };
	s->name = take_name(l, true);
	if (!s->name)
		return fail(l, "the name of the metric is missing");
	if (l->p < l->end && !at(l, '{') && !at(l, ' ') && !at(l, '\t'))
		return fail(l, "the name of the metric has a character that is not allowed");
	skip_blanks(l);
	if (take(l, '{') && !take_labels(l, s, labels))
		return false;
	skip_blanks(l);
	if (!take_number(l, s))
		return false;
	skip_blanks(l);
	return skip_timestamp(l);
}

static bool take_keyword(struct line *l, const char *keyword)
{
	size_t n = strlen(keyword);

	if ((size_t)(l->end - l->p) < n || memcmp(l->p, keyword, n) != 0)
		return false;
	if (l->p + n < l->end && l->p[n] != ' ' && l->p[n] != '\t')
		return false;
	l->p += n;
	skip_blanks(l);
	return true;
}

/* Called after the #. Only HELP and TYPE comments have a form. */
static bool check_comment(struct line *l)
{
	bool type;

	skip_blanks(l);
	type = take_keyword(l, "TYPE");
	if (!type && !take_keyword(l, "HELP"))
		return true;
	if (!take_name(l, true) || (l->p < l->end && !at(l, ' ') && !at(l, '\t')))
		return fail(l, "HELP or TYPE without the name of a metric");
	if (!type)
		return true;
	skip_blanks(l);
	if (!take_name(l, false))
		return fail(l, "TYPE without a type");
	skip_blanks(l);
	return l->p == l->end || fail(l, "something follows the type");
}

static int parse_line(struct line *l, prometheus_sample_fn fn, void *arg)
{
	struct prometheus_label labels[PROMETHEUS_LABELS_MAX];
	struct prometheus_sample s;

	if (memchr(l->p, '\0', (size_t)(l->end - l->p))) {
		fail(l, "a NUL byte");
		return 0;
	}
	skip_blanks(l);
	if (l->p == l->end)
		return 0;
	if (take(l, '#')) {
		check_comment(l);
		return 0;
	}
	return take_sample(l, &s, labels) ? fn(arg, &s) : 0;
}

int prometheus_parse(const char *text, size_t n, prometheus_sample_fn fn, void *arg,
		     struct dray_err *reterr)
{
	/* names of one character without blanks between them need the most room, for their NULs */
	dray_auto_free char *out = malloc(2 * PROMETHEUS_LINE_MAX + 2);
	const char *end = text + n;
	size_t number = 1;

	if (!out)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "out of memory");
	for (; text < end; number++) {
		const char *next = memchr(text, '\n', (size_t)(end - text));
		struct line l = { .p = text, .end = next, .out = out };
		int r = 0;

		if (!next)
			fail(&l, "the page ends in the middle of it");
		else if (next - text > PROMETHEUS_LINE_MAX)
			fail(&l, "the line is too long");
		else if (next > text && next[-1] == '\r')
			l.end--;
		if (!l.why)
			r = parse_line(&l, fn, arg);
		if (l.why)
			return dray_err_set(reterr, -EPROTO, DRAY_E_PROTOCOL, "line %zu: %s",
					    number, l.why);
		if (r)
			return r;
		text = next + 1;
	}
	return 0;
}

const char *prometheus_label(const struct prometheus_sample *s, const char *name)
{
	for (unsigned i = 0; i < s->n_labels; i++)
		if (!strcmp(s->labels[i].name, name))
			return s->labels[i].value;
	return NULL;
}
