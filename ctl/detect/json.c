/* SPDX-License-Identifier: Apache-2.0 */
/* detect --json: the whole scan, as in schema/ctl/detect.json. */
#include <arpa/inet.h>

#include "ctl/detect/detect.h"
#include "ctl/render/json.h"
#include "lib/cleanup.h"
#include "lib/err.h"
#include "netdetect/choose/address.h"

/* Of schema/ctl/detect.json; increases when a field changes its meaning or is removed. */
#define SCHEMA_VERSION 1

static const char *guid(uint64_t v, char text[32])
{
	snprintf(text, 32, "%04x:%04x:%04x:%04x", (unsigned)(v >> 48), (unsigned)(v >> 32 & 0xffff),
		 (unsigned)(v >> 16 & 0xffff), (unsigned)(v & 0xffff));
	return text;
}

static void gids(struct ctl_json *j, const struct nd_gids *g)
{
	static const char *const proofs[] = { "none", "ok", "failed" };
	static const char *const classes[] = { "ipv4", "ipv6", "link_local" };
	char gid[INET6_ADDRSTRLEN], address[INET6_ADDRSTRLEN];

	ctl_json_array(j, "gids");
	for (size_t i = 0; i < g->n; i++) {
		const struct nd_gid *x = &g->v[i];

		inet_ntop(AF_INET6, &x->gid, gid, sizeof(gid));
		ctl_json_record(j, NULL, J_UINT("index", x->index), J_TEXT("gid", gid),
				J_TEXT("address", nd_gid_text(&x->gid, address)),
				J_TEXT("type", nd_gid_type_name(x->type)),
				J_TEXT("class", classes[x->class]), J_TEXT("netdev", x->netdev),
				J_BOOL("netdev_up", x->netdev_up),
				J_TEXT("proof", proofs[x->proof]), J_BOOL("rejected", x->rejected),
				J_INT("score", x->score), J_TEXT("reason", x->reason));
	}
	ctl_json_end(j);
}

static void port(struct ctl_json *j, const struct nd_port *p)
{
	const struct nd_gid *best = nd_gids_best(&p->gids);

	ctl_json_object(j, NULL);
	ctl_json_add(j, J_UINT("port", p->number), J_TEXT("state", nd_port_state_name(p->state)),
		     J_TEXT("physical_state", nd_port_physical_name(p->physical)),
		     J_TEXT("link_layer", nd_link_layer_name(p->layer)), J_UINT("rate", p->rate),
		     J_UINT("lanes", p->lanes), J_UINT("active_mtu", p->active_mtu),
		     J_UINT("max_mtu", p->max_mtu), J_UINT("lid", p->lid),
		     J_UINT("sm_lid", p->sm_lid), J_TEXT("netdev", p->netdev),
		     J_INT("ifindex", p->ifindex), J_UINT("gid_table", p->gids.table),
		     J_UINT("gids_unmapped", p->gids.unmapped),
		     best ? J_UINT("best_gid", best->index) : J_NULL("best_gid"));
	gids(j, &p->gids);
	ctl_json_array(j, "pkeys");
	for (size_t i = 0; i < p->n_pkeys; i++)
		ctl_json_record(j, NULL, J_UINT("index", p->pkeys[i].index),
				J_UINT("value", p->pkeys[i].value),
				J_BOOL("full", p->pkeys[i].full));
	ctl_json_end(j);
	ctl_json_end(j);
}

