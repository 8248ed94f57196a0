/* SPDX-License-Identifier: Apache-2.0 */
/* What weak.c, which has the program and the search, and weak_run.c, which runs a thread, have in common. */
#pragma once

#include <setjmp.h>

#include "tests/model/weak.h"

#define STORES 14    /* remembered of one word; more are an error of the program's bounds */
#define RESULTS 56   /* of the operations of one step */
#define PRIVATE 1024 /* bytes of the variables of all threads */
#define REGIONS 16   /* of such variables */
#define SITES 64     /* atomic operations in the code under test */

enum kind { LOAD, STORE, FENCE, CHOOSE, RING, WAIT, END };
enum { RELAXED, CONSUME, ACQUIRE, RELEASE, ACQ_REL, SEQ_CST };

/* at: the oldest store of each word that may be loaded. known: bit of each access to a block that happened before. */
struct view {
	uint8_t at[WEAK_WORDS];
	uint64_t known;
};

struct store {
	uint32_t value;
	struct view view;
};

struct thread_state {
	struct view now;      /* of its next operation */
	struct view acquired; /* of relaxed loads, until a fence */
	struct view released; /* of its last fence, for relaxed stores */
	bool eager;           /* is_eager() of its next operation */
	bool ended;
	uint8_t n_results;
	uint32_t results[RESULTS]; /* of its operations in this step */
};

/* All of it is compared, so padding stays 0. */
struct state {
	uint8_t n[WEAK_WORDS];
	struct store stores[WEAK_WORDS][STORES];
	struct view common; /* of sequentially consistent operations; `known` is not used */
	bool rung[WEAK_BELLS];
	struct view bell[WEAK_BELLS];
	uint32_t block[WEAK_BLOCKS];
	struct thread_state thread[WEAK_THREADS];
	uint8_t private[PRIVATE]; /* at the beginning of each thread's step */
};

struct operation {
	enum kind kind;
	unsigned word, order;
	uint32_t value; /* to store; CHOOSE: how many; WAIT: others; RING, WAIT: word is the bell */
	bool block;
};

struct weak_object {
	const char *name;
	uint8_t *p;
	size_t length;
};

struct weak_thread {
	const char *name;
	void (*step)(void);
	unsigned flags;    /* enum weak_flags */
	unsigned first, n; /* of its variables */
};

enum { STOP_OPERATION = 1, STOP_WAITS, STOP_ERROR };

struct weak {
	struct weak_object words[WEAK_WORDS], blocks[WEAK_BLOCKS];
	struct weak_thread threads[WEAK_THREADS];
	unsigned n_words, n_blocks, n_threads;
	struct state now;
	/* the run of one thread */
	bool running, executed;  /* executed: the operation that is new in this run */
	unsigned self, position; /* the thread, and the number of its results that were repeated */
	unsigned alternative, alternatives;
	bool trace;
	char text[72]; /* the operation, if `trace` is set */
	const char *error;
	jmp_buf out; /* receives STOP_... */
};

extern struct weak weak;

_Noreturn void weak_fatal(const char *what);

/* Removes stores that no thread can load any more. */
void weak_collect(struct state *s);
/* Forgets which operations were seen, and which ones are weaker. */
void weak_forget_sites(void);
