/* SPDX-License-Identifier: Apache-2.0 */
/* Steps that a process cannot take back run in a child. */
#ifndef DRAY_TESTS_UNIT_CHILD_H
#define DRAY_TESTS_UNIT_CHILD_H

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* In the child: what does not hold ends it. */
#define CHILD_CHECK(condition)                                                              \
	do {                                                                                \
		if (!(condition)) {                                                         \
			fprintf(stderr, "%s:%d: %s: %m\n", __FILE__, __LINE__, #condition); \
			_exit(1);                                                           \
		}                                                                           \
	} while (0)

/* Its wait status; 0 is a child that came to the end of fn. */
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

#endif
