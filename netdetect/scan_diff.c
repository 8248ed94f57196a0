/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changes between two scans. Each scan becomes a list of facts, and facts with the same key are compared. The keys hold names,
 * so the order of the scan and numbers that the kernel has changed do not matter.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "lib/array.h"
#include "lib/cleanup.h"
#include "lib/map.h"
#include "netdetect/scan.h"

struct fact {
	char key[200];   /* "mlx5_0/1", "eth0 MTU"; what follows a tab is not printed */
	char value[128]; /* "ACTIVE", "1500" */
	char more[ND_REASON_MAX +
		  160]; /* printed behind "appeared", and behind the new value of a part */
	char owner[ND_DEVICE_NAME_MAX]; /* key of the fact whose disappearance hides that of this one; "": none */
	bool part;                      /* of its owner: only a change of the value counts */
	struct dray_map_node by_key;
};

struct facts {
	struct fact *v;
	size_t n;
	struct dray_map keys;
	bool failed;       /* no memory */
	struct fact spare; /* takes the facts for which there is no memory */
};

/* Adds a fact. The caller fills the rest of it. */
__attribute__((format(printf, 3, 4))) static struct fact *add(struct facts *f, const char *owner,
							      const char *fmt, ...)
{
	struct fact *x = &f->spare;
	va_list args;

	if (dray_append(&f->v, &f->n, NULL, sizeof(*f->v)) < 0)
		f->failed = true;
	else
		x = &f->v[f->n - 1];
	va_start(args, fmt);
	vsnprintf(x->key, sizeof(x->key), fmt, args);
	va_end(args);
	snprintf(x->owner, sizeof(x->owner), "%s", owner);
	return x;
}

/* Adds a part, such as "MTU", with its value. */
__attribute__((format(printf, 5, 6))) static void add_part(struct facts *f, const char *owner,
							   const char *what, const char *more,
							   const char *fmt, ...)
{
	struct fact *x = add(f, owner, "%s %s", owner, what);
	va_list args;

	x->part = true;
	va_start(args, fmt);
	vsnprintf(x->value, sizeof(x->value), fmt, args);
	va_end(args);
	snprintf(x->more, sizeof(x->more), "%s", more);
}

static void add_port(struct facts *f, const struct nd_device *d, const struct nd_port *p)
{
	const struct nd_gid *g = nd_gids_best(&p->gids);
	const char *netdev = p->netdev[0] ? p->netdev : "none",
		   *state = nd_port_state_name(p->state);
	char name[80], gid[96] = "none", text[INET6_ADDRSTRLEN], reason[ND_REASON_MAX],
		       why[ND_REASON_MAX + 2];
	struct fact *x;

	if (g)
		snprintf(gid, sizeof(gid), "%u %s", g->index, nd_gid_text(&g->gid, text));
	snprintf(why, sizeof(why), ", %s", nd_port_why(p, reason));
	snprintf(name, sizeof(name), "%s/%u", d->name, p->number);
	x = add(f, d->name, "%s", name);
	snprintf(x->value, sizeof(x->value), "%s", state);
	snprintf(x->more, sizeof(x->more), ", %s, netdev %s, GID %s%s", state, netdev, gid, why);
	add_part(f, name, "netdev", "", "%s", netdev);
	add_part(f, name, "MTU", "", "%u", p->active_mtu);
	add_part(f, name, "rate", " Mb/s", "%" PRIu64, p->rate / 1000000);
	add_part(f, name, "GID", why, "%s", gid);
}

static void add_link(struct facts *f, const struct nd_link *link)
{
	struct fact *x = add(f, "", "%s", link->name);

	snprintf(x->value, sizeof(x->value), "%s", link->up ? "up" : "down");
	snprintf(x->more, sizeof(x->more), ", %s, %s", nd_link_kind_name(link->kind), x->value);
	add_part(f, link->name, "MTU", "", "%u", link->mtu);
	add_part(f, link->name, "master", "", "%d", link->master);
	add_part(f, link->name, "index", "", "%d", link->ifindex);
}

