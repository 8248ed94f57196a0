/* SPDX-License-Identifier: Apache-2.0 */
/* Whether two scans differ in what decides which rails reach a peer. */
#include "netdetect/choose/rail.h"

#include <string.h>

static bool links_alike(const struct nd_links *a, const struct nd_links *b)
{
	if (a->n_links != b->n_links || a->n_addrs != b->n_addrs ||
	    a->routes_hash != b->routes_hash)
		return false;
	for (size_t i = 0; i < a->n_links; i++) {
		const struct nd_link *x = &a->links[i], *y = &b->links[i];

		if (x->ifindex != y->ifindex || x->kind != y->kind || x->master != y->master ||
		    x->lower != y->lower || strcmp(x->name, y->name) != 0)
			return false;
	}
	for (size_t i = 0; i < a->n_addrs; i++) {
		const struct nd_addr *x = &a->addrs[i], *y = &b->addrs[i];

		if (x->ifindex != y->ifindex || x->family != y->family || x->prefix != y->prefix ||
		    !IN6_ARE_ADDR_EQUAL(&x->addr, &y->addr))
			return false;
	}
	return true;
}

static bool ports_alike(const struct nd_port *a, const struct nd_port *b)
{
	if (a->number != b->number || a->state != b->state || a->layer != b->layer ||
	    a->active_mtu != b->active_mtu || a->gids.n != b->gids.n || a->n_pkeys != b->n_pkeys)
		return false;
	for (size_t i = 0; i < a->gids.n; i++) {
		const struct nd_gid *x = &a->gids.v[i], *y = &b->gids.v[i];

		if (x->index != y->index || x->type != y->type || x->rejected != y->rejected ||
		    x->ifindex != y->ifindex || strcmp(x->netdev, y->netdev) != 0 ||
		    !IN6_ARE_ADDR_EQUAL(&x->gid, &y->gid))
			return false;
	}
	for (size_t i = 0; i < a->n_pkeys; i++)
		if (a->pkeys[i].value != b->pkeys[i].value)
			return false;
	return true;
}

bool nd_rails_alike(const struct nd_links *a_links, const struct nd_devices *a_devices,
		    const struct nd_links *b_links, const struct nd_devices *b_devices)
{
	if (a_devices->n != b_devices->n || !links_alike(a_links, b_links))
		return false;
	for (size_t i = 0; i < a_devices->n; i++) {
		const struct nd_device *x = &a_devices->v[i], *y = &b_devices->v[i];

		if (x->n_ports != y->n_ports || strcmp(x->name, y->name) != 0)
			return false;
		for (size_t k = 0; k < x->n_ports; k++)
			if (!ports_alike(&x->ports[k], &y->ports[k]))
				return false;
	}
	return true;
}
