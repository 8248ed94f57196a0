/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/listen.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "agent/control/access.h"
#include "lib/cleanup.h"
#include "schema/gen/errors.h"
#include "tests/unit/cm.h"

struct place {
	char dir[CM_DIR_BYTES], path[CM_DIR_BYTES + 32];
	int fds;
};

static int set_up(void **state)
{
	static struct place p;

	cm_dir_make(p.dir);
	snprintf(p.path, sizeof(p.path), "%s/run/control.sock", p.dir);
	p.fds = cm_fds_count();
	*state = &p;
	return 0;
}

static int tear_down(void **state)
{
	struct place *p = *state;

	cm_dir_remove(p->dir);
	return cm_fds_count() == p->fds ? 0 : -1;
}

static int connect_to(const char *path, int type)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0 && strlen(path) < sizeof(sa.sun_path));
	memcpy(sa.sun_path, path, strlen(path));
	if (connect(fd, (const struct sockaddr *)&sa, sizeof(sa)) == 0)
		return fd;
	close(fd);
	return -errno;
}

/* A listening socket that its owner leaves behind when it is closed. */
static int leave(const char *path, int type)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

	memcpy(sa.sun_path, path, strlen(path));
	assert_int_equal(bind(fd, (const struct sockaddr *)&sa, sizeof(sa)), 0);
	assert_int_equal(listen(fd, 1), 0);
	return fd;
}

static void binds_with_mode_and_directory(void **state)
{
	struct place *p = *state;
	struct control_listener l;
	struct dray_err err = DRAY_ERR_NULL;
	struct stat st;
	mode_t mask = umask(077);
	int fd;

	assert_int_equal(control_listener_bind(&l, p->path, 0666, getgid(), &err), 0);
	umask(mask);
	assert_int_equal(lstat(p->path, &st), 0);
	assert_true(S_ISSOCK(st.st_mode));
	assert_int_equal(st.st_mode & 07777, 0666);
	assert_int_equal(st.st_gid, getgid());
	fd = connect_to(p->path, SOCK_STREAM);
	assert_true(fd >= 0);
	close(fd);
	control_listener_close(&l);
	assert_int_equal(access(p->path, F_OK), -1);
}

static void replaces_a_stale_socket(void **state)
{
	static const int types[] = { SOCK_STREAM, SOCK_SEQPACKET };
	struct place *p = *state;
	struct control_listener l;
	struct dray_err err = DRAY_ERR_NULL;
	char dir[CM_DIR_BYTES + 8];

	snprintf(dir, sizeof(dir), "%s/run", p->dir);
	assert_int_equal(mkdir(dir, 0700), 0);
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(types); i++) {
		close(leave(p->path, types[i]));
		assert_int_equal(control_listener_bind(&l, p->path, 0600, (gid_t)-1, &err), 0);
		control_listener_close(&l);
	}
}

static void leaves_others_alone(void **state)
{
	static const int types[] = { SOCK_STREAM, SOCK_SEQPACKET };
	struct place *p = *state;
	struct control_listener l;
	char dir[CM_DIR_BYTES + 8];

	snprintf(dir, sizeof(dir), "%s/run", p->dir);
	assert_int_equal(mkdir(dir, 0700), 0);
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(types); i++) {
		struct dray_err err = DRAY_ERR_NULL;
		int fd = leave(p->path, types[i]);

		assert_true(control_listener_bind(&l, p->path, 0600, (gid_t)-1, &err) < 0);
		assert_int_equal(err.code, DRAY_E_BUSY);
		assert_non_null(strstr(err.msg, p->path));
		assert_int_equal(access(p->path, F_OK), 0);
		close(fd);
		unlink(p->path);
	}
	for (int i = 0; i < 2; i++) {
		struct dray_err err = DRAY_ERR_NULL;

		if (i)
			assert_int_equal(symlink("elsewhere", p->path), 0);
		else
			cm_file_write(p->dir, "run/control.sock", "dear data");
		assert_true(control_listener_bind(&l, p->path, 0600, (gid_t)-1, &err) < 0);
		assert_int_equal(err.code, DRAY_E_EXISTS);
		assert_int_equal(unlink(p->path), 0);
	}
}

static void removes_only_its_own(void **state)
{
	struct place *p = *state;
	struct control_listener l;
	struct dray_err err = DRAY_ERR_NULL;
	int fd;

	assert_int_equal(control_listener_bind(&l, p->path, 0600, (gid_t)-1, &err), 0);
	unlink(p->path);
	fd = leave(p->path, SOCK_STREAM);
	control_listener_close(&l);
	assert_int_equal(access(p->path, F_OK), 0);
	close(fd);
}

