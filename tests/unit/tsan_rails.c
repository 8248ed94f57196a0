/* SPDX-License-Identifier: Apache-2.0 */
/* The tests of rails under ThreadSanitizer: jobs run in threads beside the loop. */
#include "tests/unit/test_rails.c"
