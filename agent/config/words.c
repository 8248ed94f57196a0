/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/config/words.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NUMA_NODE_MAX 4095

bool list_is_none(const struct dray_strv *words)
{
	return words->n == 1 && !strcmp(words->v[0], "none");
}

int numa_node_parse(const char *word)
{
	char *end;
	unsigned long v;

	if (*word < '0' || *word > '9')
		return -EINVAL;
	v = strtoul(word, &end, 10);
	return *end || v > NUMA_NODE_MAX ? -EINVAL : (int)v;
}
