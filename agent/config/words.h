/* SPDX-License-Identifier: Apache-2.0 */
/* Forms of words that stand in lists of the configuration. Pure. */
#pragma once

#include <errno.h>
#include <stdbool.h>

#include "lib/err.h"
#include "lib/strv.h"
#include "schema/gen/errors.h"

/* The text is wrong: sets reterr, and is -EINVAL. */
#define config_invalid(reterr, ...) dray_err_set((reterr), -EINVAL, DRAY_E_INVALID, __VA_ARGS__)

#define WORD_BLANKS DRAY_STRV_BLANKS
#define READY_REQUIRE_MAX 64 /* words of ready.require */
#define STORE_PEERS_MAX 64   /* words of store.peers */

/* Is "none" the only word of the list? */
bool list_is_none(const struct dray_strv *words);

/* The number of a NUMA node, as in agent.numa_nodes. -EINVAL: it is none. */
int numa_node_parse(const char *word);

/* Checks an address and port of another agent. 0 or -EINVAL with reterr. */
int segment_word_check(const char *word, struct dray_err *reterr);
/* The segment that a word of ready.require names, or NULL. */
const char *ready_word_segment(const char *word);
/* Checks a word of ready.require: rdma, tcp, segment:HOST:PORT. 0 or -EINVAL with reterr. */
int ready_word_check(const char *word, struct dray_err *reterr);
