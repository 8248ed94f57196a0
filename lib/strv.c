/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/strv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int dray_strv_add(struct dray_strv *s, const char *str, size_t n)
{
	char **v = realloc(s->v, (s->n + 1) * sizeof(*v));
	char *copy;

	if (!v)
		return -ENOMEM;
	s->v = v;
	copy = strndup(str, n);
	if (!copy)
		return -ENOMEM;
	s->v[s->n++] = copy;
	return 0;
}

void dray_strv_clear(struct dray_strv *s)
{
	for (size_t i = 0; i < s->n; i++)
		free(s->v[i]);
	free(s->v);
	*s = DRAY_STRV_NULL;
}
