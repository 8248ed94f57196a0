/* SPDX-License-Identifier: Apache-2.0 */
/* doctor: one line for each finding. Exits with 0, 1 for warnings, or 2 for errors. */
#include "netdetect/doctor/doctor.h"

#include "ctl/check/check.h"
#include "ctl/detect/detect.h"
#include "ctl/render/json.h"
#include "ctl/render/table.h"

#define SCHEMA_VERSION 1

static void print_text(struct ctl *c, const struct nd_findings *f)
{
	static const enum ctl_mood moods[] = { [ND_OK] = CTL_MOOD_GOOD,
					       [ND_INFO] = CTL_MOOD_NONE,
					       [ND_WARNING] = CTL_MOOD_BUSY,
					       [ND_ERROR] = CTL_MOOD_BAD };

	for (size_t i = 0; i < f->n; i++) {
		const struct nd_finding *x = &f->v[i];

		ctl_mood_print(c->out, nd_severity_name(x->severity), moods[x->severity], c->color);
		fprintf(c->out, "\t%s%s%s: %s%s%s\n", x->check, *x->about ? " " : "", x->about,
			x->text, *x->fix ? "; fix: " : "", x->fix);
	}
}

static void print_plain(struct ctl *c, const struct nd_findings *f)
{
	for (size_t i = 0; i < f->n; i++)
		fprintf(c->out, "%s\t%s\t%s\t%s\t%s\n", nd_severity_name(f->v[i].severity),
			f->v[i].check, f->v[i].about, f->v[i].text, f->v[i].fix);
}

static void print_json(struct ctl *c, const struct nd_findings *f)
{
	struct ctl_json j = CTL_JSON(c->out);

	ctl_json_object(&j, NULL);
	ctl_json_add(&j, J_UINT("schema", SCHEMA_VERSION));
	ctl_json_array(&j, "findings");
	for (size_t i = 0; i < f->n; i++)
		ctl_json_record(&j, NULL, J_TEXT("severity", nd_severity_name(f->v[i].severity)),
				J_TEXT("check", f->v[i].check), J_TEXT("about", f->v[i].about),
				J_TEXT("text", f->v[i].text), J_TEXT("fix", f->v[i].fix));
	ctl_json_end(&j);
	ctl_json_end(&j);
}

static int worst(const struct nd_findings *f)
{
	int status = 0;

	for (size_t i = 0; i < f->n; i++) {
		if (f->v[i].severity == ND_ERROR)
			return 2;
		if (f->v[i].severity == ND_WARNING)
			status = 1;
	}
	return status;
}

/* The exit status, or -1. */
static int print(struct ctl *c, const struct nd_findings *f)
{
	if (c->format == CTL_JSON)
		print_json(c, f);
	else if (c->format == CTL_PLAIN)
		print_plain(c, f);
	else
		print_text(c, f);
	/* ctl_run() flushes for the status 0 only. */
	return ctl_flush(c) < 0 ? -1 : worst(f);
}

/* Of the worst ones, the first. */
static void print_first(struct ctl *c, const struct nd_findings *f, int status)
{
	enum nd_severity severity = status == 2 ? ND_ERROR : ND_WARNING;
	const struct nd_finding *x = f->v;

	if (!status) {
		fputs("nothing is wrong\n", c->out);
		return;
	}
	while (x->severity != severity)
		x++;
	fprintf(c->out, "wrong: %s %s: %s; fix: %s\n", x->check, x->about, x->text, x->fix);
}

static int examine_peer(struct ctl *c)
{
	struct nd_findings found = { .v = NULL };
	int status = ctl_check_peer(c, c->values[CTL_OPTION_PEER], &found);

	if (!status) {
		status = print(c, &found);
		if (status >= 0 && c->format == CTL_TEXT)
			print_first(c, &found, status);
	}
	nd_findings_deinit(&found);
	return status < 0 || ctl_flush(c) < 0 ? -1 : status;
}

/* Nothing else can be checked then. */
static int report_failed_scan(struct ctl *c, int error, const char *why)
{
	struct nd_findings found = { .v = NULL };
	int status;

	if (!nd_findings_add(&found, ND_ERROR, "scan", "", nd_scan_remedy(error), "%s", why))
		return ctl_no_memory(c);
	status = print(c, &found);
	nd_findings_deinit(&found);
	return status;
}

static int examine(struct ctl *c, const struct ctl_detect *d)
{
	uint64_t register_bytes = (uint64_t)c->numbers[CTL_OPTION_REGISTER];
	dray_auto(nd_scan_free) struct nd_scan *scan = NULL;
	struct dray_err err = DRAY_ERR_NULL;
	struct nd_findings found;
	struct ctl_cuda cuda;
	int status = nd_scan_run(&d->source, &d->options, &scan, &err);

	if (status < 0)
		return report_failed_scan(c, status, err.msg);
	if (nd_doctor(&d->source, scan, register_bytes, &found) < 0)
		return ctl_no_memory(c);
	ctl_cuda_look(&cuda, c->values[CTL_OPTION_GPU_PLUGIN], scan, nd_is_live(&d->source));
	if (!ctl_cuda_check(&cuda, &d->source, &found) ||
	    (nd_is_live(&d->source) && !ctl_check_directory(c, &found))) {
		nd_findings_deinit(&found);
		return ctl_no_memory(c);
	}
	status = print(c, &found);
	nd_findings_deinit(&found);
	return status;
}

int ctl_doctor(struct ctl *c)
{
	struct ctl_detect d;
	int ret;

	if (c->values[CTL_OPTION_PEER])
		return examine_peer(c);
	ret = ctl_detect_open(&d, c);
	if (!ret)
		ret = examine(c, &d);
	ctl_detect_close(&d);
	return ret;
}
