/* SPDX-License-Identifier: Apache-2.0 */
/* The lab's memory, and its raw ends of streams. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/data/transport/tcp/tcp.h"
#include "lib/fault.h"
#include "lib/cleanup.h"
#include "tests/unit/tcp_lab.h"

static uint64_t pattern8(uint64_t word, uint32_t seed)
{
	uint64_t x = (word + 1) * 0x9e3779b97f4a7c15 + seed * 0xd1342543de82ef95;

	return x ^ x >> 29;
}

uint8_t lab_pattern(uint64_t offset, uint32_t seed)
{
	return (uint8_t)(pattern8(offset / 8, seed) >> (offset % 8 * 8));
}

void lab_pattern_fill(uint8_t *p, uint64_t offset, uint64_t n, uint32_t seed)
{
	uint64_t i = 0;

	for (; i < n && (offset + i) % 8; i++)
		p[i] = lab_pattern(offset + i, seed);
	for (; n - i >= 8; i += 8) {
		uint64_t word = pattern8((offset + i) / 8, seed);

		memcpy(p + i, &word, 8);
	}
	for (; i < n; i++)
		p[i] = lab_pattern(offset + i, seed);
}

uint8_t *lab_at(struct lab_side *s, uint64_t offset)
{
	uint64_t n = s->region.view->n_extents, piece = s->region.bytes / n;

	return s->region.memory + (n - 1 - offset / piece) * piece + offset % piece;
}

/* Contiguous bytes at that offset, at most n. */
static uint64_t run(const struct lab_side *s, uint64_t offset, uint64_t n)
{
	uint64_t piece = s->region.bytes / s->region.view->n_extents;

	return dray_min(n, piece - offset % piece);
}

void lab_read(struct lab_side *s, uint64_t offset, void *p, uint64_t n)
{
	for (uint64_t k, done = 0; done < n; done += k) {
		k = run(s, offset + done, n - done);
		memcpy((uint8_t *)p + done, lab_at(s, offset + done), k);
	}
}

bool lab_equal(struct lab_side *s, uint64_t offset, const void *p, uint64_t n)
{
	for (uint64_t k, done = 0; done < n; done += k) {
		k = run(s, offset + done, n - done);
		if (memcmp((const uint8_t *)p + done, lab_at(s, offset + done), k))
			return false;
	}
	return true;
}

void lab_fill(struct lab_side *s, uint64_t offset, uint64_t n, uint32_t seed)
{
	for (uint64_t k, done = 0; done < n; done += k) {
		k = run(s, offset + done, n - done);
		lab_pattern_fill(lab_at(s, offset + done), offset + done, k, seed);
	}
}

bool lab_filled(struct lab_side *s, uint64_t offset, uint64_t n, uint32_t seed)
{
	uint8_t *want = malloc(n);
	bool same;

	lab_check(want);
	lab_pattern_fill(want, offset, n, seed);
	same = lab_equal(s, offset, want, n);
	free(want);
	return same;
}

bool lab_punch(struct lab_side *s, uint64_t offset, uint64_t n)
{
	off_t at = lab_at(s, offset) - s->region.memory;
	uint8_t byte;

	lab_check(fallocate(s->region.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at,
			    (off_t)n) == 0);
	return fault_copy(&byte, s->region.agent_memory + at, 1) < 0;
}

void lab_pair(int fd[2], int buffer)
{
	struct timeval limit = { .tv_sec = 10 };
	struct dray_addr addr;
	int l = lab_listen(&addr);

	fd[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	lab_check(fd[0] >= 0);
	if (buffer) {
		setsockopt(fd[0], SOL_SOCKET, SO_SNDBUF, &buffer, sizeof(buffer));
		setsockopt(fd[0], SOL_SOCKET, SO_RCVBUF, &buffer, sizeof(buffer));
		setsockopt(l, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof(buffer));
		setsockopt(l, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof(buffer));
	}
	lab_check(connect(fd[0], &addr.sa, addr.len) == 0);
	setsockopt(fd[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	do
		fd[1] = accept4(l, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	while (fd[1] < 0 && errno == EAGAIN);
	lab_check(fd[1] >= 0);
	lab_no_delay(fd[0]);
	close(l);
}

int lab_raw_stream(struct lab_side *s, uint64_t id, int buffer)
{
	int fd[2];

	lab_pair(fd, buffer);
	lab_stream_adopt(s, LAB_PEER, fd[1], id, DMSG_CLASS_BULK);
	return fd[0];
}

void lab_send(struct lab *l, int fd, const void *p, size_t n)
{
	const uint8_t *at = p;

	while (n) {
		ssize_t sent = send(fd, at, n, MSG_DONTWAIT | MSG_NOSIGNAL);

		lab_turn(l);
		if (sent < 0) {
			lab_check(errno == EAGAIN);
			continue;
		}
		at += sent;
		n -= (size_t)sent;
	}
}

bool lab_receive(struct lab *l, int fd, void *p, size_t n)
{
	int64_t end = dray_now().ns + 20 * DRAY_NS_PER_SEC;
	uint8_t *at = p;

	while (n) {
		ssize_t got = recv(fd, at, n, MSG_DONTWAIT);

		if (got == 0 || (got < 0 && errno != EAGAIN))
			return false;
		if (got < 0) {
			lab_turn(l);
			lab_check(dray_now().ns < end);
			continue;
		}
		at += got;
		n -= (size_t)got;
	}
	return true;
}

bool lab_is_closed(struct lab *l, int fd)
{
	uint8_t byte;
	ssize_t n;

	lab_settle(l);
	n = recv(fd, &byte, 1, MSG_DONTWAIT);
	return n == 0 || (n < 0 && errno != EAGAIN);
}

size_t lab_frame(uint8_t *p, uint8_t kind, uint64_t slice, uint64_t grant,
		 const struct pmsg_seg *segs, uint16_t n)
{
	struct pmsg_frame f = { .kind = kind, .segs = n, .slice = slice, .grant = grant };

	for (unsigned i = 0; i < n; i++) {
		f.length += segs[i].length;
		pmsg_seg_put(p + PMSG_FRAME_SIZE + i * PMSG_SEG_SIZE, &segs[i]);
	}
	pmsg_frame_put(p, &f);
	return PMSG_FRAME_SIZE + n * (size_t)PMSG_SEG_SIZE;
}

size_t lab_answer(uint8_t *p, uint8_t kind, uint64_t slice, uint32_t status, uint64_t length)
{
	struct pmsg_frame f = { .kind = kind, .status = status, .slice = slice, .length = length };

	pmsg_frame_put(p, &f);
	return PMSG_FRAME_SIZE;
}
