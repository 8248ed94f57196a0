/* SPDX-License-Identifier: Apache-2.0 */
/* Reads links, addresses and routes from rtnetlink and sysfs. */
#include "netdetect/net/link.h"

#include <linux/fib_rules.h>
#include <linux/rtnetlink.h>
#include <stdlib.h>

#include "netdetect/source/netlink.h"

/* sysfs alone knows these, of links with a device. */
static void read_device(const struct nd_source *s, struct nd_link *l)
{
	char target[ND_PATH_MAX];
	const char *device = nd_read_link(s, target, "/sys/class/net/%s/device", l->name);
	int speed;

	if (!device)
		return;
	nd_bdf_parse(device, l->bdf);
	(void)nd_read_int(s, &l->numa, "/sys/class/net/%s/device/numa_node", l->name);
	/* of a link that is down, reading fails or gives -1 */
	if (nd_read_int(s, &speed, "/sys/class/net/%s/speed", l->name) == 0 && speed > 0)
		l->speed = (uint32_t)speed;
}

ND_ORDER(by_index, struct nd_link, ifindex);

/*
 * Insertion, because it is stable: the kernel's order within an interface is the order of preference. A dump comes by
 * interface, so few elements move.
 */
static void sort_addrs(struct nd_links *l)
{
	for (size_t i = 1; i < l->n_addrs; i++) {
		struct nd_addr a = l->addrs[i];
		size_t at = i;

		for (; at && l->addrs[at - 1].ifindex > a.ifindex; at--)
			l->addrs[at] = l->addrs[at - 1];
		l->addrs[at] = a;
	}
}

static int dump_all(const struct nd_source *s, struct nd_links *l, struct dray_err *reterr)
{
	static const struct ifinfomsg link = { .ifi_family = AF_UNSPEC };
	static const struct ifaddrmsg addr = { .ifa_family = AF_UNSPEC };
	static const struct rtmsg route = { .rtm_family = AF_UNSPEC };
	static const struct fib_rule_hdr rule = { .family = AF_UNSPEC };
	struct dray_err err = DRAY_ERR_NULL;
	int r = nd_query(s, ND_GET_LINKS, &link, sizeof(link), nd_link_message, l, &l->n_links,
			 NULL, reterr);

	if (r >= 0)
		r = nd_query(s, ND_GET_ADDRS, &addr, sizeof(addr), nd_link_message, l, &l->n_addrs,
			     NULL, reterr);
	if (r >= 0)
		r = nd_query(s, ND_GET_ROUTES, &route, sizeof(route), nd_link_message, l,
			     &l->n_routes, &l->routes_hash, reterr);
	if (r < 0)
		return r;
	r = nd_query(s, ND_GET_RULES, &rule, sizeof(rule), nd_link_message, l, NULL,
		     &l->routes_hash, &err);
	/* a kernel without policy routing has none */
	return nd_is_transient(r) ? dray_err_set(reterr, r, err.code, "%s", err.msg) : 0;
}

int nd_links_scan(const struct nd_source *s, struct nd_links *ret, struct dray_err *reterr)
{
	struct nd_links l = { 0 };
	int r = dump_all(s, &l, reterr);

	if (r < 0) {
		nd_links_deinit(&l);
		return r;
	}
	if (l.n_links)
		qsort(l.links, l.n_links, sizeof(*l.links), by_index);
	sort_addrs(&l);
	for (size_t i = 0; i < l.n_links; i++)
		if (l.links[i].kind == ND_LINK_DEVICE)
			read_device(s, &l.links[i]);
	*ret = l;
	return 0;
}
