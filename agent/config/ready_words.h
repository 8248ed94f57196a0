/* SPDX-License-Identifier: Apache-2.0 */
/* The words of the key ready.require: rdma, tcp, segment:HOST:PORT. Pure. */
#ifndef DRAY_AGENT_CONFIG_READY_WORDS_H
#define DRAY_AGENT_CONFIG_READY_WORDS_H

#include "lib/err.h"
#include "lib/strv.h"

#define READY_REQUIRE_MAX 64

/* The segment that a word names, or NULL. */
const char *ready_word_segment(const char *word);

/* Are these words for ready.require? 0 or -EINVAL with reterr. */
int ready_check_words(const struct dray_strv *words, struct dray_err *reterr);

#endif
