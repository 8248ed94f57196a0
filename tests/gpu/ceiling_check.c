/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks that every byte arrives at its place and no other byte changes: copies by kernel and copy engines over every
 * route, with every alignment and many lengths, compared with memcpy() on a model of both sides in host memory.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "schema/gen/errors.h"
#include "tests/gpu/ceiling_lab.h"

#define LIST_MAX 8192u
#define LISTS 3u
/* For lists that are rewritten each time: number of pieces, and bytes of each. */
#define ANEW_PIECES 1024u
#define ANEW_BYTES 16u

struct side {
	const char *name;
	int device; /* -1: host memory */
	uint64_t base, bytes;
	uint8_t *model;
};

struct lengths {
	const char *name;
	unsigned n;
	uint64_t least, most; /* most 0: lengths count up from least */
	unsigned large;       /* one of this many pieces is up to GPU_PIECE_MAX; 0: none */
	bool aligned;
};

static const struct lengths kinds[] = {
	{ "1 to 5000", 6000, 1, 5000, 0, false },
	{ "counted up", 4096, 1, 0, 0, false },
	{ "up to the largest", 300, 1, GPU_PIECE_MAX, 0, false },
	{ "mixed", 3000, 1, 600, 20, false },
	{ "one", 1, 1, 70000, 0, false },
	{ "eight", 8, 1, 70000, 0, false },
	{ "nine", 9, 1, 70000, 0, false },
	{ "pages", 2000, 16 << 10, 16 << 10, 0, true },
	{ "the largest", 100, GPU_PIECE_MAX, GPU_PIECE_MAX, 0, false },
};

struct check {
	struct lab *l;
	unsigned failed;
	uint8_t *scratch;
	uint64_t bytes;
	struct dray_piece *lists[LISTS]; /* in pinned memory */
};

static void report(struct check *c, bool ok, const char *what, const char *detail)
{
	printf("{\"check\": \"%s\", \"ok\": %s, \"detail\": \"%s\"}\n", what, ok ? "true" : "false",
	       detail);
	c->failed += !ok;
}

/* --- sides -------------------------------------------------------------------------------------- */

static void side_get(struct check *c, const struct side *s, uint8_t *buf)
{
	if (s->device < 0) {
		memcpy(buf, (const void *)(uintptr_t)s->base, s->bytes);
		return;
	}
	lab_client(s->device);
	LAB_CUDA_OK(cudaMemcpy(buf, cuda_pointer(s->base), s->bytes, cudaMemcpyDeviceToHost));
}

static void side_fill(struct check *c, struct side *s)
{
	for (uint64_t i = 0; i < s->bytes / 8; i++)
		((uint64_t *)(void *)s->model)[i] = lab_random();
	if (s->device < 0) {
		memcpy((void *)(uintptr_t)s->base, s->model, s->bytes);
		return;
	}
	lab_client(s->device);
	LAB_CUDA_OK(cudaMemcpy(cuda_pointer(s->base), s->model, s->bytes, cudaMemcpyHostToDevice));
	LAB_CUDA_OK(cudaDeviceSynchronize());
}

static struct side side_new(struct check *c, const char *name, int device, void *host)
{
	struct side s = { name, device, (uint64_t)(uintptr_t)host, c->bytes, malloc(c->bytes) };

	if (!s.model)
		lab_die("out of memory");
	if (device >= 0)
		s.base = lab_device_memory(c->l, (unsigned)device, c->bytes);
	return s;
}

/* --- lists -------------------------------------------------------------------------------------- */

static uint64_t length(const struct lengths *k, unsigned i, bool engine)
{
	uint64_t most = k->most ? k->most : k->least + i;

	if (k->large && lab_random() % k->large == 0)
		return 1 + lab_random() % GPU_PIECE_MAX;
	if (engine && lab_random() % 4 == 0)
		return 1 + lab_random() % (4 * GPU_PIECE_MAX);
	return k->most ? k->least + lab_random() % (most - k->least + 1) : most;
}

