/* SPDX-License-Identifier: Apache-2.0 */
/* Dictionaries of the list methods, row by row: keys and types come from the schema's tables, values from here. */
#ifndef DRAY_AGENT_CONTROL_BUS_DICTIONARIES_H
#define DRAY_AGENT_CONTROL_BUS_DICTIONARIES_H

#include <stddef.h>
#include <stdint.h>
#include <systemd/sd-bus.h>

#include "schema/gen/dbus.h"

/* By the field's type one of them is meant. */
union value {
	const char *s;
	uint64_t n;
};

struct rows {
	sd_bus_message *m;
	int ret; /* first error */
	size_t bytes;
};

struct rows rows_open(sd_bus_message *m);
/* fields: the record's, all of them. Texts are cut at 4095 bytes, and bytes that are no UTF-8 become question marks. */
void row_append(struct rows *r, const struct dray_dbus_field *fields, const union value *v,
		size_t n);
/* 0, or the first error. */
int rows_close(struct rows *r, size_t *ret_bytes);

/* Ages come from two looks at the clock. */
uint64_t rows_span(int64_t ns);

#endif
