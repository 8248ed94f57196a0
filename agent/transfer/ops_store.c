/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/transfer/ops_store.h"

#include <stdlib.h>
#include <string.h>

/* Beyond this, blocks go back to the system at once. */
#define KEPT_MAX (2u << 20)

static uint64_t class_bytes(uint32_t class)
{
	return ((uint64_t)4 << class) * sizeof(struct xfer_op);
}

struct xfer_op *ops_store_get(struct ops_store *s, uint32_t n, uint32_t *ret_class)
{
	uint32_t class = 0;
	void *p;

	while ((4u << class) < n)
		class ++;
	*ret_class = class;
	p = s->free[class];
	if (!p)
		return malloc(class_bytes(class));
	memcpy(&s->free[class], p, sizeof(p));
	s->kept -= class_bytes(class);
	return p;
}

void ops_store_put(struct ops_store *s, struct xfer_op *ops, uint32_t class)
{
	void *p = ops;

	if (s->kept + class_bytes(class) > KEPT_MAX) {
		free(p);
		return;
	}
	memcpy(p, &s->free[class], sizeof(p));
	s->free[class] = p;
	s->kept += class_bytes(class);
}

void ops_store_deinit(struct ops_store *s)
{
	for (unsigned i = 0; i < OPS_CLASSES; i++) {
		while (s->free[i]) {
			void *p = s->free[i];

			memcpy(&s->free[i], p, sizeof(p));
			free(p);
		}
	}
	s->kept = 0;
}
