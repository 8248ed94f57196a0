/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An importing agent that breaks the rules: writes eight bytes with a key that the owner gave to an agent, through the owner's
 * queue pair for that agent. The owner's answer goes to that agent's queue pair, so this program learns nothing and gives up.
 *
 *     rogue DEVICE OWN-ADDRESS OWNER-ADDRESS OWNER-QPN EXPECTED-PSN REMOTE-ADDRESS RKEY TEXT
 */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int ok, const char *what)
{
	if (ok)
		return;
	perror(what);
	exit(1);
}

static union ibv_gid gid_of(const char *address)
{
	union ibv_gid g = { .raw = { [10] = 0xff, [11] = 0xff } };

	check(inet_pton(AF_INET, address, g.raw + 12) == 1, address);
	return g;
}

static struct ibv_context *device_open(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	for (int i = 0; list && list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			return ibv_open_device(list[i]);
	return NULL;
}

static uint8_t gid_index(struct ibv_context *c, union ibv_gid want)
{
	union ibv_gid g;

	for (int i = 0; i < 16; i++)
		if (ibv_query_gid(c, 1, i, &g) == 0 && !memcmp(&g, &want, sizeof(g)))
			return (uint8_t)i;
	check(0, "the device has no such GID");
	return 0;
}

static void connect_to(struct ibv_qp *qp, char **argv, struct ibv_context *c)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	check(!ibv_modify_qp(qp, &a,
			     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
	      "INIT");
	a = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = (uint32_t)strtoul(argv[4], NULL, 0),
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1,
			     .port_num = 1,
			     .grh = { .dgid = gid_of(argv[3]),
				      .sgid_index = gid_index(c, gid_of(argv[2])),
				      .hop_limit = 64 } },
	};
	check(!ibv_modify_qp(qp, &a,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				     IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
				     IBV_QP_MIN_RNR_TIMER),
	      "RTR");
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS,
				  .sq_psn = (uint32_t)strtoul(argv[5], NULL, 0),
				  .max_rd_atomic = 1,
				  .timeout = 14 };
	check(!ibv_modify_qp(qp, &a,
			     IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				     IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC),
	      "RTS");
}

int main(int argc, char **argv)
{
	static char bytes[8];
	struct ibv_context *c = argc == 9 ? device_open(argv[1]) : NULL;
	struct ibv_pd *pd = c ? ibv_alloc_pd(c) : NULL;
	struct ibv_cq *cq = c ? ibv_create_cq(c, 4, NULL, NULL, 0) : NULL;
	struct ibv_mr *mr = pd ? ibv_reg_mr(pd, bytes, sizeof(bytes), IBV_ACCESS_LOCAL_WRITE) :
				 NULL;
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 }
	};
	struct ibv_qp *qp = mr && cq ? ibv_create_qp(pd, &init) : NULL;
	struct ibv_send_wr *bad;
	struct ibv_wc wc;
	struct ibv_sge sge;
	struct ibv_send_wr wr = { .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED };

	check(qp != NULL, "queue pair");
	memcpy(bytes, argv[8], strnlen(argv[8], sizeof(bytes)));
	sge = (struct ibv_sge){ (uintptr_t)bytes, sizeof(bytes), mr->lkey };
	wr.wr.rdma.remote_addr = strtoull(argv[6], NULL, 0);
	wr.wr.rdma.rkey = (uint32_t)strtoul(argv[7], NULL, 0);
	connect_to(qp, argv, c);
	check(!ibv_post_send(qp, &wr, &bad), "post");
	while (ibv_poll_cq(cq, 1, &wc) == 0)
		continue;
	printf("%s\n", ibv_wc_status_str(wc.status));
	return 0;
}
