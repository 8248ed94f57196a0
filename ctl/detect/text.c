/* SPDX-License-Identifier: Apache-2.0 */
/* detect for people, with --plain, and with --explain. */
#include <arpa/inet.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ctl/detect/detect.h"
#include "ctl/render/human.h"
#include "ctl/render/table.h"
#include "lib/cleanup.h"
#include "lib/nearest.h"
#include "lib/units.h"
#include "netdetect/choose/address.h"

#define LINE_BYTES 256

static const char *number(int64_t v, char buf[32])
{
	if (v < 0)
		return "-";
	snprintf(buf, 32, "%" PRId64, v);
	return buf;
}

static const char *rate(uint64_t bits, char buf[32])
{
	if (!bits)
		return "-";
	snprintf(buf, 32, "%.4g Gb/s", (double)bits / 1e9);
	return buf;
}

static void port_row(struct ctl_table *t, const struct nd_device *d, const struct nd_port *p)
{
	const struct nd_gid *g = nd_gids_best(&p->gids);
	bool active = p->state == ND_PORT_ACTIVE;
	char text[LINE_BYTES], speed[32], buf[32], address[INET6_ADDRSTRLEN], why[ND_REASON_MAX];

	snprintf(text, sizeof(text), "%s/%u", d->name, p->number);
	ctl_table_cells(t, text);
	ctl_table_add(t, nd_port_state_name(p->state), active ? CTL_MOOD_GOOD : CTL_MOOD_BAD);
	ctl_table_cells(t, rate(p->rate, speed), p->netdev, number(d->numa, buf));
	if (g)
		snprintf(text, sizeof(text), "%u %s", g->index, nd_gid_text(&g->gid, address));
	ctl_table_add(t, g ? text : "none", g ? CTL_MOOD_NONE : CTL_MOOD_BAD);
	ctl_table_cells(t, g                ? g->reason :
			   p->query_error   ? nd_port_why(p, why) :
			   p->gids.n        ? p->gids.v[0].reason :
			   p->gids.unmapped ? "its GIDs belong to other network namespaces" :
					      "its GID table is empty");
}

static int ports(struct ctl *c, const struct nd_scan *scan)
{
	struct ctl_table t = CTL_TABLE_NULL;

	if (!scan->devices.n) {
		fputs("no RDMA devices\n", c->out);
		return 0;
	}
	ctl_table_head(&t, "DEVICE", "STATE", "RATE", "NETDEV", "NUMA", "GID", "WHY");
	for (size_t i = 0; i < scan->devices.n; i++)
		for (size_t k = 0; k < scan->devices.v[i].n_ports; k++)
			port_row(&t, &scan->devices.v[i], &scan->devices.v[i].ports[k]);
	return ctl_table_finish(&t, c->out, c->color);
}

static int addresses(struct ctl *c, const struct nd_scan *scan)
{
	dray_auto_free struct nd_candidate *v = NULL;
	struct ctl_table t = CTL_TABLE_NULL;
	char text[INET6_ADDRSTRLEN];
	size_t n;
	int r = nd_advertise_rank(&scan->links, true, true, &v, &n);

	if (r < 0)
		return r;
	fputc('\n', c->out);
	ctl_table_head(&t, "ADDRESS", "LINK", "WHY");
	for (size_t i = 0; i < n; i++) {
		ctl_table_add(&t, nd_addr_text(&v[i].addr->addr, v[i].addr->family, text),
			      i == 0 && !v[i].rejected ? CTL_MOOD_GOOD : CTL_MOOD_NONE);
		ctl_table_cells(&t, v[i].link ? v[i].link->name : "", v[i].reason);
	}
	return ctl_table_finish(&t, c->out, c->color);
}

static const char *where(const struct nd_listener *l)
{
	switch (l->match) {
	case ND_MATCH_WILDCARD:
		return l->dual ? "every address" : "every address of its family";
	case ND_MATCH_LOOPBACK:
		return "this host only";
	case ND_MATCH_ADDRESS:
		return "one address";
	case ND_MATCH_NONE:
		break;
	}
	return "a removed address";
}

static int listeners(struct ctl *c, const struct nd_scan *scan)
{
	struct ctl_table t = CTL_TABLE_NULL;
	char text[LINE_BYTES], process[LINE_BYTES], address[INET6_ADDRSTRLEN];

	if (!scan->listeners.n)
		return 0;
	fputc('\n', c->out);
	ctl_table_head(&t, "LISTENER", "REACHABLE BY", "PROCESS");
	for (size_t i = 0; i < scan->listeners.n; i++) {
		const struct nd_listener *l = &scan->listeners.v[i];

		snprintf(text, sizeof(text), l->family == AF_INET ? "%s:%u" : "[%s]:%u",
			 nd_addr_text(&l->addr, l->family, address), l->port);
		snprintf(process, sizeof(process), "%s (%d)", l->process, l->pid);
		ctl_table_cells(&t, text, where(l), l->pid ? process : "");
	}
	return ctl_table_finish(&t, c->out, c->color);
}

int ctl_detect_text(struct ctl *c, const struct nd_scan *scan, const struct ctl_cuda *cuda)
{
	int r = ports(c, scan);

	if (r >= 0)
		r = ctl_detect_gpus_text(c, scan, cuda);
	if (r >= 0)
		r = addresses(c, scan);
	if (r >= 0)
		r = listeners(c, scan);
	if (scan->n_notes)
		fputc('\n', c->out);
	for (size_t i = 0; i < scan->n_notes; i++)
		fprintf(c->out, "%s: %s\n", scan->notes[i].about, scan->notes[i].text);
	fprintf(c->out, "\nfound in %s; --explain DEVICE shows more, doctor finds problems\n",
		ctl_span((uint64_t)scan->took_ns));
	return r;
}

