/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/state/row.h"

#include <stddef.h>

#define FIELD(type, kind, member)                                    \
	{                                                            \
		FIELD_##type, offsetof(union state_row, kind.member) \
	}

const struct row_format row_formats[STATE_KIND_N] = {
	[STATE_PREFERRED] = {
		.fields = {
			FIELD(NAME, preferred, name),
			FIELD(U32, preferred, preference),
			FIELD(I64, preferred, at_ms),
		},
		.n = 3,
		.save = DRAY_STATE_PREFERRED_PUT,
		.clear = DRAY_STATE_PREFERRED_CLEAR,
		.all = DRAY_STATE_PREFERRED_ALL,
	},
	[STATE_SEGMENT] = {
		.fields = {
			FIELD(NAME, segment, name),
			FIELD(TEXT, segment, probe),
			FIELD(TEXT, segment, target),
			FIELD(TEXT, segment, sources),
			FIELD(U32, segment, state),
			FIELD(I64, segment, since_ms),
			FIELD(I64, segment, ready_ms),
			FIELD(TEXT, segment, reason),
			FIELD(U64, segment, capacity),
			FIELD(U64, segment, allocated),
			FIELD(I64, segment, seen_ms),
		},
		.n = 11,
		.n_key = 1,
		.save = DRAY_STATE_SEGMENT_PUT,
		.drop = DRAY_STATE_SEGMENT_DROP,
		.clear = DRAY_STATE_SEGMENT_CLEAR,
		.all = DRAY_STATE_SEGMENT_ALL,
	},
	[STATE_HINT] = {
		.fields = {
			FIELD(NAME, hint, scope),
			FIELD(U32, hint, source),
			FIELD(U32, hint, uid),
			FIELD(NAME, hint, segment),
			FIELD(U32, hint, score),
			FIELD(I64, hint, put_ms),
			FIELD(I64, hint, expires_ms),
		},
		.n = 7,
		.n_key = 4,
		.save = DRAY_STATE_HINT_PUT,
		.drop = DRAY_STATE_HINT_DROP,
		.clear = DRAY_STATE_HINT_CLEAR,
		.all = DRAY_STATE_HINT_ALL,
	},
	[STATE_EVENT] = {
		.fields = {
			FIELD(NAME, event, segment),
			FIELD(I64, event, at_ms),
			FIELD(U32, event, old),
			FIELD(U32, event, new),
			FIELD(TEXT, event, reason),
		},
		.n = 5,
		.save = DRAY_STATE_EVENT_ADD,
		.all = DRAY_STATE_EVENT_ALL,
	},
};
