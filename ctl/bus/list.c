/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/bus/list.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>

#include "ctl/render/human.h"

static bool is_text(const struct dray_dbus_field *field)
{
	return *field->type == 's';
}

static bool is_signed(const struct dray_dbus_field *field)
{
	return *field->type == 'i';
}

void ctl_rows_json(struct ctl_json *j, const char *key, const struct ctl_rows *r)
{
	ctl_json_array(j, key);
	for (size_t row = 0; row < r->n; row++) {
		ctl_json_object(j, NULL);
		for (unsigned i = 0; i < r->n_fields; i++) {
			const struct ctl_value *v = ctl_rows_at(r, row, i);
			const struct dray_dbus_field *field = &r->fields[i];

			ctl_json_add(j, !v->set        ? J_NULL(field->key) :
					is_text(field) ? J_TEXT(field->key, v->s) :
					field->kind == DRAY_DBUS_KIND_BOOL ?
							 J_BOOL(field->key, v->n) :
					is_signed(field) ? J_INT(field->key, (int64_t)v->n) :
							   J_UINT(field->key, v->n));
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

			if (v->set && is_text(&r->fields[i]))
				fputs(ctl_show_text(v->s, text, sizeof(text)), f);
			else if (v->set)
				fprintf(f, is_signed(&r->fields[i]) ? "%" PRId64 : "%" PRIu64,
					v->n);
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

const char *ctl_cell_text(const struct dray_dbus_field *field, const struct ctl_value *v,
			  char buf[CTL_CELL_BYTES])
{
	if (!v->set)
		return "-";
	switch (field->kind) {
	case DRAY_DBUS_KIND_TEXT:
	case DRAY_DBUS_KIND_STATE:
		return *v->s ? ctl_show_text(v->s, buf, CTL_CELL_BYTES) : "-";
	case DRAY_DBUS_KIND_BOOL:
		return v->n ? "yes" : "no";
	case DRAY_DBUS_KIND_TIME:
		return time_text(v->n, buf);
	case DRAY_DBUS_KIND_SPAN:
		return ctl_show_span(v->n, buf);
	case DRAY_DBUS_KIND_SIZE:
		return ctl_show_size(v->n, buf);
	case DRAY_DBUS_KIND_RATE:
		snprintf(buf, CTL_CELL_BYTES, "%" PRIu64 " Gb/s", v->n / 1000000000);
		return v->n ? buf : "-";
	case DRAY_DBUS_KIND_SIGNED:
	case DRAY_DBUS_KIND_NUMBER:
		break;
	}
	snprintf(buf, CTL_CELL_BYTES, "%" PRIu64, v->n);
	return field->kind == DRAY_DBUS_KIND_SIGNED && (int64_t)v->n < 0 ? "-" : buf;
}

static int table_print(struct ctl *c, const struct ctl_list *l, const struct ctl_rows *r)
{
	struct ctl_table t = CTL_TABLE_NULL;
	char buf[CTL_CELL_BYTES];

	if (!r->n) {
		fputs("no ", c->out);
		for (const char *p = l->what; *p; p++)
			fputc(*p == '_' ? ' ' : *p, c->out);
		fputc('\n', c->out);
		return 0;
	}
	for (unsigned i = 0; i < l->n_columns; i++) {
		const struct dray_dbus_field *field = &l->fields[l->columns[i].field];

		ctl_table_column(&t, l->columns[i].title,
				 !is_text(field) && field->kind != DRAY_DBUS_KIND_BOOL &&
					 field->kind != DRAY_DBUS_KIND_TIME);
	}
	for (size_t row = 0; row < r->n; row++)
		for (unsigned i = 0; i < l->n_columns; i++) {
			const struct dray_dbus_field *field = &l->fields[l->columns[i].field];
			const struct ctl_value *v = ctl_rows_at(r, row, l->columns[i].field);

			ctl_table_add(&t, ctl_cell_text(field, v, buf),
				      v->set && field->kind == DRAY_DBUS_KIND_STATE ?
					      ctl_mood_of(v->s) :
					      CTL_MOOD_NONE);
		}
	return ctl_table_finish(&t, c->out, c->color);
}

int ctl_list_print(struct ctl *c, const struct ctl_list *l, const struct ctl_rows *rows)
{
	struct ctl_json j = CTL_JSON(c->out);

	if (c->format == CTL_TEXT)
		return table_print(c, l, rows) < 0 ? ctl_no_memory(c) : 0;
	if (c->format == CTL_PLAIN) {
		ctl_rows_plain(c->out, rows);
		return 0;
	}
	ctl_json_object(&j, NULL);
	ctl_rows_json(&j, l->what, rows);
	ctl_json_end(&j);
	return 0;
}

int ctl_list_read(struct ctl *c, const struct ctl_list *l, struct ctl_rows *rows)
{
	int ret = ctl_rows_read(rows, l->fields, l->n_fields);

	return ret < 0 ? ctl_bus_bad_reply(c, l->member, ret) : 0;
}

int ctl_list_get(struct ctl *c, const struct ctl_list *l, struct ctl_rows *rows, const char *types,
		 ...)
{
	va_list ap;
	int ret;

	*rows = CTL_ROWS_NULL;
	va_start(ap, types);
	ret = ctl_bus_callv(c, l->member, &rows->reply, types, ap);
	va_end(ap);
	return ret < 0 ? ret : ctl_list_read(c, l, rows);
}

int ctl_list_run(struct ctl *c, const struct ctl_list *l)
{
	ctl_auto_rows struct ctl_rows rows = CTL_ROWS_NULL;

	if (ctl_list_get(c, l, &rows, NULL) < 0)
		return -1;
	return ctl_list_print(c, l, &rows);
}
