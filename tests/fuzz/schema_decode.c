/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/schema_decode.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/err.h"
#include "schema/gen/data.h"
#include "schema/gen/errors.h"

static uint8_t first[DMSG_MESSAGE_MAX], second[DMSG_MESSAGE_MAX];

static void must(int ok)
{
	if (!ok)
		abort();
}

void fuzz_body(enum vector_protocol protocol, unsigned int type, const uint8_t *body, size_t len)
{
	struct dray_err err = DRAY_ERR_NULL;
	int n, m;

	n = vector_recode(protocol, type, body, len, 7, first, sizeof(first), &err);
	if (n == -ENOENT)
		return;
	if (n < 0) {
		must(n == -EPROTO);
		must(err.code > 0 && err.code < DRAY_ERROR_N && err.msg[0]);
		return;
	}
	must(err.code == 0 && n >= DMSG_HEADER_SIZE);
	m = vector_recode(protocol, type, first + DMSG_HEADER_SIZE, (size_t)n - DMSG_HEADER_SIZE, 7,
			  second, sizeof(second), &err);
	must(m == n && memcmp(first, second, (size_t)n) == 0);
}
