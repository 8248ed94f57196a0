/* SPDX-License-Identifier: Apache-2.0 */
/* Runs code that a process cannot undo, such as dropping privileges, in a child process. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* In the child: exits with a failure if the condition does not hold. */
#define CHILD_CHECK(condition)                                                              \
	do {                                                                                \
		if (!(condition)) {                                                         \
			fprintf(stderr, "%s:%d: %s: %m\n", __FILE__, __LINE__, #condition); \
			_exit(1);                                                           \
		}                                                                           \
	} while (0)

/* Runs fn in a child. Returns its wait status; 0: fn returned. */
static inline int child_run(void (*fn)(void *arg), void *arg)
{
	pid_t pid = fork();
	int status = -1;

	if (pid == 0) {
		setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 });
		fn(arg);
		_exit(0);
	}
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}
