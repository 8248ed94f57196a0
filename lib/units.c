/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/units.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/cleanup.h"

struct unit {
	const char *name;
	int64_t scale;
};

/* Largest first. The first name of a scale is the one that is written. */
static const struct unit size_units[] = {
	{ "EiB", 1LL << 60 },
	{ "PiB", 1LL << 50 },
	{ "TiB", 1LL << 40 },
	{ "GiB", 1LL << 30 },
	{ "MiB", 1LL << 20 },
	{ "KiB", 1LL << 10 },
	{ "EB", 1000000000000000000LL },
	{ "PB", 1000000000000000LL },
	{ "TB", 1000000000000LL },
	{ "GB", 1000000000LL },
	{ "MB", 1000000LL },
	{ "kB", 1000LL },
	{ "KB", 1000LL },
	{ "B", 1LL },
};

static const struct unit duration_units[] = {
	{ "d", 86400000000000LL },
	{ "h", 3600000000000LL },
	{ "min", 60000000000LL },
	{ "s", 1000000000LL },
	{ "ms", 1000000LL },
	{ "us", 1000LL },
	{ "ns", 1LL },
};

#define FRACTION_DIGITS 9

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/*
 * Parses digits with an optional fraction, and a unit. *ret_bare: there was no unit (the scale is 1). A fraction is rounded
 * down to whole bytes or nanoseconds; a value that would become 0 by that is refused.
 */
static int scaled_parse(const char *s, const struct unit *units, size_t n_units, int64_t *ret,
			bool *ret_bare)
{
	int64_t whole = 0, fraction = 0, fraction_scale = 1, scale = 0;
	unsigned digits = 0;
	bool point = false;
	__int128 v;

	if (!is_digit(*s))
		return -EINVAL;
	for (; is_digit(*s); s++)
		if (__builtin_mul_overflow(whole, (int64_t)10, &whole) ||
		    __builtin_add_overflow(whole, (int64_t)(*s - '0'), &whole))
			return -ERANGE;
	if (*s == '.') {
		point = true;
		for (s++; is_digit(*s); s++, digits++) {
			if (digits == FRACTION_DIGITS)
				return -EINVAL;
			fraction = fraction * 10 + (*s - '0');
			fraction_scale *= 10;
		}
		if (!digits)
			return -EINVAL;
	}
	*ret_bare = !*s;
	if (!*s)
		scale = 1;
	for (size_t i = 0; *s && i < n_units; i++)
		if (!strcmp(s, units[i].name))
			scale = units[i].scale;
	if (!scale || (point && scale == 1))
		return -EINVAL;
	v = (__int128)whole * scale + (__int128)fraction * scale / fraction_scale;
	if (v > INT64_MAX)
		return -ERANGE;
	if (v == 0 && (whole || fraction))
		return -EINVAL;
	*ret = (int64_t)v;
	return 0;
}

int dray_size_parse(const char *s, int64_t *ret_bytes)
{
	bool bare;

	return scaled_parse(s, size_units, DRAY_ARRAY_SIZE(size_units), ret_bytes, &bare);
}

int dray_duration_parse(const char *s, int64_t *ret_ns)
{
	int64_t v;
	bool bare;
	int r;

	r = scaled_parse(s, duration_units, DRAY_ARRAY_SIZE(duration_units), &v, &bare);
	if (r < 0)
		return r;
	if (bare && v)
		return -EINVAL;
	*ret_ns = v;
	return 0;
}

int dray_int_parse(const char *s, int octal_ok, int64_t *ret)
{
	const char *digits = s + (*s == '-' || *s == '+');
	int base = 10;
	long long v;
	char *end;

	if (digits[0] == '0' && (digits[1] == 'x' || digits[1] == 'X')) {
		base = 16;
		/* strtoll() takes a single 0 before an x */
		if (!isxdigit((unsigned char)digits[2]))
			return -EINVAL;
	} else if (digits[0] == '0' && digits[1]) {
		/* some programs read 010 as 8, others as 10 */
		if (!octal_ok)
			return -EINVAL;
		base = 8;
	}
	if (!is_digit(*digits))
		return -EINVAL;
	errno = 0;
	v = strtoll(s, &end, base);
	if (*end)
		return -EINVAL;
	if (errno)
		return -errno;
	*ret = v;
	return 0;
}

const char *dray_size_show(int64_t bytes, char *buf, size_t n)
{
	char text[32];
	int best;

	best = snprintf(buf, n, "%lld", (long long)bytes);
	for (size_t i = 0; bytes > 0 && i < DRAY_ARRAY_SIZE(size_units); i++) {
		const struct unit *u = &size_units[i];
		int len;

		if (bytes % u->scale || u->scale == 1)
			continue;
		len = snprintf(text, sizeof(text), "%lld%s", (long long)(bytes / u->scale),
			       u->name);
		/* of two equally short texts the binary unit wins, which comes first */
		if (len < best || (len == best && !strchr(buf, 'B'))) {
			best = len;
			snprintf(buf, n, "%s", text);
		}
	}
	return buf;
}

const char *dray_duration_show(int64_t ns, char *buf, size_t n)
{
	const char *unit = "ns";
	int64_t scale = 1;

	if (!ns)
		unit = "s";
	for (size_t i = 0; ns && scale == 1 && i < DRAY_ARRAY_SIZE(duration_units); i++)
		if (ns % duration_units[i].scale == 0) {
			unit = duration_units[i].name;
			scale = duration_units[i].scale;
		}
	snprintf(buf, n, "%lld%s", (long long)(ns / scale), unit);
	return buf;
}
