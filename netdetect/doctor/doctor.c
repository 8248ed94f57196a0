/* SPDX-License-Identifier: Apache-2.0 */
#include "netdetect/doctor/doctor.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "netdetect/doctor/internal.h"
#include "lib/array.h"

static const struct {
	const char *name;
	void (*fn)(struct examination *x);
} checks[] = {
#define CHECK(name, function) { name, nd_check_##function },
	ND_CHECKS(CHECK)
#undef CHECK
};

const char *nd_severity_name(enum nd_severity s)
{
	static const char *const names[] = { "ok", "info", "warning", "error" };

	return s < DRAY_ARRAY_SIZE(names) ? names[s] : "error";
}

bool nd_findings_add(struct nd_findings *f, enum nd_severity severity, const char *check,
		     const char *about, const char *fix, const char *fmt, ...)
{
	struct nd_finding x = { .severity = severity };
	va_list args;

	snprintf(x.check, sizeof(x.check), "%s", check);
	snprintf(x.about, sizeof(x.about), "%s", about);
	snprintf(x.fix, sizeof(x.fix), "%s", fix);
	va_start(args, fmt);
	vsnprintf(x.text, sizeof(x.text), fmt, args);
	va_end(args);
	return DRAY_APPEND(f->v, f->n, x) == 0;
}

int nd_doctor(const struct nd_source *s, const struct nd_scan *scan, uint64_t register_bytes,
	      struct nd_findings *ret)
{
	struct nd_findings found = { 0 };
	struct examination x = {
		.s = s, .scan = scan, .register_bytes = register_bytes, .out = &found
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
