/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Throughput of the plug-in's copies without an agent, beside that of a single large copy by the driver: the ceilings
 * of GPU transfers. With --check it verifies copies and imports instead. Prints JSON, one object a line.
 *
 *   ceiling_gpu [--plugin FILE] [--check | --quick] [--only within|to_host|from_host|peer|latency] [--bytes N] [--list N] [--runs N] [--share PERCENT]
 */
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gpu/cuda/copy.h"
#include "tests/gpu/ceiling_lab.h"

#define RUNS_MAX 99u
#define LATENCY_ROUNDS 4000u

struct measure {
	struct lab *l;
	uint64_t bytes; /* size of each side, and bytes copied in each run */
	uint64_t list;  /* bytes of one submission */
	unsigned runs, share;
	struct dray_piece *pieces;
};

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

/* Makes a list that copies each page of a side to a random page of the other. Returns the number of pieces. */
static uint64_t pages(struct measure *m, uint64_t to, uint64_t from, uint64_t page)
{
	uint64_t n = m->bytes / page, each = dray_min(page, (uint64_t)GPU_PIECE_MAX), k = 0;
	uint32_t *a = malloc(n * sizeof(*a)), *b = malloc(n * sizeof(*b));

	if (!a || !b)
		lab_die("out of memory");
	for (uint32_t i = 0; i < n; i++)
		a[i] = b[i] = i;
	for (uint64_t i = n; i-- > 1;) {
		uint64_t x = lab_random() % (i + 1), y = lab_random() % (i + 1);
		uint32_t u = a[i], v = b[i];

		a[i] = a[x];
		a[x] = u;
		b[i] = b[y];
		b[y] = v;
	}
	for (uint64_t i = 0; i < n; i++)
		for (uint64_t at = 0; at < page; at += each)
			m->pieces[k++] = (struct dray_piece){
				(uint8_t *)(uintptr_t)(to + a[i] * page + at),
				(const uint8_t *)(uintptr_t)(from + b[i] * page + at), each
			};
	free(a);
	free(b);
	return k;
}

/* Copies all pieces, `list` bytes for each submission, without waiting in between. Returns the seconds, and the CPU time of submitting. */
static double pass(struct measure *m, struct gpu_queue *q, enum gpu_route route, uint64_t n,
		   double *ret_submit)
{
	uint64_t each = m->pieces[0].bytes, per = dray_max(m->list / each, (uint64_t)1);
	uint64_t number = atomic_load(q->done);
	double begin = lab_seconds();

	for (uint64_t i = 0; i < n; i += per) {
		uint64_t count = dray_min(per, n - i);

		lab_submit(m->l, q,
			   &(struct gpu_copy){ .pieces = m->pieces + i,
					       .n = (uint32_t)count,
					       .route = route,
					       .bytes = count * each });
		number++;
	}
	*ret_submit = lab_seconds() - begin;
	lab_wait(m->l, q, number);
	return lab_seconds() - begin;
}

static void rate(struct measure *m, struct gpu_queue *q, const char *name, enum gpu_route route,
		 uint64_t to, uint64_t from, uint64_t page)
{
	uint64_t n = pages(m, to, from, page);
	double v[RUNS_MAX], submit = 0;

	pass(m, q, route, n, &submit);
	for (unsigned i = 0; i < m->runs; i++)
		v[i] = pass(m, q, route, n, &submit);
	qsort(v, m->runs, sizeof(*v), by_value);
	printf("{\"route\": \"%s\", \"page\": %llu, \"list\": %llu, \"GBps\": %.1f, \"least\": %.1f, \"most\": %.1f, "
	       "\"submit_ns\": %.0f}\n",
	       name, (unsigned long long)page, (unsigned long long)m->list,
	       (double)m->bytes / v[m->runs / 2] / 1e9, (double)m->bytes / v[m->runs - 1] / 1e9,
	       (double)m->bytes / v[0] / 1e9,
	       submit * 1e9 / (double)dray_max(m->bytes / m->list, (uint64_t)1));
}

/* One large copy by the driver. */
static void reference(struct measure *m, struct gpu_queue *q, const char *name,
		      enum gpu_route route, uint64_t to, uint64_t from)
{
	double v[RUNS_MAX];

