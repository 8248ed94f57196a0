/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/detect/detect.h"

#include <arpa/inet.h>

#include "lib/err.h"

/* Splits "a, b"; blanks around members are allowed, empty members are not. */
static int split(struct ctl *c, enum ctl_option_id id, struct dray_strv *ret)
{
	const char *text = c->values[id];
	bool empty;

	if (text && dray_strv_split(text, ret) < 0)
		return ctl_no_memory(c);
	empty = text && !ret->n;
	for (size_t i = 0; i < ret->n; i++)
		empty |= !*ret->v[i];
	return empty ? ctl_misuse(c, "%s: \"%.100s\" has an empty member; remove it",
				  ctl_options[id].name, text) :
		       0;
}

static int addresses(struct ctl *c, const struct dray_strv *node)
{
	struct in6_addr any;

	for (size_t i = 0; i < node->n; i++)
		if (inet_pton(AF_INET, node->v[i], &any) != 1 &&
		    inet_pton(AF_INET6, node->v[i], &any) != 1)
			return ctl_misuse(
				c,
				"--node-addresses: \"%.60s\" is not an address; use numbers, such as 10.0.0.1 or 2001:db8::1",
				node->v[i]);
	return 0;
}

static int source(struct ctl *c, struct nd_source *ret)
{
	const char *dir = c->values[CTL_OPTION_FROM_SYSFS];
	int r;

	*ret = ND_SOURCE_LIVE;
	if (!dir)
		return 0;
	r = nd_source_open(ret, dir);
	if (r < 0)
		return ctl_failed(c, "--from-sysfs %.200s: %s; use a directory that contains sys/",
				  dir, dray_errno_text(r));
	return 0;
}

int ctl_detect_open(struct ctl_detect *d, struct ctl *c)
{
	static const uint8_t families[] = {
		[CTL_FAMILY_AUTO] = AF_UNSPEC, [CTL_FAMILY_IPV4] = AF_INET, [CTL_FAMILY_IPV6] = AF_INET6
	};
	struct dray_err err = DRAY_ERR_NULL;
	struct nd_scan_options *o = &d->options;

	*o = (struct nd_scan_options){
		.flags = ND_SCAN_LISTENERS | (c->values[CTL_OPTION_OWNERS] ? ND_SCAN_OWNERS : 0),
		.rnics_per_gpu = (unsigned)c->numbers[CTL_OPTION_RNICS],
		.gid_family = families[c->numbers[CTL_OPTION_FAMILY]],
	};
	if (source(c, &d->source) < 0 || split(c, CTL_OPTION_ONLY, &o->only) < 0 ||
	    split(c, CTL_OPTION_WITHOUT, &o->without) < 0 ||
	    split(c, CTL_OPTION_GID_INDEX, &o->gid_indices) < 0 ||
	    split(c, CTL_OPTION_NODE_ADDRESSES, &o->node_addresses) < 0 ||
	    addresses(c, &o->node_addresses) < 0)
		return -1;
	if (nd_scan_options_check(o, &err) < 0)
		return ctl_misuse(c, "%s", err.msg);
	return 0;
}

void ctl_detect_close(struct ctl_detect *d)
{
	dray_strv_clear(&d->options.only);
	dray_strv_clear(&d->options.without);
	dray_strv_clear(&d->options.gid_indices);
	dray_strv_clear(&d->options.node_addresses);
}

static int print(struct ctl *c, const struct ctl_detect *d)
{
	dray_auto(nd_scan_free) struct nd_scan *scan = NULL;
	struct dray_err err = DRAY_ERR_NULL;
	struct ctl_cuda cuda;
	int r = nd_scan_run(&d->source, &d->options, &scan, &err);

	if (r < 0)
		return ctl_failed(c, "%s; %s", err.msg, nd_scan_remedy(r));
	if (c->values[CTL_OPTION_EXPLAIN])
		return ctl_detect_explain(c, scan, c->values[CTL_OPTION_EXPLAIN]);
	if (c->format == CTL_PLAIN) {
		r = ctl_detect_plain(c, scan);
	} else {
		ctl_cuda_look(&cuda, c->values[CTL_OPTION_GPU_PLUGIN], scan,
			      nd_is_live(&d->source));
		r = c->format == CTL_JSON ? ctl_detect_json(c, scan, &cuda) :
					    ctl_detect_text(c, scan, &cuda);
	}
	return r < 0 ? ctl_failed(c, "%s", dray_errno_text(r)) : 0;
}

int ctl_detect(struct ctl *c)
{
	struct ctl_detect d;
	int ret = ctl_detect_open(&d, c);

	if (!ret)
		ret = c->values[CTL_OPTION_WATCH] ? ctl_detect_watch(c, &d) : print(c, &d);
	ctl_detect_close(&d);
	return ret;
}
