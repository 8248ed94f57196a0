/* SPDX-License-Identifier: Apache-2.0 */
/* JSON from outside the agent. The cost of parsing is bounded, not only the size of the text. Pure. */
#ifndef DRAY_AGENT_PLACEMENT_PROBE_JSON_H
#define DRAY_AGENT_PLACEMENT_PROBE_JSON_H

#include <jansson.h>
#include <stddef.h>

/*
 * Parses one value of any type from n bytes and ignores what follows it. Integers become reals, because addresses and keys
 * may need all 64 bits and are not used. 0 with a reference, or -EPROTO with why (n_why bytes): the text is not JSON, or
 * has more values than such a text should have.
 */
int probe_json_parse(const char *text, size_t n, json_t **ret, char *why, size_t n_why);

#endif
