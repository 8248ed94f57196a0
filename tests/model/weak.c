/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/model/weak.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/model/weak_internal.h"

#define REGIONS 16 /* of variables of threads */

struct frame {
	struct state state;
	bool moved; /* some thread did not wait */
	uint8_t thread;
	uint16_t alternative, alternatives;
	char text[72]; /* the operation that led to the next frame */
};

static struct {
	uint8_t *p;
	size_t length, at;
} regions[REGIONS];

static unsigned n_regions;
static size_t private_bytes;
static struct state initial;
static uint64_t n_states;
static void (*ended)(void);

struct weak weak;

void weak_fatal(const char *what)
{
	printf("model: %s\n", what);
	exit(2);
}

void weak_word(const char *name, void *p, uint32_t value)
{
	if (weak.n_words == WEAK_WORDS)
		weak_fatal("too many words");
	weak.words[weak.n_words] = (struct weak_object){ name, p, sizeof(uint32_t) };
	initial.n[weak.n_words] = 1;
	initial.stores[weak.n_words][0].value = value;
	initial.stores[weak.n_words][0].view.known = ~(uint64_t)0;
	weak.n_words++;
}

unsigned weak_block(const char *name, void *p, size_t length)
{
	if (weak.n_blocks == WEAK_BLOCKS)
		weak_fatal("too many blocks");
	weak.blocks[weak.n_blocks] = (struct weak_object){ name, p, length };
	return weak.n_blocks++;
}

void weak_thread(const char *name, void (*step)(void), unsigned flags)
{
	if (weak.n_threads == WEAK_THREADS)
		weak_fatal("too many threads");
	weak.threads[weak.n_threads] = (struct weak_thread){ name, step, flags, n_regions, 0 };
	initial.thread[weak.n_threads].now.known = ~(uint64_t)0;
	weak.n_threads++;
}

void weak_private(void *p, size_t length)
{
	if (n_regions == REGIONS || private_bytes + length > PRIVATE)
		weak_fatal("too many variables");
	regions[n_regions].p = p;
	regions[n_regions].length = length;
	regions[n_regions].at = private_bytes;
	private_bytes += length;
	n_regions++;
	weak.threads[weak.n_threads - 1].n++;
}

static void private_save(struct state *s, unsigned t)
{
	for (unsigned i = weak.threads[t].first; i < weak.threads[t].first + weak.threads[t].n; i++)
		memcpy(s->private + regions[i].at, regions[i].p, regions[i].length);
}

static void private_load(const struct state *s, unsigned t)
{
	for (unsigned i = weak.threads[t].first; i < weak.threads[t].first + weak.threads[t].n; i++)
		memcpy(regions[i].p, s->private + regions[i].at, regions[i].length);
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
	for (unsigned w = 0; w < weak.n_words; w++)
		hash_words(&h, s->stores[w], s->n[w] * sizeof(struct store));
	hash_words(&h, &s->common, sizeof(s->common));
	hash_words(&h, s->rung, sizeof(s->rung));
	hash_words(&h, s->bell, sizeof(s->bell));
	hash_words(&h, s->block, weak.n_blocks * sizeof(*s->block));
	for (unsigned t = 0; t < weak.n_threads; t++)
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
			weak_fatal("no memory");
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

	weak.self = t;
	weak.alternative = a;
	weak.alternatives = 1;
	weak.position = 0;
	weak.executed = skip;
	private_load(&weak.now, t);
	weak.running = true;
	why = setjmp(weak.out);
	while (!why && !(stepped && weak.now.thread[t].ended)) {
		weak.threads[t].step();
		stepped = true;
		/* the results are in its variables now */
		private_save(&weak.now, t);
		memset(weak.now.thread[t].results, 0, sizeof(weak.now.thread[t].results));
		weak.now.thread[t].n_results = 0;
		weak.position = 0;
	}
	weak.running = false;
	return why;
}

/* A thread whose next operation is eager; or n_threads. */
static unsigned eager_thread(const struct state *s)
{
	for (unsigned t = 0; t < weak.n_threads; t++)
		if (!s->thread[t].ended && s->thread[t].eager)
			return t;
	return weak.n_threads;
}

/* No thread can move. */
static bool is_stuck(const struct state *s)
{
	for (unsigned t = 0; t < weak.n_threads; t++)
		if (!s->thread[t].ended && !(weak.threads[t].flags & WEAK_MAY_WAIT))
			return true;
	return false;
}

static void at_end(void)
{
	if (!ended)
		return;
	for (unsigned t = 0; t < weak.n_threads; t++) {
		if (!weak.now.thread[t].ended)
			return;
		private_load(&weak.now, t);
	}
	ended();
}

static void print_trace(const struct frame *stack, size_t depth)
{
	for (size_t i = 0; i <= depth; i++)
		printf("    %s %s\n", weak.threads[stack[i].thread].name, stack[i].text);
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
	if (only < weak.n_threads && f->thread < only)
		f->thread = (uint8_t)only;
	if (only < weak.n_threads && f->thread > only)
		return false;
	while (f->thread < weak.n_threads && f->state.thread[f->thread].ended)
		f->thread++;
	return f->thread < weak.n_threads;
}

static struct frame *push(struct frame **stack, size_t depth)
{
	static size_t room;
	struct frame *f;

	if (depth >= room || !*stack) {
		room = *stack ? room * 2 : 1024;
		*stack = realloc(*stack, room * sizeof(**stack));
		if (!*stack)
			weak_fatal("no memory");
	}
	f = *stack + depth;
	*f = (struct frame){ .alternatives = 1 };
	f->state = weak.now;
	return f;
}

const char *weak_search(bool trace)
{
	struct frame *stack = NULL, *f;
	size_t depth = 0;

	weak.trace = trace;
	weak.now = initial;
	for (unsigned t = 0; t < weak.n_threads; t++)
		private_save(&weak.now, t);
	for (unsigned t = 0; t < weak.n_threads; t++)
		run(t, 0, true);
	visit(&weak.now);
	f = push(&stack, 0);
	for (weak.error = NULL; !weak.error;) {
		int why;

		if (!next_thread(f)) {
			if (!f->moved && is_stuck(&f->state))
				weak.error = "all threads wait";
			else if (!depth)
				break;
			else
				f = stack + --depth;
			continue;
		}
		weak.now = f->state;
		why = run(f->thread, f->alternative++, false);
		f->alternatives =
			(uint16_t)(weak.alternatives ? weak.alternatives : f->alternative);
		f->moved |= why != STOP_WAITS;
		memcpy(f->text, weak.text, sizeof(weak.text));
		if (why == STOP_WAITS || why == STOP_ERROR)
			continue;
		weak_collect(&weak.now);
		if (!visit(&weak.now))
			continue;
		at_end();
		f = push(&stack, ++depth);
	}
	if (weak.error && trace)
		print_trace(stack, depth);
	free(stack);
	return weak.error;
}

void weak_reset(void (*at_end_fn)(void))
{
	memset(&initial, 0, sizeof(initial));
	weak.n_words = weak.n_blocks = weak.n_threads = n_regions = 0;
	weak_forget_sites();
	private_bytes = 0;
	n_states = 0;
	free(seen);
	seen = NULL;
	seen_size = 0;
	ended = at_end_fn;
}
