/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A line is built in a buffer on the stack and written by one write(), so that the lines of several processes on one stderr
 * do not mix. A line that is too long is cut and ends in "...". Nothing here allocates, fails or aborts, which is
 * also why JSON is written by hand. A line that stderr refuses is lost.
 */
#include "lib/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/time.h"

#define LINE_MAX_BYTES 1000
#define FIELDS_BYTES 480 /* of a JSON line, at most */

/* other threads read it to know whether a line is wanted */
static _Atomic enum dray_log_level log_level = DRAY_LOG_INFO;
static enum dray_log_format log_format = DRAY_LOG_FORMAT_AUTO;
static dray_log_journal journal_send;
static bool to_journal; /* by journal_send */

static const char *const level_names[] = {
	[DRAY_LOG_ERROR] = "error", [DRAY_LOG_WARNING] = "warning", [DRAY_LOG_NOTICE] = "notice",
	[DRAY_LOG_INFO] = "info",   [DRAY_LOG_DEBUG] = "debug",
};

/* The levels have the order of syslog's priorities. */
static int priority(enum dray_log_level level)
{
	return LOG_ERR + (int)level;
}

/* systemd sets JOURNAL_STREAM to device:inode of the stream; children with another stderr inherit it. */
static bool stderr_is_journal(void)
{
	const char *s = getenv("JOURNAL_STREAM");
	unsigned long long dev, ino;
	struct stat st;
	char more;

	return s && sscanf(s, "%llu:%llu%c", &dev, &ino, &more) == 2 &&
	       fstat(STDERR_FILENO, &st) == 0 && st.st_dev == dev && st.st_ino == ino;
}

void dray_log_set_journal(dray_log_journal send)
{
	journal_send = send;
}

void dray_log_setup(enum dray_log_level level, enum dray_log_format format)
{
	bool journal = stderr_is_journal();

	if (format == DRAY_LOG_FORMAT_AUTO)
		format = journal ? DRAY_LOG_FORMAT_JOURNAL : DRAY_LOG_FORMAT_TEXT;
	log_level = level;
	log_format = format;
	to_journal = journal && journal_send && format == DRAY_LOG_FORMAT_JOURNAL;
}

enum dray_log_level dray_log_get_level(void)
{
	return log_level;
}

void dray_log_set_level(enum dray_log_level level)
{
	log_level = level;
}

struct line {
	char *buf;
	size_t n, cap;
};

/* All or nothing. */
static bool put(struct line *l, const char *s, size_t n)
{
	if (l->cap - l->n < n)
		return false;
	memcpy(l->buf + l->n, s, n);
	l->n += n;
	return true;
}

static bool put_text(struct line *l, const char *s)
{
	return put(l, s, strlen(s));
}

/* Length of the well-formed UTF-8 character at s; 0 if there is none. */
static size_t utf8_len(const unsigned char *s, size_t n)
{
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	size_t len = s[0] < 0x80           ? 1 :
		     (s[0] & 0xe0) == 0xc0 ? 2 :
		     (s[0] & 0xf0) == 0xe0 ? 3 :
		     (s[0] & 0xf8) == 0xf0 ? 4 :
					     0;
	uint32_t c = len > 1 ? s[0] & (0x7fu >> len) : s[0];

	if (n < len)
		return 0;
	for (size_t i = 1; i < len; i++) {
		if ((s[i] & 0xc0) != 0x80)
			return 0;
		c = c << 6 | (s[i] & 0x3f);
	}
	/* overlong forms, surrogates, beyond U+10FFFF */
	return c < least[len] || (c >= 0xd800 && c <= 0xdfff) || c > 0x10ffff ? 0 : len;
}

/* Appends one character of s, escaped for the format. *ret_used: its bytes in s. False if full. */
static bool put_char(struct line *l, const char *s, size_t n, bool json, size_t *ret_used)
{
	const unsigned char *u = (const unsigned char *)s;
	size_t len = utf8_len(u, n);
	char esc[8];

	*ret_used = len ? len : 1;
	if (!len && json)
		return put_text(l, "\\ufffd");
	/* C0, DEL and C1: a log must not move a terminal's cursor */
	if (!len || u[0] < 0x20 || u[0] == 0x7f || (len == 2 && u[0] == 0xc2 && u[1] < 0xa0)) {
		if (u[0] == '\n' || u[0] == '\t')
			return put_text(l, u[0] == '\n' ? "\\n" : "\\t");
		snprintf(esc, sizeof(esc), json ? "\\u%04x" : "\\x%02x", u[len == 2]);
		return put_text(l, esc);
	}
	if (json && (s[0] == '"' || s[0] == '\\')) {
		esc[0] = '\\';
		esc[1] = s[0];
		return put(l, esc, 2);
	}
	return put(l, s, len);
}

