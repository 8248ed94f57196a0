/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changes between two scans. Members of a list are matched by name, so their order and numbers that the kernel has
 * changed do not matter.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "lib/cleanup.h"
#include "netdetect/scan.h"

#define CHANGE_MAX 400

struct diff {
	nd_change_fn fn;
	void *arg;
	size_t n;
};

__attribute__((format(printf, 2, 3))) static void add_change(struct diff *d, const char *fmt, ...)
{
	char line[CHANGE_MAX];
	va_list args;

	va_start(args, fmt);
	vsnprintf(line, sizeof(line), fmt, args);
	va_end(args);
	d->n++;
	if (d->fn)
		d->fn(line, d->arg);
}

static const char *up_text(bool up)
{
	return up ? "up" : "down";
}

static const char *netdev_text(const struct nd_port *p)
{
	return p->netdev[0] ? p->netdev : "none";
}

static bool has_addr(const struct nd_links *l, const struct nd_link *link, const struct nd_addr *a)
{
	for (size_t i = 0; i < l->n_addrs; i++) {
		const struct nd_addr *x = &l->addrs[i];

		if (x->ifindex == link->ifindex && x->family == a->family &&
		    x->prefix == a->prefix && IN6_ARE_ADDR_EQUAL(&x->addr, &a->addr))
			return true;
	}
	return false;
}

/* Addresses that the link has in one scan and not in the other, where it may be missing. */
static void diff_addrs(struct diff *d, const struct nd_links *from, const struct nd_link *link,
		       const struct nd_links *other, const struct nd_link *there, const char *what)
{
	char text[INET6_ADDRSTRLEN];

	for (size_t i = 0; i < from->n_addrs; i++) {
		const struct nd_addr *a = &from->addrs[i];

		if (a->ifindex == link->ifindex && !(there && has_addr(other, there, a)))
			add_change(d, "%s address %s/%u %s", link->name,
				   nd_addr_text(&a->addr, a->family, text), a->prefix, what);
	}
}

static void link_changed(struct diff *d, const struct nd_link *was, const struct nd_link *is)
{
	if (was->up != is->up)
		add_change(d, "%s %s -> %s", is->name, up_text(was->up), up_text(is->up));
	if (was->mtu != is->mtu)
		add_change(d, "%s MTU %u -> %u", is->name, was->mtu, is->mtu);
	if (was->master != is->master)
		add_change(d, "%s master %d -> %d", is->name, was->master, is->master);
	if (was->ifindex != is->ifindex)
		add_change(d, "%s index %d -> %d", is->name, was->ifindex, is->ifindex);
}

static void diff_links(struct diff *d, const struct nd_links *old, const struct nd_links *new)
{
	for (size_t i = 0; i < new->n_links; i++) {
		const struct nd_link *is = &new->links[i];
		const struct nd_link *was = nd_link_by_name(old, is->name);

		if (was)
			link_changed(d, was, is);
		else
			add_change(d, "%s appeared, %s, %s", is->name, nd_link_kind_name(is->kind),
				   up_text(is->up));
		diff_addrs(d, new, is, old, was, "appeared");
	}
	for (size_t i = 0; i < old->n_links; i++) {
		const struct nd_link *was = &old->links[i];
		const struct nd_link *is = nd_link_by_name(new, was->name);

		if (!is)
			add_change(d, "%s is gone", was->name);
		else
			diff_addrs(d, old, was, new, is, "is gone");
	}
}

static bool same_route(const struct nd_route *a, const struct nd_route *b)
{
	return a->family == b->family && a->prefix == b->prefix && a->type == b->type &&
	       a->table == b->table && a->metric == b->metric && a->ifindex == b->ifindex &&
	       IN6_ARE_ADDR_EQUAL(&a->dst, &b->dst) && IN6_ARE_ADDR_EQUAL(&a->gateway, &b->gateway);
}

static bool has_route(const struct nd_links *l, const struct nd_route *r)
{
	for (size_t i = 0; i < l->n_routes; i++)
		if (same_route(&l->routes[i], r))
			return true;
	return false;
}

static void diff_routes(struct diff *d, const struct nd_links *from, const struct nd_links *other,
			const char *what)
{
	char dst[INET6_ADDRSTRLEN], gateway[INET6_ADDRSTRLEN];

	for (size_t i = 0; i < from->n_routes; i++) {
		const struct nd_route *r = &from->routes[i];
		const struct nd_link *link = nd_link_by_index(from, r->ifindex);

		if (has_route(other, r))
			continue;
		add_change(d, "route %s/%u by %s%s%s %s", nd_addr_text(&r->dst, r->family, dst),
			   r->prefix, link ? link->name : "several",
			   IN6_IS_ADDR_UNSPECIFIED(&r->gateway) ? "" : " via ",
			   IN6_IS_ADDR_UNSPECIFIED(&r->gateway) ?
				   "" :
				   nd_addr_text(&r->gateway, r->family, gateway),
			   what);
	}
}

static const char *gid_text(const struct nd_gid *g, char *buf, size_t n)
{
	char text[INET6_ADDRSTRLEN];

	if (g)
		snprintf(buf, n, "%u %s", g->index, nd_gid_text(&g->gid, text));
	else
		snprintf(buf, n, "none");
	return buf;
}

