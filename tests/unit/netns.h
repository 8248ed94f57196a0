/* SPDX-License-Identifier: Apache-2.0 */
/* A child process in a network namespace of its own. */
#pragma once

#include <stdio.h>
#include <unistd.h>

/*
 * Runs fn in a child, because a process cannot return to its former namespace. Fails the test if the child does, and skips it
 * where namespaces cannot be made.
 */
void netns_run(void (*fn)(void));

/* For the child: an assertion of cmocka would continue with the other tests there. */
#define CHECK(x)                                                              \
	do {                                                                  \
		if (!(x)) {                                                   \
			dprintf(STDOUT_FILENO, "%d: not %s\n", __LINE__, #x); \
			_exit(1);                                             \
		}                                                             \
	} while (0)
