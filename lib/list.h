/* SPDX-License-Identifier: Apache-2.0 */
/* Intrusive doubly linked list. A node that is in no list points to itself; deleting it is harmless. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/cleanup.h"

struct dray_list {
	struct dray_list *next, *prev;
};

#define DRAY_LIST_INIT(l) ((struct dray_list){ &(l), &(l) })

static inline void dray_list_init(struct dray_list *l)
{
	l->next = l->prev = l;
}

static inline bool dray_list_empty(const struct dray_list *l)
{
	return l->next == l;
}

static inline void dray_list_insert_(struct dray_list *node, struct dray_list *prev,
				     struct dray_list *next)
{
	node->prev = prev;
	node->next = next;
	prev->next = node;
	next->prev = node;
}

/* Adds at the end. */
static inline void dray_list_add(struct dray_list *l, struct dray_list *node)
{
	dray_list_insert_(node, l->prev, l);
}

static inline void dray_list_add_front(struct dray_list *l, struct dray_list *node)
{
	dray_list_insert_(node, l, l->next);
}

/* Adds behind a node of the list, or in front of all: after the list itself. */
static inline void dray_list_add_after(struct dray_list *after, struct dray_list *node)
{
	dray_list_insert_(node, after, after->next);
}

static inline void dray_list_del(struct dray_list *node)
{
	node->prev->next = node->next;
	node->next->prev = node->prev;
	dray_list_init(node);
}

/* Takes the node out of its list and adds it at the end of `l`. */
static inline void dray_list_move(struct dray_list *l, struct dray_list *node)
{
	dray_list_del(node);
	dray_list_add(l, node);
}

/* Makes this node of the list its first one; those that were before it come last. */
static inline void dray_list_rotate(struct dray_list *l, struct dray_list *first)
{
	dray_list_del(l);
	dray_list_insert_(l, first->prev, first);
}

/* Moves everything in `from` to the end of `to`. */
static inline void dray_list_splice(struct dray_list *to, struct dray_list *from)
{
	if (dray_list_empty(from))
		return;
	from->next->prev = to->prev;
	to->prev->next = from->next;
	from->prev->next = to;
	to->prev = from->prev;
	dray_list_init(from);
}

/* The number of its entries, by a walk. */
static inline uint32_t dray_list_length(const struct dray_list *l)
{
	uint32_t n = 0;

	for (const struct dray_list *node = l->next; node != l; node = node->next)
		n++;
	return n;
}

#define dray_list_entry(node, type, member) dray_container_of(node, type, member)

#define dray_list_first(l, type, member) \
	(dray_list_empty(l) ? NULL : dray_list_entry((l)->next, type, member))

/* Takes the first entry out of the list. NULL: it is empty. */
#define dray_list_pop(l, type, member)                           \
	({                                                       \
		type *first_ = dray_list_first(l, type, member); \
		if (first_)                                      \
			dray_list_del(&first_->member);          \
		first_;                                          \
	})

/* The body may delete or free the current entry, no other. */
#define dray_list_for_each(l, it, type, member)                                 \
	for (type *it = dray_list_entry((l)->next, type, member),               \
		  *it##_next_ = dray_list_entry(it->member.next, type, member); \
	     &it->member != (l);                                                \
	     it = it##_next_, it##_next_ = dray_list_entry(it##_next_->member.next, type, member))