static void add_addr(struct facts *f, const struct nd_links *l, const struct nd_addr *a)
{
	const struct nd_link *link = nd_link_by_index(l, a->ifindex);
	char text[INET6_ADDRSTRLEN];

	if (link)
		add(f, link->name, "%s address %s/%u", link->name,
		    nd_addr_text(&a->addr, a->family, text), a->prefix);
}

static void add_route(struct facts *f, const struct nd_links *l, const struct nd_route *r)
{
	const struct nd_link *link = nd_link_by_index(l, r->ifindex);
	bool direct = IN6_IS_ADDR_UNSPECIFIED(&r->gateway);
	char dst[INET6_ADDRSTRLEN], gateway[INET6_ADDRSTRLEN];

	add(f, "", "route %s/%u by %s%s%s\t%u %u %u", nd_addr_text(&r->dst, r->family, dst),
	    r->prefix, link ? link->name : "no interface", direct ? "" : " via ",
	    direct ? "" : nd_addr_text(&r->gateway, r->family, gateway), r->type, r->table,
	    r->metric);
}

static struct facts facts_of(const struct nd_scan *scan)
{
	struct facts f = { .n = 0 };
	char text[INET6_ADDRSTRLEN];

	for (size_t i = 0; i < scan->devices.n; i++) {
		const struct nd_device *d = &scan->devices.v[i];

		add(&f, "", "%s", d->name);
		for (size_t k = 0; k < d->n_ports; k++)
			add_port(&f, d, &d->ports[k]);
	}
	for (size_t i = 0; i < scan->links.n_links; i++)
		add_link(&f, &scan->links.links[i]);
	for (size_t i = 0; i < scan->links.n_addrs; i++)
		add_addr(&f, &scan->links, &scan->links.addrs[i]);
	for (size_t i = 0; i < scan->links.n_routes; i++)
		add_route(&f, &scan->links, &scan->links.routes[i]);
	for (size_t i = 0; i < scan->topology.n_gpus; i++)
		add(&f, "", "GPU %s", scan->topology.gpus[i].bdf);
	for (size_t i = 0; i < scan->listeners.n; i++) {
		const struct nd_listener *x = &scan->listeners.v[i];

		add(&f, "", "listener %s port %u", nd_addr_text(&x->addr, x->family, text),
		    x->port);
	}
	/* now the array moves no more */
	dray_map_init(&f.keys);
	for (size_t i = 0; i < f.n; i++)
		dray_map_add(&f.keys, &f.v[i].by_key, f.v[i].key, strlen(f.v[i].key));
	return f;
}

static const struct fact *find(const struct facts *f, const char *key)
{
	return dray_map_entry(dray_map_find(&f->keys, key, strlen(key)), struct fact, by_key);
}

static void facts_deinit(struct facts *f)
{
	dray_map_deinit(&f->keys);
	free(f->v);
}

void nd_scan_diff(const struct nd_scan *old, const struct nd_scan *new, nd_change_fn fn, void *arg)
{
	struct facts was = facts_of(old), is = facts_of(new);
	bool failed = was.failed || is.failed;
	char line[2 * sizeof(struct fact)];

	for (size_t i = 0; i < is.n && !failed; i++) {
		const struct fact *x = &is.v[i], *before = find(&was, x->key);
		int shown = (int)strcspn(x->key, "\t");

		if (before ? !strcmp(before->value, x->value) : x->part)
			continue;
		if (before)
			snprintf(line, sizeof(line), "%s %s -> %s%s", x->key, before->value,
				 x->value, x->part ? x->more : "");
		else
			snprintf(line, sizeof(line), "%.*s appeared%s", shown, x->key, x->more);
		fn(line, arg);
	}
	for (size_t i = 0; i < was.n && !failed; i++) {
		const struct fact *x = &was.v[i];

		if (x->part || find(&is, x->key) || (*x->owner && !find(&is, x->owner)))
			continue;
		snprintf(line, sizeof(line), "%.*s is gone", (int)strcspn(x->key, "\t"), x->key);
		fn(line, arg);
	}
	facts_deinit(&was);
	facts_deinit(&is);
}