	m->pieces[0] = (struct dray_piece){ (uint8_t *)(uintptr_t)to,
					    (const uint8_t *)(uintptr_t)from, m->bytes };
	for (unsigned i = 0; i < m->runs; i++) {
		uint64_t number = atomic_load(q->done);
		double begin = lab_seconds();

		lab_submit(m->l, q,
			   &(struct gpu_copy){ .pieces = m->pieces,
					       .n = 1,
					       .engine = true,
					       .route = route,
					       .bytes = m->bytes });
		lab_wait(m->l, q, number + 1);
		v[i] = lab_seconds() - begin;
	}
	qsort(v, m->runs, sizeof(*v), by_value);
	printf("{\"route\": \"%s\", \"contiguous\": %llu, \"GBps\": %.1f, \"least\": %.1f, \"most\": %.1f}\n",
	       name, (unsigned long long)m->bytes, (double)m->bytes / v[m->runs / 2] / 1e9,
	       (double)m->bytes / v[m->runs - 1] / 1e9, (double)m->bytes / v[0] / 1e9);
}

static void route(struct measure *m, unsigned device, const char *name, enum gpu_route r,
		  uint64_t to, uint64_t from)
{
	static const uint64_t sizes[] = { 4 << 10, 16 << 10, 64 << 10, 1 << 20 };
	struct gpu_queue *q = lab_queue(m->l, device, false, m->share);

	reference(m, q, name, r, to, from);
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(sizes); i++)
		rate(m, q, name, r, to, from, sizes[i]);
	reference(m, q, name, r, to, from);
	m->l->ops->queue_free(q);
}

/* --- latency ------------------------------------------------------------------------------------ */

static void latency_show(const char *what, uint64_t bytes, double *v, unsigned n)
{
	qsort(v, n, sizeof(*v), by_value);
	printf("{\"latency\": \"%s\", \"bytes\": %llu, \"p50_us\": %.2f, \"p99_us\": %.2f, \"least_us\": %.2f}\n",
	       what, (unsigned long long)bytes, v[n / 2] * 1e6, v[n * 99 / 100] * 1e6, v[0] * 1e6);
}

static void latency_done(struct measure *m, const char *what, enum gpu_route r, uint64_t to,
			 uint64_t from, unsigned n, uint64_t bytes)
{
	static double v[LATENCY_ROUNDS], s[LATENCY_ROUNDS];
	struct gpu_queue *q = lab_queue(m->l, 0, true, 100);

	for (unsigned i = 0; i < n; i++)
		m->pieces[i] =
			(struct dray_piece){ (uint8_t *)(uintptr_t)(to + i * bytes * 2),
					     (const uint8_t *)(uintptr_t)(from + i * bytes * 3),
					     bytes };
	for (unsigned i = 0; i < LATENCY_ROUNDS; i++) {
		double begin = lab_seconds();

		lab_submit(m->l, q,
			   &(struct gpu_copy){
				   .pieces = m->pieces, .n = n, .route = r, .bytes = n * bytes });
		s[i] = lab_seconds() - begin;
		lab_wait(m->l, q, i + 1);
		v[i] = lab_seconds() - begin;
	}
	latency_show(what, n * bytes, v, LATENCY_ROUNDS);
	latency_show("of that, to submit", n * bytes, s, LATENCY_ROUNDS);
	m->l->ops->queue_free(q);
}

static void ring(void *arg)
{
	uint64_t one = 1;

	if (write(*(int *)arg, &one, sizeof(one)) < 0)
		lab_die("eventfd");
}

static void latency_notice(struct measure *m, uint64_t to, uint64_t from)
{
	static double v[LATENCY_ROUNDS];
	struct gpu_queue *q = lab_queue(m->l, 0, true, 100);
	int bell = eventfd(0, EFD_CLOEXEC);

	m->pieces[0] = (struct dray_piece){ (uint8_t *)(uintptr_t)to,
					    (const uint8_t *)(uintptr_t)from, 16 << 10 };
	for (unsigned i = 0; i < LATENCY_ROUNDS; i++) {
		double begin = lab_seconds();
		uint64_t n;

		lab_submit(m->l, q,
			   &(struct gpu_copy){ .pieces = m->pieces, .n = 1, .bytes = 16 << 10 });
		if (m->l->ops->notify(q, ring, &bell) < 0 || read(bell, &n, sizeof(n)) < 0)
			lab_die("no notice");
		v[i] = lab_seconds() - begin;
	}
	latency_show("notice", 16 << 10, v, LATENCY_ROUNDS);
	m->l->ops->queue_free(q);
	close(bell);
}

