/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs that may block, which only threads of jobs call, in a table that tests replace. They return 0 or -errno whatever
 * the manual page of each says. The result of the releasing ones, except destroy_qp, means nothing: the kernel releases
 * what is left with the context. The fast verbs (post, poll, request an event) belong to the workers.
 */
#pragma once

#include <infiniband/verbs.h>

struct verbs {
	int (*open)(const char *device, struct ibv_context **ret);
	int (*close)(struct ibv_context *context);
	int (*query_device)(struct ibv_context *context, struct ibv_device_attr *ret);
	int (*alloc_pd)(struct ibv_context *context, struct ibv_pd **ret);
	int (*dealloc_pd)(struct ibv_pd *pd);
	/* fd -1: memory at p; else a DMA-BUF from `offset` on. iova: the address that work requests use. */
	int (*reg_mr)(struct ibv_pd *pd, void *p, int fd, uint64_t offset, uint64_t bytes,
		      uint64_t iova, unsigned access, struct ibv_mr **ret);
	int (*dereg_mr)(struct ibv_mr *mr);
	int (*create_channel)(struct ibv_context *context, struct ibv_comp_channel **ret);
	int (*destroy_channel)(struct ibv_comp_channel *channel);
	/* channel may be NULL */
	int (*create_cq)(struct ibv_context *context, int entries, struct ibv_comp_channel *channel,
			 struct ibv_cq **ret);
	int (*resize_cq)(struct ibv_cq *cq, int entries);
	int (*destroy_cq)(struct ibv_cq *cq);
	int (*create_qp)(struct ibv_pd *pd, struct ibv_qp_init_attr *attr, struct ibv_qp **ret);
	int (*modify_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
	int (*destroy_qp)(struct ibv_qp *qp);
};

extern const struct verbs verbs_real;
