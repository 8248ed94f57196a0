/* SPDX-License-Identifier: Apache-2.0 */
/* Lists in replies: arrays of dictionaries, whose keys and types come from the schema's tables. */
#ifndef DRAY_AGENT_CONTROL_BUS_DICTIONARIES_H
#define DRAY_AGENT_CONTROL_BUS_DICTIONARIES_H

#include <stddef.h>
#include <stdint.h>
#include <systemd/sd-bus.h>

#include "schema/gen/dbus.h"

struct agent;
struct snapshot;

/* The field's type selects the member. */
union value {
	const char *s;
	uint64_t n;
};

struct dictionaries {
	struct agent *agent;
	sd_bus_message *call, *reply;
	sd_bus_error *reterr;              /* NULL: the reply comes later than the call */
	struct snapshot *const *snapshots; /* of the workers, for lists of transfers */
	unsigned n_snapshots;
	int ret;      /* first error */
	size_t bytes; /* estimate of the list's size */
};

/* Appends the records of one list; reads the arguments of d->call. Errors go to d->ret. */
typedef void dictionaries_fn(struct dictionaries *d);

/* Appends the array that fn fills. 0, or the first error. */
int dictionaries_append(struct dictionaries *d, dictionaries_fn *fn);

/* fields: all fields of the record. Texts are cut at 4095 bytes, and bytes that are not UTF-8 become question marks. */
void dictionary_append(struct dictionaries *d, const struct dray_dbus_field *fields,
		       const union value *v, size_t n);

/* Differences of clock readings can be slightly negative: those become 0. */
uint64_t dictionary_duration(int64_t ns);

#endif
