/* SPDX-License-Identifier: Apache-2.0 */
/* What a policy is made of: a table of functions, and a struct that begins with struct policy. */
#pragma once

#include <stddef.h>

#include "agent/store/policy/policy.h"

struct policy_ops {
	const char *name;
	size_t bytes; /* of the policy's struct */
	/* The entry is new; it enters afterwards. May be NULL. */
	void (*add)(struct policy *p, struct policy_entry *e);
	/* The entry was used; its uses are counted already. */
	void (*use)(struct policy *p, struct policy_entry *e);
	/*
	 * The entry becomes a candidate, and ceases to be one. first: it is the next victim again, at the front of its queue or with the
	 * key that it had in the heap.
	 */
	void (*enter)(struct policy *p, struct policy_entry *e, bool first);
	void (*leave)(struct policy *p, struct policy_entry *e);
	/* The best candidate, which stays one. */
	struct policy_entry *(*victim)(struct policy *p);
	/* The entry has come from the other tier; it enters afterwards. May be NULL. */
	void (*arrive)(struct policy *p, struct policy_entry *e);
	/* The entry goes to the other tier, or is removed; it has left already. May be NULL. */
	void (*depart)(struct policy *p, struct policy_entry *e, bool evicted);
	/* The entry is removed; it has departed already. May be NULL. */
	void (*removed)(struct policy *p, struct policy_entry *e, bool evicted);
	/* 0 or -ENOMEM: prepares for n entries, and for so many in both tiers. */
	int (*reserve)(struct policy *p, uint32_t n, uint32_t all);
	int (*init)(struct policy *p);    /* may be NULL */
	void (*deinit)(struct policy *p); /* may be NULL */
};

struct policy {
	const struct policy_ops *ops;
	struct policy *below; /* NULL: what is evicted here is in no tier */
	uint32_t n;           /* entries, also those that are held */
	struct dray_heap heap;
};

extern const struct policy_ops policy_lru, policy_s3fifo, policy_gdsf, policy_score, policy_merit,
	policy_value;

/* Spreads tags over all numbers: an owner may take any numbers, such as 1, 2, 3. */
uint32_t policy_spread(uint32_t tag);

/* Adds to the uses of the entry, up to their largest number. */
void policy_count_uses(struct policy_entry *e, uint32_t n);

/* What both tiers share is in this one. */
static inline struct policy *policy_lowest(struct policy *p)
{
	return p->below ? p->below : p;
}

static inline void policy_list_add(struct dray_list *l, struct dray_list *node, bool first)
{
	if (first)
		dray_list_add_front(l, node);
	else
		dray_list_add(l, node);
}

/* The heap of policies that order by a number. */
int policy_heap_reserve(struct policy *p, uint32_t n, uint32_t all);
void policy_heap_set(struct policy *p, struct policy_entry *e, double key);
/* The last one, also of an entry that is in the heap no more. */
double policy_heap_key(const struct policy_entry *e);
void policy_heap_leave(struct policy *p, struct policy_entry *e);
struct policy_entry *policy_heap_victim(struct policy *p);
