/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prepares the text of a file for libconfig. libconfig 1.5 reads 4294967296 as 0, 0660 as 660, and reports "syntax error"
 * for 16G. So this pass, which follows libconfig's lexical rules, turns every number without quotes into a string with a
 * mark in front; value.c checks it. The pass also inserts included files, because libconfig would read them without this
 * pass. Each output line records its file and line. Comments are dropped.
 */
#include "agent/config/text.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "agent/config/internal.h"
#include "lib/array.h"
#include "lib/cleanup.h"
#include "lib/file.h"
#include "schema/gen/errors.h"

#define INCLUDE_DEPTH 10 /* as libconfig */
#define NESTING 64
#define BYTES_MAX (1U << 20)

struct lexer {
	struct config_text *t;
	const char *name;
	const char *begin, *p;
	unsigned file, line, depth;
	bool line_start; /* only blanks stand before p on its line */
	struct dray_err *reterr;
};

static int __attribute__((format(printf, 3, 4)))
refuse(struct lexer *x, unsigned line, const char *fmt, ...)
{
	dray_auto_free char *where = NULL;
	char why[160];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	if (asprintf(&where, "%s:%u", x->name, line) < 0)
		return config_no_memory(x->reterr);
	return config_refuse(x->reterr, where, "%s", why);
}

static int text_put(struct lexer *x, const char *s, size_t n)
{
	struct config_text *t = x->t;

	if (t->cap - t->n <= n) {
		size_t cap = (t->cap + n) * 2 + 256;
		char *buf = realloc(t->buf, cap);

		if (!buf)
			return config_no_memory(x->reterr);
		t->buf = buf;
		t->cap = cap;
	}
	memcpy(t->buf + t->n, s, n);
	t->n += n;
	t->buf[t->n] = '\0';
	return 0;
}

/* Records that the next output line comes from the current line of the lexer's file. */
static int line_begin(struct lexer *x)
{
	struct config_text_line line = { x->file, x->line };

	return DRAY_APPEND(x->t->lines, x->t->n_lines, line) < 0 ? config_no_memory(x->reterr) : 0;
}

static int newline(struct lexer *x)
{
	int r = text_put(x, "\n", 1);

	return r ? r : line_begin(x);
}

static bool at(const struct lexer *x, const char *s)
{
	return !strncmp(x->p, s, strlen(s));
}

static int comment_skip(struct lexer *x)
{
	unsigned line = x->line;
	int r;

	if (!at(x, "/*")) {
		x->p += strcspn(x->p, "\n");
		return 0;
	}
	/* a comment separates words */
	r = text_put(x, " ", 1);
	if (r < 0)
		return r;
	for (x->p += 2; *x->p && !at(x, "*/"); x->p++)
		if (*x->p == '\n') {
			x->line++;
			r = newline(x);
			if (r < 0)
				return r;
		}
	if (!*x->p)
		return refuse(x, line, "the comment that starts here does not end");
	x->p += 2;
	return 0;
}

/* Whether a string or number can follow the last token. libconfig leaks an unexpected string, so none may reach it. */
static bool value_may_stand(const struct lexer *x)
{
	const struct config_text *t = x->t;

	if (t->last == ',')
		return t->depth && (t->lists >> (t->depth - 1) & 1);
	return t->last && strchr("=:[(", t->last);
}

static int value_check(struct lexer *x)
{
	size_t n = dray_min(strcspn(x->p, " \t\r\n;,"), (size_t)40);

	if (value_may_stand(x))
		return 0;
	return refuse(x, x->line, "%.*s: after = there must be exactly one value", (int)n, x->p);
}

static int string_copy(struct lexer *x)
{
	const char *start = x->p;
	int r = value_check(x);

	if (r < 0)
		return r;
	for (x->p++; *x->p && *x->p != '"' && *x->p != '\n'; x->p++) {
		if (at(x, "\\\\") || at(x, "\\\""))
			x->p++;
		else if (at(x, "\\x00") || at(x, "\\X00"))
			return refuse(x, x->line, "the string has a NUL");
	}
	if (*x->p != '"')
		return refuse(x, x->line, "the string that starts here does not end on its line");
	x->p++;
	x->t->last = '"';
	return text_put(x, start, (size_t)(x->p - start));
}

static int punctuation_copy(struct lexer *x)
{
	struct config_text *t = x->t;
	char c = *x->p;

	t->last = c;
	if (strchr("{[(", c)) {
		if (t->depth == NESTING)
			return refuse(x, x->line, "groups and lists are nested more than %d deep",
				      NESTING);
		t->lists &= ~(1ULL << t->depth);
		t->lists |= (uint64_t)(c != '{') << t->depth;
		t->depth++;
	} else if (strchr("}])", c) && t->depth) {
		t->depth--;
	}
	return text_put(x, x->p++, 1);
}

