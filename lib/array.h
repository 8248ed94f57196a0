/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/*
 * Adds an element to an array that only this function grows: its capacity is the next power of two, so no field stores it.
 * v: address of the pointer to the array. element: copied; NULL: all zero. 0, or -ENOMEM with the array unchanged.
 */
static inline int dray_append(void *v, size_t *n, const void *element, size_t size)
{
	uint8_t *array;

	/* by memcpy, since the pointer in v has another type */
	memcpy(&array, v, sizeof(array));
	if ((*n & (*n - 1)) == 0) {
		array = reallocarray(array, *n ? *n * 2 : 1, size);
		if (!array)
			return -ENOMEM;
		memcpy(v, &array, sizeof(array));
	}
	array += (*n)++ * size;
	if (element)
		memcpy(array, element, size);
	else
		memset(array, 0, size);
	return 0;
}

#define DRAY_APPEND(v, n, element) dray_append(&(v), &(n), &(element), sizeof(element))
