/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log: one line for each event, to the journal, or to stderr as text, with syslog priority prefixes, or as JSON.
 * Not thread-safe but for the level. Libraries do not log: they return their error.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dray_log_level {
	DRAY_LOG_ERROR,
	DRAY_LOG_WARNING,
	DRAY_LOG_NOTICE,
	DRAY_LOG_INFO,
	DRAY_LOG_DEBUG
};
enum dray_log_format {
	DRAY_LOG_FORMAT_AUTO,
	DRAY_LOG_FORMAT_TEXT,
	DRAY_LOG_FORMAT_JOURNAL,
	DRAY_LOG_FORMAT_JSON
};

/* A key=value word from the end of a message. */
struct dray_log_field {
	const char *key, *value;
	size_t n_key, n_value;
};

#define DRAY_LOG_FIELDS_MAX 16

/*
 * Sends one line to the journal: "area: message", n bytes with control characters escaped. Fields are in reverse order. priority: as
 * of syslog(3). False: it was not sent, so that the line is written to stderr.
 */
typedef bool (*dray_log_journal)(int priority, const char *area, const char *line, size_t n,
				 const struct dray_log_field *fields, unsigned n_fields);

/* Before dray_log_setup(). Where stderr is the journal, lines are sent by this function. */
void dray_log_set_journal(dray_log_journal send);

void dray_log_setup(enum dray_log_level level, enum dray_log_format format);
enum dray_log_level dray_log_get_level(void);
void dray_log_set_level(enum dray_log_level level);

/*
 * area: the module. The message is a sentence. key=value words at its end become fields in JSON and in the journal. A
 * line has at most 1,000 bytes.
 */
void dray_log(enum dray_log_level level, const char *area, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/*
 * A text of others as one word that is no field of its own, with '_' for each ' ' and '=': otherwise it could forge fields of
 * the line, or hide them. Cut to n bytes with its NUL. Returns buf.
 */
const char *dray_log_word(const char *s, char *buf, size_t n);

#define log_error(area, ...) dray_log(DRAY_LOG_ERROR, area, __VA_ARGS__)
#define log_warning(area, ...) dray_log(DRAY_LOG_WARNING, area, __VA_ARGS__)
#define log_notice(area, ...) dray_log(DRAY_LOG_NOTICE, area, __VA_ARGS__)
#define log_info(area, ...) dray_log(DRAY_LOG_INFO, area, __VA_ARGS__)
#define log_debug(area, ...) dray_log(DRAY_LOG_DEBUG, area, __VA_ARGS__)

/* At most `burst` lines in each second; the next line that passes says how many were dropped. */
struct dray_log_limit {
	int64_t window_ns;
	uint32_t count, dropped;
};

bool dray_log_limit_pass(struct dray_log_limit *l, uint32_t burst, uint32_t *ret_dropped);

#define DRAY_LOG_NAMES 64
#define DRAY_LOG_NAME_BYTES 96

/* Limits of lines about things that have names and come and go, such as "agent=1234". A zeroed table is valid. */
struct dray_log_limits {
	struct dray_log_named {
		char name[DRAY_LOG_NAME_BYTES];
		struct dray_log_limit limit;
	} v[DRAY_LOG_NAMES];
};

/*
 * The limit of the thing with this name, which is cut at DRAY_LOG_NAME_BYTES. Lines about more than DRAY_LOG_NAMES things in one
 * second share their limits, so that there is a bound for all of them.
 */
struct dray_log_limit *dray_log_limit_of(struct dray_log_limits *all, const char *name);

/* Logs the line if the limit lets it pass, and how many more there were. about: the end of that sentence. */
#define log_within(limit, burst, about, level, area, ...)                                     \
	do {                                                                                  \
		uint32_t dropped_;                                                            \
		if (dray_log_limit_pass(limit, burst, &dropped_)) {                           \
			dray_log(level, area, __VA_ARGS__);                                   \
			if (dropped_)                                                         \
				dray_log(level, area, "%u more lines %s", dropped_, (about)); \
		}                                                                             \
	} while (0)

/* The same for one place in the code. */
#define log_limited(level, area, ...)                                           \
	do {                                                                    \
		static struct dray_log_limit limit_;                            \
		log_within(&limit_, 10, "like this", level, area, __VA_ARGS__); \
	} while (0)
