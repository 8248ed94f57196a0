/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Only the transport tcp: two data planes in two threads over loopback, beside two threads with a bare
 * sendmsg/recvmsg loop over the same two memfds. Rounds of a pair are interleaved, and the result is the median
 * ratio. On a busy machine the ratio of processor time for each byte (bare to dray) is more reliable.
 *
 *   bench_tcp_transport [pairs [MiB for each run [streams [tcp buffer in KiB]]]]
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "agent/data/transport/tcp/tcp.h"
#include "lib/memfd.h"
#include "tests/unit/tcp_lab.h"

#define REGION_BYTES (512ull << 20)
#define POLL_NS 30000
#define PAIRS_MAX 64

static struct lab lab;
static _Atomic bool stop;
static uint64_t total = 1ull << 30;
static unsigned streams = 1, pairs = 7;
static uint64_t buffer = 4 << 20;

struct shape {
	const char *name;
	uint32_t ops, length; /* of one transfer */
	double target;
};

static const struct shape shapes[] = {
	{ "1 MiB", 1, 1 << 20, 0.97 },
	{ "64 KiB scattered, batch 16", 16, 65536, 0.95 },
	{ "4 KiB scattered, batch 256", 256, 4096, 0.60 },
	{ "4 KiB, batch 1, 64 in flight", 1, 4096, 0 },
};

/* Offset of operation i of a run; adjacent numbers have distant offsets. */
static uint64_t place(const struct shape *s, uint64_t i)
{
	uint64_t slots = REGION_BYTES / s->length;

	return (i * 2654435761u) % slots * s->length;
}

/* --- through the transport --------------------------------------------------------------------- */

static void turn(struct lab_side *s, int64_t *worked)
{
	struct core *c = &s->core;
	int64_t next;
	bool more;

	c->now_ns = dray_now().ns;
	more = transport_tcp.progress(c, s->tcp);
	next = transport_tcp.tick(c, s->tcp);
	if (more)
		*worked = c->now_ns;
	if (more || c->now_ns - *worked < POLL_NS)
		next = 0;
	else
		next = next - c->now_ns < 10 * DRAY_NS_PER_MS ? next - c->now_ns :
								10 * DRAY_NS_PER_MS;
	if (loop_turn(&c->loop, dray_max(next, (int64_t)0)) > 0)
		*worked = dray_now().ns;
}

static void *owner(void *arg)
{
	int64_t worked = 0;

	(void)arg;
	while (!atomic_load(&stop))
		turn(&lab.side[1], &worked);
	return NULL;
}

static double transport_run(const struct shape *s, enum dmsg_direction d)
{
	uint64_t n = total / ((uint64_t)s->ops * s->length), started = 0, done = 0, i = 0;
	uint64_t in_flight = s->ops * s->length >= 1 << 20 ? 16 : 64;
	struct lab_side *a = &lab.side[0];
	int64_t begin, worked = 0;
	pthread_t thread;

	n = s->ops * s->length >= 1 << 20 ? n : n / 8;
	atomic_store(&stop, false);
	pthread_create(&thread, NULL, owner, NULL);
	begin = dray_now().ns;
	while (done < n) {
		while (started < n && started - done < in_flight) {
			uint64_t ops[256][3];

			for (uint32_t k = 0; k < s->ops; k++, i++)
				memcpy(ops[k], (uint64_t[3]){ place(s, i), place(s, i), s->length },
				       sizeof(ops[k]));
			lab_transfer(a, ++started, d, DMSG_CLASS_BULK, (const uint64_t(*)[3])ops,
				     s->ops);
		}
		turn(a, &worked);
		for (unsigned k = 0; k < a->n_ended; k++)
			if (a->ended[k].code)
				exit(1);
		done += a->n_ended;
		a->n_ended = 0;
	}
	begin = dray_now().ns - begin;
	atomic_store(&stop, true);
	pthread_join(thread, NULL);
	return (double)(n * s->ops * s->length) / (double)begin;
}

/* --- bare --------------------------------------------------------------------------------------- */

static int bare_fd[16][2];

struct bare {
	const struct shape *shape;
	uint8_t *memory;
	unsigned side;
	uint64_t n; /* bytes of one call */
};

/* Each stream carries every streams-th unit. With one stream calls block; with more, poll selects a stream. */
static void *bare_side(void *arg)
{
	const struct bare *b = arg;
	const struct shape *s = b->shape;
	uint64_t left[16], at[16], unit_bytes = (uint64_t)s->ops * s->length;
	uint64_t unit[16], open = streams;
	struct pollfd p[16];

	for (unsigned i = 0; i < streams; i++) {
		left[i] = b->n / streams;
		unit[i] = i;
		at[i] = 0;
		p[i] = (struct pollfd){ .fd = bare_fd[i][b->side],
					.events = b->side ? POLLIN : POLLOUT };
	}
	while (open) {
		if (streams > 1)
			poll(p, streams, -1);
		for (unsigned i = 0; i < streams; i++) {
			struct iovec iov[256];
			struct msghdr msg = { .msg_iov = iov };
			uint64_t skip = at[i];
			ssize_t n;

			if (!left[i] || (streams > 1 && !p[i].revents))
				continue;
			for (uint32_t k = (uint32_t)(skip / s->length); k < s->ops; k++) {
				uint64_t in = k * (uint64_t)s->length < skip ?
						      skip - k * (uint64_t)s->length :
						      0;

				iov[msg.msg_iovlen++] =
					(struct iovec){ b->memory + place(s, unit[i] * s->ops + k) +
								in,
							s->length - in };
			}
			n = b->side ? recvmsg(p[i].fd, &msg, streams > 1 ? MSG_DONTWAIT : 0) :
				      sendmsg(p[i].fd, &msg, streams > 1 ? MSG_DONTWAIT : 0);
			if (n < 0 && errno == EAGAIN)
				continue;
			if (n <= 0)
				exit(1);
			at[i] += (uint64_t)n;
			if (at[i] == unit_bytes) {
				at[i] = 0;
				unit[i] += streams;
				if (!--left[i]) {
					open--;
					p[i].fd = -1;
				}
			}
		}
	}
	return NULL;
}

