/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/bus/list.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>

#include "ctl/render/human.h"
#include "lib/assert.h"
#include "lib/cleanup.h"

void ctl_rows_json(struct ctl_json *j, const char *key, const struct ctl_rows *r)
{
	ctl_json_array(j, key);
	for (size_t row = 0; row < r->n; row++) {
		ctl_json_object(j, NULL);
		for (unsigned i = 0; i < r->n_fields; i++) {
			const struct ctl_value *v = ctl_rows_at(r, row, i);
			const struct dray_dbus_field *field = &r->fields[i];

			if (!v->set)
				ctl_json_add(j, J_NULL(field->key));
			else if (*field->type == 's')
				ctl_json_add(j, J_TEXT(field->key, v->s));
			else if (*field->type == 'b')
				ctl_json_add(j, J_BOOL(field->key, v->n));
			else if (*field->type == 'i')
				ctl_json_add(j, J_INT(field->key, (int64_t)v->n));
			else
				ctl_json_add(j, J_UINT(field->key, v->n));
		}
		ctl_json_end(j);
	}
	ctl_json_end(j);
}

void ctl_rows_plain(FILE *f, const struct ctl_rows *r)
{
	char text[CTL_CELL_BYTES];

	for (size_t row = 0; row < r->n; row++)
		for (unsigned i = 0; i < r->n_fields; i++) {
			const struct ctl_value *v = ctl_rows_at(r, row, i);

			if (v->set && *r->fields[i].type == 's')
				fputs(ctl_show_text(v->s, text, sizeof(text)), f);
			else if (v->set && *r->fields[i].type == 'i')
				fprintf(f, "%" PRId64, (int64_t)v->n);
			else if (v->set)
				fprintf(f, "%" PRIu64, v->n);
			fputc(i + 1 < r->n_fields ? '\t' : '\n', f);
		}
}

static const char *time_text(uint64_t ns, char buf[CTL_CELL_BYTES])
{
	time_t seconds = (time_t)(ns / 1000000000);
	struct tm tm;
	size_t n;

	if (!localtime_r(&seconds, &tm))
		return "-";
	n = strftime(buf, CTL_CELL_BYTES, "%Y-%m-%d %H:%M:%S", &tm);
	snprintf(buf + n, CTL_CELL_BYTES - n, ".%03u", (unsigned)(ns / 1000000 % 1000));
	return buf;
}

static bool ends_with(const char *key, const char *suffix)
{
	size_t n = strlen(key), end = strlen(suffix);

	return n >= end && !strcmp(key + n - end, suffix);
}

/* The names of fields say what they hold. */
static bool is_one_of(const char *key, const char *const *names, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!strcmp(key, names[i]))
			return true;
	return false;
}

static bool is_state(const struct dray_dbus_field *field)
{
	static const char *const names[] = { "state", "rail_state", "status", "old", "new" };

	return is_one_of(field->key, names, DRAY_ARRAY_SIZE(names));
}

static bool is_size(const struct dray_dbus_field *field)
{
	static const char *const names[] = { "length", "memory", "capacity", "allocated" };

	return strstr(field->key, "bytes") || is_one_of(field->key, names, DRAY_ARRAY_SIZE(names));
}

const char *ctl_cell_text(const struct dray_dbus_field *field, const struct ctl_value *v,
			  char buf[CTL_CELL_BYTES])
{
	if (!v->set)
		return "-";
	if (*field->type == 's')
		return *v->s ? ctl_show_text(v->s, buf, CTL_CELL_BYTES) : "-";
	if (*field->type == 'b')
		return v->n ? "yes" : "no";
	if (!strcmp(field->key, "time_ns"))
		return time_text(v->n, buf);
	if (ends_with(field->key, "_ns"))
		return ctl_show_span(v->n, buf);
	if (is_size(field))
		return ctl_show_size(v->n, buf);
	if (!strcmp(field->key, "rate")) {
		snprintf(buf, CTL_CELL_BYTES, "%" PRIu64 " Gb/s", v->n / 1000000000);
		return v->n ? buf : "-";
	}
	snprintf(buf, CTL_CELL_BYTES, "%" PRIu64, v->n);
	/* A negative number stands for an unknown one, or for none. */
	return *field->type == 'i' && (int64_t)v->n < 0 ? "-" : buf;
}

