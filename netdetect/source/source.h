/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where facts come from: the kernel, or a recorded machine. A recorded machine is a directory with
 *   sys/, proc/, dev/        as on the machine; symbolic links relative
 *   netlink/NAME             the messages of a dump, one after the other, as the kernel sends them
 * NAME is one of ND_RECORD_*. What is not there was empty.
 */
#ifndef DRAY_NETDETECT_SOURCE_SOURCE_H
#define DRAY_NETDETECT_SOURCE_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ND_RECORD_LINK "link"           /* RTM_GETLINK */
#define ND_RECORD_ADDR "addr"           /* RTM_GETADDR, both families */
#define ND_RECORD_ROUTE "route"         /* RTM_GETROUTE, both families */
#define ND_RECORD_RDMA_DEV "rdma_dev"   /* RDMA_NLDEV_CMD_GET */
#define ND_RECORD_RDMA_PORT "rdma_port" /* RDMA_NLDEV_CMD_PORT_GET of every device */
#define ND_RECORD_RDMA_RES "rdma_res"   /* RDMA_NLDEV_CMD_RES_GET */
#define ND_RECORD_RDMA_SYS "rdma_sys"   /* RDMA_NLDEV_CMD_SYS_GET */
#define ND_RECORD_LISTEN "listen" /* SOCK_DIAG_BY_FAMILY, TCP in state LISTEN, both families */

#define ND_PATH_MAX 1024

struct nd_source {
	char root[ND_PATH_MAX / 2]; /* "": the kernel */
};

#define ND_SOURCE_LIVE ((struct nd_source){ "" })

static inline bool nd_is_live(const struct nd_source *s)
{
	return !s->root[0];
}

/* dir: a recorded machine. 0, -ENOTDIR or -ENOENT where there is no sys/ in it, -ENAMETOOLONG. */
int nd_source_open(struct nd_source *s, const char *dir);

/* The path, below the root; fmt begins with a slash. Returns ret. */
const char *nd_path(const struct nd_source *s, char ret[ND_PATH_MAX], const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/*
 * The first n - 1 bytes of a file, with the trailing newline and blanks taken off and a NUL behind.
 * Bytes read, or -errno (buf is then ""). Blocking on sysfs alone.
 */
int nd_read_text(const struct nd_source *s, char *buf, size_t n, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* A number, decimal or with 0x. 0 or -errno; -EINVAL where there is none. */
int nd_read_u64(const struct nd_source *s, uint64_t *ret, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* The same with a sign, decimal. *ret stays as it is on error. */
int nd_read_int(const struct nd_source *s, int *ret, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

#endif
