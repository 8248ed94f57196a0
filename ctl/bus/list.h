/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of the agent's records. JSON and the plain form have every field of the schema, in its order; the table for
 * people has the columns that schema/drayctl.yaml selects.
 */
#pragma once

#include "ctl/bus/bus.h"
#include "ctl/bus/rows.h"
#include "ctl/render/json.h"
#include "ctl/render/table.h"

/* Calls the list's method; types and arguments as of ctl_bus_call(). 0 or -1; the caller owns the rows in any case. */
int ctl_list_get(struct ctl *c, const struct ctl_list *l, struct ctl_rows *rows, const char *types,
		 ...);

/* Reads the reply that is in the rows. 0 or -1. */
int ctl_list_read(struct ctl *c, const struct ctl_list *l, struct ctl_rows *rows);

/* Prints the rows in the format of the run. 0 or -1. */
int ctl_list_print(struct ctl *c, const struct ctl_list *l, const struct ctl_rows *rows);

/* Calls a method without arguments, and prints its rows. 0 or -1. */
int ctl_list_run(struct ctl *c, const struct ctl_list *l);

/* The parts of ctl_list_print(): an array in JSON, and lines. */
void ctl_rows_json(struct ctl_json *j, const char *key, const struct ctl_rows *r);
void ctl_rows_plain(FILE *f, const struct ctl_rows *r);

/* The text of a field in a table, in buf or elsewhere. */
#define CTL_CELL_BYTES 1200
const char *ctl_cell_text(const struct dray_dbus_field *field, const struct ctl_value *v,
			  char buf[CTL_CELL_BYTES]);
