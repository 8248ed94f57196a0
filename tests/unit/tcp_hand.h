/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The test plays one side of transport tcp. hand_import_*: side 1 owns, and the test writes frames to
 * hand.fd. hand_own_*: side 0 imports, and the test answers on the streams that it accepts. For cmocka
 * tests.
 */
#pragma once

#include "tests/unit/tcp_lab.h"

#define HAND_MIB (1u << 20)
#define HAND_STREAM 77

struct hand {
	struct lab lab;
	int fd;
	uint8_t frame[PMSG_FRAME_SIZE + PMSG_SEGS_MAX * PMSG_SEG_SIZE];
	uint8_t *payload; /* 8 MiB */
	int fds_before;
};

extern struct hand hand;

/* Called once by each program: descriptors that a process keeps are not leaks. */
int hand_set_up(void **state);

/* The region has 8 MiB; seed 1 fills it, seed 2 the payload. buffer: of the sockets, 0 for the default. */
void hand_import_start(uint32_t extents, int buffer);
void hand_import_finish(void);
void hand_send_frame(uint8_t kind, uint64_t id, uint64_t grant, const struct pmsg_seg *segs,
		     uint16_t n);
struct pmsg_frame hand_receive_answer(void);
void hand_expect_answer(uint8_t kind, uint64_t id, uint32_t status, uint64_t length);
struct object *hand_grant(void);
/* Sends whole frames, which must succeed, and compares their bytes. */
void hand_write(uint64_t id, uint64_t offset, uint64_t n);
void hand_read(uint64_t id, uint64_t offset, uint64_t n);

/* prepare, then changes to the configuration, then go; start does both. hand.lab.raw_fd keeps the streams. */
void hand_own_prepare(void);
void hand_own_go(void);
void hand_own_start(void);
void hand_own_finish(void);
/* Starts several transfers; the first, of 4 MiB, is partly sent. Returns the stream. */
int hand_own_start_stuck(unsigned n);
/* The n-th stream (from 1), once it is open. */
int hand_stream(unsigned n);
struct pmsg_frame hand_receive_write(int fd, uint64_t local, uint64_t remote, uint64_t n);
struct pmsg_frame hand_receive_read(int fd, uint64_t remote, uint64_t n);
void hand_answer(int fd, uint8_t kind, uint64_t slice, uint32_t status, uint64_t length);
void hand_ack(int fd, uint64_t slice, uint32_t status);
void hand_stop(uint64_t id, uint32_t code, bool urgent);
void hand_expect_end(uint64_t id, uint32_t code);
/* Reports that the other end of the lost-th lost stream is closed. */
void hand_dead(unsigned lost);
