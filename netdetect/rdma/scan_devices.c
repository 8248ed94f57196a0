/* SPDX-License-Identifier: Apache-2.0 */
/* Reads RDMA devices: netlink first, then sysfs for the missing fields, then the tables by libibverbs or sysfs. */
#include <errno.h>
#include <fcntl.h>
#include <rdma/rdma_netlink.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "netdetect/rdma/internal.h"
#include "netdetect/source/netlink.h"

static int query_ports(const struct nd_source *s, struct nd_devices *d, struct nd_device *device,
		       struct dray_err *reterr)
{
	struct {
		struct nlattr h;
		uint32_t index;
	} body = { { sizeof(body), RDMA_NLDEV_ATTR_DEV_INDEX }, device->index };
	int r = nd_query(s, ND_GET_RDMA_PORTS, &body, sizeof(body), nd_rdma_message, d,
			 &device->n_ports, NULL, reterr);

	/* the device is gone since the first dump */
	return r == -ENODEV || r == -EINVAL ? 0 : r;
}

/* *ret_answered: the kernel, or a recording, listed its devices, even if there are none. */
static int query_devices(const struct nd_source *s, struct nd_devices *d, bool *ret_answered,
			 struct dray_err *reterr)
{
	char path[ND_PATH_MAX];
	struct dray_err err = DRAY_ERR_NULL;
	int r = nd_query(s, ND_GET_RDMA_DEVICES, NULL, 0, nd_rdma_message, d, &d->n, NULL, &err);

	/* a kernel without RDMA netlink may still show devices in sysfs */
	if (r < 0 && r != -EBADMSG && !nd_is_transient(r))
		return 0;
	*ret_answered = nd_is_live(s) ||
			access(nd_path(s, path, "/netlink/%s", nd_record_name(ND_GET_RDMA_DEVICES)),
			       F_OK) == 0;
	for (size_t i = 0; r >= 0 && i < d->n; i++)
		r = query_ports(s, d, &d->v[i], &err);
	if (r < 0)
		return dray_err_set(reterr, r, err.code, "%s", err.msg);
	/* resource counts and the namespace mode are optional */
	(void)nd_query(s, ND_GET_RDMA_RESOURCES, NULL, 0, nd_rdma_message, d, NULL, NULL, NULL);
	(void)nd_query(s, ND_GET_RDMA_SYSTEM, NULL, 0, nd_rdma_message, d, NULL, NULL, NULL);
	return 0;
}

/* 0 or errno. A recorded node is an ordinary file, which is not opened. */
static int try_node(const struct nd_source *s, const struct nd_device *d)
{
	char path[ND_PATH_MAX];
	int fd dray_auto_close = -1;

	if (!d->uverbs[0])
		return ENOENT;
	nd_path(s, path, "/dev/infiniband/%s", d->uverbs);
	if (!nd_is_live(s))
		return access(path, F_OK) == 0 ? ENOTSUP : errno;
	fd = open(path, O_RDWR | O_CLOEXEC);
	return fd < 0 ? errno : 0;
}

/* The largest RoCE MTU whose packet with all headers fits the netdev, as iboe_get_mtu() of the kernel. */
static uint32_t roce_mtu(uint32_t netdev_mtu)
{
	for (uint32_t m = 4096; m >= 256; m /= 2)
		if (m + ND_ROCE_HEADERS <= netdev_mtu)
			return m;
	return 0;
}

static void match_netdev(const struct nd_links *links, struct nd_device *d, struct nd_port *p)
{
	const struct nd_link *link = nd_link_by_index(links, p->ifindex);

	/* RDMA netlink of old kernels names no netdev, but the GIDs of the port do */
	for (size_t i = 0; !link && i < p->gids.n; i++)
		link = nd_link_by_index(links, p->gids.v[i].ifindex);
	p->ifindex = link ? link->ifindex : 0;
	p->netdev[0] = '\0';
	if (!link)
		return;
	memcpy(p->netdev, link->name, sizeof(p->netdev));
	if (d->numa < 0)
		d->numa = link->numa;
	if (!p->active_mtu && p->layer == ND_LAYER_ETHERNET)
		p->active_mtu = roce_mtu(link->mtu);
}

ND_ORDER(by_number, struct nd_port, number);

static int complete(const struct nd_source *s, const struct nd_links *links,
		    const struct nd_devices *before, struct nd_verbs *verbs, struct nd_device *d)
{
	int r = nd_sysfs_device(s, d);

	if (r < 0)
		return r;
	d->open_error = try_node(s, d);
	if (!d->open_error)
		r = nd_verbs_tables(verbs, links, d);
	if (nd_is_shortage(-d->open_error))
		return -d->open_error;
	if (r >= 0)
		r = nd_device_keep(d, before, links);
	if (r >= 0 && d->open_error)
		r = nd_sysfs_tables(s, links, d);
	for (size_t i = 0; i < d->n_ports; i++)
		match_netdev(links, d, &d->ports[i]);
	if (d->n_ports)
		qsort(d->ports, d->n_ports, sizeof(*d->ports), by_number);
	return r;
}

static int by_name(const void *a, const void *b)
{
	const struct nd_device *x = a, *y = b;

	/* compares numbers inside names as numbers */
	return strverscmp(x->name, y->name);
}

/* Ends one of the two steps; r: its result. */
static int end_step(struct nd_devices *d, int r, struct dray_err *reterr)
{
	if (r >= 0)
		return 0;
	nd_devices_deinit(d);
	return dray_err_set(reterr, r, nd_error_code(r), "RDMA devices cannot be read: %s",
			    dray_errno_text(r));
}

int nd_devices_list(const struct nd_source *s, struct nd_devices *ret, struct dray_err *reterr)
{
	struct nd_devices d = { 0 };
	bool answered = false;
	int r = query_devices(s, &d, &answered, reterr);

	/* sysfs lists a device that is being removed until its last user has closed it, netlink does not */
	if (r >= 0 && !answered && !d.n)
		r = nd_sysfs_devices(s, &d);
	r = end_step(&d, r, reterr);
	if (r < 0)
		return r;
	if (d.n)
		qsort(d.v, d.n, sizeof(*d.v), by_name);
	*ret = d;
	return 0;
}

int nd_devices_read(const struct nd_source *s, const struct nd_links *links,
		    const struct nd_devices *before, struct nd_devices *d, struct dray_err *reterr)
{
	struct nd_verbs verbs = { .listed = false };
	int r = 0;

	nd_sysfs_uverbs(s, d);
	for (size_t i = 0; r >= 0 && i < d->n; i++)
		r = complete(s, links, before, &verbs, &d->v[i]);
	nd_verbs_deinit(&verbs);
	return end_step(d, r, reterr);
}
