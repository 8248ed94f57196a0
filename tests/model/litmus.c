/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks weak.c itself: small programs whose possible results are known from the C11 memory model. For each, one result
 * must be found, or must not be found.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "tests/model/weak.h"

static _Atomic uint32_t x, y;
static unsigned plain_block;
static struct registers {
	uint32_t a, b;
} r[4];
static bool found;
static bool (*wanted)(void);

#define LOAD(word, order) atomic_load_explicit(&(word), memory_order_##order)
#define STORE(word, value, order) atomic_store_explicit(&(word), value, memory_order_##order)

static void at_end(void)
{
	found |= wanted();
}

/* One thread each. */
#define THREAD(name, n, code)                 \
	static void name(void)                \
	{                                     \
		struct registers *my = &r[n]; \
                                              \
		(void)my;                     \
		code;                         \
		weak_end();                   \
	}

/* store buffering: each stores one word and loads the other */
THREAD(sb_relaxed_0, 0, STORE(x, 1, relaxed); my->a = LOAD(y, relaxed))
THREAD(sb_relaxed_1, 1, STORE(y, 1, relaxed); my->a = LOAD(x, relaxed))
THREAD(sb_acqrel_0, 0, STORE(x, 1, release); my->a = LOAD(y, acquire))
THREAD(sb_acqrel_1, 1, STORE(y, 1, release); my->a = LOAD(x, acquire))
THREAD(sb_seqcst_0, 0, STORE(x, 1, seq_cst); my->a = LOAD(y, seq_cst))
THREAD(sb_seqcst_1, 1, STORE(y, 1, seq_cst); my->a = LOAD(x, seq_cst))
THREAD(sb_store_only_1, 1, STORE(y, 1, seq_cst); my->a = LOAD(x, acquire))
THREAD(sb_fence_0, 0, STORE(x, 1, relaxed); atomic_thread_fence(memory_order_seq_cst);
       my->a = LOAD(y, relaxed))
THREAD(sb_fence_1, 1, STORE(y, 1, relaxed); atomic_thread_fence(memory_order_seq_cst);
       my->a = LOAD(x, relaxed))
THREAD(sb_weak_fence_1, 1, STORE(y, 1, relaxed); atomic_thread_fence(memory_order_acq_rel);
       my->a = LOAD(x, relaxed))

static bool both_0(void)
{
	return r[0].a == 0 && r[1].a == 0;
}

/* message passing: a word announces another one */
THREAD(mp_relaxed_0, 0, STORE(x, 1, relaxed); STORE(y, 1, relaxed))
THREAD(mp_release_0, 0, STORE(x, 1, relaxed); STORE(y, 1, release))
THREAD(mp_fence_0, 0, STORE(x, 1, relaxed); atomic_thread_fence(memory_order_release);
       STORE(y, 1, relaxed))
THREAD(mp_relaxed_1, 1, my->a = LOAD(y, relaxed); my->b = LOAD(x, relaxed))
THREAD(mp_acquire_1, 1, my->a = LOAD(y, acquire); my->b = LOAD(x, relaxed))
THREAD(mp_fence_1, 1, my->a = LOAD(y, relaxed); atomic_thread_fence(memory_order_acquire);
       my->b = LOAD(x, relaxed))

static bool announced_and_old(void)
{
	return r[1].a == 1 && r[1].b == 0;
}

/* coherence: a thread does not see a word go back */
THREAD(co_1, 1, my->a = LOAD(x, relaxed); my->b = LOAD(x, relaxed))
THREAD(co_0, 0, STORE(x, 1, relaxed); STORE(x, 2, relaxed))

static bool goes_back(void)
{
	return r[1].a == 2 && r[1].b == 1;
}

static bool goes_on(void)
{
	return r[1].a == 1 && r[1].b == 2;
}

/* two writers: both threads' first stores overwrite the other's second one */
THREAD(w2_0, 0, STORE(x, 1, relaxed); STORE(y, 2, relaxed); my->a = LOAD(y, relaxed))
THREAD(w2_1, 1, STORE(y, 1, relaxed); STORE(x, 2, relaxed); my->a = LOAD(x, relaxed))
THREAD(w2_release_0, 0, STORE(x, 1, seq_cst); STORE(y, 2, seq_cst); my->a = LOAD(y, seq_cst))
THREAD(w2_release_1, 1, STORE(y, 1, seq_cst); STORE(x, 2, seq_cst); my->a = LOAD(x, seq_cst))

static bool both_overwritten(void)
{
	return r[0].a == 1 && r[1].a == 1;
}

/* two readers see two independent stores in different orders */
THREAD(iriw_0, 0, STORE(x, 1, seq_cst))
THREAD(iriw_1, 1, STORE(y, 1, seq_cst))
THREAD(iriw_acquire_2, 2, my->a = LOAD(x, acquire); my->b = LOAD(y, acquire))
THREAD(iriw_acquire_3, 3, my->a = LOAD(y, acquire); my->b = LOAD(x, acquire))
THREAD(iriw_seqcst_2, 2, my->a = LOAD(x, seq_cst); my->b = LOAD(y, seq_cst))
THREAD(iriw_seqcst_3, 3, my->a = LOAD(y, seq_cst); my->b = LOAD(x, seq_cst))

static bool orders_differ(void)
{
	return r[2].a == 1 && r[2].b == 0 && r[3].a == 1 && r[3].b == 0;
}

/* a doorbell orders like release and acquire, and no more */
THREAD(bell_0, 0, STORE(x, 1, relaxed); weak_ring(0))
THREAD(bell_1, 1, weak_wait(0, true, 0); my->a = LOAD(x, relaxed))
THREAD(bell_sb_0, 0, STORE(x, 1, relaxed); weak_ring(0); my->a = LOAD(y, relaxed))
THREAD(bell_sb_1, 1, STORE(y, 1, relaxed); weak_ring(1); my->a = LOAD(x, relaxed))

