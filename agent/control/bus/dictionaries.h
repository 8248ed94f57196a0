/* SPDX-License-Identifier: Apache-2.0 */
/* Lists in replies: arrays of dictionaries, made from the structs of records by the schema's tables. */
#ifndef DRAY_AGENT_CONTROL_BUS_DICTIONARIES_H
#define DRAY_AGENT_CONTROL_BUS_DICTIONARIES_H

#include <stddef.h>
#include <stdint.h>
#include <systemd/sd-bus.h>

#include "schema/gen/dbus.h"

struct agent;
struct bus_conn;
struct snapshot;

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

/* Replies to d->call with the array that fn fills. > 0, or the first error. */
int dictionaries_reply(struct dictionaries *d, struct bus_conn *c, dictionaries_fn *fn);

/* Appends a record. Texts are cut at 4095 bytes, and bytes that are not UTF-8 become question marks. */
void dictionary_append(struct dictionaries *d, const struct dray_dbus_field *fields, size_t n,
		       const void *record);

/* name: of the record in the schema. record: a struct dray_dbus_NAME. */
#define DICTIONARY_APPEND(d, name, record)                            \
	dictionary_append(d, dray_dbus_##name##_fields,               \
			  DRAY_ARRAY_SIZE(dray_dbus_##name##_fields), \
			  (const struct dray_dbus_##name *){ record })

#endif
