/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/bus/internal.h"
#include "lib/cleanup.h"
#include "lib/plain.h"

/* Longest text of a value, with its NUL. */
#define TEXT_BYTES 4096
/* Estimate of one key with its value on the wire, without the text. */
#define FIELD_BYTES 32

static const char *clean(const char *s, char *buf, size_t size)
{
	size_t at = 0;

	for (const char *p = s ? s : ""; *p;) {
		size_t n = dray_utf8_length(p);

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

/* A record in d->kept. The values follow, each a text with its NUL or a number of 8 bytes. */
struct kept_record {
	const struct dray_dbus_field *fields;
	size_t n;
};

static void keep(struct dictionaries *d, const void *p, size_t n)
{
	size_t room = dray_max(d->kept_room, (size_t)TEXT_BYTES);
	char *kept;

	if (d->ret < 0)
		return;
	while (room - d->n_kept < n)
		room *= 2;
	if (room != d->kept_room) {
		kept = realloc(d->kept, room);
		if (!kept) {
			d->ret = -ENOMEM;
			return;
		}
		d->kept = kept;
		d->kept_room = room;
	}
	memcpy(d->kept + d->n_kept, p, n);
	d->n_kept += n;
}

static void value_keep(struct dictionaries *d, const struct dray_dbus_field *f, const void *member)
{
	char buf[TEXT_BYTES];
	const char *text;
	uint64_t number;

	d->bytes += FIELD_BYTES;
	switch (*f->type) {
	case 's':
		text = clean(*(const char *const *)member, buf, sizeof(buf));
		d->bytes += strlen(text);
		keep(d, text, strlen(text) + 1);
		return;
	case 'b':
		number = *(const bool *)member;
		break;
	case 't':
		number = *(const uint64_t *)member;
		break;
	default: /* u and i */
		number = *(const uint32_t *)member;
	}
	keep(d, &number, sizeof(number));
}

static void take(struct dictionaries *d, void *ret, size_t n)
{
	memcpy(ret, d->kept + d->at, n);
	d->at += n;
}

static int value_append(struct dictionaries *d, const struct dray_dbus_field *f)
{
	const char *text = d->kept + d->at;
	uint64_t number;

	if (*f->type == 's') {
		d->at += strlen(text) + 1;
		return sd_bus_message_append(d->reply, "{sv}", f->key, "s", text);
	}
	take(d, &number, sizeof(number));
	if (*f->type == 't')
		return sd_bus_message_append(d->reply, "{sv}", f->key, "t", number);
	return sd_bus_message_append(d->reply, "{sv}", f->key, f->type, (uint32_t)number);
}

void dictionary_keep(struct dictionaries *d, const struct dray_dbus_field *fields, size_t n,
		     const void *record)
{
	const struct kept_record r = { fields, n };

	keep(d, &r, sizeof(r));
	for (size_t i = 0; i < n; i++)
		value_keep(d, &fields[i], (const char *)record + fields[i].offset);
}

bool dictionaries_append_kept(struct dictionaries *d)
{
	struct kept_record r;

	if (d->ret < 0 || d->at == d->n_kept) {
		d->at = d->n_kept = 0;
		return false;
	}
	take(d, &r, sizeof(r));
	d->ret = sd_bus_message_open_container(d->reply, 'a', "{sv}");
	for (size_t i = 0; i < r.n && d->ret >= 0; i++)
		d->ret = value_append(d, &r.fields[i]);
	if (d->ret >= 0)
		d->ret = sd_bus_message_close_container(d->reply);
	return true;
}

static void kept_free(struct dictionaries *d)
{
	free(d->kept);
	d->kept = NULL;
	d->n_kept = d->kept_room = d->at = 0;
}

void dictionaries_deinit(struct dictionaries *d)
{
	d->reply = sd_bus_message_unref(d->reply);
	kept_free(d);
}

int dictionaries_append(struct dictionaries *d, dictionaries_fn *fn)
{
	fn(d);
	if (d->ret >= 0)
		d->ret = sd_bus_message_open_container(d->reply, 'a', "a{sv}");
	while (dictionaries_append_kept(d))
		;
	kept_free(d);
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
	return d->ret;
}
