/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bare round trips between two processes: this one and a child, which inherits the CPUs that this one may use and
 * dies with it. Thread: the one that opened it; open while the process has no other.
 */
#ifndef DRAY_CTL_CEILING_ECHO_H
#define DRAY_CTL_CEILING_ECHO_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum ceiling_echo_way {
	CEILING_ECHO_SEQPACKET, /* a packet there and back over a Unix socket, both blocking */
	CEILING_ECHO_EVENTFD,   /* one wakes the other with an eventfd, and is woken the same way */
	CEILING_ECHO_MEMORY,    /* a word in shared memory, both spinning */
	CEILING_ECHO_TCP,       /* bytes there over loopback, a word back, both blocking */
	CEILING_ECHO_N
};

/* Bytes of a packet at most. Over TCP there is no such limit. */
#define CEILING_ECHO_PACKET_MAX 65536u

struct ceiling_echo_words;

struct ceiling_echo {
	enum ceiling_echo_way way;
	size_t size;
	int ends[2], wake[2];
	struct ceiling_echo_words *words;
	uint8_t *buffer; /* of `size` bytes, each process its own */
	pid_t child;
};

#define CEILING_ECHO_NULL \
	((struct ceiling_echo){ .way = CEILING_ECHO_N, .ends = { -1, -1 }, .wake = { -1, -1 } })

/* For command lines: "seqpacket", ...; NULL behind the last. */
const char *ceiling_echo_name(enum ceiling_echo_way way);

/* size: bytes that travel, for the ways that carry some; at least 1. */
int ceiling_echo_open(struct ceiling_echo *e, enum ceiling_echo_way way, size_t size);
/* Also what is half open or closed. */
void ceiling_echo_close(struct ceiling_echo *e);

/*
 * A child that spins would take a processor from whatever else is measured: it runs from resume to pause only. Those
 * that sleep need neither.
 */
void ceiling_echo_resume(struct ceiling_echo *e);
void ceiling_echo_pause(struct ceiling_echo *e);

/* Round trips to make between two looks at the clock, so that these cost the fast ones little. */
unsigned ceiling_echo_group(const struct ceiling_echo *e);
/* -EPIPE: the child is gone, as far as its socket tells. */
int ceiling_echo_trips(struct ceiling_echo *e, unsigned n);

#endif