/* The bare kernel in a context of this program; waits by the driver's call. */
static void latency_synchronize(struct measure *m, uint64_t to, uint64_t from)
{
	static double v[LATENCY_ROUNDS];
	uint64_t *done = lab_host_memory(m->l, 4096);
	cudaLaunchConfig_t config = { .gridDim = { 1, 1, 1 }, .blockDim = { 256, 1, 1 } };
	void *control;

	lab_client(0);
	LAB_CUDA_OK(cudaStreamCreateWithFlags(&config.stream, cudaStreamNonBlocking));
	LAB_CUDA_OK(cudaMalloc(&control, sizeof(struct copy_control)));
	LAB_CUDA_OK(cudaMemset(control, 0, sizeof(struct copy_control)));
	for (unsigned i = 0; i < LATENCY_ROUNDS; i++) {
		struct copy_args a = { .done = done,
				       .number = i + 1,
				       .control = control,
				       .n = 1,
				       .parts = 3,
				       .batch = 1,
				       .few = { { to, from, 16 << 10 } } };
		void *args[] = { &a };
		double begin = lab_seconds();

		LAB_CUDA_OK(cudaLaunchKernelExC(&config, (const void *)(uintptr_t)dray_copy, args));
		LAB_CUDA_OK(cudaStreamSynchronize(config.stream));
		v[i] = lab_seconds() - begin;
	}
	latency_show("launch and cudaStreamSynchronize", 16 << 10, v, LATENCY_ROUNDS);
}

static void latencies(struct measure *m, uint64_t a, uint64_t b, uint64_t host)
{
	latency_done(m, "one page", GPU_WITHIN, a, b, 1, 16 << 10);
	latency_done(m, "nine pages", GPU_WITHIN, a, b, 9, 16 << 10);
	latency_done(m, "64 pages", GPU_WITHIN, a, b, 64, 16 << 10);
	latency_done(m, "one page to host", GPU_TO_HOST, host, a, 1, 16 << 10);
	latency_done(m, "one page from host", GPU_FROM_HOST, a, host, 1, 16 << 10);
	latency_notice(m, a, b);
	latency_synchronize(m, a, b);
}

static bool wanted(const char *only, const char *name)
{
	return !only || strcmp(only, name) == 0;
}

static void measure(struct lab *l, struct measure *m, const char *only)
{
	uint64_t a = lab_device_memory(l, 0, m->bytes), b = lab_device_memory(l, 0, m->bytes);
	uint64_t host = (uint64_t)(uintptr_t)lab_host_memory(l, m->bytes), peer;

	m->l = l;
	m->pieces = lab_host_memory(l, m->bytes / 4096 * sizeof(struct dray_piece));
	if (wanted(only, "within"))
		route(m, 0, "within", GPU_WITHIN, a, b);
	if (wanted(only, "to_host"))
		route(m, 0, "to_host", GPU_TO_HOST, host, a);
	if (wanted(only, "from_host"))
		route(m, 0, "from_host", GPU_FROM_HOST, a, host);
	if (wanted(only, "peer") && l->n > 1 && l->devices[0].peers & 2) {
		peer = lab_device_memory(l, 1, m->bytes);
		route(m, 0, "peer_write", GPU_PEER, peer, a);
		route(m, 0, "peer_read", GPU_PEER, a, peer);
	}
	if (wanted(only, "latency"))
		latencies(m, a, b, host);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "plugin", required_argument, NULL, 'p' },
		{ "check", no_argument, NULL, 'c' },
		{ "quick", no_argument, NULL, 'q' },
		{ "bytes", required_argument, NULL, 'b' },
		{ "list", required_argument, NULL, 'l' },
		{ "runs", required_argument, NULL, 'r' },
		{ "only", required_argument, NULL, 'o' },
		{ "share", required_argument, NULL, 's' },
		{ 0 },
	};
	struct measure m = { .bytes = 1u << 30, .list = 64u << 20, .runs = 9, .share = 100 };
	struct lab l = { 0 };
	const char *plugin = NULL, *only = NULL;
	bool check = false, quick = false;
	int c, pair[2];

	setvbuf(stdout, NULL, _IOLBF, 0);
	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1)
		switch (c) {
		case 'p':
			plugin = optarg;
			break;
		case 's':
			m.share = (unsigned)strtoul(optarg, NULL, 0);
			break;
		case 'o':
			only = optarg;
			break;
		case 'q':
			quick = true;
			check = true;
			break;
		case 'c':
			check = true;
			break;
		case 'b':
			m.bytes = strtoull(optarg, NULL, 0);
			break;
		case 'l':
			m.list = strtoull(optarg, NULL, 0);
			break;
		case 'r':
			m.runs = dray_min((unsigned)strtoul(optarg, NULL, 0), RUNS_MAX);
			break;
		default:
			return 2;
		}
	/* before the driver is initialised, because a forked child cannot use its parent's driver */
	if (check) {
		if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
			lab_die("socketpair");
		if (fork() == 0) {
			close(pair[0]);
			lab_export(pair[1]);
		}
		close(pair[1]);
	}
	if (!lab_open(&l, plugin))
		return 0;
	if (check)
		return lab_check(&l, pair[0], quick) ? 1 : 0;
	measure(&l, &m, only);
	return 0;
}
