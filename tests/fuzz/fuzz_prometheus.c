/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages of a Mooncake master, or of a program that claims to be one: metrics, details, and objects. Samples must be well-formed, lists
 * must be sorted segments, and a refusal must have a reason.
 */
#include <stdlib.h>
#include <string.h>

#include "agent/placement/master/object.h"
#include "agent/placement/master/page.h"
#include "agent/placement/master/prometheus.h"
#include "lib/addr.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool ok)
{
	if (!ok)
		abort();
}

static int on_sample(void *arg, const struct prometheus_sample *s)
{
	check(*s->name && s->n_labels <= PROMETHEUS_LABELS_MAX);
	for (unsigned i = 0; i < s->n_labels; i++) {
		check(*s->labels[i].name && s->labels[i].value);
		check(prometheus_label(s, s->labels[i].name) == s->labels[i].value);
	}
	check(s->whole || !s->integer);
	++*(size_t *)arg;
	return 0;
}

static void check_list(int r, struct master_list *l, const struct dray_err *err)
{
	check(r == 0 ? !err->code : err->code && *err->msg);
	for (size_t i = 0; r == 0 && i < l->n; i++) {
		const struct master_segment *s = &l->v[i];

		check(dray_endpoint_valid(s->name));
		check(!*s->endpoint || dray_endpoint_valid(s->endpoint));
		check(s->capacity >= -1 && s->allocated >= -1);
		check(!i || strcmp(s[-1].name, s->name) < 0);
	}
	master_list_deinit(l);
}

static void check_object(const char *text, size_t size)
{
	struct master_object o = MASTER_OBJECT_NULL;
	struct dray_err err = DRAY_ERR_NULL;
	int r = master_object_page(text, size, &o, &err);

	check(r == 0 ? !err.code : err.code && *err.msg);
	for (size_t i = 0; r == 0 && i < o.n; i++) {
		check(dray_endpoint_valid(o.v[i].segment));
		check(o.v[i].address && o.v[i].length);
		check(o.v[i].address + o.v[i].length > o.v[i].address);
	}
	master_object_deinit(&o);
	err = master_object_refusal(404, text, size);
	check(err.code && *err.msg);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct master_list l = MASTER_LIST_NULL;
	/* a buffer of exact size, so that the sanitizer detects reads past its end */
	char *text = malloc(size ? size : 1);
	size_t samples = 0, lines = 1;
	int r;

	check(text);
	if (size)
		memcpy(text, data, size);
	for (size_t i = 0; i < size; i++)
		lines += text[i] == '\n';
	r = prometheus_parse(text, size, on_sample, &samples, &err);
	check(samples < lines);
	check(r == 0 ? !err.code : err.code && !strncmp(err.msg, "line ", 5));

	err = DRAY_ERR_NULL;
	r = master_page_metrics(text, size, &l, &err);
	check_list(r, &l, &err);
	err = DRAY_ERR_NULL;
	r = master_page_detail(text, size, &l, &err);
	check_list(r, &l, &err);
	check_object(text, size);
	free(text);
	return 0;
}
