/* SPDX-License-Identifier: Apache-2.0 */
/* The memory, the operations of a thread, and the calls that the compiler makes of its accesses. */
#include "tests/model/weak_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define SITES 64 /* atomic operations in the code under test */
#define NEWS 16  /* WEAK_NEWS() */

static struct site {
	uintptr_t address;
	uint8_t kind, order;
} sites[SITES];

static uintptr_t weakened[SITES];
static unsigned n_sites, n_weak;

/* --- memory ------------------------------------------------------------------------------------- */

static void join(struct view *to, const struct view *from)
{
	for (unsigned w = 0; w < weak.n_words; w++)
		if (to->at[w] < from->at[w])
			to->at[w] = from->at[w];
	to->known |= from->known;
}

/* Calls back for each view of the state. */
static void views_each(struct state *s, void (*fn)(struct view *v, unsigned arg, uint64_t bits),
		       unsigned arg, uint64_t bits)
{
	for (unsigned w = 0; w < weak.n_words; w++)
		for (unsigned i = 0; i < s->n[w]; i++)
			fn(&s->stores[w][i].view, arg, bits);
	for (unsigned t = 0; t < weak.n_threads; t++) {
		fn(&s->thread[t].now, arg, bits);
		fn(&s->thread[t].acquired, arg, bits);
		fn(&s->thread[t].released, arg, bits);
	}
	for (unsigned b = 0; b < WEAK_BELLS; b++)
		fn(&s->bell[b], arg, bits);
	fn(&s->common, arg, bits);
}

static void forget(struct view *v, unsigned word, uint64_t bits)
{
	v->known &= ~bits;
}

/* A store was inserted at this place. */
static void make_place(struct view *v, unsigned word, uint64_t place)
{
	if (v->at[word] >= place)
		v->at[word]++;
}

static void subtract(struct view *v, unsigned word, uint64_t n)
{
	v->at[word] = v->at[word] > n ? (uint8_t)(v->at[word] - n) : 0;
}

/* Removes stores that no thread can load any more. */
void weak_collect(struct state *s)
{
	for (unsigned w = 0; w < weak.n_words; w++) {
		unsigned oldest = s->n[w] - 1u;

		for (unsigned t = 0; t < weak.n_threads; t++)
			if (!s->thread[t].ended && s->thread[t].now.at[w] < oldest)
				oldest = s->thread[t].now.at[w];
		if (!oldest)
			continue;
		s->n[w] = (uint8_t)(s->n[w] - oldest);
		memmove(s->stores[w], s->stores[w] + oldest, s->n[w] * sizeof(struct store));
		memset(s->stores[w] + s->n[w], 0, oldest * sizeof(struct store));
		views_each(s, subtract, w, oldest);
	}
}

static bool acquires(unsigned order)
{
	return order == ACQUIRE || order == CONSUME || order >= ACQ_REL;
}

static bool releases(unsigned order)
{
	return order >= RELEASE;
}

static void failed(const char *what)
{
	weak.error = what;
	longjmp(weak.out, STOP_ERROR);
}

/* The text of the operation, if somebody will read it. */
__attribute__((format(printf, 1, 2))) static void describe(const char *format, ...)
{
	va_list args;

	if (!weak.trace)
		return;
	va_start(args, format);
	vsnprintf(weak.text, sizeof(weak.text), format, args);
	va_end(args);
}

static unsigned oldest_load(const struct operation *o)
{
	unsigned at = weak.now.thread[weak.self].now.at[o->word];

	if (o->order == SEQ_CST && weak.now.common.at[o->word] > at)
		at = weak.now.common.at[o->word];
	return at;
}

static uint32_t load(const struct operation *o)
{
	struct thread_state *t = &weak.now.thread[weak.self];
	unsigned place = weak.now.n[o->word] - 1u - weak.alternative; /* the newest first */
	const struct store *s = &weak.now.stores[o->word][place];

	t->now.at[o->word] = (uint8_t)place;
	if (acquires(o->order))
		join(&t->now, &s->view);
	else if (!(weak.threads[weak.self].flags & WEAK_NO_FENCES))
		join(&t->acquired, &s->view);
	describe("loads %s = %u%s", weak.words[o->word].name, s->value,
		 weak.alternative ? " (late)" : "");
	return s->value;
}

