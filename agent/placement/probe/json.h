/* SPDX-License-Identifier: Apache-2.0 */
/* JSON from outside the agent. The cost of parsing is bounded, not only the size of the text. Pure. */
#ifndef DRAY_AGENT_PLACEMENT_PROBE_JSON_H
#define DRAY_AGENT_PLACEMENT_PROBE_JSON_H

#include <jansson.h>
#include <stddef.h>

/*
 * Text of n bytes. Any value will do; what follows it is not looked at. Integers are reals: addresses and keys may
 * need all 64 bits, and nobody here looks at them. 0 with a reference, or -EPROTO with why (n_why bytes): no JSON, or
 * more values than text of this kind ever has.
 */
int probe_json_parse(const char *text, size_t n, json_t **ret, char *why, size_t n_why);

#endif
