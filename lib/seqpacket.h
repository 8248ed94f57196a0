/* SPDX-License-Identifier: Apache-2.0 */
/* Sends and receives packets of a SOCK_SEQPACKET socket with descriptors. Never blocks, never raises SIGPIPE. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define DRAY_FDS_MAX 253 /* SCM_MAX_FD of the kernel */

struct dray_fds {
	int fd[DRAY_FDS_MAX];
	unsigned n;
};

/* Closes the remaining descriptors and empties the set. */
void dray_fds_close(struct dray_fds *f);

/*
 * Bytes received (0 at end of file), or -errno. Descriptors are close-on-exec and owned by ret_fds
 * (whose former content is overwritten). *ret_truncated_data: the packet was larger than cap.
 * *ret_truncated_fds: the kernel dropped descriptors (MSG_CTRUNC); ret_fds has the others.
 */
ssize_t dray_seqpacket_recv(int sock, void *buf, size_t cap, struct dray_fds *ret_fds,
			    bool *ret_truncated_data, bool *ret_truncated_fds);

/* 0 or -errno; -EAGAIN if the socket is full. The caller keeps the descriptors. */
int dray_seqpacket_send(int sock, const void *buf, size_t n, const int *fds, unsigned n_fds);
