/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/spsc.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/ballast.h"

int dray_spsc_init(struct dray_spsc *r, uint32_t entries, uint32_t size)
{
	r->slots = calloc(entries, size);
	if (!r->slots)
		return -ENOMEM;
	r->mask = entries - 1;
	r->size = size;
	r->late = NULL;
	r->n_late = r->late_cap = r->late_at = 0;
	atomic_init(&r->tail, 0);
	atomic_init(&r->head, 0);
	return 0;
}

void dray_spsc_deinit(struct dray_spsc *r)
{
	free(r->slots);
	free(r->late);
	r->slots = r->late = NULL;
}

bool dray_spsc_push(struct dray_spsc *r, const void *elem)
{
	uint32_t tail = atomic_load_explicit(&r->tail, memory_order_relaxed);
	/* acquire: the consumer's read of the slot must be over before it is overwritten */
	uint32_t head = atomic_load_explicit(&r->head, memory_order_acquire);

	if (tail - head > r->mask)
		return false;
	memcpy(r->slots + (size_t)(tail & r->mask) * r->size, elem, r->size);
	atomic_store_explicit(&r->tail, tail + 1, memory_order_release);
	return true;
}

/* Those that have moved to the ring make room first: some may wait for as long as the ring is used. */
static void late_make_room(struct dray_spsc *r)
{
	if (r->late_at && r->late_at >= r->n_late / 2) {
		r->n_late -= r->late_at;
		memmove(r->late, r->late + (size_t)r->late_at * r->size,
			(size_t)r->n_late * r->size);
		r->late_at = 0;
		return;
	}
	r->late_cap = r->late_cap ? r->late_cap * 2 : 256;
	r->late = dray_array_grow_sure(r->late, r->n_late, r->late_cap, r->size);
}

void dray_spsc_send(struct dray_spsc *r, const void *elem)
{
	if (!r->n_late && dray_spsc_push(r, elem))
		return;
	if (r->n_late == r->late_cap)
		late_make_room(r);
	memcpy(r->late + (size_t)r->n_late++ * r->size, elem, r->size);
}

bool dray_spsc_flush(struct dray_spsc *r)
{
	if (!r->n_late)
		return true;
	while (r->late_at < r->n_late && dray_spsc_push(r, r->late + (size_t)r->late_at * r->size))
		r->late_at++;
	if (r->late_at < r->n_late)
		return false;
	free(r->late);
	r->late = NULL;
	r->n_late = r->late_cap = r->late_at = 0;
	return true;
}

uint32_t dray_spsc_room(const struct dray_spsc *r)
{
	uint32_t tail = atomic_load_explicit(&r->tail, memory_order_relaxed);
	uint32_t head = atomic_load_explicit(&r->head, memory_order_acquire);

	return r->mask + 1 - (tail - head);
}

bool dray_spsc_pop(struct dray_spsc *r, void *ret_elem)
{
	uint32_t head = atomic_load_explicit(&r->head, memory_order_relaxed);
	uint32_t tail = atomic_load_explicit(&r->tail, memory_order_acquire);

	if (head == tail)
		return false;
	memcpy(ret_elem, r->slots + (size_t)(head & r->mask) * r->size, r->size);
	atomic_store_explicit(&r->head, head + 1, memory_order_release);
	return true;
}

bool dray_spsc_empty(const struct dray_spsc *r)
{
	return atomic_load_explicit(&r->head, memory_order_relaxed) ==
	       atomic_load_explicit(&r->tail, memory_order_acquire);
}
