/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/model/weak.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

struct frame {
	struct state state;
	bool moved; /* some thread did not wait */
	uint8_t thread;
	uint16_t alternative, alternatives;
	char text[72]; /* the operation that led to the next frame */
};

static struct {
	const char *name;
	uint8_t *p;
	size_t length;
} words[WEAK_WORDS], blocks[WEAK_BLOCKS];

static struct {
	const char *name;
	void (*step)(void);
	bool may_wait;
	unsigned first, n; /* of regions */
} threads[WEAK_THREADS];

static struct {
	uint8_t *p;
	size_t length, at;
} regions[REGIONS];

static struct site {
	uintptr_t address;
	uint8_t kind, order;
} sites[SITES];

static unsigned n_words, n_blocks, n_threads, n_regions, n_sites, n_weak;
static size_t private_bytes;
static uintptr_t weakened[SITES];
static struct state initial, now;
static uint64_t n_states;

/* the run of one thread */
static bool running, executed;
static unsigned self, position, alternative, alternatives;
static char text[72];
static const char *error;
static void (*ended)(void);
static jmp_buf out;

#define NEWS 16 /* WEAK_NEWS() */

enum { STOP_OPERATION = 1, STOP_WAITS, STOP_ERROR };

static void fatal(const char *what)
{
	printf("model: %s\n", what);
	exit(2);
}

void weak_word(const char *name, void *p, uint32_t value)
{
	if (n_words == WEAK_WORDS)
		fatal("too many words");
	words[n_words].name = name;
	words[n_words].p = p;
	words[n_words].length = 4;
	initial.n[n_words] = 1;
	initial.stores[n_words][0].value = value;
	initial.stores[n_words][0].view.known = ~(uint64_t)0;
	n_words++;
}

unsigned weak_block(const char *name, void *p, size_t length)
{
	if (n_blocks == WEAK_BLOCKS)
		fatal("too many blocks");
	blocks[n_blocks].name = name;
	blocks[n_blocks].p = p;
	blocks[n_blocks].length = length;
	return n_blocks++;
}

void weak_thread(const char *name, void (*step)(void), bool may_wait)
{
	if (n_threads == WEAK_THREADS)
		fatal("too many threads");
	threads[n_threads].name = name;
	threads[n_threads].step = step;
	threads[n_threads].may_wait = may_wait;
	threads[n_threads].n = 0;
	threads[n_threads].first = n_regions;
	initial.thread[n_threads].now.known = ~(uint64_t)0;
	n_threads++;
}

void weak_private(void *p, size_t length)
{
	if (n_regions == REGIONS || private_bytes + length > PRIVATE)
		fatal("too many variables");
	regions[n_regions].p = p;
	regions[n_regions].length = length;
	regions[n_regions].at = private_bytes;
	private_bytes += length;
	n_regions++;
	threads[n_threads - 1].n++;
}

static void private_save(struct state *s, unsigned t)
{
	for (unsigned i = threads[t].first; i < threads[t].first + threads[t].n; i++)
		memcpy(s->private + regions[i].at, regions[i].p, regions[i].length);
}

static void private_load(const struct state *s, unsigned t)
{
	for (unsigned i = threads[t].first; i < threads[t].first + threads[t].n; i++)
		memcpy(regions[i].p, s->private + regions[i].at, regions[i].length);
}

/* --- memory ------------------------------------------------------------------------------------- */

static void join(struct view *to, const struct view *from)
{
	for (unsigned w = 0; w < n_words; w++)
		if (to->at[w] < from->at[w])
			to->at[w] = from->at[w];
	to->known |= from->known;
}

