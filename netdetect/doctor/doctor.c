/* SPDX-License-Identifier: Apache-2.0 */
#include "netdetect/doctor/doctor.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "netdetect/doctor/internal.h"
#include "netdetect/source/array.h"

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

__attribute__((format(printf, 6, 0))) static bool add(struct nd_findings *out,
						      enum nd_severity severity, const char *check,
						      const char *about, const char *fix,
						      const char *fmt, va_list args)
{
	struct nd_finding f = { .severity = severity };

	snprintf(f.check, sizeof(f.check), "%s", check);
	snprintf(f.about, sizeof(f.about), "%s", about);
	snprintf(f.fix, sizeof(f.fix), "%s", fix);
	vsnprintf(f.text, sizeof(f.text), fmt, args);
	return ND_APPEND(out->v, out->n, f) == 0;
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
