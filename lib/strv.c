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

bool dray_strv_has(const struct dray_strv *s, const char *str)
{
	for (size_t i = 0; i < s->n; i++)
		if (!strcmp(s->v[i], str))
			return true;
	return false;
}

int dray_strv_split(const char *text, struct dray_strv *ret)
{
	while (text[strspn(text, DRAY_STRV_BLANKS)]) {
		size_t n, end;

		text += strspn(text, DRAY_STRV_BLANKS);
		n = end = strcspn(text, ",");
		while (n && strchr(DRAY_STRV_BLANKS, text[n - 1]))
			n--;
		if (dray_strv_add(ret, text, n) < 0)
			return -ENOMEM;
		if (!text[end])
			return 0;
		text += end + 1;
		/* an empty word at the end */
		if (!text[strspn(text, DRAY_STRV_BLANKS)])
			return dray_strv_add(ret, "", 0);
	}
	return 0;
}

void dray_strv_clear(struct dray_strv *s)
{
	for (size_t i = 0; i < s->n; i++)
		free(s->v[i]);
	free(s->v);
	*s = DRAY_STRV_NULL;
}