/* Calls back for each view of the state. */
static void views_each(struct state *s, void (*fn)(struct view *v, unsigned arg, uint64_t bits),
		       unsigned arg, uint64_t bits)
{
	for (unsigned w = 0; w < n_words; w++)
		for (unsigned i = 0; i < s->n[w]; i++)
			fn(&s->stores[w][i].view, arg, bits);
	for (unsigned t = 0; t < n_threads; t++) {
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
static void collect(struct state *s)
{
	for (unsigned w = 0; w < n_words; w++) {
		unsigned oldest = s->n[w] - 1u;

		for (unsigned t = 0; t < n_threads; t++)
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
	error = what;
	longjmp(out, STOP_ERROR);
}

static unsigned oldest_load(const struct operation *o)
{
	unsigned at = now.thread[self].now.at[o->word];

	if (o->order == SEQ_CST && now.common.at[o->word] > at)
		at = now.common.at[o->word];
	return at;
}

static uint32_t load(const struct operation *o)
{
	struct thread_state *t = &now.thread[self];
	unsigned place = now.n[o->word] - 1u - alternative; /* the newest first */
	const struct store *s = &now.stores[o->word][place];

	t->now.at[o->word] = (uint8_t)place;
	join(acquires(o->order) ? &t->now : &t->acquired, &s->view);
	snprintf(text, sizeof(text), "loads %s = %u%s", words[o->word].name, s->value,
		 alternative ? " (late)" : "");
	return s->value;
}

static void store(const struct operation *o)
{
	struct thread_state *t = &now.thread[self];
	unsigned w = o->word, place = now.n[w] - alternative;
	struct store *s = &now.stores[w][place];

	if (now.n[w] == STORES)
		failed("too many stores of one word are in flight");
	if (alternative)
		views_each(&now, make_place, w, place);
	memmove(s + 1, s, (now.n[w] - place) * sizeof(*s));
	now.n[w]++;
	t->now.at[w] = (uint8_t)place;
	s->value = o->value;
	s->view = releases(o->order) ? t->now : t->released;
	s->view.at[w] = (uint8_t)place;
	if (o->order == SEQ_CST)
		now.common.at[w] = (uint8_t)place;
	snprintf(text, sizeof(text), "stores %s = %u%s", words[w].name, o->value,
		 alternative ? " (overtaken)" : "");
}

static void fence(const struct operation *o)
{
	struct thread_state *t = &now.thread[self];

	if (acquires(o->order))
		join(&t->now, &t->acquired);
	if (o->order == SEQ_CST) {
		uint64_t known = t->now.known;

		join(&now.common, &t->now);
		now.common.known = 0;
		join(&t->now, &now.common);
		t->now.known = known;
	}
	if (releases(o->order))
		t->released = t->now;
	snprintf(text, sizeof(text), "fence");
}

/* --- operations --------------------------------------------------------------------------------- */

/* The events of a WAIT that can happen now. */
static uint32_t events(const struct operation *o)
{
	uint32_t mask = o->value;

	for (unsigned w = 0; w < n_words; w++)
		if (now.thread[self].now.at[w] == now.n[w] - 1)
			mask &= ~WEAK_NEWS(w);
	return mask;
}

static unsigned count_alternatives(const struct operation *o)
{
	switch (o->kind) {
	case LOAD:
		return now.n[o->word] - oldest_load(o);
	case STORE:
		return now.n[o->word] - oldest_load(o);
	case CHOOSE:
		return o->value;
	case WAIT:
		return (unsigned)__builtin_popcount(events(o)) + now.rung[o->word] + !o->block;
	case FENCE:
	case RING:
	case END:
		break;
	}
	return 1;
}

static uint32_t wait(const struct operation *o)
{
	unsigned skip = alternative;

	if (now.rung[o->word] && !skip--) {
		join(&now.thread[self].now, &now.bell[o->word]);
		memset(&now.bell[o->word], 0, sizeof(struct view));
		now.rung[o->word] = false;
		snprintf(text, sizeof(text), "takes bell %u", o->word);
		return 0;
	}
	if (!o->block && !skip--) {
		snprintf(text, sizeof(text), "does not look for bell %u", o->word);
		return UINT32_MAX;
	}
	for (unsigned i = 0;; i++)
		if ((events(o) >> i & 1) && !skip--) {
			snprintf(text, sizeof(text), "wakes up by event %u", i);
			if (i >= NEWS)
				now.thread[self].now.at[i - NEWS] = (uint8_t)(now.n[i - NEWS] - 1);
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
		snprintf(text, sizeof(text), "chooses %u of %u", alternative, o->value);
		return alternative;
	case RING:
		now.rung[o->word] = true;
		join(&now.bell[o->word], &now.thread[self].now);
		snprintf(text, sizeof(text), "rings bell %u", o->word);
		break;
	case WAIT:
		return wait(o);
	case END:
		now.thread[self].ended = true;
		snprintf(text, sizeof(text), "ends");
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
	struct thread_state *t = &now.thread[self];
	uint32_t result;

	if (position < t->n_results)
		return t->results[position++];
	if (executed) {
		t->eager = is_eager(o);
		longjmp(out, STOP_OPERATION);
	}
	alternatives = count_alternatives(o);
	if (!alternatives)
		longjmp(out, STOP_WAITS);
	if (t->n_results == RESULTS)
		fatal("too many operations in one step");
	result = execute(o);
	executed = true;
	t->results[t->n_results++] = result;
	position = t->n_results;
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
	return executed && position == now.thread[self].n_results;
}

static void touch(unsigned block, bool write)
{
	static char race[96];
	struct view *v = &now.thread[self].now;
	uint64_t all = access_bit(block, ACCESSES) - access_bit(block, 0);
	uint64_t bit = access_bit(block, write ? 0 : 1 + self);

	if (!is_new())
		return;
	if (~v->known & (write ? all : access_bit(block, 0))) {
		snprintf(race, sizeof(race), "race: %s %s %s", threads[self].name,
			 write ? "writes" : "reads", blocks[block].name);
		failed(race);
	}
	views_each(&now, forget, 0, bit);
	v->known |= bit;
}

uint32_t weak_read(unsigned block)
{
	struct thread_state *t = &now.thread[self];

	/* the other side may write after this step has gone on, so a repetition needs the old value */
	if (position < t->n_results)
		return t->results[position++];
	touch(block, false);
	if (t->n_results == RESULTS)
		fatal("too many operations in one step");
	t->results[t->n_results++] = now.block[block];
	position = t->n_results;
	return now.block[block];
}

void weak_write(unsigned block, uint32_t value)
{
	touch(block, true);
	if (is_new())
		now.block[block] = value;
}

static int find_block(const void *p)
{
	const uint8_t *at = p;

	for (unsigned i = 0; i < n_blocks; i++)
		if (blocks[i].p && at >= blocks[i].p && at < blocks[i].p + blocks[i].length)
			return (int)i;
	return -1;
}

static void plain(const void *p, bool write)
{
	int block = running ? find_block(p) : -1;

	if (block >= 0)
		touch((unsigned)block, write);
}

/* memcpy() of the code under test. The first 4 bytes of a block are its value, the others are not kept. */
void *weak_memcpy(void *to, const void *from, size_t n)
{
	int source = running ? find_block(from) : -1, target = running ? find_block(to) : -1;

	if (source >= 0) {
		uint32_t value = weak_read((unsigned)source);

		memset(to, 0, n);
		if (from == blocks[source].p)
			memcpy(to, &value, n < 4 ? n : 4);
	} else if (target >= 0 && to == blocks[target].p) {
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
			fatal("too many atomic operations");
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
		fatal("too many atomic operations");
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
	if (!running)
		return -1;
	for (unsigned i = 0; i < n_words; i++)
		if (words[i].p == p)
			return (int)i;
	if (find_block(p) >= 0)
		fatal("an atomic access to a block");
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
	unsigned o = running ? order_at(CALLER, FENCE, (unsigned)order) : RELAXED;

	if (running)
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

/* --- the search --------------------------------------------------------------------------------- */

/* Hashes of the visited states. With 128 bits, two states with the same hash are out of the question. */
static struct seen {
	uint64_t a, b;
} * seen;
static size_t seen_size;

static void hash_words(struct seen *h, const void *p, size_t bytes)
{
	const uint8_t *at = p;

	for (size_t i = 0; i < bytes; i += 8) {
		uint64_t v = 0;

		memcpy(&v, at + i, bytes - i < 8 ? bytes - i : 8);
		h->a = (h->a ^ v) * 0x9e3779b97f4a7c15u;
		h->a ^= h->a >> 29;
		h->b = (h->b + v) * 0xc2b2ae3d27d4eb4fu;
		h->b ^= h->b >> 31;
	}
}

static struct seen hash_state(const struct state *s)
{
	struct seen h = { 1, 2 };

	hash_words(&h, s->n, sizeof(s->n));
	for (unsigned w = 0; w < n_words; w++)
		hash_words(&h, s->stores[w], s->n[w] * sizeof(struct store));
	hash_words(&h, &s->common, sizeof(s->common));
	hash_words(&h, s->rung, sizeof(s->rung));
	hash_words(&h, s->bell, sizeof(s->bell));
	hash_words(&h, s->block, n_blocks * sizeof(*s->block));
	for (unsigned t = 0; t < n_threads; t++)
		hash_words(&h, &s->thread[t],
			   offsetof(struct thread_state, results) +
				   s->thread[t].n_results * sizeof(uint32_t));
	hash_words(&h, s->private, private_bytes);
	h.a |= 1; /* 0: the place is free */
	return h;
}

static bool seen_insert(struct seen *table, size_t size, struct seen h)
{
	size_t i = h.b & (size - 1);

	for (; table[i].a; i = (i + 1) & (size - 1))
		if (table[i].a == h.a && table[i].b == h.b)
			return false;
	table[i] = h;
	return true;
}

/* True if the state is new. */
static bool visit(const struct state *s)
{
	if (2 * n_states >= seen_size) {
		size_t size = seen_size ? seen_size * 2 : 1 << 16;
		struct seen *table = calloc(size, sizeof(*table));

		if (!table)
			fatal("no memory");
		for (size_t i = 0; i < seen_size; i++)
			if (seen[i].a)
				seen_insert(table, size, seen[i]);
		free(seen);
		seen = table;
		seen_size = size;
	}
	if (!seen_insert(seen, seen_size, hash_state(s)))
		return false;
	n_states++;
	return true;
}

/*
 * Runs thread t from its state in `now` to the operation after the next one; with `skip`, to the next one. Returns why it
 * stopped.
 */
static int run(unsigned t, unsigned a, bool skip)
{
	volatile bool stepped = false;
	int why;

	self = t;
	alternative = a;
	alternatives = 1;
	position = 0;
	executed = skip;
	private_load(&now, t);
	running = true;
	why = setjmp(out);
	while (!why && !(stepped && now.thread[t].ended)) {
		threads[t].step();
		stepped = true;
		/* the results are in its variables now */
		private_save(&now, t);
		memset(now.thread[t].results, 0, sizeof(now.thread[t].results));
		now.thread[t].n_results = 0;
		position = 0;
	}
	running = false;
	return why;
}

/* A thread whose next operation is eager; or n_threads. */
static unsigned eager_thread(const struct state *s)
{
	for (unsigned t = 0; t < n_threads; t++)
		if (!s->thread[t].ended && s->thread[t].eager)
			return t;
	return n_threads;
}

/* No thread can move. */
static bool is_stuck(const struct state *s)
{
	for (unsigned t = 0; t < n_threads; t++)
		if (!s->thread[t].ended && !threads[t].may_wait)
			return true;
	return false;
}

static void at_end(void)
{
	if (!ended)
		return;
	for (unsigned t = 0; t < n_threads; t++) {
		if (!now.thread[t].ended)
			return;
		private_load(&now, t);
	}
	ended();
}

static void print_trace(const struct frame *stack, size_t depth)
{
	for (size_t i = 0; i <= depth; i++)
		printf("    %s %s\n", threads[stack[i].thread].name, stack[i].text);
}

uint64_t weak_states(void)
{
	return n_states;
}

/* Takes the next thread if all alternatives of this one were tried. False: the state is done. */
static bool next_thread(struct frame *f)
{
	unsigned only = eager_thread(&f->state);

	if (f->alternative == f->alternatives) {
		f->thread++;
		f->alternative = 0;
		f->alternatives = 1;
	}
	if (only < n_threads && f->thread < only)
		f->thread = (uint8_t)only;
	if (only < n_threads && f->thread > only)
		return false;
	while (f->thread < n_threads && f->state.thread[f->thread].ended)
		f->thread++;
	return f->thread < n_threads;
}

static struct frame *push(struct frame **stack, size_t depth)
{
	static size_t room;
	struct frame *f;

	if (depth >= room || !*stack) {
		room = *stack ? room * 2 : 1024;
		*stack = realloc(*stack, room * sizeof(**stack));
		if (!*stack)
			fatal("no memory");
	}
	f = *stack + depth;
	*f = (struct frame){ .alternatives = 1 };
	f->state = now;
	return f;
}

const char *weak_search(bool trace)
{
	struct frame *stack = NULL, *f;
	size_t depth = 0;

	now = initial;
	for (unsigned t = 0; t < n_threads; t++)
		private_save(&now, t);
	for (unsigned t = 0; t < n_threads; t++)
		run(t, 0, true);
	visit(&now);
	f = push(&stack, 0);
	for (error = NULL; !error;) {
		int why;

		if (!next_thread(f)) {
			if (!f->moved && is_stuck(&f->state))
				error = "all threads wait";
			else if (!depth)
				break;
			else
				f = stack + --depth;
			continue;
		}
		now = f->state;
		why = run(f->thread, f->alternative++, false);
		f->alternatives = (uint16_t)(alternatives ? alternatives : f->alternative);
		f->moved |= why != STOP_WAITS;
		memcpy(f->text, text, sizeof(text));
		if (why == STOP_WAITS || why == STOP_ERROR)
			continue;
		collect(&now);
		if (!visit(&now))
			continue;
		at_end();
		f = push(&stack, ++depth);
	}
	if (error && trace)
		print_trace(stack, depth);
	free(stack);
	return error;
}

void weak_reset(void (*at_end_fn)(void))
{
	memset(&initial, 0, sizeof(initial));
	n_words = n_blocks = n_threads = n_regions = n_sites = n_weak = 0;
	private_bytes = 0;
	n_states = 0;
	free(seen);
	seen = NULL;
	seen_size = 0;
	ended = at_end_fn;
}
