/* SPDX-License-Identifier: Apache-2.0 */
/* drayctl detect --json: all of the scan, as schema/ctl/detect.json says. */
#include <arpa/inet.h>
#include <inttypes.h>
#include <string.h>

#include "ctl/detect/detect.h"
#include "ctl/detect/gpus.h"
#include "ctl/render/json.h"
#include "lib/cleanup.h"
#include "netdetect/choose/address.h"

/* Of schema/ctl/detect.json; grows where a field changes its meaning or goes. */
#define SCHEMA_VERSION 1

static void guid(struct ctl_json *j, const char *key, uint64_t v)
{
	char text[32];

	snprintf(text, sizeof(text), "%04x:%04x:%04x:%04x", (unsigned)(v >> 48),
		 (unsigned)(v >> 32 & 0xffff), (unsigned)(v >> 16 & 0xffff),
		 (unsigned)(v & 0xffff));
	ctl_json_string(j, key, text);
}

static void gids(struct ctl_json *j, const struct nd_gids *g)
{
	static const char *const proofs[] = { "none", "ok", "failed" };
	static const char *const classes[] = { "ipv4", "ipv6", "link_local" };
	char text[INET6_ADDRSTRLEN];

	ctl_json_array(j, "gids");
	for (size_t i = 0; i < g->n; i++) {
		const struct nd_gid *x = &g->v[i];

		ctl_json_object(j, NULL);
		ctl_json_uint(j, "index", x->index);
		ctl_json_string(j, "gid", inet_ntop(AF_INET6, &x->gid, text, sizeof(text)));
		ctl_json_string(j, "address", nd_gid_text(&x->gid, text));
		ctl_json_string(j, "type", nd_gid_type_name(x->type));
		ctl_json_string(j, "class", classes[x->class]);
		ctl_json_string(j, "netdev", x->netdev);
		ctl_json_bool(j, "netdev_up", x->netdev_up);
		ctl_json_string(j, "proof", proofs[x->proof]);
		ctl_json_bool(j, "rejected", x->rejected);
		ctl_json_int(j, "score", x->score);
		ctl_json_string(j, "reason", x->reason);
		ctl_json_end(j);
	}
	ctl_json_end(j);
}

static void port(struct ctl_json *j, const struct nd_port *p)
{
	const struct nd_gid *best = nd_gids_best(&p->gids);

	ctl_json_object(j, NULL);
	ctl_json_uint(j, "port", p->number);
	ctl_json_string(j, "state", nd_port_state_name(p->state));
	ctl_json_string(j, "physical_state", nd_port_physical_name(p->physical));
	ctl_json_string(j, "link_layer", nd_link_layer_name(p->layer));
	ctl_json_uint(j, "rate", p->rate);
	ctl_json_uint(j, "lanes", p->lanes);
	ctl_json_uint(j, "active_mtu", p->active_mtu);
	ctl_json_uint(j, "max_mtu", p->max_mtu);
	ctl_json_uint(j, "lid", p->lid);
	ctl_json_uint(j, "sm_lid", p->sm_lid);
	ctl_json_string(j, "netdev", p->netdev);
	ctl_json_int(j, "ifindex", p->ifindex);
	ctl_json_uint(j, "gid_table", p->gids.table);
	ctl_json_uint(j, "gids_unmapped", p->gids.unmapped);
	if (best)
		ctl_json_uint(j, "best_gid", best->index);
	else
		ctl_json_null(j, "best_gid");
	gids(j, &p->gids);
	ctl_json_array(j, "pkeys");
	for (size_t i = 0; i < p->n_pkeys; i++) {
		ctl_json_object(j, NULL);
		ctl_json_uint(j, "index", p->pkeys[i].index);
		ctl_json_uint(j, "value", p->pkeys[i].value);
		ctl_json_bool(j, "full", p->pkeys[i].full);
		ctl_json_end(j);
	}
	ctl_json_end(j);
	ctl_json_end(j);
}