/* Appends escaped text; a text that does not fit is cut and ends in "...". False if it was cut. */
static bool put_escaped(struct line *l, const char *s, size_t n, bool json)
{
	size_t cut, used;

	if (l->cap - l->n < 3)
		return n == 0;
	cut = l->n;
	for (size_t i = 0; i < n; i += used) {
		if (!put_char(l, s + i, n - i, json, &used)) {
			l->n = cut;
			put_text(l, "...");
			return false;
		}
		if (l->cap - l->n >= 3)
			cut = l->n;
	}
	return true;
}

static size_t key_len(const char *s, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++)
		if (!(s[i] >= 'a' && s[i] <= 'z') && s[i] != '_' &&
		    !(i && ((s[i] >= '0' && s[i] <= '9') || s[i] == '.')))
			break;
	return i;
}

static bool key_is_free(const struct dray_log_field *f, const struct dray_log_field *fields,
			unsigned n)
{
	static const char *const own[] = { "ts", "level", "area", "msg" };

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(own); i++)
		if (f->n_key == strlen(own[i]) && !memcmp(f->key, own[i], f->n_key))
			return false;
	for (unsigned i = 0; i < n; i++)
		if (f->n_key == fields[i].n_key && !memcmp(f->key, fields[i].key, f->n_key))
			return false;
	return true;
}

/* Finds the key=value words at the end of msg, last first. Returns the length of the rest. */
static size_t fields_split(const char *msg, size_t n, struct dray_log_field *fields,
			   unsigned *ret_n)
{
	unsigned count = 0;

	while (count < DRAY_LOG_FIELDS_MAX) {
		size_t start = n;
		struct dray_log_field f;

		while (start && msg[start - 1] != ' ')
			start--;
		f.key = msg + start;
		f.n_key = key_len(f.key, n - start);
		if (!f.n_key || start + f.n_key >= n || msg[start + f.n_key] != '=' ||
		    !key_is_free(&f, fields, count))
			break;
		f.value = f.key + f.n_key + 1;
		f.n_value = n - start - f.n_key - 1;
		fields[count++] = f;
		n = start;
		while (n && msg[n - 1] == ' ')
			n--;
	}
	*ret_n = count;
	return n;
}

static void put_fields(struct line *l, const struct dray_log_field *fields, unsigned n)
{
	for (unsigned i = n; i > 0; i--) {
		const struct dray_log_field *f = &fields[i - 1];
		size_t before = l->n;

		/* a member is written whole, with its value cut, or not at all */
		if (l->cap - l->n < f->n_key + 16)
			continue;
		put_text(l, ",\"");
		put(l, f->key, f->n_key);
		put_text(l, "\":\"");
		l->cap -= 1;
		put_escaped(l, f->value, f->n_value, true);
		l->cap += 1;
		if (!put_text(l, "\""))
			l->n = before;
	}
}

static void put_time(struct line *l)
{
	struct timespec ts;
	char text[40];
	struct tm tm;
	size_t n;

	clock_gettime(CLOCK_REALTIME, &ts);
	if (!gmtime_r(&ts.tv_sec, &tm))
		return;
	n = strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &tm);
	snprintf(text + n, sizeof(text) - n, ".%06uZ", (unsigned)(ts.tv_nsec / 1000) % 1000000);
	put_text(l, text);
}

static void build_json(struct line *l, enum dray_log_level level, const char *area, const char *msg,
		       size_t n)
{
	struct dray_log_field fields[DRAY_LOG_FIELDS_MAX];
	char tail[FIELDS_BYTES];
	struct line t = { tail, 0, sizeof(tail) };
	unsigned n_fields;

	n = fields_split(msg, n, fields, &n_fields);
	put_fields(&t, fields, n_fields);
	put_text(l, "{\"ts\":\"");
	put_time(l);
	put_text(l, "\",\"level\":\"");
	put_text(l, level_names[level]);
	put_text(l, "\",\"area\":\"");
	put_escaped(l, area, strnlen(area, 32), true);
	put_text(l, "\",\"msg\":\"");
	l->cap -= t.n + 2;
	put_escaped(l, msg, n, true);
	l->cap += t.n + 2;
	put_text(l, "\"");
	put(l, tail, t.n);
	put_text(l, "}");
}

