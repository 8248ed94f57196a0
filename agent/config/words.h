/* SPDX-License-Identifier: Apache-2.0 */
/* Forms of words that stand in lists of the configuration. Pure. */
#ifndef DRAY_AGENT_CONFIG_WORDS_H
#define DRAY_AGENT_CONFIG_WORDS_H

#include <stdbool.h>

#include "lib/strv.h"

/* Is "none" the only word of the list? */
bool list_is_none(const struct dray_strv *words);

/* The number of a NUMA node, as in agent.numa_nodes. -EINVAL: it is none. */
int numa_node_parse(const char *word);

#endif
