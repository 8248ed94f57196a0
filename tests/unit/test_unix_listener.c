/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/socket/unix_listener.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "schema/gen/errors.h"
#include "tests/unit/cm.h"

static struct unix_listener_kind kinds[] = { { "control", SOCK_STREAM },
					     { "data", SOCK_SEQPACKET } };

/* Each test runs once for each kind. */
struct place {
	const struct unix_listener_kind *kind;
	char dir[CM_DIR_BYTES], path[CM_DIR_BYTES + 32];
	int fds;
};

static int set_up(void **state)
{
	static struct place p;

	p.kind = *state;
	cm_dir_make(p.dir);
	snprintf(p.path, sizeof(p.path), "%s/run/x.sock", p.dir);
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

/* A listening socket whose file stays when it is closed. */
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
	const struct unix_listener_kind *kind = p->kind;
	struct unix_listener l;
	struct dray_err err = DRAY_ERR_NULL;
	struct stat st;
	mode_t mask = umask(077);
	int fd;

	assert_int_equal(unix_listener_bind(&l, kind, p->path, 0666, getgid(), &err), 0);
	umask(mask);
	assert_int_equal(lstat(p->path, &st), 0);
	assert_true(S_ISSOCK(st.st_mode));
	assert_int_equal(st.st_mode & 07777, 0666);
	assert_int_equal(st.st_gid, getgid());
	fd = connect_to(p->path, kind->type);
	assert_true(fd >= 0);
	close(fd);
	unix_listener_close(&l);
	assert_int_equal(access(p->path, F_OK), -1);
}

static void replaces_a_stale_socket(void **state)
{
	static const int types[] = { SOCK_STREAM, SOCK_SEQPACKET };
	struct place *p = *state;
	const struct unix_listener_kind *kind = p->kind;
	struct unix_listener l;
	struct dray_err err = DRAY_ERR_NULL;
	char dir[CM_DIR_BYTES + 8];

	snprintf(dir, sizeof(dir), "%s/run", p->dir);
	assert_int_equal(mkdir(dir, 0700), 0);
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(types); i++) {
		close(leave(p->path, types[i]));
		assert_int_equal(unix_listener_bind(&l, kind, p->path, 0600, (gid_t)-1, &err), 0);
		unix_listener_close(&l);
	}
}

static void does_not_touch_other_files(void **state)
{
	static const int types[] = { SOCK_STREAM, SOCK_SEQPACKET };
	struct place *p = *state;
	const struct unix_listener_kind *kind = p->kind;
	struct unix_listener l;
	char dir[CM_DIR_BYTES + 8];

	snprintf(dir, sizeof(dir), "%s/run", p->dir);
	assert_int_equal(mkdir(dir, 0700), 0);
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(types); i++) {
		struct dray_err err = DRAY_ERR_NULL;
		int fd = leave(p->path, types[i]);

		assert_true(unix_listener_bind(&l, kind, p->path, 0600, (gid_t)-1, &err) < 0);
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
			cm_file_write(p->dir, "run/x.sock", "dear data");
		assert_true(unix_listener_bind(&l, kind, p->path, 0600, (gid_t)-1, &err) < 0);
		assert_int_equal(err.code, DRAY_E_EXISTS);
		assert_int_equal(unlink(p->path), 0);
	}
}

static void removes_only_its_own_socket(void **state)
{
	struct place *p = *state;
	const struct unix_listener_kind *kind = p->kind;
	struct unix_listener l;
	struct dray_err err = DRAY_ERR_NULL;
	int fd;

	assert_int_equal(unix_listener_bind(&l, kind, p->path, 0600, (gid_t)-1, &err), 0);
	unlink(p->path);
	fd = leave(p->path, kind->type);
	unix_listener_close(&l);
	assert_int_equal(access(p->path, F_OK), 0);
	close(fd);
}

static void errors_have_the_reason(void **state)
{
	struct place *p = *state;
	const struct unix_listener_kind *kind = p->kind;
	struct unix_listener l;
	struct dray_err err = DRAY_ERR_NULL;
	char path[200], key[32];

	memset(path, 'x', sizeof(path));
	path[0] = '/';
	path[sizeof(path) - 1] = '\0';
	assert_int_equal(unix_listener_bind(&l, kind, path, 0600, (gid_t)-1, &err), -EINVAL);
	assert_int_equal(err.code, DRAY_E_INVALID);
	snprintf(key, sizeof(key), "%s.socket: ", kind->section);
	assert_ptr_equal(strstr(err.msg, key), err.msg);

	err = DRAY_ERR_NULL;
	assert_int_equal(unix_listener_bind(&l, kind, "", 0600, (gid_t)-1, &err), -EINVAL);

	err = DRAY_ERR_NULL;
	snprintf(path, sizeof(path), "%s/no/such/directory", p->dir);
	assert_true(unix_listener_bind(&l, kind, path, 0600, (gid_t)-1, &err) < 0);
	assert_non_null(strstr(err.msg, path));
	assert_non_null(strstr(err.msg, "; make its folder, or set"));
}

