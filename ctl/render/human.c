/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/render/human.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "lib/cleanup.h"
#include "lib/plain.h"

/* At most three digits: 3.0, 99.9, 512. */
static const char *scaled(double v, const char *unit, char buf[CTL_HUMAN_BYTES])
{
	snprintf(buf, CTL_HUMAN_BYTES, "%.*f %s", v < 99.95 ? 1 : 0, v, unit);
	return buf;
}

const char *ctl_show_size(uint64_t bytes, char buf[CTL_HUMAN_BYTES])
{
	static const char *const units[] = { "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
	double v = (double)bytes;
	int u = -1;

	if (bytes < 1024) {
		snprintf(buf, CTL_HUMAN_BYTES, "%" PRIu64 " B", bytes);
		return buf;
	}
	/* From 1023.5 on, the smaller unit would show 1024. */
	for (; v >= 1023.5 && u < 5; u++)
		v /= 1024;
	return scaled(v, units[u < 0 ? 0 : u], buf);
}

const char *ctl_show_span(uint64_t ns, char buf[CTL_HUMAN_BYTES])
{
	static const struct {
		uint64_t seconds;
		const char *name;
	} units[] = { { 86400, "d" }, { 3600, "h" }, { 60, "min" }, { 1, "s" } };
	uint64_t s = ns / 1000000000;

	if (ns < 1000) {
		snprintf(buf, CTL_HUMAN_BYTES, "%" PRIu64 " ns", ns);
		return buf;
	}
	if (ns < 999500)
		return scaled((double)ns / 1e3, "us", buf);
	if (ns < 999500000)
		return scaled((double)ns / 1e6, "ms", buf);
	if (s < 60)
		return scaled((double)ns / 1e9, "s", buf);
	for (unsigned i = 0; i + 1 < DRAY_ARRAY_SIZE(units); i++) {
		uint64_t whole = s / units[i].seconds;

		if (!whole)
			continue;
		snprintf(buf, CTL_HUMAN_BYTES, "%" PRIu64 " %s %" PRIu64 " %s", whole,
			 units[i].name, s % units[i].seconds / units[i + 1].seconds,
			 units[i + 1].name);
		break;
	}
	return buf;
}

const char *ctl_show_count(uint64_t n, char buf[CTL_HUMAN_BYTES])
{
	char digits[24];
	size_t len = (size_t)snprintf(digits, sizeof(digits), "%" PRIu64, n), at = 0;

	for (size_t i = 0; i < len; i++) {
		if (i && (len - i) % 3 == 0)
			buf[at++] = ',';
		buf[at++] = digits[i];
	}
	buf[at] = '\0';
	return buf;
}

const char *ctl_show_rate(double v, char buf[CTL_HUMAN_BYTES])
{
	static const char *const units[] = { "B/s", "kB/s", "MB/s", "GB/s", "TB/s" };
	unsigned u = 0;

	for (; v >= 999.5 && u + 1 < DRAY_ARRAY_SIZE(units); u++)
		v /= 1000;
	return scaled(v, units[u], buf);
}

const char *ctl_show_text(const char *s, char *buf, size_t n)
{
	size_t at = 0;

	while (*s && at + 5 < n) {
		unsigned char ch = (unsigned char)*s;
		size_t length = dray_utf8_length(s);

		if (ch == '\n' || ch == '\t' || ch == '\\') {
			buf[at++] = '\\';
			buf[at++] = ch == '\n' ? 'n' : ch == '\t' ? 't' : '\\';
			s++;
		} else if (ch == 0xc2 && ((unsigned char)s[1] & 0xe0) == 0x80) {
			/* C1 controls have two bytes in UTF-8. */
			at += (size_t)snprintf(buf + at, n - at, "\\x%02x", (unsigned char)s[1]);
			s += 2;
		} else if (!length || ch < 0x20 || ch == 0x7f) {
			at += (size_t)snprintf(buf + at, n - at, "\\x%02x", ch);
			s++;
		} else {
			memcpy(buf + at, s, length);
			at += length;
			s += length;
		}
	}
	buf[at] = '\0';
	return buf;
}

size_t ctl_text_width(const char *s)
{
	size_t n = 0;

	for (; *s; s++)
		n += ((unsigned char)*s & 0xc0) != 0x80;
	return n;
}