static bool is_name_char(char c)
{
	return isalnum((unsigned char)c) || c == '-' || c == '_' || c == '*';
}

static int name_copy(struct lexer *x)
{
	const char *start = x->p;
	size_t n;

	while (is_name_char(*x->p))
		x->p++;
	n = (size_t)(x->p - start);
	if (value_may_stand(x) && !(n == 4 && !strncasecmp(start, "true", n)) &&
	    !(n == 5 && !strncasecmp(start, "false", n)))
		return refuse(x, x->line, "%.*s must be in quotes", (int)dray_min(n, (size_t)60),
			      start);
	x->t->last = 'a';
	return text_put(x, start, n);
}

/* Digits and signs of all forms of numbers; value.c checks which form the key takes. */
static bool is_number(const char *s, size_t n)
{
	bool digit = false;

	for (size_t i = 0; i < n; i++) {
		if (!isxdigit((unsigned char)s[i]) && !strchr("xX+-.L", s[i]))
			return false;
		digit |= isdigit((unsigned char)s[i]) != 0;
	}
	return digit;
}

static bool is_number_start(char c)
{
	return isdigit((unsigned char)c) || c == '-' || c == '+' || c == '.';
}

static int number_copy(struct lexer *x)
{
	static const char open[] = { '"', CONFIG_TEXT_BARE };
	const char *start = x->p;
	size_t n;
	int r;

	while (is_number_start(*x->p) || is_name_char(*x->p))
		x->p++;
	n = (size_t)(x->p - start);
	if (*start == '.' && start > x->begin && is_name_char(start[-1]))
		return refuse(x, x->line,
			      "a key must be inside its group: agent: { workers = 4; };");
	if (!is_number(start, n))
		return refuse(
			x, x->line,
			"%.*s is not a number; a value with a unit needs quotes, such as \"16GiB\"",
			(int)dray_min(n, (size_t)60), start);
	x->p = start;
	r = value_check(x);
	x->p = start + n;
	x->t->last = '0';
	if (!r)
		r = text_put(x, open, sizeof(open));
	if (!r)
		r = text_put(x, start, n);
	return r ? r : text_put(x, "\"", 1);
}

/* The path of an included file, relative to the folder of the including file. */
static char *include_path(const char *from, const char *path)
{
	const char *slash = strrchr(from, '/');
	char *full;

	if (*path == '/' || !slash)
		return strdup(path);
	return asprintf(&full, "%.*s/%s", (int)(slash - from), from, path) < 0 ? NULL : full;
}

/* Inserts the file of an @include directive; *ret_done: there was one. */
static int include_try(struct lexer *x, bool *ret_done)
{
	static const char word[] = "@include";
	const char *p = x->p + sizeof(word) - 1;
	dray_auto_free char *path = NULL;
	dray_auto_free char *full = NULL;
	size_t n = 0;
	int r;

	*ret_done = false;
	if (!at(x, word) || (*p != ' ' && *p != '\t'))
		return 0;
	p += strspn(p, " \t");
	if (*p != '"')
		return refuse(x, x->line, "@include needs a file name in quotes");
	path = calloc(1, strlen(p));
	if (!path)
		return config_no_memory(x->reterr);
	for (p++; *p && *p != '"' && *p != '\n'; p++) {
		if (*p == '\\' && (p[1] == '\\' || p[1] == '"'))
			p++;
		path[n++] = *p;
	}
	if (*p != '"')
		return refuse(x, x->line, "the name after @include does not end on its line");
	if (x->depth + 1 > INCLUDE_DEPTH)
		return refuse(x, x->line, "@include is nested more than %d deep", INCLUDE_DEPTH);
	full = include_path(x->name, path);
	if (!full)
		return config_no_memory(x->reterr);
	/* the output line has only blanks so far: it becomes the first line of the included file */
	x->t->n_lines--;
	r = config_text_read(x->t, full, x->depth + 1, x->reterr);
	if (r == -ENOENT)
		return refuse(x, x->line, "@include: there is no file %.100s", full);
	if (r < 0)
		return r;
	x->p = p + 1;
	x->line_start = false;
	*ret_done = true;
	return newline(x);
}

