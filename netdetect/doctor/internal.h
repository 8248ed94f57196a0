/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "netdetect/doctor/doctor.h"

struct examination {
	const struct nd_source *s;
	const struct nd_scan *scan;
	uint64_t register_bytes;
	struct nd_findings *out;
	const char *check; /* name of the running check */
	bool failed;       /* no memory */
};

/* Adds a finding of the running check; fix "": nothing to do. */
#define nd_finding(x, severity, about, fix, ...) \
	((x)->failed |=                          \
	 !nd_findings_add((x)->out, (severity), (x)->check, (about), (fix), __VA_ARGS__))

/* An ND_OK finding about the machine. */
#define nd_finding_ok(x, ...) nd_finding((x), ND_OK, "", "", __VA_ARGS__)

/* True, with a finding, for a recorded machine: it has no process whose rights could be checked. */
bool nd_skipped(struct examination *x);

/* Name and function of each check, in the order of the findings. */
#define ND_CHECKS(X)                    \
	X("uverbs", uverbs)             \
	X("namespace", namespace)       \
	X("port", ports)                \
	X("gid", gids)                  \
	X("mtu", mtu)                   \
	X("pkey", pkeys)                \
	X("memlock", memlock)           \
	X("capabilities", capabilities) \
	X("gpu", gpus)                  \
	X("gpu-nodes", gpu_nodes)       \
	X("gpu-driver", gpu_driver)     \
	X("gpu-direct", gpu_direct)     \
	X("gpu-handles", gpu_handles)   \
	X("shm", shm)                   \
	X("huge-pages", huge_pages)     \
	X("address", address)           \
	X("kernel", kernel)

#define ND_CHECK_DECLARE(name, function) void nd_check_##function(struct examination *x);
ND_CHECKS(ND_CHECK_DECLARE)
#undef ND_CHECK_DECLARE
