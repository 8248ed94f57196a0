/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times at which things expire, the earliest first: a binary heap of entries embedded in their
 * owners.
 */
#ifndef DRAY_AGENT_REGION_EXPIRY_H
#define DRAY_AGENT_REGION_EXPIRY_H

#include <stdint.h>

#define EXPIRY_NEVER INT64_MAX

struct expiry_entry {
	int64_t at_ns; /* EXPIRY_NEVER: not in the heap */
	uint32_t pos;  /* in the heap, from 1; 0: not in it */
};

struct expiry {
	struct expiry_entry **heap; /* from 1 */
	uint32_t n, cap;
};

/* at_ns is set by the caller. 0 or -ENOMEM. */
int expiry_add(struct expiry *x, struct expiry_entry *e);

/* Harmless if it is not in. */
void expiry_del(struct expiry *x, struct expiry_entry *e);

/* Takes out an entry whose time has come; NULL if there is none. */
struct expiry_entry *expiry_pop(struct expiry *x, int64_t now_ns);

void expiry_deinit(struct expiry *x);

#endif
