/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/rails/verbs.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

/* For verbs that return a pointer and set errno. Some providers do not set it. */
static int failed(void)
{
	return errno ? -errno : -EIO;
}

/* For verbs that return 0 or a positive errno. Some providers return -1. */
static int status(int r)
{
	return r > 0 ? -r : r < 0 ? failed() : 0;
}

static int nonblocking(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ? -errno : 0;
}

static int real_open(const char *device, struct ibv_context **ret)
{
	struct ibv_device **list;
	struct ibv_context *context = NULL;
	int n, r = -ENODEV;

	list = ibv_get_device_list(&n);
	if (!list)
		return failed();
	for (int i = 0; i < n; i++) {
		if (strcmp(ibv_get_device_name(list[i]), device) != 0)
			continue;
		errno = 0;
		context = ibv_open_device(list[i]);
		r = context ? nonblocking(context->async_fd) : failed();
	}
	ibv_free_device_list(list);
	if (r < 0 && context)
		ibv_close_device(context);
	if (r == 0)
		*ret = context;
	return r;
}

static int real_query_device(struct ibv_context *context, struct ibv_device_attr *ret)
{
	return status(ibv_query_device(context, ret));
}

static int real_alloc_pd(struct ibv_context *context, struct ibv_pd **ret)
{
	errno = 0;
	*ret = ibv_alloc_pd(context);
	return *ret ? 0 : failed();
}

static int real_reg_mr(struct ibv_pd *pd, void *p, int fd, uint64_t offset, uint64_t bytes,
		       uint64_t iova, unsigned access, struct ibv_mr **ret)
{
	errno = 0;
	*ret = fd < 0 ? ibv_reg_mr_iova2(pd, p, bytes, iova, access) :
			ibv_reg_dmabuf_mr(pd, offset, bytes, iova, fd, (int)access);
	return *ret ? 0 : failed();
}

static int real_create_channel(struct ibv_context *context, struct ibv_comp_channel **ret)
{
	int r;

	errno = 0;
	*ret = ibv_create_comp_channel(context);
	if (!*ret)
		return failed();
	r = nonblocking((*ret)->fd);
	if (r < 0)
		ibv_destroy_comp_channel(*ret);
	return r;
}

static int real_create_cq(struct ibv_context *context, int entries,
			  struct ibv_comp_channel *channel, struct ibv_cq **ret)
{
	errno = 0;
	*ret = ibv_create_cq(context, entries, NULL, channel, 0);
	return *ret ? 0 : failed();
}

static int real_resize_cq(struct ibv_cq *cq, int entries)
{
	return status(ibv_resize_cq(cq, entries));
}

static int real_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr, struct ibv_qp **ret)
{
	errno = 0;
	*ret = ibv_create_qp(pd, attr);
	return *ret ? 0 : failed();
}

static int real_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	return status(ibv_modify_qp(qp, attr, mask));
}

static int real_destroy_qp(struct ibv_qp *qp)
{
	return status(ibv_destroy_qp(qp));
}

const struct verbs verbs_real = {
	.open = real_open,
	.close = ibv_close_device,
	.query_device = real_query_device,
	.alloc_pd = real_alloc_pd,
	.dealloc_pd = ibv_dealloc_pd,
	.reg_mr = real_reg_mr,
	.dereg_mr = ibv_dereg_mr,
	.create_channel = real_create_channel,
	.destroy_channel = ibv_destroy_comp_channel,
	.create_cq = real_create_cq,
	.resize_cq = real_resize_cq,
	.destroy_cq = ibv_destroy_cq,
	.create_qp = real_create_qp,
	.modify_qp = real_modify_qp,
	.destroy_qp = real_destroy_qp,
};