/* Makes offsets on both sides. Destinations are adjacent in the nth share of their side; 256 pieces contain every pair of alignments. */
static unsigned list_make(struct check *c, const struct lengths *k, bool engine, unsigned nth,
			  struct dray_piece *v, uint64_t *ret_bytes)
{
	uint64_t share = c->bytes / LISTS, end = share * (nth + 1);
	uint64_t at = share * nth + lab_random() % 256;
	unsigned n = 0, first = (unsigned)lab_random() % 256;

	*ret_bytes = 0;
	for (unsigned i = 0; i < k->n && (!engine || i < 100); i++) {
		uint64_t bytes = length(k, i, engine), from, to;

		to = k->aligned ? (at + 16383) / 16384 * 16384 :
				  (at + 15) / 16 * 16 + (first + i) / 16 % 16;
		if (to + bytes > end)
			break;
		from = lab_random() % (c->bytes - bytes - 15);
		from = k->aligned ? from / 16384 * 16384 : from / 16 * 16 + (first + i) % 16;
		v[n++] = (struct dray_piece){ (uint8_t *)(uintptr_t)to,
					      (const uint8_t *)(uintptr_t)from, bytes };
		at = to + bytes + lab_random() % 20;
		*ret_bytes += bytes;
	}
	return n;
}

/* Copies on the models, and then converts the offsets to addresses. */
static void list_finish(struct dray_piece *v, unsigned n, const struct side *to,
			const struct side *from, bool bases, struct gpu_copy *copy)
{
	for (unsigned i = 0; i < n; i++) {
		uint64_t a = (uint64_t)(uintptr_t)v[i].to, b = (uint64_t)(uintptr_t)v[i].from;

		memcpy(to->model + a, from->model + b, v[i].bytes);
		if (!bases) {
			a += to->base;
			b += from->base;
		}
		v[i].to = (uint8_t *)(uintptr_t)(copy->swapped ? b : a);
		v[i].from = (const uint8_t *)(uintptr_t)(copy->swapped ? a : b);
	}
	copy->pieces = v;
	copy->n = n;
	copy->to_base = bases ? to->base : 0;
	copy->from_base = bases ? from->base : 0;
}

static void verify(struct check *c, const struct side *s, const char *what)
{
	char detail[160] = "";
	bool same;

	side_get(c, s, c->scratch);
	same = memcmp(c->scratch, s->model, s->bytes) == 0;
	for (uint64_t i = 0; !same && i < s->bytes; i++)
		if (c->scratch[i] != s->model[i]) {
			snprintf(detail, sizeof(detail), "first at %llu of %s: %02x, not %02x",
				 (unsigned long long)i, s->name, c->scratch[i], s->model[i]);
			break;
		}
	report(c, same, what, detail);
}

/* Submits several lists to the queue, which may overlap in time. */
static void round_run(struct check *c, struct gpu_queue *q, const struct lengths *k,
		      const struct side *to, const struct side *from, struct gpu_copy copy,
		      const char *who)
{
	uint64_t before = atomic_load(q->done);
	char what[160];

	for (unsigned i = 0; i < LISTS; i++) {
		unsigned n = list_make(c, k, copy.engine, i, c->lists[i], &copy.bytes);

		copy.swapped = i & 1;
		list_finish(c->lists[i], n, to, from, i != 1, &copy);
		lab_submit(c->l, q, &copy);
	}
	lab_wait(c->l, q, before + LISTS);
	snprintf(what, sizeof(what), "%s to %s, %s, %s, %s", from->name, to->name, k->name,
		 copy.engine ? "engines" : "kernel", who);
	verify(c, to, what);
}

static void route_run(struct check *c, unsigned device, enum gpu_route route, struct side *to,
		      struct side *from, bool quick)
{
	static const struct {
		const char *name;
		bool latency;
		unsigned share;
	} queues[] = { { "all of it", false, 100 }, { "a quarter", true, 25 } };
	struct gpu_copy copy = { .route = route };

