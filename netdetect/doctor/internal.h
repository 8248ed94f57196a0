/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DRAY_NETDETECT_DOCTOR_INTERNAL_H
#define DRAY_NETDETECT_DOCTOR_INTERNAL_H

#include "netdetect/doctor/doctor.h"

struct examination {
	const struct nd_source *s;
	const struct nd_scan *scan;
	const struct nd_doctor_options *options;
	struct nd_findings *out;
	const char *check; /* name of the one that runs */
	bool failed;       /* no memory */
};

/* fix "": nothing to do. */
__attribute__((format(printf, 5, 6))) void nd_finding(struct examination *x,
						      enum nd_severity severity, const char *about,
						      const char *fix, const char *fmt, ...);

/* What the process itself may do is no matter of a recorded machine: says so, and true. */
bool nd_skipped(struct examination *x);

/* doctor_device.c: of RDMA devices and ports */
void nd_check_uverbs(struct examination *x);
void nd_check_namespace(struct examination *x);
void nd_check_ports(struct examination *x);
void nd_check_gids(struct examination *x);
void nd_check_mtu(struct examination *x);
void nd_check_pkeys(struct examination *x);

/* doctor_gpu.c: of GPUs and their driver */
void nd_check_gpus(struct examination *x);
void nd_check_gpu_nodes(struct examination *x);
void nd_check_gpu_driver(struct examination *x);
void nd_check_gpu_direct(struct examination *x);
void nd_check_gpu_handles(struct examination *x);

/* doctor_host.c: of the process, its limits and the kernel */
void nd_check_memlock(struct examination *x);
void nd_check_capabilities(struct examination *x);
void nd_check_shm(struct examination *x);
void nd_check_huge_pages(struct examination *x);
void nd_check_kernel(struct examination *x);
void nd_check_address(struct examination *x);

#endif
