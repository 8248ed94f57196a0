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

#define BLANKS " \t"
#define DIGITS "0123456789"
#define LABEL_CHARS DIGITS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"
#define METRIC_CHARS LABEL_CHARS ":"

/*
 * One line, a text that is read from p. Names and values are written to out, each with a NUL. The functions that take a
 * part of the line return NULL, or why the line is invalid.
 */
struct line {
	const char *p;
	char *out;
	struct prometheus_label labels[PROMETHEUS_LABELS_MAX];
};

static void skip_blanks(struct line *l)
{
	l->p += strspn(l->p, BLANKS);
}

static bool take(struct line *l, char c)
{
	if (*l->p != c)
		return false;
	l->p++;
	return true;
}

/* NULL: there is no name. */
static const char *take_name(struct line *l, const char *chars)
{
	size_t n = strspn(l->p, chars);
	char *name = l->out;

	if (!n || strchr(DIGITS, *l->p))
		return NULL;
	memcpy(name, l->p, n);
	name[n] = '\0';
	l->p += n;
	l->out += n + 1;
	return name;
}

static const char *take_value(struct line *l, const char **ret)
{
	*ret = l->out;
	while (*l->p != '"') {
		char c = *l->p;

		if (!c)
			return "a label value does not end";
		if (c == '\\') {
			c = *++l->p;
			if (!c || !strchr("\\\"n", c))
				return "a backslash in a label value must come before \\, \" or n";
			c = c == 'n' ? '\n' : c;
		}
		l->p++;
		*l->out++ = c;
	}
	l->p++;
	*l->out++ = '\0';
	return NULL;
}

static const char *take_label(struct line *l, struct prometheus_sample *s)
{
	struct prometheus_label *label = &l->labels[s->n_labels];
	const char *why;

	if (s->n_labels == PROMETHEUS_LABELS_MAX)
		return "there are too many labels";
	label->name = take_name(l, LABEL_CHARS);
	if (!label->name)
		return "a label name is missing";
	if (prometheus_label(s, label->name))
		return "a label is there twice";
	skip_blanks(l);
	if (!take(l, '='))
		return "a label has no =";
	skip_blanks(l);
	if (!take(l, '"'))
		return "a label value is not in quotes";
	why = take_value(l, &label->value);
	s->n_labels += !why;
	return why;
}

/* Called after the opening brace. */
static const char *take_labels(struct line *l, struct prometheus_sample *s)
{
	for (;;) {
		const char *why;

		skip_blanks(l);
		if (take(l, '}'))
			return NULL;
		why = take_label(l, s);
		if (why)
			return why;
		skip_blanks(l);
		if (*l->p != '}' && !take(l, ','))
			return "a comma or brace is missing after a label; was a quote not escaped?";
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
	size_t n = strcspn(l->p, BLANKS);

	if (!n || n >= max)
		return false;
	memcpy(word_buf, l->p, n);
	word_buf[n] = '\0';
	l->p += n;
	skip_blanks(l);
	return true;
}

static const char *take_number(struct line *l, struct prometheus_sample *s)
{
	char text[NUMBER_MAX];
	double value;

	if (!take_word(l, text, sizeof(text)))
		return "the value is missing, or too long";
	if (!to_double(text, &value))
		return "the value is not a number";
	s->whole = to_int64(text, &s->integer);
	if (!s->whole && fabs(value) < EXACT_MAX && trunc(value) == value) {
		s->whole = true;
		s->integer = (int64_t)value;
	}
	return NULL;
}

/* The time stamp may be missing. */
static const char *skip_timestamp(struct line *l)
{
	char text[32];
	int64_t ms;

	if (*l->p && (!take_word(l, text, sizeof(text)) || !to_int64(text, &ms)))
		return "the time stamp is not a whole number";
	return *l->p ? "something follows the time stamp" : NULL;
}

static const char *take_sample(struct line *l, struct prometheus_sample *s)
{
	const char *why = NULL;

	*s = (struct prometheus_sample){ .labels = l->labels };
	s->name = take_name(l, METRIC_CHARS);
	if (!s->name)
		return "the name of the metric is missing";
	if (*l->p && !strchr("{" BLANKS, *l->p))
		return "the name of the metric has a character that is not allowed";
	skip_blanks(l);
	if (take(l, '{'))
		why = take_labels(l, s);
	skip_blanks(l);
	if (!why)
		why = take_number(l, s);
	return why ? why : skip_timestamp(l);
}

/* Called after the #. Only HELP and TYPE comments have a form. */
static const char *check_comment(struct line *l)
{
	char word[sizeof("TYPE")];
	bool type;

	skip_blanks(l);
	if (!take_word(l, word, sizeof(word)))
		return NULL;
	type = !strcmp(word, "TYPE");
	if (!type && strcmp(word, "HELP") != 0)
		return NULL;
	if (!take_name(l, METRIC_CHARS) || (*l->p && !strchr(BLANKS, *l->p)))
		return "HELP or TYPE without the name of a metric";
	if (!type)
		return NULL;
	skip_blanks(l);
	if (!take_name(l, LABEL_CHARS))
		return "TYPE without a type";
	skip_blanks(l);
	return *l->p ? "something follows the type" : NULL;
}

/* Sets *ret to the result of fn. */
static const char *parse_line(struct line *l, prometheus_sample_fn fn, void *arg, int *ret)
{
	struct prometheus_sample s;
	const char *why;

	skip_blanks(l);
	if (!*l->p)
		return NULL;
	if (take(l, '#'))
		return check_comment(l);
	why = take_sample(l, &s);
	if (!why)
		*ret = fn(arg, &s);
	return why;
}

/* Copies the line at text, whose newline is at end (NULL: it has none), to buf. */
static const char *copy_line(const char *text, const char *end, char *buf)
{
	size_t n = end ? (size_t)(end - text) : 0;

	if (!end)
		return "the page ends in the middle of it";
	if (n > PROMETHEUS_LINE_MAX)
		return "the line is too long";
	if (n && text[n - 1] == '\r')
		n--;
	memcpy(buf, text, n);
	buf[n] = '\0';
	return strlen(buf) < n ? "a NUL byte" : NULL;
}

int prometheus_parse(const char *text, size_t n, prometheus_sample_fn fn, void *arg,
		     struct dray_err *reterr)
{
	/* names of one character without blanks between them need the most room, for their NULs */
	dray_auto_free char *out = malloc(2 * PROMETHEUS_LINE_MAX + 2);
	dray_auto_free char *copy = malloc(PROMETHEUS_LINE_MAX + 1);
	const char *end = text + n;

	if (!out || !copy)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "out of memory");
	for (size_t number = 1; text < end; number++) {
		const char *next = memchr(text, '\n', (size_t)(end - text));
		struct line l = { .p = copy, .out = out };
		const char *why = copy_line(text, next, copy);
		int r = 0;

		if (!why)
			why = parse_line(&l, fn, arg, &r);
		if (why)
			return dray_err_set(reterr, -EPROTO, DRAY_E_PROTOCOL, "line %zu: %s",
					    number, why);
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
