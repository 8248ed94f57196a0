/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work that keeps GPUs busy while bench measures, as an engine does: steps of a kernel that reads and writes the GPU's own
 * memory, which the GPU runs for another process than the agent. One thread for each GPU.
 */
#pragma once

#include <stdbool.h>

#include "ctl/bench/gpu.h"

struct bench_load;

enum bench_load_kind {
	BENCH_LOAD_STEADY, /* without a pause */
	BENCH_LOAD_STEPS,  /* with a pause after each step, as in decoding */
};

/* Starts work on all GPUs, and waits until it runs. 0 or -1; the caller frees in any case. */
int bench_load_start(struct bench_load **ret, struct ctl *c, const struct bench_gpus *g,
		     enum bench_load_kind kind);
/* Ends it. NULL is allowed. */
void bench_load_free(struct bench_load *l);

/* The work on a GPU has failed; bench_load_rates() says on which. */
bool bench_load_has_failed(const struct bench_load *l);

/* Begins a time in which steps are counted. */
void bench_load_mark(struct bench_load *l);
/* Steps per second of each GPU since the mark. 0, or -1 if the work has failed. */
int bench_load_rates(struct bench_load *l, double *ret);
