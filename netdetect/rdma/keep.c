/* SPDX-License-Identifier: Apache-2.0 */
/* What an earlier scan read of a device, for what cannot be read now. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "netdetect/rdma/internal.h"
#include "netdetect/source/netlink.h"
#include "lib/array.h"

/* Their netdevs are as this scan found them: one that is gone or down is not of use. */
static int keep_gids(struct nd_gids *g, const struct nd_gids *before, const struct nd_links *links)
{
	for (size_t i = 0; i < before->n; i++) {
		struct nd_gid kept = before->v[i];

		nd_gid_set_link(&kept, links, nd_link_by_index(links, kept.ifindex));
		if (DRAY_APPEND(g->v, g->n, kept) < 0)
			return -ENOMEM;
	}
	g->table = before->table;
	g->unmapped = before->unmapped;
	return 0;
}

/* Its state, its netdev and its LIDs do not come from the device alone, so those of this scan stay. */
static int keep_port(struct nd_port *p, const struct nd_port *before, const struct nd_links *links)
{
	/* grown as by DRAY_APPEND */
	p->gids.n = p->n_pkeys = 0;
	for (size_t i = 0; i < before->n_pkeys; i++)
		if (DRAY_APPEND(p->pkeys, p->n_pkeys, before->pkeys[i]) < 0)
			return -ENOMEM;
	p->active_mtu = before->active_mtu;
	p->max_mtu = before->max_mtu;
	p->layer = p->layer ? p->layer : before->layer;
	if (!p->rate) {
		p->rate = before->rate;
		p->lanes = before->lanes;
	}
	return keep_gids(&p->gids, &before->gids, links);
}

int nd_device_keep(struct nd_device *d, const struct nd_devices *before,
		   const struct nd_links *links)
{
	const struct nd_device *old = before ? nd_device_by_name(before, d->name) : NULL;
	bool failed = nd_is_transient(-d->open_error);
	int r = 0;

	/* a device that has replaced it has another index */
	if (!old || old->index != d->index || old->open_error)
		return 0;
	for (size_t i = 0; failed && i < d->n_ports; i++)
		d->ports[i].query_error = d->open_error;
	if (failed)
		d->open_error = 0;
	for (size_t i = 0; r >= 0 && i < d->n_ports; i++) {
		struct nd_port *p = &d->ports[i];
		const struct nd_port *known = nd_port_by_number(old, p->number);

		if (p->query_error && known && (known->gids.n || !known->query_error))
			r = keep_port(p, known, links);
	}
	return r;
}