static void build_line(struct line *l, const char *area, const char *msg, size_t n)
{
	put_escaped(l, area, strnlen(area, 32), false);
	put_text(l, ": ");
	put_escaped(l, msg, n, false);
}

static void build(struct line *l, enum dray_log_level level, const char *area, const char *msg,
		  size_t n)
{
	if (log_format == DRAY_LOG_FORMAT_JSON) {
		build_json(l, level, area, msg, n);
		return;
	}
	if (log_format == DRAY_LOG_FORMAT_JOURNAL) {
		put(l, (const char[]){ '<', (char)('0' + priority(level)), '>' }, 3);
	} else {
		put_time(l);
		put_text(l, " ");
		put_text(l, level_names[level]);
		put_text(l, " ");
	}
	build_line(l, area, msg, n);
}

static bool send_to_journal(enum dray_log_level level, const char *area, const char *msg, size_t n)
{
	struct dray_log_field fields[DRAY_LOG_FIELDS_MAX];
	char buf[LINE_MAX_BYTES];
	struct line l = { buf, 0, sizeof(buf) };
	unsigned n_fields;

	build_line(&l, area, msg, n);
	fields_split(msg, n, fields, &n_fields);
	return journal_send(priority(level), area, buf, l.n, fields, n_fields);
}

void dray_log(enum dray_log_level level, const char *area, const char *fmt, ...)
{
	char msg[LINE_MAX_BYTES + 1], buf[LINE_MAX_BYTES];
	struct line l = { buf, 0, sizeof(buf) - 1 };
	int saved = errno, len;
	va_list ap;
	size_t n;

	if (level > log_level)
		return;
	va_start(ap, fmt);
	len = vsnprintf(msg, sizeof(msg), fmt, ap);
	va_end(ap);
	n = len < 0 ? 0 : dray_min((size_t)len, sizeof(msg) - 1);

	if (log_format == DRAY_LOG_FORMAT_AUTO)
		dray_log_setup(log_level, DRAY_LOG_FORMAT_AUTO);
	if (to_journal && send_to_journal(level, area, msg, n)) {
		errno = saved;
		return;
	}
	build(&l, level, area, msg, n);
	buf[l.n++] = '\n';
	while (write(STDERR_FILENO, buf, l.n) < 0 && errno == EINTR)
		;
	errno = saved;
}

const char *dray_log_word(const char *s, char *buf, size_t n)
{
	size_t i;

	for (i = 0; s[i] && i + 1 < n; i++)
		buf[i] = s[i] == ' ' || s[i] == '=' ? '_' : s[i];
	buf[i] = '\0';
	return buf;
}

bool dray_log_limit_pass(struct dray_log_limit *l, uint32_t burst, uint32_t *ret_dropped)
{
	int64_t now = dray_now().ns;

	*ret_dropped = 0;
	if (!l->window_ns || now - l->window_ns >= DRAY_NS_PER_SEC) {
		*ret_dropped = l->dropped;
		*l = (struct dray_log_limit){ .window_ns = now };
	}
	if (l->count >= burst) {
		if (l->dropped < UINT32_MAX)
			l->dropped++;
		return false;
	}
	l->count++;
	return true;
}

struct dray_log_limit *dray_log_limit_of(struct dray_log_limits *all, const char *name)
{
	struct dray_log_named *oldest = &all->v[0];

	for (unsigned i = 0; i < DRAY_LOG_NAMES; i++) {
		struct dray_log_named *x = &all->v[i];

		if (!strncmp(x->name, name, sizeof(x->name) - 1))
			return &x->limit;
		if (x->limit.window_ns < oldest->limit.window_ns)
			oldest = x;
	}
	snprintf(oldest->name, sizeof(oldest->name), "%s", name);
	if (dray_now().ns - oldest->limit.window_ns >= DRAY_NS_PER_SEC)
		oldest->limit = (struct dray_log_limit){ 0 };
	return &oldest->limit;
}