static void device(struct ctl_json *j, const struct nd_device *d)
{
	ctl_json_object(j, NULL);
	ctl_json_string(j, "device", d->name);
	ctl_json_string(j, "protocol", d->protocol);
	ctl_json_string(j, "firmware", d->firmware);
	ctl_json_string(j, "board", d->board);
	ctl_json_string(j, "driver", d->driver);
	ctl_json_uint(j, "node_type", d->node_type);
	guid(j, "node_guid", d->node_guid);
	guid(j, "system_guid", d->system_guid);
	ctl_json_string(j, "pci", d->bdf);
	ctl_json_int(j, "numa", d->numa);
	ctl_json_bool(j, "virtual_function", d->virtual_function);
	ctl_json_string(j, "uverbs", d->uverbs);
	ctl_json_string(j, "opens", d->open_error ? dray_errno_text(d->open_error) : "yes");
	ctl_json_object(j, "resources");
	for (size_t i = 0; i < d->n_resources; i++)
		ctl_json_uint(j, d->resources[i].name, d->resources[i].count);
	ctl_json_end(j);
	ctl_json_array(j, "ports");
	for (size_t i = 0; i < d->n_ports; i++)
		port(j, &d->ports[i]);
	ctl_json_end(j);
	ctl_json_end(j);
}

static void links(struct ctl_json *j, const struct nd_links *l)
{
	char mac[64];

	ctl_json_array(j, "links");
	for (size_t i = 0; i < l->n_links; i++) {
		const struct nd_link *x = &l->links[i];
		size_t n = 0;

		mac[0] = '\0';
		for (unsigned k = 0; k < x->mac_n; k++)
			n += (size_t)snprintf(mac + n, sizeof(mac) - n, "%s%02x", k ? ":" : "",
					      x->mac[k]);
		ctl_json_object(j, NULL);
		ctl_json_int(j, "ifindex", x->ifindex);
		ctl_json_string(j, "name", x->name);
		ctl_json_string(j, "kind", nd_link_kind_name(x->kind));
		ctl_json_string(j, "info_kind", x->kind_text);
		ctl_json_int(j, "master", x->master);
		ctl_json_int(j, "lower", x->lower);
		ctl_json_uint(j, "vlan", x->vlan);
		ctl_json_uint(j, "mtu", x->mtu);
		ctl_json_bool(j, "up", x->up);
		ctl_json_string(j, "mac", mac);
		ctl_json_string(j, "pci", x->bdf);
		ctl_json_int(j, "numa", x->numa);
		ctl_json_uint(j, "speed", (uint64_t)x->speed * 1000000);
		ctl_json_end(j);
	}
	ctl_json_end(j);
}

static const char *link_name(const struct nd_links *l, int ifindex)
{
	const struct nd_link *link = nd_link_by_index(l, ifindex);

	return link ? link->name : "";
}

static const char *scope_name(uint8_t scope)
{
	switch (scope) {
	case 0:
		return "global";
	case 200:
		return "site";
	case 253:
		return "link";
	case 254:
		return "host";
	default:
		return "other";
	}
}

static int addresses(struct ctl_json *j, const struct nd_links *l)
{
	dray_auto_free struct nd_candidate *c = NULL;
	char text[INET6_ADDRSTRLEN];
	size_t n;
	int r = nd_advertise_rank(l, true, true, &c, &n);

	if (r < 0)
		return r;
	/* best first: the first that is not rejected is the one to advertise */
	ctl_json_array(j, "addresses");
	for (size_t i = 0; i < n; i++) {
		ctl_json_object(j, NULL);
		ctl_json_string(j, "address",
				nd_addr_text(&c[i].addr->addr, c[i].addr->family, text));
		ctl_json_uint(j, "prefix", c[i].addr->prefix);
		ctl_json_string(j, "scope", scope_name(c[i].addr->scope));
		ctl_json_string(j, "link", c[i].link ? c[i].link->name : "");
		ctl_json_bool(j, "rejected", c[i].rejected);
		ctl_json_int(j, "score", c[i].score);
		ctl_json_string(j, "reason", c[i].reason);
		ctl_json_end(j);
	}
	ctl_json_end(j);
	if (n && !c[0].rejected)
		ctl_json_string(j, "advertise",
				nd_addr_text(&c[0].addr->addr, c[0].addr->family, text));
	else
		ctl_json_null(j, "advertise");
	return 0;
}

