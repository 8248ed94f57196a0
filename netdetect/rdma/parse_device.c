/* SPDX-License-Identifier: Apache-2.0 */
/* Parses RDMA netlink messages: bytes to devices and ports. */
#include <errno.h>
#include <rdma/rdma_netlink.h>
#include <string.h>

#include "netdetect/rdma/device.h"
#include "lib/array.h"
#include "netdetect/source/attr.h"

#define OP(cmd) RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, cmd)

static struct nd_device *device_by_index(struct nd_devices *d, uint32_t index)
{
	for (size_t i = 0; i < d->n; i++)
		if (d->v[i].index == index)
			return &d->v[i];
	return NULL;
}

static int parse_device(const void *p, size_t n, struct nd_devices *out)
{
	static const struct nd_field fields[] = {
		ND_NUMBER(RDMA_NLDEV_ATTR_DEV_INDEX, 4, struct nd_device, index),
		ND_TEXT(RDMA_NLDEV_ATTR_DEV_NAME, struct nd_device, name),
		ND_TEXT(RDMA_NLDEV_ATTR_FW_VERSION, struct nd_device, firmware),
		ND_TEXT(RDMA_NLDEV_ATTR_DEV_PROTOCOL, struct nd_device, protocol),
		ND_NUMBER(RDMA_NLDEV_ATTR_NODE_GUID, 8, struct nd_device, node_guid),
		ND_NUMBER(RDMA_NLDEV_ATTR_SYS_IMAGE_GUID, 8, struct nd_device, system_guid),
		ND_NUMBER(RDMA_NLDEV_ATTR_DEV_NODE_TYPE, 1, struct nd_device, node_type),
	};
	struct nd_device d = { .numa = -1, .open_error = ENOENT };
	int r = nd_attrs_store(p, n, ND_FIELDS(fields), &d);

	if (r < 0)
		return r;
	if (!d.name[0])
		return -EBADMSG;
	/* the name, which an administrator may choose, becomes part of paths in sysfs; the other devices are used */
	if (d.name[0] == '.' || strchr(d.name, '/'))
		return 0;
	if (device_by_index(out, d.index) || nd_device_by_name(out, d.name))
		return 0;
	return DRAY_APPEND(out->v, out->n, d);
}

struct parsed_port {
	struct nd_port port;
	uint32_t device;
};

static int parse_port(const void *p, size_t n, struct nd_devices *out)
{
	static const struct nd_field fields[] = {
		ND_NUMBER(RDMA_NLDEV_ATTR_DEV_INDEX, 4, struct parsed_port, device),
		ND_NUMBER(RDMA_NLDEV_ATTR_PORT_INDEX, 4, struct parsed_port, port.number),
		ND_NUMBER(RDMA_NLDEV_ATTR_LID, 4, struct parsed_port, port.lid),
		ND_NUMBER(RDMA_NLDEV_ATTR_SM_LID, 4, struct parsed_port, port.sm_lid),
		ND_NUMBER(RDMA_NLDEV_ATTR_PORT_STATE, 1, struct parsed_port, port.state),
		ND_NUMBER(RDMA_NLDEV_ATTR_PORT_PHYS_STATE, 1, struct parsed_port, port.physical),
		ND_NUMBER(RDMA_NLDEV_ATTR_NDEV_INDEX, 4, struct parsed_port, port.ifindex),
		ND_TEXT(RDMA_NLDEV_ATTR_NDEV_NAME, struct parsed_port, port.netdev),
	};
	struct parsed_port x = { .device = UINT32_MAX };
	struct nd_device *d;
	int r = nd_attrs_store(p, n, ND_FIELDS(fields), &x);

	if (r < 0)
		return r;
	d = device_by_index(out, x.device);
	/* the device may be newer than the list of devices */
	if (!d || !x.port.number || nd_port_by_number(d, x.port.number))
		return 0;
	return DRAY_APPEND(d->ports, d->n_ports, x.port);
}

static int summary_attr(const struct nd_attr *a, void *arg)
{
	static const struct nd_field fields[] = {
		ND_TEXT(RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_NAME, struct nd_resource, name),
		ND_NUMBER(RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_CURR, 8, struct nd_resource, count),
	};
	struct nd_device *d = arg;
	struct nd_resource r = { .count = 0 };
	int ret;

	if (a->type != RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY || d->n_resources == ND_RESOURCES_MAX)
		return 0;
	ret = nd_attrs_store(a->data, a->n, ND_FIELDS(fields), &r);
	if (ret >= 0 && r.name[0])
		d->resources[d->n_resources++] = r;
	return ret;
}

static int resources_attr(const struct nd_attr *a, void *arg)
{
	struct nd_device *d = arg;

	if (a->type == RDMA_NLDEV_ATTR_DEV_INDEX)
		d->index = (uint32_t)nd_attr_number(a, 4);
	if (a->type == RDMA_NLDEV_ATTR_RES_SUMMARY)
		return nd_attrs(a->data, a->n, summary_attr, d);
	return 0;
}

static int parse_resources(const void *p, size_t n, struct nd_devices *out)
{
	struct nd_device got = { .index = UINT32_MAX }, *d;
	int r = nd_attrs(p, n, resources_attr, &got);

	d = r >= 0 ? device_by_index(out, got.index) : NULL;
	if (!d)
		return r;
	memcpy(d->resources, got.resources, sizeof(d->resources));
	d->n_resources = got.n_resources;
	return 0;
}

static int system_attr(const struct nd_attr *a, void *arg)
{
	struct nd_devices *d = arg;

	if (a->type == RDMA_NLDEV_SYS_ATTR_NETNS_MODE)
		d->netns = nd_attr_number(a, 1) ? ND_NETNS_SHARED : ND_NETNS_EXCLUSIVE;
	return 0;
}

int nd_rdma_message(uint16_t type, const void *payload, size_t n, void *arg)
{
	switch (type) {
	case OP(RDMA_NLDEV_CMD_GET):
		return parse_device(payload, n, arg);
	case OP(RDMA_NLDEV_CMD_PORT_GET):
		return parse_port(payload, n, arg);
	case OP(RDMA_NLDEV_CMD_RES_GET):
		return parse_resources(payload, n, arg);
	case OP(RDMA_NLDEV_CMD_SYS_GET):
		return nd_attrs(payload, n, system_attr, arg);
	default:
		return 0;
	}
}
