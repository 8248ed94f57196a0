/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/strv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/array.h"

int dray_strv_add(struct dray_strv *s, const char *str, size_t n)
{
	char *copy = strndup(str, n);

	if (copy && DRAY_APPEND(s->v, s->n, copy) == 0)
		return 0;
	free(copy);
	return -ENOMEM;
}

void dray_strv_clear(struct dray_strv *s)
{
	for (size_t i = 0; i < s->n; i++)
		free(s->v[i]);
	free(s->v);
	*s = DRAY_STRV_NULL;
}
