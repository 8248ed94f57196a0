/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of RDMA devices and their ports. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

static bool has_gid_of_ours(const struct nd_port *p)
{
	for (size_t i = 0; i < p->gids.n; i++)
		if (p->layer == ND_LAYER_INFINIBAND || p->gids.v[i].netdev[0])
			return true;
	return false;
}

/* In shared mode sysfs shows devices that this namespace cannot use. */
static bool is_of_others(const struct nd_device *d)
{
	uint32_t unmapped = 0;

	EACH_PORT(d, p)
	{
		if (has_gid_of_ours(p))
			return false;
		unmapped += p->gids.unmapped;
	}
	return unmapped;
}

static bool any_of_ours(struct examination *x)
{
	EACH_DEVICE(x, d)
	{
		if (!is_of_others(d))
			return true;
	}
	return false;
}

static void report_node(struct examination *x, const struct nd_device *d)
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
			"the device cgroup refuses it: request the resource of the RDMA device plug-in" :
			"run as that user or group, or change the mode of the node (udev rule of rdma-core)",
		"/dev/infiniband/%s does not open for uid %u: %s (owner %u:%u, mode %04o)",
		d->uverbs, geteuid(), dray_errno_text(d->open_error), st.st_uid, st.st_gid,
		st.st_mode & 07777);
}

void nd_check_uverbs(struct examination *x)
{
	char path[ND_PATH_MAX];
	bool bad = false;

	if (!x->scan->devices.n) {
		nd_finding(x, ND_INFO, "", "",
			   "no RDMA devices: transfers use TCP and shared memory%s",
			   access(nd_path(x->s, path, "/dev/infiniband"), F_OK) == 0 ?
				   "" :
				   "; there is no /dev/infiniband");
		return;
	}
	EACH_DEVICE(x, d)
	{
		/* nodes of a recorded machine are not opened */
		if (!d->open_error || (d->open_error == ENOTSUP && !nd_is_live(x->s)) ||
		    (is_of_others(d) && any_of_ours(x)))
			continue;
		bad = true;
		if (!d->uverbs[0])
			nd_finding(x, ND_ERROR, d->name, "load ib_uverbs: modprobe ib_uverbs",
				   "the device has no uverbs node");
		else if (d->open_error == ENOENT || d->open_error == EACCES ||
			 d->open_error == EPERM)
			report_node(x, d);
		else if (d->open_error == ELIBACC)
			nd_finding(
				x, ND_ERROR, d->name,
				"install rdma-core's library and providers (packages libibverbs1 and ibverbs-providers), and restart the agent",
				"RDMA is not available: %s", nd_device_open_text(d));
		else
			nd_finding(
				x, ND_ERROR, d->name,
				"install its provider (package ibverbs-providers), and read the kernel log",
				"the device does not open: %s", dray_errno_text(d->open_error));
	}
	if (!bad)
		nd_finding_ok(x, "the RDMA devices of this namespace open (%zu found)",
			      x->scan->devices.n);
}

void nd_check_namespace(struct examination *x)
{
	if (!x->scan->devices.n)
		return;
	if (x->scan->devices.netns == ND_NETNS_EXCLUSIVE)
		nd_finding_ok(x,
			      "each RDMA device belongs to one network namespace (exclusive mode)");
	else if (x->scan->devices.netns == ND_NETNS_SHARED)
		nd_finding_ok(x, "all network namespaces share the RDMA devices");
	else
		nd_finding(x, ND_INFO, "", "",
			   "this kernel does not say how network namespaces share RDMA devices");
}

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
				   "no subnet manager has configured it: start one (opensm)" :
			   p->netdev[0] ? "bring its interface up, check cable and switch port" :
					  "check cable and switch port",
			   "the port is %s, %s", nd_port_state_name(p->state),
			   nd_port_physical_name(p->physical));
	}
	if (all && !active)
		nd_finding(x, ND_ERROR, "", "bring one up; until then transfers use TCP",
			   "no RDMA port is active");
	else if (all && active == all)
		nd_finding_ok(x, "all %u RDMA ports are active", all);
}

