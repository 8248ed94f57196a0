/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C side of the comparison with Python: reads {u8 protocol, u16 type, u32 length, body} until the end of
 * stdin, decodes each body and encodes it again with request id 7. For each it writes {u32 error code, u32 length,
 * message}; the message is empty if the body was refused. Error code 0xffffffff: unknown type.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/err.h"
#include "lib/wire.h"
#include "schema/gen/data.h"
#include "tests/unit/schema_vectors.h"

int main(void)
{
	static uint8_t out[DMSG_MESSAGE_MAX];
	uint8_t head[8];

	while (fread(head, 7, 1, stdin) == 1) {
		struct dray_err err = DRAY_ERR_NULL;
		uint32_t len = dray_le_get32(head + 3);
		uint8_t *body = malloc(len ? len : 1);
		int n;

		if (!body || (len && fread(body, len, 1, stdin) != 1))
			return EXIT_FAILURE;
		n = vector_recode((enum vector_protocol)head[0], dray_le_get16(head + 1), body, len,
				  7, out, sizeof(out), &err);
		free(body);
		dray_le_put32(head, n == -ENOENT ? UINT32_MAX : (uint32_t)err.code);
		if (n < 0 && n != -ENOENT && !err.code)
			return EXIT_FAILURE;
		dray_le_put32(head + 4, n > 0 ? (uint32_t)n : 0);
		fwrite(head, 8, 1, stdout);
		fwrite(out, 1, n > 0 ? (size_t)n : 0, stdout);
	}
	return EXIT_SUCCESS;
}