bool ctl_list_column(const struct ctl_list *l, const char **columns, struct ctl_column *ret)
{
	const char *key = *columns, *equals;
	size_t n = strcspn(key, " "), title;

	if (!n)
		return false;
	*columns += n + strspn(key + n, " ");
	equals = memchr(key, '=', n);
	title = equals ? (size_t)(equals - key) : n;
	snprintf(ret->title, sizeof(ret->title), "%.*s", (int)title, key);
	if (equals) {
		n -= title + 1;
		key = equals + 1;
	} else {
		if (ends_with(ret->title, "_ns"))
			ret->title[n - 3] = '\0';
		for (char *p = ret->title; *p; p++)
			*p = *p == '_' ? ' ' : (char)toupper((unsigned char)*p);
	}
	for (ret->field = 0; ret->field < l->n_fields; ret->field++)
		if (strlen(l->fields[ret->field].key) == n &&
		    !strncmp(l->fields[ret->field].key, key, n))
			return true;
	/* A list names a field that the schema does not have. */
	dray_assert(false);
	return false;
}

static int table_print(struct ctl *c, const struct ctl_list *l, const struct ctl_rows *r)
{
	struct ctl_column columns[CTL_TABLE_COLUMNS_MAX];
	struct ctl_table t = CTL_TABLE_NULL;
	const char *rest = l->columns;
	char buf[CTL_CELL_BYTES];

	if (!r->n) {
		fputs("no ", c->out);
		for (const char *p = l->what; *p; p++)
			fputc(*p == '_' ? ' ' : *p, c->out);
		fputc('\n', c->out);
		return 0;
	}
	while (ctl_list_column(l, &rest, &columns[t.columns])) {
		const struct dray_dbus_field *field = &l->fields[columns[t.columns].field];
		bool words = *field->type == 's' || *field->type == 'b' ||
			     !strcmp(field->key, "time_ns");

		ctl_table_column(&t, columns[t.columns].title, !words);
	}
	for (size_t row = 0; row < r->n; row++)
		for (unsigned i = 0; i < t.columns; i++) {
			const struct dray_dbus_field *field = &l->fields[columns[i].field];
			const struct ctl_value *v = ctl_rows_at(r, row, columns[i].field);

			ctl_table_add(&t, ctl_cell_text(field, v, buf),
				      v->set && is_state(field) ? ctl_mood_of(v->s) :
								  CTL_MOOD_NONE);
		}
	return ctl_table_finish(&t, c->out, c->color);
}

int ctl_list_print(struct ctl *c, const struct ctl_list *l, const struct ctl_rows *rows,
		   struct ctl_err *reterr)
{
	struct ctl_json j = CTL_JSON(c->out);

	if (c->format == CTL_TEXT)
		return table_print(c, l, rows) < 0 ? ctl_no_memory(reterr) : 0;
	if (c->format == CTL_PLAIN) {
		ctl_rows_plain(c->out, rows);
		return 0;
	}
	ctl_json_object(&j, NULL);
	ctl_rows_json(&j, l->what, rows);
	ctl_json_end(&j);
	return 0;
}

int ctl_list_read(const struct ctl_list *l, struct ctl_rows *rows, struct ctl_err *reterr)
{
	int ret = ctl_rows_read(rows, l->fields, l->n_fields);

	return ret < 0 ? ctl_bus_bad_reply(reterr, l->member, ret) : 0;
}

int ctl_list_get(struct ctl *c, const struct ctl_list *l, struct ctl_rows *rows,
		 struct ctl_err *reterr, const char *types, ...)
{
	va_list ap;
	int ret;

	*rows = CTL_ROWS_NULL;
	va_start(ap, types);
	ret = ctl_bus_callv(c, l->member, &rows->reply, reterr, types, ap);
	va_end(ap);
	return ret < 0 ? ret : ctl_list_read(l, rows, reterr);
}

int ctl_list_run(struct ctl *c, const struct ctl_list *l, struct ctl_err *reterr)
{
	ctl_auto_rows struct ctl_rows rows = CTL_ROWS_NULL;

	if (ctl_list_get(c, l, &rows, reterr, NULL) < 0)
		return -1;
	return ctl_list_print(c, l, &rows, reterr);
}

int ctl_list_verb(struct ctl *c, struct ctl_err *reterr)
{
	return ctl_list_run(c, c->verb->list, reterr);
}
