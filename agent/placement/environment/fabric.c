/* SPDX-License-Identifier: Apache-2.0 */
/* The RDMA ports and the GID index for other libraries. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/placement/environment/internal.h"
#include "lib/array.h"
#include "lib/cleanup.h"

/* The kernel allows names with characters that separate items of the lists. */
static bool name_is_plain(const char *name)
{
	return *name && !strpbrk(name, ",:;=^ \t\r\n");
}

/* Mooncake and NCCL take the P_Key at index 0. Two limited members of a partition do not reach each other. */
static const struct nd_pkey *limited_pkey(const struct nd_port *p)
{
	for (size_t i = 0; i < p->n_pkeys; i++)
		if (p->pkeys[i].index == 0)
			return p->pkeys[i].full ? NULL : &p->pkeys[i];
	return NULL;
}

/* Can the port be used? If not, the reason goes to buf. */
static bool port_ok(const struct nd_device *d, const struct nd_port *p, struct env_port *ret,
		    char *buf, size_t n)
{
	const struct nd_pkey *limited;

	*buf = '\0';
	if (!name_is_plain(d->name))
		snprintf(buf, n, "lists cannot carry this name");
	else if (!nd_device_is_usable_kind(d))
		snprintf(buf, n, "neither InfiniBand nor RoCE");
	else if (p->state != ND_PORT_ACTIVE)
		snprintf(buf, n, "the port is %s", nd_port_state_name(p->state));
	else if (p->layer == ND_LAYER_INFINIBAND && (limited = limited_pkey(p)))
		snprintf(buf, n,
			 "limited member of partition 0x%04x, which reaches no other limited one",
			 limited->value);
	else if (p->layer == ND_LAYER_ETHERNET && !ret->gid)
		snprintf(buf, n, "no usable GID%s%s", p->gids.n ? ": " : "",
			 p->gids.n ? p->gids.v[0].reason : "");
	else if (p->layer == ND_LAYER_UNSPECIFIED)
		snprintf(buf, n, "its link layer is not known");
	return !*buf;
}

/* Writes the ports that cannot be used, with the reasons, to left. */
static int ports_look(struct env_fabric *f, const struct nd_devices *devices, uint32_t only,
		      FILE *left)
{
	const char *before = "; left out: ";
	char why[ND_REASON_MAX + 40];

	for (size_t i = 0; i < devices->n; i++) {
		const struct nd_device *d = &devices->v[i];

		for (size_t k = 0; k < d->n_ports; k++) {
			const struct nd_port *p = &d->ports[k];
			struct env_port port = { .device = (uint16_t)i, .d = d, .p = p };

			if (p->layer == ND_LAYER_ETHERNET)
				port.gid = nd_gids_best(&p->gids);
			if (only && p->number != only)
				snprintf(why, sizeof(why), "only port %u is used", only);
			else if (port_ok(d, p, &port, why, sizeof(why))) {
				if (DRAY_APPEND(f->v, f->n, port) < 0)
					return -ENOMEM;
				continue;
			}
			fprintf(left, "%s%s/%u (%s)", before, d->name, p->number, why);
			before = ", ";
		}
	}
	return 0;
}

static const char *why_none(const struct nd_scan *scan)
{
	if (!scan)
		return "RDMA devices are not scanned yet";
	if (scan->devices.n)
		return "no RDMA port can be used";
	for (size_t i = 0; i < scan->n_notes; i++)
		if (!strcmp(scan->notes[i].about, "devices"))
			return scan->notes[i].text;
	return "there is no RDMA device";
}

int env_fabric_make(struct env_fabric *f, const struct nd_scan *scan, uint32_t only)
{
	size_t bytes;
	FILE *left;
	int ret = 0;

	*f = (struct env_fabric){ .none = why_none(scan) };
	left = open_memstream(&f->left_out, &bytes);
	if (!left)
		return -ENOMEM;
	if (scan)
		ret = ports_look(f, &scan->devices, only, left);
	if (fclose(left) != 0)
		ret = -ENOMEM;
	return ret;
}

void env_fabric_deinit(struct env_fabric *f)
{
	free(f->v);
	free(f->left_out);
	*f = (struct env_fabric){ .v = NULL };
}

const struct env_port *env_fabric_find(const struct env_fabric *f, uint16_t device)
{
	for (size_t i = 0; i < f->n; i++)
		if (f->v[i].device == device)
			return &f->v[i];
	return NULL;
}

int env_devices(const struct env_input *in, struct env_answer *a)
{
	const struct env_fabric *f = &in->fabric;
	dray_auto_free char *list = NULL;
	size_t bytes;
	FILE *s;

	if (!f->n)
		return env_omit(a, "%s%s", f->none, f->left_out);
	s = open_memstream(&list, &bytes);
	if (!s)
		return -ENOMEM;
	fputs(in->profile->exact ? "=" : "", s);
	for (size_t i = 0; i < f->n; i++) {
		fprintf(s, "%s%s", i ? "," : "", f->v[i].d->name);
		if (!in->profile->port)
			fprintf(s, ":%u", f->v[i].p->number);
	}
	if (fclose(s) != 0)
		return -ENOMEM;
	return env_set(a, dray_take(list), "%zu active port%s%s", f->n, f->n == 1 ? "" : "s",
		       f->left_out);
}

/* "3 on mlx5_0, mlx5_2; 5 on mlx5_1", of those that are Ethernet. */
static int indices_differ(const struct env_fabric *f, struct env_answer *a)
{
	dray_auto_free char *text = NULL;
	size_t bytes;
	FILE *s = open_memstream(&text, &bytes);

	if (!s)
		return -ENOMEM;
	for (uint32_t index = 0; index <= ND_GID_INDEX_MAX; index++) {
		bool some = false;

		for (size_t i = 0; i < f->n; i++) {
			const struct env_port *p = &f->v[i];

			if (!p->gid || p->gid->index != index)
				continue;
			if (some)
				fprintf(s, ", %s", p->d->name);
			else
				fprintf(s, "; %u on %s", index, p->d->name);
			some = true;
		}
	}
	if (fclose(s) != 0)
		return -ENOMEM;
	return env_omit(a, "the ports have different GID indices: %s", text + 2);
}

int env_gid_index(const struct env_input *in, struct env_answer *a)
{
	const struct env_fabric *f = &in->fabric;
	const struct env_port *first = NULL, *infiniband = NULL;

	if (!f->n)
		return env_omit(a, "%s%s", f->none, f->left_out);
	for (size_t i = 0; i < f->n; i++) {
		const struct env_port *p = &f->v[i];

		if (!p->gid)
			infiniband = p;
		else if (!first)
			first = p;
		else if (p->gid->index != first->gid->index)
			return indices_differ(f, a);
	}
	if (!first)
		return env_omit(a, "InfiniBand: no GID index is needed");
	if (infiniband)
		return env_omit(
			a,
			"%s is InfiniBand, which needs none, and %s has %u: one index is not "
			"right for both",
			infiniband->d->name, first->d->name, first->gid->index);
	return env_set(a, env_format("%u", first->gid->index), "%s%s: %s",
		       f->n > 1 ? "all, as " : "", first->d->name, first->gid->reason);
}