static void routes(struct ctl_json *j, const struct nd_links *l)
{
	static const char *const types[] = {
		[1] = "unicast", [6] = "blackhole", [7] = "unreachable", [8] = "prohibit"
	};
	char text[INET6_ADDRSTRLEN];

	ctl_json_array(j, "routes");
	for (size_t i = 0; i < l->n_routes; i++) {
		const struct nd_route *r = &l->routes[i];
		const char *type = r->type < DRAY_ARRAY_SIZE(types) ? types[r->type] : NULL;

		ctl_json_object(j, NULL);
		ctl_json_string(j, "family", r->family == AF_INET ? "ipv4" : "ipv6");
		ctl_json_string(j, "type", type ? type : "other");
		/* all zero is "::" within, of either family */
		ctl_json_string(j, "destination", nd_addr_text(&r->dst, r->family, text));
		ctl_json_uint(j, "prefix", r->prefix);
		ctl_json_string(j, "gateway",
				IN6_IS_ADDR_UNSPECIFIED(&r->gateway) ?
					"" :
					nd_addr_text(&r->gateway, r->family, text));
		ctl_json_string(j, "source",
				IN6_IS_ADDR_UNSPECIFIED(&r->source) ?
					"" :
					nd_addr_text(&r->source, r->family, text));
		ctl_json_string(j, "link", link_name(l, r->ifindex));
		ctl_json_bool(j, "multipath", r->multipath);
		ctl_json_uint(j, "metric", r->metric);
		ctl_json_uint(j, "table", r->table);
		ctl_json_end(j);
	}
	ctl_json_end(j);
}

static void numa_nodes(struct ctl_json *j, const struct nd_topology *t)
{
	ctl_json_array(j, "numa_nodes");
	for (size_t i = 0; i < t->n_nodes; i++) {
		ctl_json_object(j, NULL);
		ctl_json_int(j, "node", t->nodes[i].id);
		ctl_json_string(j, "cpus", t->nodes[i].cpu_list);
		ctl_json_uint(j, "memory", t->nodes[i].memory);
		ctl_json_end(j);
	}
	ctl_json_end(j);
}

static void listeners(struct ctl_json *j, const struct nd_scan *scan)
{
	static const char *const matches[] = { "none", "address", "wildcard", "loopback" };
	char text[INET6_ADDRSTRLEN];

	ctl_json_array(j, "listeners");
	for (size_t i = 0; i < scan->listeners.n; i++) {
		const struct nd_listener *l = &scan->listeners.v[i];

		ctl_json_object(j, NULL);
		ctl_json_string(j, "family", l->family == AF_INET ? "ipv4" : "ipv6");
		ctl_json_string(j, "address", nd_addr_text(&l->addr, l->family, text));
		ctl_json_uint(j, "port", l->port);
		ctl_json_bool(j, "dual", l->dual);
		ctl_json_string(j, "link", link_name(&scan->links, l->ifindex));
		ctl_json_uint(j, "uid", l->uid);
		ctl_json_int(j, "pid", l->pid);
		ctl_json_string(j, "process", l->process);
		ctl_json_string(j, "match", matches[l->match]);
		ctl_json_bool(j, "node_address", l->node_address);
		ctl_json_end(j);
	}
	ctl_json_end(j);
}

static void notes(struct ctl_json *j, const struct nd_scan *scan)
{
	ctl_json_array(j, "notes");
	for (size_t i = 0; i < scan->n_notes; i++) {
		ctl_json_object(j, NULL);
		ctl_json_string(j, "about", scan->notes[i].about);
		ctl_json_string(j, "text", scan->notes[i].text);
		ctl_json_end(j);
	}
	ctl_json_end(j);
}

int ctl_detect_json(struct ctl *c, const struct nd_scan *scan, const struct ctl_cuda *cuda)
{
	static const char *const modes[] = { "unknown", "shared", "exclusive" };
	struct ctl_json j = CTL_JSON(c->out);
	int r;

	ctl_json_object(&j, NULL);
	ctl_json_uint(&j, "schema", SCHEMA_VERSION);
	ctl_json_string(&j, "rdma_netns", modes[scan->devices.netns]);
	ctl_json_array(&j, "devices");
	for (size_t i = 0; i < scan->devices.n; i++)
		device(&j, &scan->devices.v[i]);
	ctl_json_end(&j);
	links(&j, &scan->links);
	r = addresses(&j, &scan->links);
	routes(&j, &scan->links);
	numa_nodes(&j, &scan->topology);
	ctl_detect_gpus_json(&j, scan, cuda);
	listeners(&j, scan);
	notes(&j, scan);
	ctl_json_uint(&j, "took_ns", (uint64_t)scan->took_ns);
	ctl_json_end(&j);
	return r;
}
