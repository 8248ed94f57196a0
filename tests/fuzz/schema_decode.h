/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "tests/unit/schema_vectors.h"

/*
 * Decodes a body as a message of that type. A refusal must have a known code and a reason. An accepted
 * message must encode, decode again and encode to the same bytes. Aborts if that does not hold.
 */
void fuzz_body(enum vector_protocol protocol, unsigned int type, const uint8_t *body, size_t len);
