/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ctl/ctl.h"
#include "lib/fds.h"

/* Colour is for terminals that can show it, unless $NO_COLOR is set (no-color.org). */
static bool wants_color(void)
{
	const char *term = getenv("TERM"), *no = getenv("NO_COLOR");

	return isatty(STDOUT_FILENO) && !(no && *no) && term && strcmp(term, "dumb");
}

int main(int argc, char **argv)
{
	const struct ctl_env env = {
		.control = getenv("DRAY_CONTROL_SOCKET"),
		.socket = getenv("DRAY_SOCKET"),
		.terminal = isatty(STDOUT_FILENO),
		.color = wants_color(),
		.in = STDIN_FILENO,
		.variables = environ,
	};

	dray_reserve_standard_fds();
	return ctl_run(&env, stdout, stderr, argc, argv);
}
