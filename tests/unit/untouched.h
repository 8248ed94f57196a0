/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests that something is not looked at, such as others of its kind where one ends. Reading or writing it meanwhile aborts the
 * test, with the address sanitizer, by which unit tests run.
 */
#pragma once

#include <sanitizer/asan_interface.h>

#define UNTOUCHED_BEGIN(member) ASAN_POISON_MEMORY_REGION(&(member), sizeof(member))
#define UNTOUCHED_END(member) ASAN_UNPOISON_MEMORY_REGION(&(member), sizeof(member))