/* True if the active port has a GID that peers can reach. */
static bool check_gid(struct examination *x, const struct nd_device *d, const struct nd_port *p)
{
	const struct nd_gid *best = nd_gids_best(&p->gids);
	char about[ABOUT_MAX];

	port_name(d, p, about);
	if (p->query_error)
		nd_finding(x, ND_ERROR, about,
			   "try again, and read the kernel log if that fails too",
			   "the port cannot be read: %s", dray_errno_text(p->query_error));
	else if (!best && p->gids.unmapped && !has_gid_of_ours(p))
		nd_finding(
			x, ND_ERROR, about,
			"run with hostNetwork, or give the pod an interface of this device (SR-IOV, macvlan)",
			"this network namespace has no GID of the port, other namespaces have %u",
			p->gids.unmapped);
	else if (!best)
		nd_finding(
			x, ND_ERROR, about,
			"give its interface an address; drayctl detect --explain shows the reason for each GID",
			"the port has no usable GID%s%s", p->gids.n ? ": " : "",
			p->gids.n ? p->gids.v[0].reason : "");
	else if (p->layer == ND_LAYER_ETHERNET && best->class == ND_GID_LINK_LOCAL)
		nd_finding(x, ND_WARNING, about, "give its interface a routable address",
			   "the best GID is link-local: peers on other links cannot reach it");
	else if (p->layer == ND_LAYER_ETHERNET && best->type == ND_GID_ROCE_V1)
		nd_finding(x, ND_WARNING, about, "use a device or driver with RoCE v2",
			   "the port has RoCE v1 only, which no router forwards");
	else
		return true;
	return false;
}

void nd_check_gids(struct examination *x)
{
	char about[ABOUT_MAX];
	bool good = true;

	EACH_DEVICE(x, d)
	{
		if (nd_device_is_usable_kind(d))
			continue;
		good = false;
		nd_finding(x, ND_INFO, d->name, "",
			   "the device is neither InfiniBand nor RoCE: transfers do not use it");
	}
	EACH_DEVICE(x, d)
	EACH_PORT(d, p)
	{
		if (p->state != ND_PORT_ACTIVE || !nd_device_is_usable_kind(d))
			continue;
		if (is_of_others(d) && any_of_ours(x))
			nd_finding(x, ND_INFO, port_name(d, p, about), "",
				   "the port belongs to other network namespaces");
		else
			good &= check_gid(x, d, p);
	}
	if (good && x->scan->devices.n)
		nd_finding_ok(x, "each active port has a usable GID");
}

void nd_check_mtu(struct examination *x)
{
	uint32_t least = UINT32_MAX, most = 0;
	char about[ABOUT_MAX];
	bool bad = false;

	EACH_DEVICE(x, d)
	EACH_PORT(d, p)
	{
		const struct nd_link *link = nd_link_by_index(&x->scan->links, p->ifindex);

		if (p->state != ND_PORT_ACTIVE || !p->active_mtu || !nd_device_is_usable_kind(d))
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
			"the port sends packets of %u bytes: %s has an MTU of %u, and packets of 4096 need %u",
			p->active_mtu, link->name, link->mtu, 4096 + ND_ROCE_HEADERS);
	}
	if (most && least != most) {
		bad = true;
		nd_finding(
			x, ND_WARNING, "", "give all rails the same MTU",
			"active MTUs of the ports range from %u to %u bytes; a pair uses the smaller one",
			least, most);
	}
	if (!bad && most)
		nd_finding_ok(x, "active ports have an MTU of %u bytes", most);
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
			"make one side of each pair a full member (partitions of the subnet manager)",
			"the port is a limited member of all its partitions: queue pairs to another limited member connect, but every transfer fails");
	}
	if (!bad && any)
		nd_finding_ok(x, "each InfiniBand port is a full member of a partition");
}