static double bare_run(const struct shape *s)
{
	uint64_t n = total / ((uint64_t)s->ops * s->length) / streams * streams;
	struct bare b[2] = { { s, lab.side[0].region.memory, 0, n },
			     { s, lab.side[1].region.memory, 1, n } };
	pthread_t thread;
	int64_t begin;

	if ((uint64_t)s->ops * s->length < 1 << 20)
		b[0].n = b[1].n = n / 8;
	begin = dray_now().ns;
	pthread_create(&thread, NULL, bare_side, &b[1]);
	bare_side(&b[0]);
	pthread_join(thread, NULL);
	return (double)(b[0].n * s->ops * s->length) / (double)(dray_now().ns - begin);
}

static double cpu_seconds(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static int ascending(const void *x, const void *y)
{
	double a = *(const double *)x, b = *(const double *)y;

	return (a > b) - (a < b);
}

static double median(double *v, unsigned n)
{
	qsort(v, n, sizeof(*v), ascending);
	return v[n / 2];
}

static void measure(const struct shape *s, enum dmsg_direction d)
{
	double bare[PAIRS_MAX], ours[PAIRS_MAX], ratio[PAIRS_MAX], cpu[PAIRS_MAX];

	for (unsigned i = 0; i < pairs; i++) {
		double used[2] = { 0 };

		for (unsigned k = 0; k < 2; k++) {
			double begin = cpu_seconds();

			if (k == i % 2)
				ours[i] = transport_run(s, d);
			else
				bare[i] = bare_run(s);
			used[k == i % 2] = cpu_seconds() - begin;
		}
		ratio[i] = ours[i] / bare[i];
		cpu[i] = used[0] / used[1];
	}
	printf("%-5s %-30s bare %6.2f GB/s  ours %6.2f GB/s  ratio %.3f cpu %.3f",
	       d == DMSG_DIRECTION_READ ? "READ" : "WRITE", s->name, median(bare, pairs),
	       median(ours, pairs), median(ratio, pairs), median(cpu, pairs));
	printf("  (%.0f ops/s)", median(ours, pairs) * 1e9 / s->length);
	if (s->target > 0)
		printf("  target %.2f", s->target);
	printf("\n");
	fflush(stdout);
}

static uint64_t argument(int argc, char **argv, int i, uint64_t otherwise, uint64_t max)
{
	uint64_t v = argc > i ? strtoull(argv[i], NULL, 10) : otherwise;

	return v < 1 ? 1 : dray_min(v, max);
}

int main(int argc, char **argv)
{
	pairs = (unsigned)argument(argc, argv, 1, pairs, PAIRS_MAX);
	total = argument(argc, argv, 2, total >> 20, 1 << 20) << 20;
	streams = (unsigned)argument(argc, argv, 3, streams, 16);
	buffer = argument(argc, argv, 4, buffer >> 10, 1 << 20) << 10;
	lab_prepare(&lab);
	for (unsigned i = 0; i < 2; i++) {
		lab.side[i].core.cfg.tcp_buffer = buffer;
		lab.side[i].core.cfg.tcp_streams = streams;
	}
	lab_start(&lab, REGION_BYTES, 1);
	for (unsigned i = 0; i < 2; i++) {
		dray_populate(lab.side[i].region.memory, REGION_BYTES, true);
		dray_populate(lab.side[i].region.view->extents[0].base, REGION_BYTES, true);
	}
	for (unsigned i = 0; i < streams; i++)
		lab_pair(bare_fd[i], (int)buffer);
	for (unsigned i = 0; i < streams; i++)
		for (unsigned k = 0; k < 2; k++) {
			int flags = fcntl(bare_fd[i][k], F_GETFL), one = 1;

			fcntl(bare_fd[i][k], F_SETFL, flags & ~O_NONBLOCK);
			setsockopt(bare_fd[i][k], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		}
	lab_transfer1(&lab.side[0], 1, DMSG_DIRECTION_WRITE, 0, 0, 64 << 20);
	lab_until(&lab, lab_end(&lab.side[0], 1));
	lab_settle(&lab);
	lab.side[0].n_ended = 0;
	printf("%u stream(s), buffers %llu KiB\n", streams, (unsigned long long)(buffer >> 10));
	for (unsigned i = 0; i < DRAY_ARRAY_SIZE(shapes); i++) {
		measure(&shapes[i], DMSG_DIRECTION_WRITE);
		measure(&shapes[i], DMSG_DIRECTION_READ);
	}
	lab_deinit(&lab);
	return 0;
}
