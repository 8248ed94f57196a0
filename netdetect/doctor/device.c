/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of RDMA devices and their ports. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/err.h"
#include "netdetect/doctor/internal.h"

#define ABOUT_MAX 80

#define EACH_DEVICE(x, d)                                      \
	for (const struct nd_device *d = (x)->scan->devices.v; \
	     d < (x)->scan->devices.v + (x)->scan->devices.n; d++)
#define EACH_PORT(d, p) \
	for (const struct nd_port *p = (d)->ports; p < (d)->ports + (d)->n_ports; p++)

static const char *port_name(const struct nd_device *d, const struct nd_port *p,
			     char buf[ABOUT_MAX])
{
	snprintf(buf, ABOUT_MAX, "%s/%u", d->name, p->number);
	return buf;
}

static bool exists(struct examination *x, const char *where)
{
	char path[ND_PATH_MAX];

	return access(nd_path(x->s, path, "%s", where), F_OK) == 0;
}

/* In shared mode sysfs shows devices of which this namespace has nothing. */
static bool of_others(const struct nd_device *d)
{
	uint32_t unmapped = 0;

	EACH_PORT(d, p)
	{
		if (p->gids.n)
			return false;
		unmapped += p->gids.unmapped;
	}
	return unmapped;
}

static bool any_of_ours(struct examination *x)
{
	EACH_DEVICE(x, d)
	{
		if (!of_others(d))
			return true;
	}
	return false;
}

/* --- uverbs ----------------------------------------------------------------------------------------------- */

static void node_refused(struct examination *x, const struct nd_device *d)
{
	char path[ND_PATH_MAX];
	struct stat st;

	if (stat(nd_path(x->s, path, "/dev/infiniband/%s", d->uverbs), &st) < 0) {
		nd_finding(
			x, ND_ERROR, d->name,
			"give the container the device: a resource of an RDMA device plug-in, or --device",
			"/dev/infiniband/%s is not here", d->uverbs);
		return;
	}
	nd_finding(
		x, ND_ERROR, d->name,
		d->open_error == EPERM ?
			"the device cgroup refuses it: ask the RDMA device plug-in for the resource" :
			"run as that user or group, or change the node's mode (udev rule of rdma-core)",
		"/dev/infiniband/%s does not open for uid %u: %s (owner %u:%u, mode %04o)",
		d->uverbs, geteuid(), dray_errno_text(d->open_error), st.st_uid, st.st_gid,
		st.st_mode & 07777);
}

void nd_check_uverbs(struct examination *x)
{
	bool bad = false;

	if (!x->scan->devices.n) {
		nd_finding(x, ND_INFO, "", "",
			   "no RDMA devices: transfers go over TCP and shared memory%s",
			   exists(x, "/dev/infiniband") ? "" : "; there is no /dev/infiniband");
		return;
	}
	EACH_DEVICE(x, d)
	{
		/* of a recorded machine nodes are not opened */
		if (!d->open_error || (d->open_error == ENOTSUP && !nd_is_live(x->s)) ||
		    (of_others(d) && any_of_ours(x)))
			continue;
		bad = true;
		if (!d->uverbs[0])
			nd_finding(x, ND_ERROR, d->name, "load ib_uverbs: modprobe ib_uverbs",
				   "it has no uverbs node");
		else if (d->open_error == ENOENT || d->open_error == EACCES ||
			 d->open_error == EPERM)
			node_refused(x, d);
		else
			nd_finding(
				x, ND_ERROR, d->name,
				"install its provider (package ibverbs-providers), see the kernel's log",
				"it does not open: %s", dray_errno_text(d->open_error));
	}
	if (!bad)
		nd_finding(x, ND_OK, "", "", "RDMA devices of this place open, %zu seen",
			   x->scan->devices.n);
}

void nd_check_namespace(struct examination *x)
{
	if (!x->scan->devices.n)
		return;
	if (x->scan->devices.netns == ND_NETNS_EXCLUSIVE)
		nd_finding(x, ND_OK, "", "",
			   "RDMA devices belong to one network namespace each (exclusive mode)");
	else if (x->scan->devices.netns == ND_NETNS_SHARED)
		nd_finding(x, ND_OK, "", "", "RDMA devices are shared by all network namespaces");
	else
		nd_finding(x, ND_INFO, "", "",
			   "this kernel does not say how network namespaces share RDMA devices");
}

/* --- ports -------------------------------------------------------------------------------------------------- */