static void says_what_is_wrong(void **state)
{
	struct place *p = *state;
	struct control_listener l;
	struct dray_err err = DRAY_ERR_NULL;
	char path[200];

	memset(path, 'x', sizeof(path));
	path[0] = '/';
	path[sizeof(path) - 1] = '\0';
	assert_int_equal(control_listener_bind(&l, path, 0600, (gid_t)-1, &err), -EINVAL);
	assert_int_equal(err.code, DRAY_E_INVALID);

	err = DRAY_ERR_NULL;
	assert_int_equal(control_listener_bind(&l, "", 0600, (gid_t)-1, &err), -EINVAL);

	err = DRAY_ERR_NULL;
	snprintf(path, sizeof(path), "%s/no/such/directory", p->dir);
	assert_true(control_listener_bind(&l, path, 0600, (gid_t)-1, &err) < 0);
	assert_non_null(strstr(err.msg, path));
}

static void adopts_only_what_fits(void **state)
{
	struct place *p = *state;
	struct control_listener l;
	struct dray_err err = DRAY_ERR_NULL;
	char dir[CM_DIR_BYTES + 8];
	int pair[2];

	snprintf(dir, sizeof(dir), "%s/run", p->dir);
	assert_int_equal(mkdir(dir, 0700), 0);
	assert_int_equal(control_listener_adopt(&l, leave(p->path, SOCK_STREAM), &err), 0);
	assert_null(l.path);
	control_listener_close(&l);
	/* it is systemd's */
	assert_int_equal(access(p->path, F_OK), 0);
	unlink(p->path);

	assert_true(control_listener_adopt(&l, leave(p->path, SOCK_SEQPACKET), &err) < 0);
	assert_int_equal(err.code, DRAY_E_INVALID);
	assert_int_equal(l.fd, -1);

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	err = DRAY_ERR_NULL;
	assert_true(control_listener_adopt(&l, pair[0], &err) < 0);
	close(pair[1]);

	assert_int_equal(pipe(pair), 0);
	err = DRAY_ERR_NULL;
	assert_true(control_listener_adopt(&l, pair[0], &err) < 0);
	close(pair[1]);
}

static void groups_are_found(void **state)
{
	struct dray_err err = DRAY_ERR_NULL;
	gid_t gid = 77;
	bool has = true;

	assert_int_equal(control_group_parse("", &has, &gid, &err), 0);
	assert_false(has);
	assert_int_equal(control_group_parse("1234", &has, &gid, &err), 0);
	assert_true(has);
	assert_int_equal(gid, 1234);
	assert_int_equal(control_group_parse("root", &has, &gid, &err), 0);
	assert_true(has);
	assert_int_equal(gid, 0);
	assert_true(control_group_parse("no such group", &has, &gid, &err) < 0);
	assert_int_equal(err.code, DRAY_E_INVALID);
	assert_non_null(strstr(err.msg, "no such group"));
	/* (gid_t)-1 means "leave it" to chown */
	err = DRAY_ERR_NULL;
	assert_true(control_group_parse("4294967295", &has, &gid, &err) < 0);
	assert_true(control_group_parse("-1", &has, &gid, &err) < 0);
}

static void rules_decide_who_may_change(void **state)
{
	struct control_rules rules = { .owner = geteuid() };
	struct control_who who;
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	assert_int_equal(control_who_get(pair[0], &rules, &who), 0);
	assert_int_equal(who.uid, geteuid());
	assert_int_equal(who.gid, getegid());
	assert_int_equal(who.pid, getpid());
	assert_true(who.may_change);

	rules.owner = geteuid() + 1;
	assert_int_equal(control_who_get(pair[0], &rules, &who), 0);
	assert_int_equal(who.may_change, geteuid() == 0);
	rules.has_group = true;
	rules.group = getegid();
	assert_int_equal(control_who_get(pair[0], &rules, &who), 0);
	assert_true(who.may_change);
	rules.group = 3999999999u;
	assert_int_equal(control_who_get(pair[0], &rules, &who), 0);
	assert_int_equal(who.may_change, geteuid() == 0);
	close(pair[0]);
	close(pair[1]);
	assert_int_equal(control_who_get(-1, &rules, &who), -EBADF);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(binds_with_mode_and_directory),
		TEST(replaces_a_stale_socket),
		TEST(leaves_others_alone),
		TEST(removes_only_its_own),
		TEST(says_what_is_wrong),
		TEST(adopts_only_what_fits),
		TEST(groups_are_found),
		TEST(rules_decide_who_may_change),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
