/* SPDX-License-Identifier: Apache-2.0 */
/* Checks this machine and this process for faults, and says how to fix each. */
#pragma once

#include "netdetect/scan.h"

enum nd_severity { ND_OK, ND_INFO, ND_WARNING, ND_ERROR };
const char *nd_severity_name(enum nd_severity s);

struct nd_finding {
	enum nd_severity severity;
	char check[32]; /* stable name: "memlock", "uverbs", "pkey", ... */
	char about[80]; /* "mlx5_0/1", "" for the machine */
	char text[240]; /* the state that was found */
	char fix[240];  /* what to do; "" if nothing */
};

struct nd_findings {
	struct nd_finding *v; /* in the order of the checks */
	size_t n;
};

/*
 * Every check has a finding, ND_OK if all is well. register_bytes: memory to be registered, to compare with the
 * memlock limit; 0: unknown. 0 or -ENOMEM. Any thread; blocks.
 */
int nd_doctor(const struct nd_source *s, const struct nd_scan *scan, uint64_t register_bytes,
	      struct nd_findings *ret);
void nd_findings_deinit(struct nd_findings *f);

/* Adds the finding of a check elsewhere; fix "": nothing to do. False: no memory, and f is unchanged. */
bool nd_findings_add(struct nd_findings *f, enum nd_severity severity, const char *check,
		     const char *about, const char *fix, const char *fmt, ...)
	__attribute__((format(printf, 6, 7)));
