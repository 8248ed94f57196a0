/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/assert.h"

#include <stdio.h>
#include <stdlib.h>

_Noreturn void dray_assert_fail(const char *expr, const char *file, int line)
{
	fprintf(stderr, "<2>dray: %s:%d: '%s' does not hold\n", file, line, expr);
	abort();
}