static void adopts_only_matching_sockets(void **state)
{
	struct place *p = *state;
	const struct unix_listener_kind *kind = p->kind;
	struct unix_listener l;
	struct dray_err err = DRAY_ERR_NULL;
	char dir[CM_DIR_BYTES + 8];
	int other = kind->type == SOCK_STREAM ? SOCK_SEQPACKET : SOCK_STREAM;
	int pair[2];

	snprintf(dir, sizeof(dir), "%s/run", p->dir);
	assert_int_equal(mkdir(dir, 0700), 0);
	assert_int_equal(unix_listener_adopt(&l, kind, leave(p->path, kind->type), &err), 0);
	assert_null(l.path);
	unix_listener_close(&l);
	/* systemd owns the file */
	assert_int_equal(access(p->path, F_OK), 0);
	unlink(p->path);

	assert_true(unix_listener_adopt(&l, kind, leave(p->path, other), &err) < 0);
	assert_int_equal(err.code, DRAY_E_INVALID);
	assert_non_null(strstr(err.msg, kind->section));
	assert_int_equal(l.fd, -1);

	assert_int_equal(socketpair(AF_UNIX, kind->type, 0, pair), 0);
	err = DRAY_ERR_NULL;
	assert_true(unix_listener_adopt(&l, kind, pair[0], &err) < 0);
	close(pair[1]);

	assert_int_equal(pipe(pair), 0);
	err = DRAY_ERR_NULL;
	assert_true(unix_listener_adopt(&l, kind, pair[0], &err) < 0);
	close(pair[1]);
}

static void groups_are_found(void **state)
{
	const struct place *p = *state;
	const struct unix_listener_kind *kind = p->kind;
	struct dray_err err = DRAY_ERR_NULL;
	gid_t gid = 77;
	char key[32];

	assert_int_equal(unix_listener_group_parse(kind->section, "", &gid, &err), 0);
	assert_int_equal(gid, (gid_t)-1);
	assert_int_equal(unix_listener_group_parse(kind->section, "1234", &gid, &err), 0);
	assert_int_equal(gid, 1234);
	assert_int_equal(unix_listener_group_parse(kind->section, "root", &gid, &err), 0);
	assert_int_equal(gid, 0);
	assert_true(unix_listener_group_parse(kind->section, "no such group", &gid, &err) < 0);
	assert_int_equal(err.code, DRAY_E_INVALID);
	assert_non_null(strstr(err.msg, "no such group"));
	snprintf(key, sizeof(key), "%s.group: ", kind->section);
	assert_ptr_equal(strstr(err.msg, key), err.msg);
	/* chown takes (gid_t)-1 as "no change" */
	err = DRAY_ERR_NULL;
	assert_true(unix_listener_group_parse(kind->section, "4294967295", &gid, &err) < 0);
	assert_true(unix_listener_group_parse(kind->section, "-1", &gid, &err) < 0);
}

/* As another user, who may not write anywhere. */
static void codes_give_the_reason(void **state)
{
	struct place *p = *state;
	const struct unix_listener_kind *kind = p->kind;
	struct unix_listener l;
	struct dray_err err = DRAY_ERR_NULL;
	char key[40];

	if (geteuid() == 0)
		assert_int_equal(seteuid(65534), 0);
	assert_true(unix_listener_bind(&l, kind, "/sock", 0600, (gid_t)-1, &err) < 0);
	if (getuid() == 0)
		assert_int_equal(seteuid(0), 0);
	assert_int_equal(err.code, DRAY_E_DENIED);
	assert_int_equal(l.fd, -1);
	snprintf(key, sizeof(key), "set %s.socket to", kind->section);
	assert_non_null(strstr(err.msg, key));
}

/* A user may give a file to its own groups only. */
static void a_group_of_others_is_refused(void **state)
{
	struct place *p = *state;
	const struct unix_listener_kind *kind = p->kind;
	struct unix_listener l;
	struct dray_err err = DRAY_ERR_NULL;
	char key[40];

	assert_int_equal(chmod(p->dir, 0777), 0);
	if (geteuid() == 0)
		assert_int_equal(seteuid(65534), 0);
	assert_true(unix_listener_bind(&l, kind, p->path, 0600, 12345, &err) < 0);
	if (getuid() == 0)
		assert_int_equal(seteuid(0), 0);
	assert_int_equal(err.code, DRAY_E_DENIED);
	assert_int_equal(access(p->path, F_OK), -1);
	snprintf(key, sizeof(key), "set %s.group to", kind->section);
	assert_non_null(strstr(err.msg, key));
}

/* clang-format off */
#define TEST(f) \
	{ #f " (stream)", f, set_up, tear_down, &kinds[0] }, \
	{ #f " (packets)", f, set_up, tear_down, &kinds[1] }
/* clang-format on */

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(binds_with_mode_and_directory),
		TEST(replaces_a_stale_socket),
		TEST(does_not_touch_other_files),
		TEST(removes_only_its_own_socket),
		TEST(errors_have_the_reason),
		TEST(adopts_only_matching_sockets),
		TEST(groups_are_found),
		TEST(codes_give_the_reason),
		TEST(a_group_of_others_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
