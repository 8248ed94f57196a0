/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/netns.h"

#include <sched.h>
#include <sys/wait.h>

#include "tests/unit/cm.h"

#define SKIPPED 77

void netns_run(void (*fn)(void))
{
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (!pid) {
		if (unshare(geteuid() ? CLONE_NEWUSER | CLONE_NEWNET : CLONE_NEWNET) < 0)
			_exit(SKIPPED);
		fn();
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED)
		skip();
	assert_int_equal(status, 0);
}