	side_fill(c, to);
	side_fill(c, from);
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(queues); i++) {
		struct gpu_queue *q = lab_queue(c->l, device, queues[i].latency, queues[i].share);

		for (unsigned k = 0; k < DRAY_ARRAY_SIZE(kinds); k++)
			round_run(c, q, &kinds[k], to, from, copy, queues[i].name);
		copy.engine = true;
		round_run(c, q, &kinds[0], to, from, copy, queues[i].name);
		copy.engine = false;
		c->l->ops->queue_free(q);
		if (quick)
			break;
	}
	verify(c, from, "the source is unchanged");
}

/* A list that replaces another in the same memory is read correctly, while copies of further lists are in flight. */
static void lists_anew(struct check *c, struct side *to, struct side *from)
{
	struct gpu_queue *q = lab_queue(c->l, 0, false, 100);
	uint64_t rounds = c->bytes / (ANEW_PIECES * ANEW_BYTES), places = c->bytes / ANEW_BYTES;

	side_fill(c, to);
	side_fill(c, from);
	for (uint64_t i = 0; i < rounds; i++) {
		struct dray_piece *v = c->lists[i % LISTS];
		struct gpu_copy copy = { .route = GPU_WITHIN, .bytes = ANEW_PIECES * ANEW_BYTES };

		if (i >= LISTS)
			lab_wait(c->l, q, i - LISTS + 1);
		for (uint64_t k = 0; k < ANEW_PIECES; k++) {
			uint64_t at = (i * ANEW_PIECES + k) * ANEW_BYTES;
			uint64_t source = lab_random() % places * ANEW_BYTES;

			v[k] = (struct dray_piece){ (uint8_t *)(uintptr_t)at,
						    (const uint8_t *)(uintptr_t)source,
						    ANEW_BYTES };
		}
		list_finish(v, ANEW_PIECES, to, from, true, &copy);
		lab_submit(c->l, q, &copy);
	}
	lab_wait(c->l, q, rounds);
	verify(c, to, "lists that replace others");
	c->l->ops->queue_free(q);
}

static void routes(struct check *c, bool quick)
{
	struct dray_err err = DRAY_ERR_NULL;
	int memfd = memfd_create("ceiling", MFD_CLOEXEC);
	void *shared, *seen;
	struct side here, there, host, file, read_only, peer;

	if (memfd < 0 || ftruncate(memfd, (off_t)c->bytes) < 0)
		lab_die("memfd: %s", dray_errno_text(errno));
	shared = mmap(NULL, c->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, memfd, 0);
	seen = mmap(NULL, c->bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, memfd, 0);
	if (shared == MAP_FAILED || seen == MAP_FAILED)
		lab_die("mmap: %s", dray_errno_text(errno));
	LAB_OK(c->l->ops->pin(c->l->plugin, shared, c->bytes, true, &err), &err);
	here = side_new(c, "gpu", 0, NULL);
	there = side_new(c, "the same gpu", 0, NULL);
	host = side_new(c, "host", -1, lab_host_memory(c->l, c->bytes));
	file = side_new(c, "memfd", -1, shared);
	route_run(c, 0, GPU_WITHIN, &there, &here, quick);
	lists_anew(c, &there, &here);
	route_run(c, 0, GPU_TO_HOST, &host, &here, quick);
	route_run(c, 0, GPU_FROM_HOST, &here, &host, quick);
	route_run(c, 0, GPU_TO_HOST, &file, &here, quick);
	route_run(c, 0, GPU_FROM_HOST, &there, &file, quick);
	if (c->l->n > 1 && c->l->devices[0].peers & 2) {
		peer = side_new(c, "peer", 1, NULL);
		route_run(c, 0, GPU_PEER, &peer, &here, quick);
		route_run(c, 0, GPU_PEER, &here, &peer, quick);
		route_run(c, 1, GPU_PEER, &there, &peer, quick);
		route_run(c, 1, GPU_TO_HOST, &host, &peer, quick);
	}
	/* at the end, because other routes write to these pages: the same pages, mapped read-only */
	if (c->l->ops->pin(c->l->plugin, seen, c->bytes, false, &err) == 0) {
		read_only = file;
		read_only.name = "read-only memfd";
		read_only.base = (uint64_t)(uintptr_t)seen;
		struct gpu_queue *q = lab_queue(c->l, 0, false, 100);

		memcpy(read_only.model, seen, c->bytes);
		round_run(c, q, &kinds[0], &here, &read_only,
			  (struct gpu_copy){ .route = GPU_FROM_HOST }, "all of it");
		c->l->ops->queue_free(q);
		c->l->ops->unpin(c->l->plugin, seen);
		report(c, true, "memory mapped for reading is pinned", "");
	} else {
		report(c, false, "memory mapped for reading is pinned", err.msg);
	}
	c->l->ops->unpin(c->l->plugin, shared);
	munmap(shared, c->bytes);
	munmap(seen, c->bytes);
	close(memfd);
}

