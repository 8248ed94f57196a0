/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "agent/control/bus/internal.h"
#include "lib/cleanup.h"

/* Longest text of a value, with its NUL. */
#define TEXT_BYTES 4096
/* Estimate of one key with its value on the wire, without the text. */
#define FIELD_BYTES 32

/* Length of the UTF-8 character at p; 0 if the bytes are none. Overlong forms and surrogates are refused. */
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

const char *bus_text(const char *s, char buf[BUS_TEXT_BYTES])
{
	return clean(s, buf, BUS_TEXT_BYTES);
}

static int field_append(struct dictionaries *d, const struct dray_dbus_field *f, const void *record)
{
	const void *member = (const char *)record + f->offset;
	char text[TEXT_BYTES];

	d->bytes += FIELD_BYTES;
	switch (*f->type) {
	case 's':
		clean(*(const char *const *)member, text, sizeof(text));
		d->bytes += strlen(text);
		return sd_bus_message_append(d->reply, "{sv}", f->key, "s", text);
	case 'b':
		return sd_bus_message_append(d->reply, "{sv}", f->key, "b", *(const bool *)member);
	case 't':
		return sd_bus_message_append(d->reply, "{sv}", f->key, "t",
					     *(const uint64_t *)member);
	default: /* u and i */
		return sd_bus_message_append(d->reply, "{sv}", f->key, f->type,
					     *(const uint32_t *)member);
	}
}

void dictionary_append(struct dictionaries *d, const struct dray_dbus_field *fields, size_t n,
		       const void *record)
{
	if (d->ret < 0)
		return;
	d->ret = sd_bus_message_open_container(d->reply, 'a', "{sv}");
	for (size_t i = 0; i < n && d->ret >= 0; i++)
		d->ret = field_append(d, &fields[i], record);
	if (d->ret >= 0)
		d->ret = sd_bus_message_close_container(d->reply);
}

int dictionaries_append(struct dictionaries *d, dictionaries_fn *fn)
{
	d->ret = sd_bus_message_open_container(d->reply, 'a', "a{sv}");
	if (d->ret >= 0)
		fn(d);
	if (d->ret >= 0)
		d->ret = sd_bus_message_close_container(d->reply);
	return d->ret;
}

int dictionaries_begin(struct dictionaries *d)
{
	d->ret = sd_bus_message_new_method_return(d->call, &d->reply);
	if (d->ret >= 0)
		d->ret = sd_bus_message_open_container(d->reply, 'a', "a{sv}");
	return d->ret;
}

int dictionaries_end(struct dictionaries *d, struct bus_conn *c)
{
	if (d->ret >= 0)
		d->ret = sd_bus_message_close_container(d->reply);
	if (d->ret >= 0)
		d->ret = bus_conn_send(c, d->reply, d->bytes);
	d->reply = sd_bus_message_unref(d->reply);
	return d->ret;
}

int dictionaries_reply(struct dictionaries *d, struct bus_conn *c, dictionaries_fn *fn)
{
	if (dictionaries_begin(d) >= 0)
		fn(d);
	return dictionaries_end(d, c);
}