void nd_check_ports(struct examination *x)
{
	char about[ABOUT_MAX];
	unsigned active = 0, all = 0;

	EACH_DEVICE(x, d)
	EACH_PORT(d, p)
	{
		all++;
		active += p->state == ND_PORT_ACTIVE;
		if (p->state == ND_PORT_ACTIVE)
			continue;
		nd_finding(x, ND_WARNING, port_name(d, p, about),
			   p->layer == ND_LAYER_INFINIBAND && p->state == ND_PORT_INIT ?
				   "no subnet manager has seen it: start one (opensm)" :
			   p->netdev[0] ? "bring its interface up, look at cable and switch port" :
					  "look at cable and switch port",
			   "the port is %s, %s", nd_port_state_name(p->state),
			   nd_port_physical_name(p->physical));
	}
	if (all && !active)
		nd_finding(x, ND_ERROR, "", "bring one up, or expect TCP",
			   "no RDMA port is active");
	else if (all && active == all)
		nd_finding(x, ND_OK, "", "", "all %u RDMA ports are active", all);
}

void nd_check_gids(struct examination *x)
{
	char about[ABOUT_MAX];
	bool bad = false;

	EACH_DEVICE(x, d)
	EACH_PORT(d, p)
	{
		const struct nd_gid *best = nd_gids_best(&p->gids);

		if (p->state != ND_PORT_ACTIVE)
			continue;
		if (!best && of_others(d) && any_of_ours(x)) {
			nd_finding(x, ND_INFO, port_name(d, p, about), "",
				   "it belongs to other network namespaces");
			continue;
		}
		if (!best && p->gids.unmapped)
			nd_finding(
				x, ND_ERROR, port_name(d, p, about),
				"run with hostNetwork, or give the pod an interface of this device (SR-IOV, macvlan)",
				"none of its GIDs belongs to this network namespace, %u to others",
				p->gids.unmapped);
		else if (!best)
			nd_finding(
				x, ND_ERROR, port_name(d, p, about),
				"give its interface an address; drayctl detect --explain says what is wrong with each GID",
				"no GID of it can be used%s%s", p->gids.n ? ": " : "",
				p->gids.n ? p->gids.v[0].reason : "");
		else if (p->layer == ND_LAYER_ETHERNET && best->class == ND_GID_LINK_LOCAL)
			nd_finding(
				x, ND_WARNING, port_name(d, p, about),
				"give its interface an address that can be routed",
				"its best GID is link-local: peers on other links are out of reach");
		else if (p->layer == ND_LAYER_ETHERNET && best->type == ND_GID_ROCE_V1)
			nd_finding(x, ND_WARNING, port_name(d, p, about),
				   "use a device or driver with RoCE v2",
				   "it has RoCE v1 alone, which no router forwards");
		else
			continue;
		bad = true;
	}
	if (!bad && x->scan->devices.n)
		nd_finding(x, ND_OK, "", "", "each active port has a GID that can be used");
}

/* --- MTU and P_Keys ----------------------------------------------------------------------------------------- */

/* Headers of RoCE v2 around the payload, over IPv6 and with immediate data. */
#define ROCE_HEADERS 96

void nd_check_mtu(struct examination *x)
{
	uint32_t least = UINT32_MAX, most = 0;
	char about[ABOUT_MAX];
	bool bad = false;

	EACH_DEVICE(x, d)
	EACH_PORT(d, p)
	{
		const struct nd_link *link = nd_link_by_index(&x->scan->links, p->ifindex);

		if (p->state != ND_PORT_ACTIVE || !p->active_mtu)
			continue;
		least = dray_min(least, p->active_mtu);
		most = dray_max(most, p->active_mtu);
		if (!link || p->layer != ND_LAYER_ETHERNET || p->active_mtu >= 4096 ||
		    (p->max_mtu && p->active_mtu >= p->max_mtu))
			continue;
		bad = true;
		nd_finding(
			x, ND_WARNING, port_name(d, p, about),
			"raise the MTU of interface and switch to 4200 or more (often 9000)",
			"it sends packets of %u bytes, since %s has an MTU of %u and 4096 need %u",
			p->active_mtu, link->name, link->mtu, 4096 + ROCE_HEADERS);
	}
	if (most && least != most) {
		bad = true;
		nd_finding(
			x, ND_WARNING, "", "give all rails one MTU",
			"active MTUs differ between ports: %u to %u bytes; a pair uses the lesser",
			least, most);
	}
	if (!bad && most)
		nd_finding(x, ND_OK, "", "", "active ports have an MTU of %u bytes", most);
}

void nd_check_pkeys(struct examination *x)
{
	char about[ABOUT_MAX];
	bool bad = false, any = false;

	EACH_DEVICE(x, d)
	EACH_PORT(d, p)
	{
		bool full = false;

		if (p->layer != ND_LAYER_INFINIBAND || !p->n_pkeys)
			continue;
		any = true;
		for (size_t i = 0; i < p->n_pkeys; i++)
			full |= p->pkeys[i].full;
		if (full)
			continue;
		bad = true;
		nd_finding(
			x, ND_WARNING, port_name(d, p, about),
			"make one side of each pair a full member (subnet manager's partitions)",
			"it is a limited member of all its partitions: queue pairs to another limited member are made, and every transfer fails");
	}
	if (!bad && any)
		nd_finding(x, ND_OK, "", "",
			   "each InfiniBand port is a full member of a partition");
}
