/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers ordered by a GPU's stream. In each round the stream writes the source, stores the round's number in the word that
 * the transfer waits for, waits until the agent has stored that number in another word, and copies samples of the target.
 * No processor takes part: the engine submits all rounds ahead, and checks the samples at the end. The words come from
 * libdray's helpers, or from the engine through the driver.
 */
#include "tests/gpu/engine.h"

#define AHEAD 8u
#define SAMPLES 4u /* of each round */
#define WORDS 32u
#define WAIT_WORD 0u
#define SET_WORD 16u

struct words {
	struct memory memory, samples;  /* the words, on the host; the samples, on the GPU */
	struct dray_cuda_words *helper; /* NULL: the engine made the words */
	dray_region region;
	cuda_address source, target, word;
	uint64_t bytes;
	void *stream;
};

static bool driver(struct engine *e, int rc, const char *what)
{
	return cuda_ok(&e->cuda, rc, what, e->why, sizeof(e->why));
}

static bool words_open(struct engine *e, struct words *w, uint64_t rounds, int device, bool helper)
{
	struct dray_extent extent = { .kind = DRAY_KIND_MEMFD, .length = 4096 };
	struct dray_region_spec spec = { .name = "words",
					 .access = DRAY_READ | DRAY_WRITE,
					 .extents = &extent,
					 .extents_n = 1 };
	int rc;

	if (!memory_alloc(&w->samples, &e->cuda, "cuda_ipc", rounds * SAMPLES * 4, device, e->why,
			  sizeof(e->why)) ||
	    !driver(e, e->cuda.stream_new(&w->stream, CUDA_STREAM_NON_BLOCKING), "cuStreamCreate"))
		return false;
	if (helper) {
		rc = dray_cuda_words_new(e->d, WORDS, &w->helper);
		return !rc || engine_refused(e, "words", rc);
	}
	if (!memory_alloc(&w->memory, &e->cuda, "memfd", 4096, 0, e->why, sizeof(e->why)) ||
	    !driver(e, e->cuda.host_register(w->memory.host, 4096, CUDA_HOST_MAPPED),
		    "cuMemHostRegister") ||
	    !driver(e, e->cuda.host_address(&w->word, w->memory.host, 0),
		    "cuMemHostGetDevicePointer"))
		return false;
	extent.fd = w->memory.fd;
	rc = dray_region_add(e->d, &spec, &w->region);
	return !rc || engine_refused(e, "words", rc);
}

static void words_close(struct engine *e, struct words *w)
{
	if (w->stream)
		e->cuda.stream_free(w->stream);
	if (w->region.id)
		dray_region_remove(e->d, w->region);
	dray_cuda_words_free(e->d, w->helper);
	if (w->word)
		e->cuda.host_unregister(w->memory.host);
	memory_free(&w->memory, &e->cuda);
	memory_free(&w->samples, &e->cuda);
}

/* Offset of sample i of a round: both ends, and two places that differ in each round. */
static uint64_t sample_at(const struct words *w, uint32_t round, unsigned i)
{
	uint64_t words = w->bytes / 4;

	return 4 * (i == 0 ? 0 :
		    i == 1 ? words - 1 :
			     (round * UINT64_C(2654435761) + i * 977) % words);
}

/* Queues the stream's work of a round. */
static bool stream_round(struct engine *e, struct words *w, uint32_t round)
{
	struct cuda *c = &e->cuda;

	if (!driver(e, c->set_async(w->source, round, w->bytes / 4, w->stream), "cuMemsetD32Async"))
		return false;
	if (w->helper) {
		if (dray_cuda_stream_write(w->helper, w->stream, WAIT_WORD, round, e->why,
					   sizeof(e->why)) ||
		    dray_cuda_stream_wait(w->helper, w->stream, SET_WORD, round, DRAY_CUDA_WAIT_GEQ,
					  e->why, sizeof(e->why)))
			return false;
	} else if (!driver(e, c->stream_write(w->stream, w->word + 4 * WAIT_WORD, round, 0),
			   "cuStreamWriteValue32") ||
		   !driver(e,
			   c->stream_wait(w->stream, w->word + 4 * SET_WORD, round, CUDA_WAIT_GEQ),
			   "cuStreamWaitValue32"))
		return false;
	for (unsigned i = 0; i < SAMPLES; i++)
		if (!driver(e,
			    c->copy_async(w->samples.address + ((round - 1) * SAMPLES + i) * 4,
					  w->target + sample_at(w, round, i), 4, w->stream),
			    "cuMemcpyDtoDAsync"))
			return false;
	return true;
}

