/* SPDX-License-Identifier: Apache-2.0 */
/* What the two sides of the modelled ring have in common (ring_client.c). */
#pragma once

#include "tests/model/weak.h"

#define ENTRIES_MAX 2
#define COMPLETIONS_MAX 4
#define BYTES_MAX 3
#define FIRST 0xfffffffeu /* index: they wrap around */
#define SQ_OFFSET 512
#define CQ_OFFSET 768
#define RING_BYTES 896

enum { SQ_HEAD, SQ_TAIL, CQ_HEAD, CQ_TAIL, AGENT_SLEEPING, CLIENT_SLEEPING }; /* words */
enum { DOORBELL, COMPLETION }; /* bells, and the descriptors that ring them */

struct ring_model {
	uint8_t memory[RING_BYTES] __attribute__((aligned(64)));
	uint32_t entries, completions;
	bool greedy, polls, events;   /* options */
	uint32_t transfers;           /* numbered from 1 */
	unsigned bytes_of[BYTES_MAX]; /* blocks: operations and memory of transfers, by number */
};

extern struct ring_model model;

/*
 * Transfers use memory again, as soon as the completion of the former one was taken. With a greedy client each has its own.
 */
static inline unsigned bytes_block(uint32_t id)
{
	return model.bytes_of[id % (model.greedy ? BYTES_MAX : model.completions)];
}

/* Adds the thread of the agent. */
void agent_init(void);
