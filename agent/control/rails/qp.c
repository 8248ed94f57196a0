/* SPDX-License-Identifier: Apache-2.0 */
/* Queue pairs from RESET to RTS (IBTA 10.3.1, ibv_modify_qp(3)). */
#include <errno.h>
#include <string.h>

#include "agent/control/rails/internal.h"
#include "lib/random.h"

#define HOP_LIMIT 64
#define PSN_MASK 0xffffff
/* No request consumes a receive, so "receiver not ready" does not occur. */
#define RNR_TIMER 12
#define RNR_RETRY 7
/* The timeout is 4.096 us * 2^n (IBTA 11.2.4.2). */
#define TIMEOUT_UNIT_NS 4096
#define TIMEOUT_MAX 31

uint32_t qp_random_psn(void)
{
	return (uint32_t)dray_random() & PSN_MASK;
}

struct qp_address qp_address(const struct rail *rail, uint8_t gid_index)
{
	return (struct qp_address){ .port = (uint8_t)rail->port,
				    .gid_index = gid_index,
				    .pkey_index = rail->pkey_index };
}

int qp_create(const struct verbs *v, const struct device *d, struct ibv_cq *cq, uint32_t depth,
	      uint32_t inline_bytes, struct ibv_qp_cap *ret_cap, struct ibv_qp **ret)
{
	struct ibv_qp_init_attr a = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = dray_min(depth, (uint32_t)d->attr.max_qp_wr),
			 .max_recv_wr = 1,
			 .max_send_sge = dray_min((uint32_t)d->attr.max_sge, RDMA_SGES),
			 .max_recv_sge = 1,
			 .max_inline_data = inline_bytes },
		.qp_type = IBV_QPT_RC,
	};
	int r = v->create_qp(d->pd, &a, ret);

	/* a device states its limit of inline data only by refusing more */
	if ((r == -EINVAL || r == -ENOMEM) && inline_bytes) {
		a.cap.max_inline_data = 0;
		r = v->create_qp(d->pd, &a, ret);
	}
	*ret_cap = a.cap;
	return r;
}

int qp_to_init(const struct verbs *v, const struct qp_address *at, struct ibv_qp *qp, bool serves)
{
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_INIT,
		.pkey_index = at->pkey_index,
		.port_num = at->port,
		.qp_access_flags = serves ? IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE : 0,
	};

	return v->modify_qp(qp, &a,
			    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

static enum ibv_mtu mtu_of(uint32_t bytes)
{
	enum ibv_mtu m = IBV_MTU_256;

	while (m < IBV_MTU_4096 && 256u << (m - IBV_MTU_256 + 1) <= bytes)
		m++;
	return m;
}

int qp_to_rtr(const struct verbs *v, const struct qp_address *at, struct ibv_qp *qp,
	      const struct qp_end *remote, const struct dray_config *cfg)
{
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = mtu_of(remote->mtu),
		.dest_qp_num = remote->qpn,
		.rq_psn = remote->psn & PSN_MASK,
		.max_dest_rd_atomic = (uint8_t)remote->reads,
		.min_rnr_timer = RNR_TIMER,
		.ah_attr = { .is_global = 1,
			     .dlid = (uint16_t)remote->lid,
			     .sl = (uint8_t)cfg->rdma.sl,
			     .port_num = at->port,
			     .grh = { .sgid_index = at->gid_index,
				      .hop_limit = HOP_LIMIT,
				      .traffic_class = (uint8_t)cfg->rdma.traffic_class } },
	};

	memcpy(&a.ah_attr.grh.dgid, remote->gid, sizeof(remote->gid));
	return v->modify_qp(qp, &a,
			    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				    IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
				    IBV_QP_MIN_RNR_TIMER);
}

int qp_to_rts(const struct verbs *v, struct ibv_qp *qp, uint32_t psn, uint32_t reads,
	      const struct dray_config *cfg)
{
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_RTS,
		.sq_psn = psn & PSN_MASK,
		.max_rd_atomic = (uint8_t)reads,
		.retry_cnt = (uint8_t)cfg->rdma.retry_count,
		.rnr_retry = RNR_RETRY,
	};

	while (a.timeout < TIMEOUT_MAX && (int64_t)TIMEOUT_UNIT_NS << a.timeout < cfg->rdma.timeout)
		a.timeout++;
	return v->modify_qp(qp, &a,
			    IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC |
				    IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT);
}
