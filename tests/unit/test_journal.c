/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines to a journal socket of the test, in a mount namespace. */
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <syslog.h>

#include "agent/process/journal.h"
#include "tests/unit/cm.h"
#include "tests/unit/child.h"

#define SKIPPED 77
#define FIELD(k, v)                                \
	{                                          \
		k, v, sizeof(k) - 1, sizeof(v) - 1 \
	}

static const struct dray_log_field fields[] = { FIELD("peer.id", "17"), FIELD("dev", "mlx5_0") };

static bool run_is_ours(void)
{
	return unshare(CLONE_NEWNS | (geteuid() ? CLONE_NEWUSER : 0)) == 0 &&
	       mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
	       mount("tmpfs", "/run", "tmpfs", 0, NULL) == 0;
}

static bool send_it(void)
{
	return journal_send(LOG_WARNING, "peer", "peer: it is lost dev=mlx5_0", 27, fields, 2);
}

static void child(void *arg)
{
	struct sockaddr_un at = { AF_UNIX, "/run/systemd/journal/socket" };
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
	char got[4096] = "";

	if (!run_is_ours())
		_exit(SKIPPED);
	CHILD_CHECK(!send_it());
	CHILD_CHECK(mkdir("/run/systemd", 0755) == 0 && mkdir("/run/systemd/journal", 0755) == 0);
	CHILD_CHECK(bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0);
	CHILD_CHECK(send_it());
	CHILD_CHECK(recv(fd, got, sizeof(got) - 1, 0) > 0);
	CHILD_CHECK(strstr(got, "MESSAGE=peer: it is lost dev=mlx5_0\n"));
	CHILD_CHECK(strstr(got, "PRIORITY=4\n"));
	CHILD_CHECK(strstr(got, "DRAY_AREA=peer\n"));
	CHILD_CHECK(strstr(got, "DRAY_DEV=mlx5_0\nDRAY_PEER_ID=17\n"));
	CHILD_CHECK(!strstr(got, "CODE_FILE"));
}

static void a_line_arrives_with_its_fields(void **state)
{
	int status = child_run(child, NULL);

	if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED)
		skip();
	assert_int_equal(status, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_line_arrives_with_its_fields),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
