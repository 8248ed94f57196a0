/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rows of state.h as lists of fields, from which they are copied, bound to statements and read. The fields of a
 * kind have the order of the parameters of its statement in schema/state.yaml, and its key comes first.
 */
#ifndef DRAY_AGENT_STATE_ROW_H
#define DRAY_AGENT_STATE_ROW_H

#include <stdint.h>

#include "agent/state/state.h"
#include "schema/gen/state.h"

enum field_type {
	FIELD_NAME, /* a text that is never cut: a row whose name is too long is refused */
	FIELD_TEXT,
	FIELD_U32,
	FIELD_I64,
	FIELD_U64,
};

struct row_field {
	enum field_type type;
	size_t offset; /* in union state_row */
};

#define ROW_FIELDS_MAX 11

struct row_format {
	struct row_field fields[ROW_FIELDS_MAX];
	unsigned n, n_key;
	enum dray_state_statement_id save, drop, clear,
		all; /* events are never dropped or cleared */
};

extern const struct row_format row_formats[STATE_KIND_N];

static inline void *row_member(const union state_row *row, const struct row_field *f)
{
	return (char *)(uintptr_t)row + f->offset;
}

#endif
