/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/bus/rows.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/array.h"

int ctl_value_read(sd_bus_message *m, const char *type, struct ctl_value *ret)
{
	struct ctl_value v = { .set = true };
	uint32_t u;
	int32_t i;
	int b, r;

	switch (*type) {
	case 's':
		r = sd_bus_message_read(m, "v", "s", &v.s);
		break;
	case 'b':
		r = sd_bus_message_read(m, "v", "b", &b);
		v.n = r > 0 && b;
		break;
	case 'u':
		r = sd_bus_message_read(m, "v", "u", &u);
		v.n = r > 0 ? u : 0;
		break;
	case 'i':
		r = sd_bus_message_read(m, "v", "i", &i);
		v.n = r > 0 ? (uint64_t)(int64_t)i : 0;
		break;
	default:
		r = sd_bus_message_read(m, "v", "t", &v.n);
		break;
	}
	if (r > 0)
		*ret = v;
	return r < 0 ? r : r ? 0 : -ENODATA;
}

static int row_read(struct ctl_rows *r, sd_bus_message *m, struct ctl_value *row)
{
	const char *key;
	int ret;

	while ((ret = sd_bus_message_enter_container(m, 'e', "sv")) > 0) {
		unsigned i = 0;

		ret = sd_bus_message_read(m, "s", &key);
		while (ret >= 0 && i < r->n_fields && strcmp(r->fields[i].key, key))
			i++;
		if (ret >= 0)
			ret = i < r->n_fields ? ctl_value_read(m, r->fields[i].type, &row[i]) :
						sd_bus_message_skip(m, "v");
		if (ret >= 0)
			ret = sd_bus_message_exit_container(m);
		if (ret < 0)
			return ret;
	}
	return ret;
}

int ctl_rows_read(struct ctl_rows *r, const struct dray_dbus_field *fields, unsigned n_fields)
{
	sd_bus_message *m = r->reply;
	int ret = sd_bus_message_enter_container(m, 'a', "a{sv}");

	r->fields = fields;
	r->n_fields = n_fields;
	while (ret >= 0 && (ret = sd_bus_message_enter_container(m, 'a', "{sv}")) > 0) {
		ret = dray_append(&r->values, &r->n, NULL, n_fields * sizeof(*r->values));
		if (ret >= 0)
			ret = row_read(r, m, &r->values[(r->n - 1) * n_fields]);
		if (ret >= 0)
			ret = sd_bus_message_exit_container(m);
	}
	if (ret >= 0)
		ret = sd_bus_message_exit_container(m);
	return ret < 0 ? ret : 0;
}

void ctl_rows_deinit(struct ctl_rows *r)
{
	sd_bus_message_unref(r->reply);
	free(r->values);
	*r = CTL_ROWS_NULL;
}
