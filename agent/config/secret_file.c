/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/config/secret_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "lib/cleanup.h"
#include "schema/gen/errors.h"

static int check_file(int fd, const char *setting, const char *path, const char *what,
		      gid_t *ret_readers, struct dray_err *reterr)
{
	mode_t closed = S_IRWXG | S_IRWXO;
	struct stat st;

	if (fstat(fd, &st) < 0)
		return dray_err_set(reterr, -errno, DRAY_E_IO, "%s %s: %s", setting, path,
				    dray_errno_text(errno));
	if (!S_ISREG(st.st_mode))
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID, "%s %s is not a regular file",
				    setting, path);
	if (st.st_uid != 0 && st.st_uid != geteuid())
		return dray_err_set(reterr, -EACCES, DRAY_E_DENIED,
				    "%s belongs to uid %u, which could change it; run: chown %u %s",
				    setting, st.st_uid, geteuid(), path);
	/* Kubernetes mounts a secret as a file of root that root's group, or the pod's fsGroup, may read. */
	if (st.st_uid == 0)
		closed &= ~(mode_t)S_IRGRP;
	if (st.st_mode & closed)
		return dray_err_set(
			reterr, -EPERM, DRAY_E_DENIED,
			"%s has mode %04o, %s is for its owner alone; run: chmod 600 %s", setting,
			st.st_mode & 07777, what, path);
	if (st.st_mode & S_IRGRP && geteuid() == 0)
		*ret_readers = st.st_gid;
	return 0;
}

int secret_file_read(const char *setting, const char *path, const char *what, uint8_t *buf,
		     size_t cap, size_t *ret_n, gid_t *ret_readers, struct dray_err *reterr)
{
	dray_auto_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	ssize_t n;
	int r;

	if (fd < 0 && errno == EACCES)
		return dray_err_set(
			reterr, -EACCES, DRAY_E_IO,
			"%s %s cannot be opened by this agent; run: chown %u %s, and let it enter the folder",
			setting, path, geteuid(), path);
	if (fd < 0)
		return dray_err_set(reterr, -errno, errno == ENOENT ? DRAY_E_NOT_FOUND : DRAY_E_IO,
				    "%s %s: %s", setting, path, dray_errno_text(errno));
	*ret_readers = 0;
	r = check_file(fd, setting, path, what, ret_readers, reterr);
	if (r < 0)
		return r;
	/* a regular file, so one call reads all of it */
	n = read(fd, buf, cap);
	if (n < 0)
		return dray_err_set(reterr, -errno, DRAY_E_IO, "%s %s: %s", setting, path,
				    dray_errno_text(errno));
	*ret_n = (size_t)n;
	return 0;
}
