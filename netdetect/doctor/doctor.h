/* SPDX-License-Identifier: Apache-2.0 */
/* What is wrong with this place, and what to do about it. */
#ifndef DRAY_NETDETECT_DOCTOR_DOCTOR_H
#define DRAY_NETDETECT_DOCTOR_DOCTOR_H

#include "netdetect/scan.h"

enum nd_severity { ND_OK, ND_INFO, ND_WARNING, ND_ERROR };
const char *nd_severity_name(enum nd_severity s);

struct nd_finding {
	enum nd_severity severity;
	char check[32]; /* stable name: "memlock", "uverbs", "pkey", ... */
	char about[80]; /* "mlx5_0/1", "" for the whole */
	char text[240]; /* what is */
	char fix[240];  /* what to do; "" where nothing */
};

struct nd_findings {
	struct nd_finding *v; /* in the order of the checks */
	size_t n;
};

/* What is to be registered, to hold against the memlock limit; 0: not known. */
struct nd_doctor_options {
	uint64_t register_bytes;
};

/* Every check says something, also where all is well (ND_OK). 0 or -ENOMEM. Any thread, blocking. */
int nd_doctor(const struct nd_source *s, const struct nd_scan *scan,
	      const struct nd_doctor_options *options, struct nd_findings *ret);
void nd_findings_deinit(struct nd_findings *f);

/* One more, of somebody else's check; fix "": nothing to do. False: no memory, and nothing has changed. */
bool nd_findings_add(struct nd_findings *f, enum nd_severity severity, const char *check,
		     const char *about, const char *fix, const char *fmt, ...)
	__attribute__((format(printf, 6, 7)));

#endif
