/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bounded single-producer single-consumer ring of fixed-size elements, between two threads of one
 * process. The producer's release store of tail publishes the element; the consumer's acquire load
 * sees it whole; head goes the other way and frees the slot.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Padding keeps the two indices on cache lines of their own, however the ring is aligned. */
#define DRAY_SPSC_PAD 64

struct dray_spsc {
	uint8_t *slots;
	uint32_t mask, size; /* element size in bytes */
	uint8_t pad_before[DRAY_SPSC_PAD];
	_Atomic uint32_t tail; /* producer writes */
	/* the producer's: elements that found the ring full, of which the first late_at are in the ring now */
	uint8_t *late;
	uint32_t n_late, late_cap, late_at;
	uint8_t pad_between[DRAY_SPSC_PAD];
	_Atomic uint32_t head; /* consumer writes */
	uint8_t pad_after[DRAY_SPSC_PAD];
};

/* entries: a power of two. 0 or -ENOMEM. */
int dray_spsc_init(struct dray_spsc *r, uint32_t entries, uint32_t size);
void dray_spsc_deinit(struct dray_spsc *r);

/* Producer: copies the element in; false when full. */
bool dray_spsc_push(struct dray_spsc *r, const void *elem);

/* Producer: the same, but an element that finds the ring full waits in memory, and later ones behind it. Takes memory from the reserve (lib/ballast.h). */
void dray_spsc_send(struct dray_spsc *r, const void *elem);

/* Producer: moves waiting elements to the ring. True: none waits. */
bool dray_spsc_flush(struct dray_spsc *r);

/* Producer: free slots; at least this many pushes will succeed. */
uint32_t dray_spsc_room(const struct dray_spsc *r);

/* Consumer: copies the oldest element out; false when empty. */
bool dray_spsc_pop(struct dray_spsc *r, void *ret_elem);

bool dray_spsc_empty(const struct dray_spsc *r);
