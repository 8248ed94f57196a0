/* SPDX-License-Identifier: Apache-2.0 */
/* A question is an ask that is not answered yet: it waits for its owner's share, for the directory, or for lookups. */
#pragma once

#include "agent/control/exchange/internal.h"

struct asker;
struct store_ask;

/* Agents that the directory names for a key. */
#define NAMED_MAX 4

/* Who is asked for a key, when the directory has said who has it: indexes of lenders. */
struct named {
	uint16_t lenders[NAMED_MAX];
	int64_t until_ms[NAMED_MAX]; /* when these entries end */
	uint8_t n;
	bool all; /* it has not */
};

struct question {
	struct dray_list link; /* in x->questions, or asker->waiting */
	struct dray_heap_node limit;
	struct exchange *x;
	struct store_ask *ask;
	struct dray_list lookups;
	struct directory_find *find; /* the directory is asked; NULL: it is not */
	struct named *named;         /* by key; NULL: all are asked for all */
	uint64_t *maybe;             /* by key: who may have it (summaries.c); NULL: all may */
	uint32_t messages;           /* to each agent, at most */
	uint32_t missing;            /* keys that nobody has so far */
	bool waits;
};

/* One message to one peer. */
struct lookup {
	struct dray_list link; /* in question->lookups, or x->vain: nobody needs its answer */
	struct exchange *x;
	struct question *question; /* NULL: likewise */
	struct lender *lender;
	struct asker *asker;
	dray_handle peer;
	uint32_t first, end, n; /* n of these keys: those that this agent is asked for */
	int64_t sent_ns;
	bool test; /* of an agent that was late */
};

/* 0 or -errno. */
int questions_init(struct exchange *x);

/* messages: to each agent, at most. NULL: no memory. */
struct question *question_new(struct exchange *x, struct store_ask *a, uint32_t messages);
/* It waits for its owner's share, until question_leave(). */
void question_wait(struct question *q);
void question_leave(struct question *q);
/* It has no lookups. */
void question_free(struct question *q);
/* Its worker gets the ask as it is now. The answers to its lookups are not needed any more. */
void question_end(struct exchange *x, struct question *q);

/* Is this agent asked for the key? */
bool question_asks(const struct question *q, uint32_t key, const struct lender *d);
/* How long what is found is to be leased. */
uint32_t question_lease_ms(const struct question *q);
/*
 * The agent cannot look these keys up now. silent: it is this peer, which does not answer: what it had is lost if it was silent while it
 * was read, too; 0: it answers.
 */
void question_refuse(const struct question *q, const struct lender *d, dray_handle silent,
		     uint32_t first, uint32_t end);
