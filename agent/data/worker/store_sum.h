/* SPDX-License-Identifier: Apache-2.0 */
/* Checksums of objects that arrive in slices of one transfer, in any order. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

struct slice;

struct arriving {
	uint64_t end; /* of its bytes in those of the transfer, which has the objects in a row */
	_Atomic uint32_t crc; /* once all its bytes have arrived; 0 before the first */
};

/* Counts the bytes of a slice of these objects. Any thread. 0, or -EFAULT: they cannot be read. */
int arriving_add(struct arriving *v, uint32_t n, const struct slice *s);
