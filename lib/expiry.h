/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times at which things expire, the earliest first: a binary heap of entries embedded in their
 * owners.
 */
#ifndef DRAY_LIB_EXPIRY_H
#define DRAY_LIB_EXPIRY_H

#include <stddef.h>
#include <stdint.h>

#define DRAY_EXPIRY_NEVER INT64_MAX

struct dray_expiry_entry {
	int64_t at_ns; /* DRAY_EXPIRY_NEVER: not in the heap */
	uint32_t pos;  /* in the heap, from 1; 0: not in it */
};

struct dray_expiry {
	struct dray_expiry_entry **heap; /* from 1 */
	uint32_t n, cap;
};

/* at_ns is set by the caller. 0 or -ENOMEM. */
int dray_expiry_add(struct dray_expiry *x, struct dray_expiry_entry *e);

/* Harmless if it is not in. */
void dray_expiry_del(struct dray_expiry *x, struct dray_expiry_entry *e);

/* The earliest, left where it is; NULL if there is none. */
static inline struct dray_expiry_entry *dray_expiry_first(const struct dray_expiry *x)
{
	return x->n ? x->heap[1] : NULL;
}

/* Takes out an entry whose time has come; NULL if there is none. */
struct dray_expiry_entry *dray_expiry_pop(struct dray_expiry *x, int64_t now_ns);

void dray_expiry_deinit(struct dray_expiry *x);

#endif