static void store(const struct operation *o)
{
	struct thread_state *t = &weak.now.thread[weak.self];
	unsigned w = o->word, place = weak.now.n[w] - weak.alternative;
	struct store *s = &weak.now.stores[w][place];

	if (weak.now.n[w] == STORES)
		failed("too many stores of one word are in flight");
	if (weak.alternative)
		views_each(&weak.now, make_place, w, place);
	memmove(s + 1, s, (weak.now.n[w] - place) * sizeof(*s));
	weak.now.n[w]++;
	t->now.at[w] = (uint8_t)place;
	s->value = o->value;
	s->view = releases(o->order) ? t->now : t->released;
	s->view.at[w] = (uint8_t)place;
	if (o->order == SEQ_CST)
		weak.now.common.at[w] = (uint8_t)place;
	describe("stores %s = %u%s", weak.words[w].name, o->value,
		 weak.alternative ? " (overtaken)" : "");
}

static void fence(const struct operation *o)
{
	struct thread_state *t = &weak.now.thread[weak.self];

	if (weak.threads[weak.self].flags & WEAK_NO_FENCES)
		weak_fatal("a fence of a thread that has none");
	if (acquires(o->order))
		join(&t->now, &t->acquired);
	if (o->order == SEQ_CST) {
		uint64_t known = t->now.known;

		join(&weak.now.common, &t->now);
		weak.now.common.known = 0;
		join(&t->now, &weak.now.common);
		t->now.known = known;
	}
	if (releases(o->order))
		t->released = t->now;
	describe("fence");
}

/* --- operations --------------------------------------------------------------------------------- */

/* The events of a WAIT that can happen now. */
static uint32_t events(const struct operation *o)
{
	uint32_t mask = o->value;

	for (unsigned w = 0; w < weak.n_words; w++)
		if (weak.now.thread[weak.self].now.at[w] == weak.now.n[w] - 1)
			mask &= ~WEAK_NEWS(w);
	return mask;
}

static unsigned count_alternatives(const struct operation *o)
{
	switch (o->kind) {
	case LOAD:
		return weak.now.n[o->word] - oldest_load(o);
	case STORE:
		return weak.now.n[o->word] - oldest_load(o);
	case CHOOSE:
		return o->value;
	case WAIT:
		return (unsigned)__builtin_popcount(events(o)) + weak.now.rung[o->word] + !o->block;
	case FENCE:
	case RING:
	case END:
		break;
	}
	return 1;
}

static uint32_t wait(const struct operation *o)
{
	unsigned skip = weak.alternative;

	if (weak.now.rung[o->word] && !skip--) {
		join(&weak.now.thread[weak.self].now, &weak.now.bell[o->word]);
		memset(&weak.now.bell[o->word], 0, sizeof(struct view));
		weak.now.rung[o->word] = false;
		describe("takes bell %u", o->word);
		return 0;
	}
	if (!o->block && !skip--) {
		describe("does not look for bell %u", o->word);
		return UINT32_MAX;
	}
	for (unsigned i = 0;; i++)
		if ((events(o) >> i & 1) && !skip--) {
			describe("wakes up by event %u", i);
			if (i >= NEWS)
				weak.now.thread[weak.self].now.at[i - NEWS] =
					(uint8_t)(weak.now.n[i - NEWS] - 1);
			return i + 1;
		}
}

static uint32_t execute(const struct operation *o)
{
	switch (o->kind) {
	case LOAD:
		return load(o);
	case STORE:
		store(o);
		break;
	case FENCE:
		fence(o);
		break;
	case CHOOSE:
		describe("chooses %u of %u", weak.alternative, o->value);
		return weak.alternative;
	case RING:
		weak.now.rung[o->word] = true;
		join(&weak.now.bell[o->word], &weak.now.thread[weak.self].now);
		describe("rings bell %u", o->word);
		break;
	case WAIT:
		return wait(o);
	case END:
		weak.now.thread[weak.self].ended = true;
		describe("ends");
		break;
	}
	return 0;
}

/*
 * Operations that lead to the same states whether other threads act before or after them, so that only one of these orders
 * needs a visit. A store is one unless it is sequentially consistent: what others load and where they store is also
 * possible after it, because they need not take notice of it.
 */
static bool is_eager(const struct operation *o)
{
	return o->kind == CHOOSE || o->kind == END || (o->kind == STORE && o->order != SEQ_CST);
}

