/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bare round trips between this process and a child, which inherits the CPU affinity and dies with this process. Only the
 * thread that opened an echo may use it, and the process must have no other thread at that time.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum ceiling_echo_way {
	CEILING_ECHO_EVENTFD, /* each process wakes the other one with an eventfd */
	CEILING_ECHO_MEMORY,  /* a word in shared memory, both spin */
	CEILING_ECHO_TCP,     /* bytes to the child over loopback, a word back, blocking */
	CEILING_ECHO_N
};

/* A connected pair of TCP sockets over loopback that send at once (TCP_NODELAY). 0 or -errno; ends are -1 or owned. */
int ceiling_tcp_pair(int ends[2]);
/* As fork(2), but the child dies with its parent. The child's pid, 0 in the child, or -errno. */
pid_t ceiling_fork(void);

struct ceiling_echo_words;

struct ceiling_echo {
	enum ceiling_echo_way way;
	size_t size;
	int ends[2], wake[2];
	struct ceiling_echo_words *words;
	uint8_t *buffer; /* of `size` bytes, private to each process */
	pid_t child;
};

#define CEILING_ECHO_NULL \
	((struct ceiling_echo){ .way = CEILING_ECHO_N, .ends = { -1, -1 }, .wake = { -1, -1 } })

/* size: bytes of a message, for the way that carries bytes; at least 1. */
int ceiling_echo_open(struct ceiling_echo *e, enum ceiling_echo_way way, size_t size);
/* Accepts an echo that is partly open or closed. */
void ceiling_echo_close(struct ceiling_echo *e);

/*
 * A child that spins would take a processor from other measurements, so it runs only from resume to pause. These do
 * nothing for a child that sleeps.
 */
void ceiling_echo_resume(struct ceiling_echo *e);
void ceiling_echo_pause(struct ceiling_echo *e);

/* Round trips between two reads of the clock, so that the clock costs fast trips little. */
unsigned ceiling_echo_group(const struct ceiling_echo *e);
/* Makes n round trips. -EPIPE: the child has ended, for TCP. */
int ceiling_echo_trips(struct ceiling_echo *e, unsigned n);
