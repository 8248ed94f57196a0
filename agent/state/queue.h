/* SPDX-License-Identifier: Apache-2.0 */
/* Changes that wait for the database: the last one of each key, in no order, and events in order. One thread at a time. */
#pragma once

#include "agent/state/state.h"
#include "lib/list.h"
#include "lib/map.h"

/* The value of a field of the row, as the type of the field says. */
static inline void *row_member(const union state_row *row, const struct state_field *f)
{
	return (char *)(uintptr_t)row + f->offset;
}

/* One block; the row's strings lie behind it, and those of the key come first. */
struct change {
	struct dray_list link;
	struct dray_map_node node; /* events have none */
	enum state_kind kind;
	bool drop; /* only the key of the row counts */
	uint32_t n_bytes;
	union state_row row;
	char text[];
};

/* NULL with errno: ENOMEM, or EMSGSIZE where a name is too long. The caller frees it with free(). */
struct change *change_new(enum state_kind kind, bool drop, const union state_row *row);

/* Frees the changes in a list. */
void changes_free(struct dray_list *l);

struct queue {
	struct dray_list changes, events;
	struct dray_map keys; /* of changes */
	uint64_t bytes;
	uint32_t n, n_events;
	bool wipe; /* before these changes, all rows but events are deleted */
};

void queue_init(struct queue *q);

/* Takes the change, which replaces an earlier one of its key. The newest DRAY_STATE_MAX_EVENTS events stay. */
void queue_add(struct queue *q, struct change *c);

/* There is a change with the key of this one. */
bool queue_has(const struct queue *q, const struct change *c);

/* Frees all changes. */
void queue_clear(struct queue *q);

/* Moves all changes to an empty queue, to which none can be added. */
void queue_move(struct queue *to, struct queue *from);

static inline uint32_t queue_count(const struct queue *q)
{
	return q->n + q->n_events + q->wipe;
}