/* One line for each port. */
int ctl_detect_plain(struct ctl *c, const struct nd_scan *scan)
{
	char text[INET6_ADDRSTRLEN];

	for (size_t i = 0; i < scan->devices.n; i++)
		for (size_t k = 0; k < scan->devices.v[i].n_ports; k++) {
			const struct nd_device *d = &scan->devices.v[i];
			const struct nd_port *p = &d->ports[k];
			const struct nd_gid *g = nd_gids_best(&p->gids);

			fprintf(c->out, "%s\t%u\t%s\t%" PRIu64 "\t%s\t%d\t%d\t%s\t%s\n", d->name,
				p->number, nd_port_state_name(p->state), p->rate, p->netdev,
				d->numa, g ? (int)g->index : -1,
				g ? nd_gid_text(&g->gid, text) : "", g ? g->reason : "");
		}
	return 0;
}

static int explain_gids(struct ctl *c, const struct nd_port *p)
{
	struct ctl_table t = CTL_TABLE_NULL;
	char text[INET6_ADDRSTRLEN], index[32], score[32];

	if (!p->gids.n) {
		fputs("  its GID table is empty\n", c->out);
		return 0;
	}
	ctl_table_head(&t, "INDEX", "GID", "SCORE", "WHY");
	for (size_t i = 0; i < p->gids.n; i++) {
		const struct nd_gid *g = &p->gids.v[i];

		ctl_table_cells(&t, number(g->index, index), nd_gid_text(&g->gid, text),
				number(g->score, score));
		ctl_table_add(&t, g->reason,
			      g->rejected ? CTL_MOOD_BAD :
			      i           ? CTL_MOOD_NONE :
					    CTL_MOOD_GOOD);
	}
	return ctl_table_finish(&t, c->out, c->color);
}

static int explain_port(struct ctl *c, const struct nd_device *d, const struct nd_port *p)
{
	char buf[32];

	fprintf(c->out, "\n%s/%u: %s, %s, %s, %s, MTU %u\n", d->name, p->number,
		nd_port_state_name(p->state), nd_port_physical_name(p->physical),
		nd_link_layer_name(p->layer), rate(p->rate, buf), p->active_mtu);
	if (p->netdev[0])
		fprintf(c->out, "  netdev %s\n", p->netdev);
	if (p->layer == ND_LAYER_INFINIBAND)
		fprintf(c->out, "  LID %u, LID of the subnet manager %u\n", p->lid, p->sm_lid);
	for (size_t i = 0; i < p->n_pkeys; i++)
		fprintf(c->out, "  P_Key %u: 0x%04x, %s member\n", p->pkeys[i].index,
			p->pkeys[i].value, p->pkeys[i].full ? "full" : "limited");
	if (p->gids.unmapped)
		fprintf(c->out, "  %u GIDs belong to other network namespaces\n", p->gids.unmapped);
	return explain_gids(c, p);
}

static void explain_device(struct ctl *c, const struct nd_scan *scan, const struct nd_device *d)
{
	size_t index = (size_t)(d - scan->devices.v);

	fprintf(c->out, "%s: %s %s, firmware %s, PCI %s%s, NUMA node %d\n", d->name, d->driver,
		d->board, *d->firmware ? d->firmware : "unknown", *d->bdf ? d->bdf : "none",
		d->virtual_function ? " (virtual function)" : "", d->numa);
	fprintf(c->out, "  verbs: %s%s%s\n", *d->uverbs ? d->uverbs : "no uverbs node",
		d->open_error ? ", cannot be opened: " : ", can be opened",
		d->open_error ? nd_device_open_text(d) : "");
	for (size_t i = 0; i < scan->topology.n_pairs; i++) {
		const struct nd_affinity *a = &scan->topology.pairs[i];

		if (a->device == index)
			fprintf(c->out, "  GPU %s: %s%s\n", scan->topology.gpus[a->gpu].bdf,
				nd_distance_name(a->distance), a->preferred ? ", preferred" : "");
	}
}

int ctl_detect_explain(struct ctl *c, const struct nd_scan *scan, const char *what)
{
	char name[ND_DEVICE_NAME_MAX];
	const char *slash = strchr(what, '/');
	size_t n = slash ? (size_t)(slash - what) : strlen(what);
	const struct nd_device *d;
	int64_t port = 0;

	snprintf(name, sizeof(name), "%.*s", (int)n, what);
	d = nd_device_by_name(&scan->devices, name);
	if (!d) {
		struct dray_nearest nearest = DRAY_NEAREST(name);

		for (size_t i = 0; i < scan->devices.n; i++)
			dray_nearest_offer(&nearest, scan->devices.v[i].name);
		return ctl_failed(c, "there is no RDMA device %.60s%s%s%s", name,
				  nearest.best ? ", did you mean " : "; drayctl detect lists all",
				  nearest.best ? nearest.best : "", nearest.best ? "?" : "");
	}
	if (slash && (dray_int_parse(slash + 1, 0, &port) < 0 || port < 1 || port > UINT8_MAX ||
		      !nd_port_by_number(d, (uint32_t)port)))
		return ctl_failed(c, "%s has no port %.20s; drayctl detect lists all", name,
				  slash + 1);
	explain_device(c, scan, d);
	for (size_t i = 0; i < d->n_ports; i++) {
		if (slash && port != d->ports[i].number)
			continue;
		if (explain_port(c, d, &d->ports[i]) < 0)
			return ctl_no_memory(c);
	}
	return 0;
}
