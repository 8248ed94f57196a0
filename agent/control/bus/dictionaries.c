/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/bus/dictionaries.h"

#include <errno.h>
#include <string.h>

#include "agent/control/bus/internal.h"
#include "lib/cleanup.h"

/* Longest text of a value. */
#define TEXT_BYTES 4096
/* Of one key with its value, on the wire, without its text. */
#define FIELD_BYTES 32

/* Length of the UTF-8 character at p, 0 where there is none. Overlong forms and surrogates are none. */
static size_t utf8_length(const unsigned char *p)
{
	size_t n = *p < 0x80           ? 1 :
		   (*p & 0xe0) == 0xc0 ? 2 :
		   (*p & 0xf0) == 0xe0 ? 3 :
		   (*p & 0xf8) == 0xf0 ? 4 :
					 0;
	uint32_t v = n == 1 ? *p : n ? *p & (0x7fu >> n) : 0;
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };

	for (size_t i = 1; i < n; i++) {
		if ((p[i] & 0xc0) != 0x80)
			return 0;
		v = v << 6 | (p[i] & 0x3f);
	}
	return v < least[n] || v > 0x10ffff || (v >= 0xd800 && v < 0xe000) ? 0 : n;
}

static const char *clean(const char *s, char *buf, size_t size)
{
	size_t at = 0;

	for (const unsigned char *p = (const unsigned char *)(s ? s : ""); *p;) {
		size_t n = utf8_length(p);

		if (at + dray_max(n, (size_t)1) >= size)
			break;
		if (n)
			memcpy(buf + at, p, n);
		else
			buf[at] = '?';
		n = dray_max(n, (size_t)1);
		at += n;
		p += n;
	}
	buf[at] = '\0';
	return buf;
}

const char *control_text(const char *s, char buf[CONTROL_TEXT_MAX])
{
	return clean(s, buf, CONTROL_TEXT_MAX);
}

static int field_append(struct rows *r, const struct dray_dbus_field *f, union value v)
{
	char text[TEXT_BYTES];

	r->bytes += FIELD_BYTES;
	switch (*f->type) {
	case 's':
		clean(v.s, text, sizeof(text));
		r->bytes += strlen(text);
		return sd_bus_message_append(r->m, "{sv}", f->key, "s", text);
	case 'b':
		return sd_bus_message_append(r->m, "{sv}", f->key, "b", (int)v.n);
	case 'u':
		return sd_bus_message_append(r->m, "{sv}", f->key, "u", (uint32_t)v.n);
	case 'i':
		return sd_bus_message_append(r->m, "{sv}", f->key, "i", (int32_t)v.n);
	case 't':
		return sd_bus_message_append(r->m, "{sv}", f->key, "t", v.n);
	default:
		return -EINVAL;
	}
}

void row_append(struct rows *r, const struct dray_dbus_field *fields, const union value *v,
		size_t n)
{
	if (r->ret < 0)
		return;
	r->ret = sd_bus_message_open_container(r->m, 'a', "{sv}");
	for (size_t i = 0; i < n && r->ret >= 0; i++)
		r->ret = field_append(r, &fields[i], v[i]);
	if (r->ret >= 0)
		r->ret = sd_bus_message_close_container(r->m);
}

struct rows rows_open(sd_bus_message *m)
{
	struct rows r = { .m = m };

	r.ret = sd_bus_message_open_container(m, 'a', "a{sv}");
	return r;
}

int rows_close(struct rows *r, size_t *ret_bytes)
{
	if (r->ret >= 0)
		r->ret = sd_bus_message_close_container(r->m);
	*ret_bytes = r->bytes;
	return r->ret;
}

uint64_t rows_span(int64_t ns)
{
	return ns > 0 ? (uint64_t)ns : 0;
}