static int token_copy(struct lexer *x)
{
	bool included = false;
	int r = 0;

	if (*x->p == '\n') {
		x->p++;
		x->line++;
		x->line_start = true;
		return newline(x);
	}
	if (*x->p == ' ' || *x->p == '\t' || *x->p == '\r' || *x->p == '\f')
		return text_put(x, x->p++, 1);
	if (*x->p == '#' || at(x, "//") || at(x, "/*")) {
		/* libconfig does not accept @include after a comment on its line either */
		x->line_start = false;
		return comment_skip(x);
	}
	if (x->line_start)
		r = include_try(x, &included);
	if (r < 0 || included)
		return r;
	x->line_start = false;
	if (*x->p == '"')
		r = string_copy(x);
	else if (isalpha((unsigned char)*x->p) || *x->p == '*')
		r = name_copy(x);
	else if (is_number_start(*x->p))
		r = number_copy(x);
	else if (*x->p == '@')
		/* libconfig must not see an @include, because it would read the file itself */
		r = refuse(x, x->line, "@include \"FILE\" must stand alone on its line");
	else
		r = punctuation_copy(x);
	return r;
}

/* A pipe would be empty when a reload reads it again, and one without a writer would hold up the agent. The null device is always empty. */
static bool is_read_again(const struct stat *st)
{
	return S_ISREG(st->st_mode) || (S_ISCHR(st->st_mode) && st->st_rdev == makedev(1, 3));
}

static ssize_t file_read(const char *name, char *buf, size_t n, struct dray_err *reterr)
{
	int fd dray_auto_close = open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct stat st;
	ssize_t r = fd < 0 || fstat(fd, &st) < 0 ? -errno : 0;

	if (r == -ENOENT)
		return r;
	if (r >= 0 && !is_read_again(&st))
		return config_invalid(
			reterr,
			"%s is not a regular file, which each reload can read again: write the "
			"configuration to a file",
			config_clip(name));
	if (r >= 0)
		r = dray_fd_read(fd, buf, n);
	return r < 0 ? dray_err_set(reterr, (int)r, DRAY_E_IO, "%s: %s", config_clip(name),
				    dray_errno_text((int)r)) :
		       r;
}

int config_text_read(struct config_text *t, const char *name, unsigned depth,
		     struct dray_err *reterr)
{
	/* a byte more than is allowed, and a NUL */
	dray_auto_free char *text = malloc(BYTES_MAX + 2);
	struct lexer x = {
		.t = t,
		.name = name,
		.begin = text,
		.p = text,
		.file = (unsigned)t->files.n,
		.line = 1,
		.depth = depth,
		.line_start = true,
		.reterr = reterr,
	};
	ssize_t n;
	int r;

	if (!text)
		return config_no_memory(reterr);
	n = file_read(name, text, BYTES_MAX + 2, reterr);
	if (n < 0)
		return (int)n;
	t->bytes_read += (size_t)n;
	if (t->bytes_read > BYTES_MAX)
		return dray_err_set(reterr, -EFBIG, DRAY_E_INVALID,
				    "%s: the configuration with its included files is over 1 MiB",
				    config_clip(name));
	if (memchr(text, '\0', (size_t)n))
		return config_invalid(reterr, "%s: the file has a NUL byte", config_clip(name));
	if (dray_strv_add(&t->files, name, strlen(name)) < 0)
		return config_no_memory(reterr);
	r = line_begin(&x);
	while (!r && *x.p)
		r = token_copy(&x);
	/* libconfig misreads some last lines without a newline */
	if (!r && !depth)
		r = newline(&x);
	return r;
}

void config_text_deinit(struct config_text *t)
{
	free(t->buf);
	free(t->lines);
	dray_strv_clear(&t->files);
	*t = CONFIG_TEXT_NULL;
}

char *config_text_where(const struct config_text *t, unsigned line)
{
	struct config_text_line l;
	char *where;

	if (!t->n_lines)
		return strdup("?");
	l = t->lines[dray_min((size_t)(line ? line - 1 : 0), t->n_lines - 1)];
	return asprintf(&where, "%s:%u", t->files.v[l.file], l.line) < 0 ? NULL : where;
}

void config_text_excerpt(const struct config_text *t, unsigned line, char *buf, size_t n)
{
	const char *p = t->buf;
	size_t at = 0;

	for (; p && line > 1; line--) {
		p = strchr(p, '\n');
		p += p != NULL;
	}
	p += p ? strspn(p, " \t") : 0;
	for (; p && *p && *p != '\n' && at + 1 < n; p++) {
		/* a number, without the quotes and mark that were added */
		if (p[0] == '"' && p[1] == CONFIG_TEXT_BARE) {
			for (p += 2; *p && *p != '"' && at + 1 < n; p++)
				buf[at++] = *p;
			if (*p != '"')
				break;
			continue;
		}
		buf[at++] = iscntrl((unsigned char)*p) ? ' ' : *p;
	}
	buf[at] = '\0';
}
