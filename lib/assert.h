/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Programming errors only. Alive in release builds; the expression is always evaluated. libdray does
 * not use it: a client library never ends its host.
 */
#define dray_assert(expr) \
	((void)(__builtin_expect(!!(expr), 1) || (dray_assert_fail(#expr, __FILE__, __LINE__), 0)))

_Noreturn void dray_assert_fail(const char *expr, const char *file, int line);
