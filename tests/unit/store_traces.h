/* SPDX-License-Identifier: Apache-2.0 */
/* Traces of requests to a store: made by a recipe and a seed, or recorded. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/*
 * The constants of agent/store/policy were chosen by traces of the first seeds. Figures and tests use the second ones, so
 * that they do not show how well the constants fit their own traces.
 */
#define STORE_TRACE_TUNING_SEEDS \
	{                        \
		1000, 1001       \
	}
#define STORE_TRACE_CHECKING_SEEDS \
	{                          \
		7, 77, 777         \
	}

/* Of two tiers the upper one has a capacity that is smaller by this factor. */
#define STORE_TRACE_UPPER_SHARE 4

struct store_trace {
	struct store_trace_object {
		uint64_t bytes;
		float cost; /* to compute, in microseconds */
	} * objects;
	uint32_t *requests; /* indices of objects */
	size_t n_objects, n_requests;
	uint64_t capacity; /* of the tier that the trace is for */
};

struct store_trace_recipe {
	const char *name;
	void (*make)(struct store_trace *t, const struct store_trace_recipe *r);
	double share; /* capacity, as a share of the objects that are in use at a time */
	double a, b;  /* of make() */
};

extern const struct store_trace_recipe store_trace_recipes[];
extern const size_t store_trace_n_recipes;

/* Exits without memory. */
void store_trace_make(struct store_trace *t, const struct store_trace_recipe *r, uint64_t seed,
		      size_t n_requests);

/*
 * Reads a recorded trace. A line is a request: key, bytes, and the cost to compute the object in microseconds, with
 * spaces between them. A key is a word of up to 255 bytes. Lines that are empty or begin with # are skipped. An
 * object has the bytes and the cost of its first line. capacity becomes `share` of the bytes of all objects. Returns 0,
 * or the number of the first bad line.
 */
size_t store_trace_read(struct store_trace *t, FILE *f, double share);

void store_trace_deinit(struct store_trace *t);