/* --- a lost device ------------------------------------------------------------------------------ */

static void told(void *arg)
{
	atomic_store((_Atomic bool *)arg, true);
}

static void notice(struct check *c)
{
	struct gpu_queue *q = lab_queue(c->l, 0, false, 100);
	struct gpu_copy nothing = { .route = GPU_WITHIN };
	double begin = lab_seconds();
	_Atomic bool yes = false;

	lab_submit(c->l, q, &nothing);
	if (c->l->ops->notify(q, told, &yes) == 0)
		while (!yes && lab_seconds() - begin < 10)
			;
	report(c, yes && atomic_load(q->done) == 1, "notification after the copy", "");
	c->l->ops->queue_free(q);
}

static void loss(struct check *c)
{
	struct gpu_queue *q = lab_queue(c->l, 0, false, 100),
			 *other = lab_queue(c->l, 0, true, 100);
	struct side here = side_new(c, "gpu", 0, NULL), host = side_new(c, "host", -1, NULL);
	struct dray_err err = DRAY_ERR_NULL;
	double begin = lab_seconds();
	_Atomic bool yes = false;
	uint64_t bytes;
	uint32_t peers;
	char detail[160];

	host.base = (uint64_t)(uintptr_t)lab_host_memory(c->l, c->bytes);
	c->lists[0][0] = (struct dray_piece){ (uint8_t *)(uintptr_t)64,
					      (const uint8_t *)(uintptr_t)here.base, 4096 };
	lab_submit(c->l, q, &(struct gpu_copy){ .pieces = c->lists[0], .n = 1, .bytes = 4096 });
	c->l->ops->notify(q, told, &yes);
	while (c->l->ops->check(q) == 0 && lab_seconds() - begin < 10)
		;
	snprintf(detail, sizeof(detail), "detected after %.1f ms", (lab_seconds() - begin) * 1e3);
	report(c, c->l->ops->check(q) == -EIO, "a wild address loses the device", detail);
	report(c, c->l->ops->check(other) == -EIO, "all queues of a lost device fail", "");
	begin = lab_seconds();
	while (!yes && lab_seconds() - begin < 5)
		;
	report(c, yes, "a lost device sends the notification", "");
	report(c, atomic_load(q->done) == 0, "the failed copy does not count as done", "");
	c->l->ops->queue_free(q);
	c->l->ops->queue_free(other);
	c->l->ops->stop(c->l->plugin, 0);
	/* drivers differ: some allow no new context after a fault, and report that */
	if (c->l->ops->start(c->l->plugin, 0, &bytes, &peers, &err) < 0) {
		report(c, err.code == DRAY_E_GPU_LOST, "starting a lost device is refused",
		       err.msg);
		return;
	}
	lab_client(0);
	route_run(c, 0, GPU_TO_HOST, &host, &here, true);
}

unsigned lab_check(struct lab *l, int exporter, bool quick)
{
	struct check c = { .l = l, .bytes = quick ? 8u << 20 : 64u << 20 };

	c.scratch = malloc(c.bytes);
	if (!c.scratch)
		lab_die("out of memory");
	for (unsigned i = 0; i < LISTS; i++)
		c.lists[i] = lab_host_memory(l, LIST_MAX * sizeof(struct dray_piece));
	routes(&c, quick);
	c.failed += lab_check_imports(l, exporter);
	notice(&c);
	/* compute-sanitizer would report the wild address as an error */
	if (!quick)
		loss(&c);
	printf("{\"checks_failed\": %u}\n", c.failed);
	free(c.scratch);
	return c.failed;
}
