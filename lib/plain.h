/* SPDX-License-Identifier: Apache-2.0 */
/* Text from outside, which may hold any byte, as plain text for messages. */
#pragma once

#include <stddef.h>

/*
 * Copies n bytes as printable ASCII with a NUL at the end; each other byte becomes ?. What does not fit into cap bytes is left
 * out. Returns the length. `to` may be `from`.
 */
size_t dray_plain(char *to, size_t cap, const char *from, size_t n);

/* Bytes of the UTF-8 character at p, which is not the NUL at the end; 0 if there is none. Overlong forms and surrogates are none. */
size_t dray_utf8_length(const char *p);