static bool rung_and_old(void)
{
	return r[1].a == 0;
}

/* plain memory: overwritten after a relaxed, or a proper, "I have read it" */
THREAD(reuse_0, 0, my->a = weak_choose(2); weak_read(plain_block); STORE(x, 1, relaxed))
THREAD(reuse_release_0, 0, my->a = weak_choose(2); weak_read(plain_block); STORE(x, 1, release))
THREAD(reuse_1, 1, if (LOAD(x, acquire)) weak_write(plain_block, 7))
THREAD(reuse_relaxed_1, 1, if (LOAD(x, relaxed)) weak_write(plain_block, 7))

/* two threads that wait for each other's bell */
THREAD(stuck_0, 0, weak_wait(0, true, 0); weak_ring(1))
THREAD(stuck_1, 1, weak_wait(1, true, 0); weak_ring(0))

static bool never(void)
{
	return false;
}

enum expectation { POSSIBLE, IMPOSSIBLE, AN_ERROR, NO_ERROR };

static const struct test {
	const char *name;
	void (*threads[4])(void);
	bool (*wanted)(void);
	enum expectation expected;
} tests[] = {
	{ "store buffering, relaxed", { sb_relaxed_0, sb_relaxed_1 }, both_0, POSSIBLE },
	{ "store buffering, acquire and release", { sb_acqrel_0, sb_acqrel_1 }, both_0, POSSIBLE },
	{ "store buffering, seq_cst", { sb_seqcst_0, sb_seqcst_1 }, both_0, IMPOSSIBLE },
	{ "store buffering, one load acquire", { sb_seqcst_0, sb_store_only_1 }, both_0, POSSIBLE },
	{ "store buffering, fences", { sb_fence_0, sb_fence_1 }, both_0, IMPOSSIBLE },
	{ "store buffering, a fence and seq_cst", { sb_fence_0, sb_seqcst_1 }, both_0, IMPOSSIBLE },
	{ "store buffering, a fence and release", { sb_fence_0, sb_acqrel_1 }, both_0, POSSIBLE },
	{ "store buffering, one fence acq_rel", { sb_fence_0, sb_weak_fence_1 }, both_0, POSSIBLE },
	{ "message passing, relaxed", { mp_relaxed_0, mp_relaxed_1 }, announced_and_old, POSSIBLE },
	{ "message passing, release only",
	  { mp_release_0, mp_relaxed_1 },
	  announced_and_old,
	  POSSIBLE },
	{ "message passing, acquire only",
	  { mp_relaxed_0, mp_acquire_1 },
	  announced_and_old,
	  POSSIBLE },
	{ "message passing", { mp_release_0, mp_acquire_1 }, announced_and_old, IMPOSSIBLE },
	{ "message passing, fences", { mp_fence_0, mp_fence_1 }, announced_and_old, IMPOSSIBLE },
	{ "message passing, fence and acquire",
	  { mp_fence_0, mp_acquire_1 },
	  announced_and_old,
	  IMPOSSIBLE },
	{ "coherence", { co_0, co_1 }, goes_back, IMPOSSIBLE },
	{ "coherence, the other order", { co_0, co_1 }, goes_on, POSSIBLE },
	{ "two writers, relaxed", { w2_0, w2_1 }, both_overwritten, POSSIBLE },
	{ "two writers, seq_cst", { w2_release_0, w2_release_1 }, both_overwritten, IMPOSSIBLE },
	{ "independent readers, acquire",
	  { iriw_0, iriw_1, iriw_acquire_2, iriw_acquire_3 },
	  orders_differ,
	  POSSIBLE },
	{ "independent readers, seq_cst",
	  { iriw_0, iriw_1, iriw_seqcst_2, iriw_seqcst_3 },
	  orders_differ,
	  IMPOSSIBLE },
	{ "a bell passes a message", { bell_0, bell_1 }, rung_and_old, IMPOSSIBLE },
	{ "a bell is no fence", { bell_sb_0, bell_sb_1 }, both_0, POSSIBLE },
	{ "reuse of memory, relaxed store", { reuse_0, reuse_1 }, never, AN_ERROR },
	{ "reuse of memory, relaxed load", { reuse_release_0, reuse_relaxed_1 }, never, AN_ERROR },
	{ "reuse of memory", { reuse_release_0, reuse_1 }, never, NO_ERROR },
	{ "threads that wait for each other", { stuck_0, stuck_1 }, never, AN_ERROR },
};

int main(void)
{
	int failed = 0;

	for (unsigned i = 0; i < sizeof(tests) / sizeof(*tests); i++) {
		const struct test *t = &tests[i];
		const char *error;
		bool ok;

		weak_reset(at_end);
		weak_word("x", (void *)&x, 0);
		weak_word("y", (void *)&y, 0);
		plain_block = weak_block("plain", NULL, 0);
		memset(r, 0, sizeof(r));
		for (unsigned j = 0; j < 4 && t->threads[j]; j++) {
			static const char *const names[] = { "0", "1", "2", "3" };

			weak_thread(names[j], t->threads[j], 0);
			weak_private(&r[j], sizeof(r[j]));
		}
		found = false;
		wanted = t->wanted;
		error = weak_search(false);
		ok = t->expected == AN_ERROR ? error != NULL :
		     t->expected == NO_ERROR ? !error :
					       !error && found == (t->expected == POSSIBLE);
		printf("%s - memory: %s: %s\n", ok ? "ok" : "not ok", t->name,
		       error ? error :
		       found ? "seen" :
			       "never seen");
		failed |= !ok;
	}
	return failed;
}
