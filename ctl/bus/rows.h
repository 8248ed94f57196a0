/* SPDX-License-Identifier: Apache-2.0 */
/* The reply of a list method: rows of the schema's fields. */
#pragma once

#include <stdint.h>
#include <systemd/sd-bus.h>

#include "schema/gen/dbus.h"

struct ctl_value {
	bool set;      /* an older agent may leave fields out */
	const char *s; /* of fields of type s; in the reply */
	uint64_t n;    /* of all others; two's complement where the type has a sign */
};

struct ctl_rows {
	sd_bus_message *reply; /* owned, because it holds the texts */
	const struct dray_dbus_field *fields;
	unsigned n_fields;
	struct ctl_value *values; /* row by row */
	size_t n;
};

#define CTL_ROWS_NULL ((struct ctl_rows){ .values = NULL })

/* Reads aa{sv} from the reply in r; skips unknown fields. 0 or -errno. */
int ctl_rows_read(struct ctl_rows *r, const struct dray_dbus_field *fields, unsigned n_fields);
void ctl_rows_deinit(struct ctl_rows *r);
#define ctl_auto_rows __attribute__((cleanup(ctl_rows_deinit)))

/* Reads one variant of that type into *ret; another type is -ENXIO. */
int ctl_value_read(sd_bus_message *m, const char *type, struct ctl_value *ret);

static inline const struct ctl_value *ctl_rows_at(const struct ctl_rows *r, size_t row,
						  unsigned field)
{
	return &r->values[row * r->n_fields + field];
}

/* The text of a field; "" if the agent left it out. */
static inline const char *ctl_rows_text(const struct ctl_rows *r, size_t row, unsigned field)
{
	const char *s = ctl_rows_at(r, row, field)->s;

	return s ? s : "";
}