static void device(struct ctl_json *j, const struct nd_device *d)
{
	char node[32], system[32];

	ctl_json_object(j, NULL);
	ctl_json_add(j, J_TEXT("device", d->name), J_TEXT("protocol", d->protocol),
		     J_TEXT("firmware", d->firmware), J_TEXT("board", d->board),
		     J_TEXT("driver", d->driver), J_UINT("node_type", d->node_type),
		     J_TEXT("node_guid", guid(d->node_guid, node)),
		     J_TEXT("system_guid", guid(d->system_guid, system)), J_TEXT("pci", d->bdf),
		     J_INT("numa", d->numa), J_BOOL("virtual_function", d->virtual_function),
		     J_TEXT("uverbs", d->uverbs),
		     J_TEXT("opens", d->open_error ? nd_device_open_text(d) : "yes"));
	ctl_json_object(j, "resources");
	for (size_t i = 0; i < d->n_resources; i++)
		ctl_json_add(j, J_UINT(d->resources[i].name, d->resources[i].count));
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
		ctl_json_record(j, NULL, J_INT("ifindex", x->ifindex), J_TEXT("name", x->name),
				J_TEXT("kind", nd_link_kind_name(x->kind)),
				J_TEXT("info_kind", x->kind_text), J_INT("master", x->master),
				J_INT("lower", x->lower), J_UINT("vlan", x->vlan),
				J_UINT("mtu", x->mtu), J_BOOL("up", x->up), J_TEXT("mac", mac),
				J_TEXT("pci", x->bdf), J_INT("numa", x->numa),
				J_UINT("speed", (uint64_t)x->speed * 1000000));
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

/* Best first; the first one is to be advertised unless it is rejected. */
static int addresses(struct ctl_json *j, const struct nd_links *l)
{
	dray_auto_free struct nd_candidate *c = NULL;
	char text[INET6_ADDRSTRLEN] = "";
	size_t n;
	int r = nd_advertise_rank(l, true, true, &c, &n);

	if (r < 0)
		return r;
	ctl_json_array(j, "addresses");
	for (size_t i = 0; i < n; i++) {
		const struct nd_candidate *x = &c[i];

		nd_addr_text(&x->addr->addr, x->addr->family, text);
		ctl_json_record(j, NULL, J_TEXT("address", text), J_UINT("prefix", x->addr->prefix),
				J_TEXT("scope", scope_name(x->addr->scope)),
				J_TEXT("link", x->link ? x->link->name : ""),
				J_BOOL("rejected", x->rejected), J_INT("score", x->score),
				J_TEXT("reason", x->reason));
	}
	ctl_json_end(j);
	if (n && !c[0].rejected)
		ctl_json_add(j, J_TEXT("advertise",
				       nd_addr_text(&c[0].addr->addr, c[0].addr->family, text)));
	else
		ctl_json_add(j, J_NULL("advertise"));
	return 0;
}

/* "" for an address of zeros. */
static const char *gateway_text(const struct in6_addr *addr, uint8_t family,
				char text[INET6_ADDRSTRLEN])
{
	return IN6_IS_ADDR_UNSPECIFIED(addr) ? "" : nd_addr_text(addr, family, text);
}

static void routes(struct ctl_json *j, const struct nd_links *l)
{
	static const char *const types[] = {
		[1] = "unicast", [6] = "blackhole", [7] = "unreachable", [8] = "prohibit"
	};
	char to[INET6_ADDRSTRLEN], gateway[INET6_ADDRSTRLEN], source[INET6_ADDRSTRLEN];

	ctl_json_array(j, "routes");
	for (size_t i = 0; i < l->n_routes; i++) {
		const struct nd_route *r = &l->routes[i];
		const char *type = r->type < DRAY_ARRAY_SIZE(types) ? types[r->type] : NULL;

		ctl_json_record(j, NULL, J_TEXT("family", r->family == AF_INET ? "ipv4" : "ipv6"),
				J_TEXT("type", type ? type : "other"),
				J_TEXT("destination", nd_addr_text(&r->dst, r->family, to)),
				J_UINT("prefix", r->prefix),
				J_TEXT("gateway", gateway_text(&r->gateway, r->family, gateway)),
				J_TEXT("source", gateway_text(&r->source, r->family, source)),
				J_TEXT("link", link_name(l, r->ifindex)),
				J_BOOL("multipath", r->multipath), J_UINT("metric", r->metric),
				J_UINT("table", r->table));
	}
	ctl_json_end(j);
}

static void numa_nodes(struct ctl_json *j, const struct nd_topology *t)
{
	ctl_json_array(j, "numa_nodes");
	for (size_t i = 0; i < t->n_nodes; i++)
		ctl_json_record(j, NULL, J_INT("node", t->nodes[i].id),
				J_TEXT("cpus", t->nodes[i].cpu_list),
				J_UINT("memory", t->nodes[i].memory));
	ctl_json_end(j);
}

static void listeners(struct ctl_json *j, const struct nd_scan *scan)
{
	static const char *const matches[] = { "none", "address", "wildcard", "loopback" };
	char text[INET6_ADDRSTRLEN];

	ctl_json_array(j, "listeners");
	for (size_t i = 0; i < scan->listeners.n; i++) {
		const struct nd_listener *l = &scan->listeners.v[i];

		ctl_json_record(j, NULL, J_TEXT("family", l->family == AF_INET ? "ipv4" : "ipv6"),
				J_TEXT("address", nd_addr_text(&l->addr, l->family, text)),
				J_UINT("port", l->port), J_BOOL("dual", l->dual),
				J_TEXT("link", link_name(&scan->links, l->ifindex)),
				J_UINT("uid", l->uid), J_INT("pid", l->pid),
				J_TEXT("process", l->process), J_TEXT("match", matches[l->match]),
				J_BOOL("node_address", l->node_address));
	}
	ctl_json_end(j);
}

static void notes(struct ctl_json *j, const struct nd_scan *scan)
{
	ctl_json_array(j, "notes");
	for (size_t i = 0; i < scan->n_notes; i++)
		ctl_json_record(j, NULL, J_TEXT("about", scan->notes[i].about),
				J_TEXT("text", scan->notes[i].text));
	ctl_json_end(j);
}

int ctl_detect_json(struct ctl *c, const struct nd_scan *scan, const struct ctl_cuda *cuda)
{
	static const char *const modes[] = { "unknown", "shared", "exclusive" };
	struct ctl_json j = CTL_JSON(c->out);
	int r;

	ctl_json_object(&j, NULL);
	ctl_json_add(&j, J_UINT("schema", SCHEMA_VERSION),
		     J_TEXT("rdma_netns", modes[scan->devices.netns]));
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
	ctl_json_add(&j, J_UINT("took_ns", (uint64_t)scan->took_ns));
	ctl_json_end(&j);
	return r;
}
