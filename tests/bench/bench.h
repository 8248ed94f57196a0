/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared functions of the bench programs. Each program takes its configuration from the command line, then
 * reads commands from standard input and answers each with one line of JSON, until the input ends. So a driver
 * can interleave rounds of several programs, which keep their memory, connections and sessions.
 *
 * Memory is named FD:BYTES[,FD:BYTES...]: inherited memfds that form one linear space. A list of operations is
 * an inherited descriptor, too: three little-endian 64-bit words for each operation, as in the arena of the
 * data protocol (local offset, remote offset, length).
 */
#pragma once

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct bench_op {
	uint64_t local;
	uint64_t remote;
	uint64_t length;
};

struct bench_ops {
	const struct bench_op *v;
	size_t n;
};

#define BENCH_EXTENTS_MAX 256

struct bench_memory {
	int fd[BENCH_EXTENTS_MAX];
	uint64_t length[BENCH_EXTENTS_MAX];
	unsigned n;
	uint64_t bytes;
};

static inline void bench_die(const char *format, ...)
	__attribute__((format(printf, 1, 2), noreturn));
static inline void bench_die(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fputs("bench: ", stderr);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	va_end(args);
	exit(1);
}

static inline void bench_die_errno(const char *what)
{
	bench_die("%s: %s", what, strerror(errno));
}

static inline int64_t bench_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* Processor time of all threads of this process. */
static inline int64_t bench_cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static inline uint64_t bench_number(const char *text)
{
	char *end;
	uint64_t value;

	errno = 0;
	value = strtoull(text, &end, 0);
	if (errno || end == text || *end)
		bench_die("%s is not a number", text);
	return value;
}

static inline void bench_memory_parse(char *text, struct bench_memory *m)
{
	char *rest = NULL;

	*m = (struct bench_memory){ 0 };
	for (char *one = strtok_r(text, ",", &rest); one; one = strtok_r(NULL, ",", &rest)) {
		char *colon = strchr(one, ':');

		if (!colon || m->n == BENCH_EXTENTS_MAX)
			bench_die("memory is FD:BYTES, up to %d of them", BENCH_EXTENTS_MAX);
		*colon = 0;
		m->fd[m->n] = (int)bench_number(one);
		m->length[m->n] = bench_number(colon + 1);
		m->bytes += m->length[m->n++];
	}
}

/* Maps all parts adjacently and fills the page tables, so that a ceiling includes no page faults. */
static inline uint8_t *bench_memory_map(const struct bench_memory *m)
{
	uint8_t *base = mmap(NULL, m->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t at = 0;

	if (base == MAP_FAILED)
		bench_die_errno("mmap");
	for (unsigned i = 0; i < m->n; i++) {
		if (mmap(base + at, m->length[i], PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_FIXED | MAP_POPULATE, m->fd[i], 0) == MAP_FAILED)
			bench_die_errno("mmap of a memfd");
		at += m->length[i];
	}
	return base;
}

static inline struct bench_ops bench_ops_map(int fd)
{
	struct bench_ops ops;
	struct stat st;
	void *p;

	if (fstat(fd, &st))
		bench_die_errno("list of operations");
	ops.n = (size_t)st.st_size / sizeof(struct bench_op);
	if (!ops.n)
		bench_die("the list of operations is empty");
	p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
	if (p == MAP_FAILED)
		bench_die_errno("mmap of the operations");
	ops.v = p;
	return ops;
}

static inline void bench_ops_check(struct bench_ops ops, uint64_t local, uint64_t remote)
{
	for (size_t i = 0; i < ops.n; i++)
		if (ops.v[i].length > local || ops.v[i].local > local - ops.v[i].length ||
		    ops.v[i].length > remote || ops.v[i].remote > remote - ops.v[i].length)
			bench_die("operation %zu is outside the memory", i);
}

/* The next command: its word, and its number (0 without one). False at the end of the input. */
static inline bool bench_command(char word[16], uint64_t *ret_number)
{
	char line[128];

	*ret_number = 0;
	if (!fgets(line, sizeof(line), stdin))
		return false;
	if (sscanf(line, "%15s %" SCNu64, word, ret_number) < 1)
		bench_die("an empty command");
	return true;
}

static inline void bench_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static inline void bench_say(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
	fflush(stdout);
}

/* --- latencies -------------------------------------------------------------------------------- */

/*
 * Round trips are timed in groups, so that reading the clock adds little to fast ones. The figure is the median of
 * the groups, because on a shared machine other load distorts a mean.
 */
#define BENCH_SAMPLES_MAX (1u << 20)

struct bench_samples {
	double *v;
	size_t n;
};

static inline void bench_samples_init(struct bench_samples *s)
{
	s->n = 0;
	s->v = malloc(BENCH_SAMPLES_MAX * sizeof(*s->v));
	if (!s->v)
		bench_die_errno("malloc");
}

static inline void bench_sample(struct bench_samples *s, double value)
{
	if (s->n < BENCH_SAMPLES_MAX)
		s->v[s->n++] = value;
}

static inline int bench_compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static inline void bench_samples_say(struct bench_samples *s)
{
	qsort(s->v, s->n, sizeof(*s->v), bench_compare);
	bench_say("{\"ns\": %.1f, \"p99\": %.1f, \"min\": %.1f, \"samples\": %zu}",
		  s->n ? s->v[s->n / 2] : 0.0, s->n ? s->v[s->n * 99 / 100] : 0.0,
		  s->n ? s->v[0] : 0.0, s->n);
	s->n = 0;
}