static bool same_gid(const struct nd_gid *a, const struct nd_gid *b)
{
	if (!a || !b)
		return a == b;
	return a->index == b->index && a->type == b->type && IN6_ARE_ADDR_EQUAL(&a->gid, &b->gid);
}

static void port_changed(struct diff *d, const char *device, const struct nd_port *was,
			 const struct nd_port *is)
{
	const struct nd_gid *old = nd_gids_best(&was->gids), *new = nd_gids_best(&is->gids);
	char a[96], b[96];

	if (was->state != is->state)
		add_change(d, "%s/%u %s -> %s", device, is->number, nd_port_state_name(was->state),
			   nd_port_state_name(is->state));
	if (strcmp(was->netdev, is->netdev) != 0)
		add_change(d, "%s/%u netdev %s -> %s", device, is->number, netdev_text(was),
			   netdev_text(is));
	if (was->active_mtu != is->active_mtu)
		add_change(d, "%s/%u MTU %u -> %u", device, is->number, was->active_mtu,
			   is->active_mtu);
	if (was->rate != is->rate)
		add_change(d, "%s/%u rate %" PRIu64 " -> %" PRIu64 " Mb/s", device, is->number,
			   was->rate / 1000000, is->rate / 1000000);
	if (!same_gid(old, new))
		add_change(d, "%s/%u GID %s -> %s, %s", device, is->number,
			   gid_text(old, a, sizeof(a)), gid_text(new, b, sizeof(b)),
			   new ? new->reason : "none is usable");
}

static void device_appeared(struct diff *d, const struct nd_device *is)
{
	char text[96];

	add_change(d, "%s appeared", is->name);
	for (size_t i = 0; i < is->n_ports; i++) {
		const struct nd_port *p = &is->ports[i];
		const struct nd_gid *best = nd_gids_best(&p->gids);

		add_change(d, "%s/%u %s, netdev %s, GID %s, %s", is->name, p->number,
			   nd_port_state_name(p->state), netdev_text(p),
			   gid_text(best, text, sizeof(text)),
			   best ? best->reason : "none is usable");
	}
}

static void diff_devices(struct diff *d, const struct nd_devices *old, const struct nd_devices *new)
{
	for (size_t i = 0; i < new->n; i++) {
		const struct nd_device *is = &new->v[i];
		const struct nd_device *was = nd_device_by_name(old, is->name);

		if (!was) {
			device_appeared(d, is);
			continue;
		}
		for (size_t k = 0; k < is->n_ports; k++) {
			const struct nd_port *p = nd_port_by_number(was, is->ports[k].number);

			if (p)
				port_changed(d, is->name, p, &is->ports[k]);
		}
	}
	for (size_t i = 0; i < old->n; i++)
		if (!nd_device_by_name(new, old->v[i].name))
			add_change(d, "%s is gone", old->v[i].name);
}

static bool has_gpu(const struct nd_topology *t, const char *bdf)
{
	for (size_t i = 0; i < t->n_gpus; i++)
		if (!strcmp(t->gpus[i].bdf, bdf))
			return true;
	return false;
}

static void diff_gpus(struct diff *d, const struct nd_topology *from,
		      const struct nd_topology *other, const char *what)
{
	for (size_t i = 0; i < from->n_gpus; i++)
		if (!has_gpu(other, from->gpus[i].bdf))
			add_change(d, "GPU %s %s", from->gpus[i].bdf, what);
}

static bool has_listener(const struct nd_listeners *l, const struct nd_listener *x)
{
	for (size_t i = 0; i < l->n; i++)
		if (l->v[i].port == x->port && l->v[i].family == x->family &&
		    IN6_ARE_ADDR_EQUAL(&l->v[i].addr, &x->addr))
			return true;
	return false;
}

static void diff_listeners(struct diff *d, const struct nd_listeners *from,
			   const struct nd_listeners *other, const char *what)
{
	char text[INET6_ADDRSTRLEN];

	for (size_t i = 0; i < from->n; i++) {
		const struct nd_listener *x = &from->v[i];

		if (!has_listener(other, x))
			add_change(d, "listener %s port %u %s",
				   nd_addr_text(&x->addr, x->family, text), x->port, what);
	}
}

size_t nd_scan_diff(const struct nd_scan *old, const struct nd_scan *new, nd_change_fn fn,
		    void *arg)
{
	static const struct nd_scan nothing;
	struct diff d = { .fn = fn, .arg = arg };

	if (!old)
		old = &nothing;
	diff_devices(&d, &old->devices, &new->devices);
	diff_links(&d, &old->links, &new->links);
	diff_routes(&d, &old->links, &new->links, "is gone");
	diff_routes(&d, &new->links, &old->links, "appeared");
	diff_gpus(&d, &old->topology, &new->topology, "is gone");
	diff_gpus(&d, &new->topology, &old->topology, "appeared");
	diff_listeners(&d, &old->listeners, &new->listeners, "is gone");
	diff_listeners(&d, &new->listeners, &old->listeners, "appeared");
	return d.n;
}
