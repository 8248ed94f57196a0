/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model checker for C programs that share memory: it runs the compiled code and visits every state that the memory
 * model of C11 allows. The code under test is compiled with -fsanitize=thread, so that the compiler turns each access
 * into a call; weak_run.c has these calls and the memory, weak.c the search.
 *
 * The memory. Each shared word has a list of stores, in the order in which they overwrite each other. Each thread has a
 * view: for each word, the oldest store that it may still load. A load takes any store from there on, so a
 * thread can see stores of another one late, and those of different words in any order. A store may also be placed before
 * newer stores of another thread, unless the thread has seen these. A release store carries the view of its thread, and an
 * acquire load that takes it adds that view to its own. Sequentially consistent accesses and fences have a view in
 * common. A load does not take a store of the future, as C11 allows a relaxed one to do: a relaxed load is
 * only right where it may take such a store too.
 *
 * Plain memory is divided into blocks, such as the entries of a ring. Two accesses to a block, of which one is a write and
 * neither happens before the other, are a race, and that is an error. This finds also those writes that a processor
 * makes before an earlier load of the thread.
 *
 * The search. A thread is a function that is called again and again (a step). All its variables that outlive a step
 * lie in memory that the program has named. Within a step a thread is where the results of its operations
 * have led it; to continue, the search calls the step again and repeats these results.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WEAK_THREADS 4
#define WEAK_WORDS 6
#define WEAK_BLOCKS 12
#define WEAK_BELLS 2

/* Begins a new program. at_end: NULL, or called for each state in which all threads have ended. */
void weak_reset(void (*at_end)(void));

/* Before weak_search(). A word has 32 bits. */
void weak_word(const char *name, void *p, uint32_t value);
/* p: NULL for a block that is only used by weak_read() and weak_write(). Returns its number. */
unsigned weak_block(const char *name, void *p, size_t length);
/*
 * The next thread. Its step is called until it calls weak_end(), and has at least one operation.
 */
enum weak_flags {
	WEAK_MAY_WAIT = 1,  /* it is no error if this thread waits for ever */
	WEAK_NO_FENCES = 2, /* this thread has no fence: saves states */
};
void weak_thread(const char *name, void (*step)(void), unsigned flags);
/* Variables of the last thread. */
void weak_private(void *p, size_t length);

/*
 * Visits all states. Returns NULL, or the first error: a race, a failed weak_check(), or "all threads wait". trace: prints
 * how it comes to the error.
 */
const char *weak_search(bool trace);
uint64_t weak_states(void);

/* In a step: */
/* One of 0 .. n-1. */
unsigned weak_choose(unsigned n);
/* The thread has ended. */
void weak_end(void);
void weak_check(bool ok, const char *error);
/* Accesses to a block. Its value is only used by the program. */
uint32_t weak_read(unsigned block);
void weak_write(unsigned block, uint32_t value);
/*
 * Bells: eventfds. Ringing is a release, taking a ring is an acquire; the kernel's locks do that. No more is assumed of
 * a system call.
 */
void weak_ring(unsigned bell);
/*
 * The event of weak_wait() that the word has a newer store than the thread has seen. The thread then sees it: that is a timer
 * which gave the store time to arrive.
 */
#define WEAK_NEWS(word) ((uint32_t)1 << (16 + (word)))
/*
 * Waits for the bell, takes all its rings and returns 0. If bit i of `others` is set, it may return i + 1 at any
 * time instead. Without `block` it may return -1 at any time, as if it had not looked.
 */
int weak_wait(unsigned bell, bool block, unsigned others);

/* Makes the atomic operation at this return address one step weaker. Before weak_search(). */
void weak_weaken(uintptr_t address);
/* Calls back for each atomic operation of the search that is stronger than relaxed. */
void weak_sites(void (*site)(uintptr_t address, const char *kind, const char *order));
