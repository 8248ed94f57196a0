/* SPDX-License-Identifier: Apache-2.0 */
/* What a list method returns: rows of the schema's fields. */
#ifndef DRAY_CTL_BUS_ROWS_H
#define DRAY_CTL_BUS_ROWS_H

#include <stdint.h>
#include <systemd/sd-bus.h>

#include "schema/gen/dbus.h"

struct ctl_value {
	bool set;      /* an agent of an earlier release may leave fields out */
	const char *s; /* of fields of type s; the message's */
	uint64_t n;    /* of all others; two's complement where the type has a sign */
};

struct ctl_rows {
	const struct dray_dbus_field *fields;
	unsigned n_fields;
	struct ctl_value *values; /* row by row */
	size_t n, cap;
};

#define CTL_ROWS_NULL ((struct ctl_rows){ .values = NULL })

/* Reads aa{sv}. Fields that are not known are passed over. 0 or -errno. The message must outlive the rows. */
int ctl_rows_read(struct ctl_rows *r, sd_bus_message *m, const struct dray_dbus_field *fields,
		  unsigned n_fields);
void ctl_rows_deinit(struct ctl_rows *r);

/* Reads one variant of that type into *ret; another type is -ENXIO. */
int ctl_value_read(sd_bus_message *m, const char *type, struct ctl_value *ret);

static inline const struct ctl_value *ctl_rows_at(const struct ctl_rows *r, size_t row,
						  unsigned field)
{
	return &r->values[row * r->n_fields + field];
}

#endif
