/* SPDX-License-Identifier: Apache-2.0 */
/* The identity of this agent, kept in the state directory: a lasting id, and an incarnation for each start. */
#pragma once

#include <stdint.h>

#include "lib/err.h"

struct identity {
	uint8_t agent_id[16];
	uint64_t incarnation; /* greater than that of every earlier start */
	int dir_fd;
	int lock_fd; /* holds the flock on the state directory */
};

#define IDENTITY_NULL ((struct identity){ .dir_fd = -1, .lock_fd = -1 })

/*
 * Makes the state directory if needed, locks it, reads or makes the id, and takes the next incarnation. 0, or -errno
 * with reterr and nothing held: -EBUSY (DRAY_E_BUSY) if another process holds the directory, -ENOSPC, -EBADMSG for a
 * corrupt file.
 */
int identity_open(struct identity *id, const char *dir, struct dray_err *reterr);

/* Releases the lock. */
void identity_close(struct identity *id);

/* 32 hexadecimal characters and a terminator. */
#define IDENTITY_TEXT_BYTES 33
const char *identity_show(const uint8_t agent_id[16], char buf[IDENTITY_TEXT_BYTES]);
