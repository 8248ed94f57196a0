/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changes that wait for the database: the last one of each key, in no order but for events. One thread at a time.
 */
#ifndef DRAY_AGENT_STATE_QUEUE_H
#define DRAY_AGENT_STATE_QUEUE_H

#include "agent/state/state.h"
#include "lib/list.h"
#include "lib/map.h"

enum change_kind {
	CHANGE_HINT_PUT,
	CHANGE_HINT_DROP,
	CHANGE_SEGMENT_PUT,
	CHANGE_SEGMENT_DROP,
	CHANGE_EVENT_ADD, /* has no key: none replaces another */
	CHANGE_PREFERRED_PUT,
};

/* One block; the row's strings lie behind it. */
struct change {
	struct dray_list link;
	struct dray_map_node node;
	enum change_kind kind;
	uint32_t n_bytes;
	union {
		struct state_hint hint;
		struct state_segment segment; /* dropped: its name alone */
		struct state_event event;
		struct state_preferred preferred;
	};
	char text[];
};

/* NULL with errno: ENOMEM, or EMSGSIZE where a text of the key is too long to be kept. free() ends it. */
struct change *change_hint(enum change_kind kind, const struct state_hint *row);
struct change *change_segment(const struct state_segment *row);
struct change *change_segment_drop(const char *name);
struct change *change_event(const struct state_event *row);
struct change *change_preferred(const struct state_preferred *row);

struct queue {
	struct dray_list changes, events;
	struct dray_map keys; /* of changes */
	uint64_t bytes;
	uint32_t n, n_events;
	bool wipe; /* all that was there goes first, but for events */
};

/* 0 or -ENOMEM. */
void queue_init(struct queue *q);

/* Takes the change; what was there of its key goes. Of events the newest DRAY_STATE_MAX_EVENTS stay. */
void queue_add(struct queue *q, struct change *c);

/* Leaves it empty. */
void queue_clear(struct queue *q);

/* Exchanges what is in them. */
void queue_swap(struct queue *a, struct queue *b);

static inline bool queue_empty(const struct queue *q)
{
	return !q->n && !q->n_events && !q->wipe;
}

#endif
