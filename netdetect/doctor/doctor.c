/* SPDX-License-Identifier: Apache-2.0 */
#include "netdetect/doctor/doctor.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "lib/cleanup.h"
#include "netdetect/source/attr.h"
#include "netdetect/doctor/internal.h"

static const struct {
	const char *name;
	void (*fn)(struct examination *x);
} checks[] = {
	{ "uverbs", nd_check_uverbs },
	{ "namespace", nd_check_namespace },
	{ "port", nd_check_ports },
	{ "gid", nd_check_gids },
	{ "mtu", nd_check_mtu },
	{ "pkey", nd_check_pkeys },
	{ "memlock", nd_check_memlock },
	{ "capabilities", nd_check_capabilities },
	{ "gpu", nd_check_gpus },
	{ "gpu-nodes", nd_check_gpu_nodes },
	{ "gpu-driver", nd_check_gpu_driver },
	{ "gpu-direct", nd_check_gpu_direct },
	{ "gpu-handles", nd_check_gpu_handles },
	{ "shm", nd_check_shm },
	{ "huge-pages", nd_check_huge_pages },
	{ "address", nd_check_address },
	{ "kernel", nd_check_kernel },
};

const char *nd_severity_name(enum nd_severity s)
{
	static const char *const names[] = { "ok", "info", "warning", "error" };

	return s < DRAY_ARRAY_SIZE(names) ? names[s] : "error";
}

__attribute__((format(printf, 6, 0))) static bool add(struct nd_findings *out,
						      enum nd_severity severity, const char *check,
						      const char *about, const char *fix,
						      const char *fmt, va_list args)
{
	struct nd_finding *f = nd_grow((void **)&out->v, &out->n, sizeof(*f));

	if (!f)
		return false;
	*f = (struct nd_finding){ .severity = severity };
	snprintf(f->check, sizeof(f->check), "%s", check);
	snprintf(f->about, sizeof(f->about), "%s", about);
	snprintf(f->fix, sizeof(f->fix), "%s", fix);
	vsnprintf(f->text, sizeof(f->text), fmt, args);
	return true;
}

bool nd_findings_add(struct nd_findings *f, enum nd_severity severity, const char *check,
		     const char *about, const char *fix, const char *fmt, ...)
{
	va_list args;
	bool added;

	va_start(args, fmt);
	added = add(f, severity, check, about, fix, fmt, args);
	va_end(args);
	return added;
}

void nd_finding(struct examination *x, enum nd_severity severity, const char *about,
		const char *fix, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	if (!add(x->out, severity, x->check, about, fix, fmt, args))
		x->failed = true;
	va_end(args);
}

int nd_doctor(const struct nd_source *s, const struct nd_scan *scan,
	      const struct nd_doctor_options *options, struct nd_findings *ret)
{
	static const struct nd_doctor_options none;
	struct nd_findings found = { 0 };
	struct examination x = {
		.s = s, .scan = scan, .options = options ? options : &none, .out = &found
	};

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(checks); i++) {
		x.check = checks[i].name;
		checks[i].fn(&x);
	}
	if (x.failed) {
		nd_findings_deinit(&found);
		return -ENOMEM;
	}
	*ret = found;
	return 0;
}

void nd_findings_deinit(struct nd_findings *f)
{
	free(f->v);
	*f = (struct nd_findings){ 0 };
}