/* Repeats the results of this step, then executes one operation, and stops at the one after it. */
static uint32_t operation(const struct operation *o)
{
	struct thread_state *t = &weak.now.thread[weak.self];
	uint32_t result;

	if (weak.position < t->n_results)
		return t->results[weak.position++];
	if (weak.executed) {
		t->eager = is_eager(o);
		longjmp(weak.out, STOP_OPERATION);
	}
	weak.alternatives = count_alternatives(o);
	if (!weak.alternatives)
		longjmp(weak.out, STOP_WAITS);
	if (t->n_results == RESULTS)
		weak_fatal("too many operations in one step");
	result = execute(o);
	weak.executed = true;
	t->results[t->n_results++] = result;
	weak.position = t->n_results;
	return result;
}

void weak_check(bool ok, const char *what)
{
	if (!ok)
		failed(what);
}

unsigned weak_choose(unsigned n)
{
	if (n < 2)
		return 0;
	return operation(&(struct operation){ .kind = CHOOSE, .value = n });
}

void weak_end(void)
{
	operation(&(struct operation){ .kind = END });
}

void weak_ring(unsigned bell)
{
	operation(&(struct operation){ .kind = RING, .word = bell });
}

int weak_wait(unsigned bell, bool block, unsigned others)
{
	return (int)operation(
		&(struct operation){ .kind = WAIT, .word = bell, .block = block, .value = others });
}

/* --- plain memory ------------------------------------------------------------------------------- */

#define ACCESSES (1 + WEAK_THREADS) /* kinds of access to a block: a write, a read by each thread */

static uint64_t access_bit(unsigned block, unsigned access)
{
	return (uint64_t)1 << (block * ACCESSES + access);
}

/* Accesses before the last executed operation are repetitions. */
static bool is_new(void)
{
	return weak.executed && weak.position == weak.now.thread[weak.self].n_results;
}

static void touch(unsigned block, bool write)
{
	static char race[96];
	struct view *v = &weak.now.thread[weak.self].now;
	uint64_t all = access_bit(block, ACCESSES) - access_bit(block, 0);
	uint64_t bit = access_bit(block, write ? 0 : 1 + weak.self);

	if (!is_new())
		return;
	if (~v->known & (write ? all : access_bit(block, 0))) {
		snprintf(race, sizeof(race), "race: %s %s %s", weak.threads[weak.self].name,
			 write ? "writes" : "reads", weak.blocks[block].name);
		failed(race);
	}
	views_each(&weak.now, forget, 0, bit);
	v->known |= bit;
}

uint32_t weak_read(unsigned block)
{
	struct thread_state *t = &weak.now.thread[weak.self];

	/* the other side may write after this step has gone on, so a repetition needs the old value */
	if (weak.position < t->n_results)
		return t->results[weak.position++];
	touch(block, false);
	if (t->n_results == RESULTS)
		weak_fatal("too many operations in one step");
	t->results[t->n_results++] = weak.now.block[block];
	weak.position = t->n_results;
	return weak.now.block[block];
}

void weak_write(unsigned block, uint32_t value)
{
	touch(block, true);
	if (is_new())
		weak.now.block[block] = value;
}

static int find_block(const void *p)
{
	const uint8_t *at = p;

	for (unsigned i = 0; i < weak.n_blocks; i++)
		if (weak.blocks[i].p && at >= weak.blocks[i].p &&
		    at < weak.blocks[i].p + weak.blocks[i].length)
			return (int)i;
	return -1;
}

static void plain(const void *p, bool write)
{
	int block = weak.running ? find_block(p) : -1;

	if (block >= 0)
		touch((unsigned)block, write);
}

/* memcpy() of the code under test. The first 4 bytes of a block are its value, the others are not kept. */
void *weak_memcpy(void *to, const void *from, size_t n)
{
	int source = weak.running ? find_block(from) : -1,
	    target = weak.running ? find_block(to) : -1;

	if (source >= 0) {
		uint32_t value = weak_read((unsigned)source);

		memset(to, 0, n);
		if (from == weak.blocks[source].p)
			memcpy(to, &value, n < 4 ? n : 4);
	} else if (target >= 0 && to == weak.blocks[target].p) {
		uint32_t value = 0;

		memcpy(&value, from, n < 4 ? n : 4);
		weak_write((unsigned)target, value);
	} else if (target >= 0) {
		touch((unsigned)target, true);
	} else {
		memcpy(to, from, n);
	}
	return to;
}

/* --- calls of the compiler ---------------------------------------------------------------------- */

