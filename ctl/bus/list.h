/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of the agent's records. JSON and the plain form have every field of the schema, in its order; the
 * table has those that people look at.
 */
#ifndef DRAY_CTL_BUS_LIST_H
#define DRAY_CTL_BUS_LIST_H

#include "ctl/bus/bus.h"
#include "ctl/ctl.h"
#include "ctl/bus/rows.h"
#include "ctl/render/table.h"

enum ctl_cell_kind {
	CTL_CELL_TEXT,
	CTL_CELL_STATE,
	CTL_CELL_NUMBER,
	CTL_CELL_SIGNED, /* below 0: not known, or none */
	CTL_CELL_SIZE,
	CTL_CELL_SPAN,
	CTL_CELL_BITS,
	CTL_CELL_YES_NO,
	CTL_CELL_TIME, /* nanoseconds since 1970 */
};

struct ctl_column {
	const char *title;
	unsigned field;
	enum ctl_cell_kind kind;
};

struct ctl_list {
	const char *member; /* method */
	const char *takes;  /* "t": the number after which it begins; NULL: nothing */
	const char *what;   /* key in JSON, and the noun */
	const struct dray_dbus_field *fields;
	unsigned n_fields;
	struct ctl_column columns[CTL_TABLE_COLUMNS_MAX]; /* up to the first without a title */
	/* Says that there are none, for people, where "no WHAT" would not do. 0 or -1. */
	int (*empty)(struct ctl *c, struct ctl_bus *b, struct ctl_err *reterr);
};

extern const struct ctl_list ctl_list_sessions, ctl_list_regions, ctl_list_peers, ctl_list_rails,
	ctl_list_paths, ctl_list_transfers, ctl_list_ended, ctl_list_events, ctl_list_settings,
	ctl_list_origins;

/* Prints what a call answered, in the format that was asked for. 0 or -1. */
int ctl_list_print(struct ctl *c, const struct ctl_list *l, const struct ctl_rows *rows,
		   struct ctl_err *reterr);

/* The text of a cell, in buf or elsewhere. */
#define CTL_CELL_BYTES 1200
const char *ctl_cell_text(enum ctl_cell_kind kind, const struct ctl_value *v,
			  char buf[CTL_CELL_BYTES]);

/*
 * Calls the list's method and reads the answer. after: for lists that take it. 0 or -1. Rows and reply are the
 * caller's, also on errors.
 */
int ctl_list_get(struct ctl_bus *b, const struct ctl_list *l, uint64_t after, struct ctl_rows *rows,
		 sd_bus_message **reply, struct ctl_err *reterr);

/* Reads what the list's method answered. 0 or -1; the rows are the caller's, also on errors. */
int ctl_list_read(const struct ctl_list *l, struct ctl_rows *rows, sd_bus_message *reply,
		  struct ctl_err *reterr);

/* Asks and prints, once. Returns the exit status. */
int ctl_list_run(struct ctl *c, const struct ctl_list *l);

#endif
