/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/seqpacket.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "lib/cleanup.h"

/* Descriptors, and room for credentials and a security label. */
#define CONTROL_BYTES (CMSG_SPACE(sizeof(int) * DRAY_FDS_MAX) + 512)

void dray_fds_close(struct dray_fds *f)
{
	for (unsigned i = 0; i < f->n; i++)
		f->fd[i] = dray_close(f->fd[i]);
	f->n = 0;
}

/* False if some did not fit and were closed. */
static bool fds_add(struct dray_fds *f, const struct cmsghdr *c)
{
	size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
	const unsigned char *data = CMSG_DATA(c);
	bool ok = true;

	for (size_t i = 0; i < n; i++) {
		int fd;

		memcpy(&fd, data + i * sizeof(fd), sizeof(fd));
		if (f->n < DRAY_FDS_MAX) {
			f->fd[f->n++] = fd;
		} else {
			dray_close(fd);
			ok = false;
		}
	}
	return ok;
}

ssize_t dray_seqpacket_recv(int sock, void *buf, size_t cap, struct dray_fds *ret_fds,
			    bool *ret_truncated_data, bool *ret_truncated_fds)
{
	union {
		struct cmsghdr align;
		unsigned char bytes[CONTROL_BYTES];
	} control;
	struct iovec iov = { buf, cap };
	struct msghdr m = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control.bytes),
	};
	ssize_t n;

	do
		n = recvmsg(sock, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	ret_fds->n = 0;
	*ret_truncated_data = *ret_truncated_fds = false;
	if (n < 0)
		return -errno;
	*ret_truncated_data = m.msg_flags & MSG_TRUNC;
	*ret_truncated_fds = m.msg_flags & MSG_CTRUNC;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c))
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
		    !fds_add(ret_fds, c))
			*ret_truncated_fds = true;
	return n;
}

int dray_seqpacket_send(int sock, const void *buf, size_t n, const int *fds, unsigned n_fds)
{
	union {
		struct cmsghdr align;
		unsigned char bytes[CMSG_SPACE(sizeof(int) * DRAY_FDS_MAX)];
	} control;
	/* sendmsg does not write there; struct iovec has no const form */
	struct iovec iov = { .iov_len = n };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };
	ssize_t r;

	if (n_fds > DRAY_FDS_MAX)
		return -EINVAL;
	memcpy(&iov.iov_base, &buf, sizeof(buf));
	if (n_fds) {
		/* padding after the last descriptor goes to the kernel too */
		memset(&control, 0, CMSG_SPACE(sizeof(int) * n_fds));
		control.align.cmsg_level = SOL_SOCKET;
		control.align.cmsg_type = SCM_RIGHTS;
		control.align.cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
		memcpy(CMSG_DATA(&control.align), fds, sizeof(int) * n_fds);
		m.msg_control = control.bytes;
		m.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
	}
	do
		r = sendmsg(sock, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
	while (r < 0 && errno == EINTR);
	return r < 0 ? -errno : 0;
}