static unsigned weaker(enum kind kind, unsigned order)
{
	if (order == SEQ_CST)
		return kind == LOAD ? ACQUIRE : kind == STORE ? RELEASE : ACQ_REL;
	return RELAXED;
}

static unsigned order_at(uintptr_t address, enum kind kind, unsigned order)
{
	unsigned i;

	if (order == RELAXED)
		return order;
	for (i = 0; i < n_sites && sites[i].address != address; i++)
		;
	if (i == n_sites) {
		if (n_sites == SITES)
			weak_fatal("too many atomic operations");
		sites[n_sites++] = (struct site){ address, (uint8_t)kind, (uint8_t)order };
	}
	for (i = 0; i < n_weak; i++)
		if (weakened[i] == address)
			return weaker(kind, order);
	return order;
}

void weak_weaken(uintptr_t address)
{
	if (n_weak == SITES)
		weak_fatal("too many atomic operations");
	weakened[n_weak++] = address;
}

void weak_sites(void (*site)(uintptr_t address, const char *kind, const char *order))
{
	static const char *const kinds[] = { "load", "store", "fence" };
	static const char *const orders[] = { "relaxed", "consume", "acquire",
					      "release", "acq_rel", "seq_cst" };

	for (unsigned i = 0; i < n_sites; i++)
		site(sites[i].address, kinds[sites[i].kind], orders[sites[i].order]);
}

static int find_word(const void *p)
{
	if (!weak.running)
		return -1;
	for (unsigned i = 0; i < weak.n_words; i++)
		if (weak.words[i].p == p)
			return (int)i;
	if (find_block(p) >= 0)
		weak_fatal("an atomic access to a block");
	return -1;
}

#define CALLER ((uintptr_t)__builtin_return_address(0))

uint32_t __tsan_atomic32_load(const uint32_t *p, int order);
uint32_t __tsan_atomic32_load(const uint32_t *p, int order)
{
	int word = find_word(p);

	if (word < 0)
		return *p;
	return operation(&(struct operation){ .kind = LOAD,
					      .word = (unsigned)word,
					      .order = order_at(CALLER, LOAD, (unsigned)order) });
}

void __tsan_atomic32_store(uint32_t *p, uint32_t value, int order);
void __tsan_atomic32_store(uint32_t *p, uint32_t value, int order)
{
	int word = find_word(p);

	if (word < 0)
		*p = value;
	else
		operation(&(struct operation){ .kind = STORE,
					       .word = (unsigned)word,
					       .value = value,
					       .order = order_at(CALLER, STORE, (unsigned)order) });
}

void __tsan_atomic_thread_fence(int order);
void __tsan_atomic_thread_fence(int order)
{
	unsigned o = weak.running ? order_at(CALLER, FENCE, (unsigned)order) : RELAXED;

	if (weak.running)
		operation(&(struct operation){ .kind = FENCE, .order = o });
}

/* words of 64 bits are never shared between the threads of a model */
uint64_t __tsan_atomic64_load(const uint64_t *p, int order);
uint64_t __tsan_atomic64_load(const uint64_t *p, int order)
{
	return *p;
}

void __tsan_atomic64_store(uint64_t *p, uint64_t value, int order);
void __tsan_atomic64_store(uint64_t *p, uint64_t value, int order)
{
	*p = value;
}

#define ACCESS(name, write)          \
	void __tsan_##name(void *p); \
	void __tsan_##name(void *p)  \
	{                            \
		plain(p, write);     \
	}
ACCESS(read1, false)
ACCESS(read2, false)
ACCESS(read4, false)
ACCESS(read8, false)
ACCESS(read16, false)
ACCESS(write1, true)
ACCESS(write2, true)
ACCESS(write4, true)
ACCESS(write8, true)
ACCESS(write16, true)

void __tsan_read_range(void *p, size_t n);
void __tsan_read_range(void *p, size_t n)
{
	plain(p, false);
}

void __tsan_write_range(void *p, size_t n);
void __tsan_write_range(void *p, size_t n)
{
	plain(p, true);
}

void __tsan_init(void);
void __tsan_init(void)
{
}

void __tsan_func_entry(void *p);
void __tsan_func_entry(void *p)
{
}

void __tsan_func_exit(void);
void __tsan_func_exit(void)
{
}

void weak_forget_sites(void)
{
	n_sites = n_weak = 0;
}