/* Calls driver functions that load code on first use, because they must not do so while the stream waits. */
static bool warm_up(struct engine *e, struct words *w)
{
	return driver(e, e->cuda.set_async(w->source, 0, w->bytes / 4, w->stream),
		      "cuMemsetD32Async") &&
	       driver(e, e->cuda.copy_async(w->samples.address, w->target, 4, w->stream),
		      "cuMemcpyDtoDAsync") &&
	       driver(e, e->cuda.stream_synchronize(w->stream), "cuStreamSynchronize");
}

static struct dray_word word(const struct words *w, unsigned index, uint32_t value)
{
	if (w->helper)
		return dray_cuda_word(w->helper, index, value);
	return (struct dray_word){ w->region, 4 * index, value };
}

static bool rounds_run(struct engine *e, struct words *w, struct dray_transfer *t, uint32_t rounds)
{
	uint32_t submitted = 0, ended = 0;
	struct dray_completion c;
	bool ok = true;

	while (ended < submitted || (ok && submitted < rounds)) {
		while (ok && submitted < rounds && submitted - ended < AHEAD) {
			int error;

			t->wait = word(w, WAIT_WORD, submitted + 1);
			t->set = word(w, SET_WORD, submitted + 1);
			error = dray_submit(e->d, t, NULL);
			if (error)
				ok = engine_refused(e, "submit", error);
			else
				ok = stream_round(e, w, ++submitted);
		}
		if (ended == submitted)
			break;
		if (dray_process(e->d, -1) < 0)
			bench_die("the session was lost: %s", dray_last_error(e->d));
		while (dray_next_completion(e->d, &c) == 1) {
			ended++;
			if (c.status && ok)
				ok = engine_ended(e, &c);
		}
	}
	return ok && driver(e, e->cuda.stream_synchronize(w->stream), "cuStreamSynchronize");
}

static bool samples_check(struct engine *e, struct words *w, uint32_t rounds)
{
	uint32_t *v = malloc(w->samples.bytes);
	bool ok;

	if (!v)
		bench_die_errno("malloc");
	ok = memory_read(&w->samples, &e->cuda, 0, v, w->samples.bytes, e->why, sizeof(e->why));
	for (uint32_t i = 0; i < rounds * SAMPLES && ok; i++)
		if (v[i] != i / SAMPLES + 1)
			ok = engine_fail(e, "round %u: the stream saw %u at byte %" PRIu64,
					 i / SAMPLES + 1, v[i],
					 sample_at(w, i / SAMPLES + 1, i % SAMPLES));
	free(v);
	return ok;
}

bool engine_words(struct engine *e, char **argv, unsigned argc)
{
	struct dray_transfer t = { .direction = DRAY_DIRECTION_READ,
				   .deadline_ms = 60000,
				   .count = 1 };
	struct region *source = argc == 6 ? engine_region(e, argv[0]) : NULL;
	struct region *target = source ? engine_region(e, argv[1]) : NULL;
	struct words w = { .memory.fd = -1, .samples.fd = -1 };
	struct dray_op op = { 0 };
	uint32_t rounds;
	int64_t begin;
	bool ok;

	if (!target)
		return source ?
			       false :
			       engine_fail(
				       e, "words SOURCE TARGET REMOTE BYTES ROUNDS driver|libdray");
	w.source = engine_address(e, source);
	w.target = engine_address(e, target);
	w.bytes = op.length = bench_number(argv[3]);
	if (!w.source || !w.target)
		return false;
	rounds = (uint32_t)bench_number(argv[4]);
	t.local = target->id;
	t.remote.id = bench_number(argv[2]);
	t.ops = &op;
	ok = words_open(e, &w, rounds, e->memories[target->extents[0].memory].device,
			!strcmp(argv[5], "libdray")) &&
	     warm_up(e, &w);
	begin = bench_ns();
	ok = ok && rounds_run(e, &w, &t, rounds);
	begin = bench_ns() - begin;
	ok = ok && samples_check(e, &w, rounds);
	words_close(e, &w);
	if (ok)
		bench_say("{\"rounds\": %u, \"seconds\": %.6f}", rounds, (double)begin / 1e9);
	return ok;
}
