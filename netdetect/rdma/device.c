/* SPDX-License-Identifier: Apache-2.0 */
#include "netdetect/rdma/device.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <rdma/rdma_netlink.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "netdetect/source/attr.h"
#include "netdetect/rdma/tables.h"
#include "netdetect/rdma/sysfs.h"
#include "schema/gen/errors.h"

#define OP(cmd) RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, cmd)

/* --- names ---------------------------------------------------------------------------------------------- */

const char *nd_port_state_name(enum nd_port_state s)
{
	static const char *const names[] = { "NOP",   "DOWN",   "INIT",
					     "ARMED", "ACTIVE", "ACTIVE_DEFER" };

	return s < DRAY_ARRAY_SIZE(names) ? names[s] : "unknown";
}

const char *nd_port_physical_name(unsigned s)
{
	static const char *const names[] = { "NOP",
					     "SLEEP",
					     "POLLING",
					     "DISABLED",
					     "PORT_CONFIGURATION_TRAINING",
					     "LINK_UP",
					     "LINK_ERROR_RECOVER",
					     "PHY_TEST" };

	return s < DRAY_ARRAY_SIZE(names) ? names[s] : "unknown";
}

const char *nd_link_layer_name(enum nd_link_layer l)
{
	static const char *const names[] = { "unspecified", "InfiniBand", "Ethernet" };

	return l < DRAY_ARRAY_SIZE(names) ? names[l] : "unspecified";
}

/* --- messages ------------------------------------------------------------------------------------------- */

static int device_attr(const struct nd_attr *a, void *arg)
{
	struct nd_device *d = arg;

	switch (a->type) {
	case RDMA_NLDEV_ATTR_DEV_INDEX:
		d->index = nd_attr_u32(a);
		break;
	case RDMA_NLDEV_ATTR_DEV_NAME:
		nd_attr_text(a, d->name, sizeof(d->name));
		break;
	case RDMA_NLDEV_ATTR_FW_VERSION:
		nd_attr_text(a, d->firmware, sizeof(d->firmware));
		break;
	case RDMA_NLDEV_ATTR_DEV_PROTOCOL:
		nd_attr_text(a, d->protocol, sizeof(d->protocol));
		break;
	case RDMA_NLDEV_ATTR_NODE_GUID:
		d->node_guid = nd_attr_u64(a);
		break;
	case RDMA_NLDEV_ATTR_SYS_IMAGE_GUID:
		d->system_guid = nd_attr_u64(a);
		break;
	case RDMA_NLDEV_ATTR_DEV_NODE_TYPE:
		d->node_type = nd_attr_u8(a);
		break;
	default:
		break;
	}
	return 0;
}

/* What a device is called is a directory of sysfs, and nothing that leads elsewhere. */
static bool good_name(const char *s)
{
	return *s && *s != '.' && !strchr(s, '/');
}

static struct nd_device *device_by_index(struct nd_devices *d, uint32_t index)
{
	for (size_t i = 0; i < d->n; i++)
		if (d->v[i].index == index)
			return &d->v[i];
	return NULL;
}

static int parse_device(const void *p, size_t n, struct nd_devices *out)
{
	struct nd_device d = { .numa = -1, .open_error = ENOENT }, *place;
	int r = nd_attrs(p, n, device_attr, &d);

	if (r < 0)
		return r;
	if (!good_name(d.name))
		return -EBADMSG;
	if (device_by_index(out, d.index) || nd_device_by_name(out, d.name))
		return 0;
	place = nd_grow((void **)&out->v, &out->n, sizeof(d));
	if (!place)
		return -ENOMEM;
	*place = d;
	return 0;
}

struct port_arg {
	struct nd_port port;
	uint32_t device;
	bool known;
};

static int port_attr(const struct nd_attr *a, void *arg)
{
	struct port_arg *x = arg;
	struct nd_port *p = &x->port;

	switch (a->type) {
	case RDMA_NLDEV_ATTR_DEV_INDEX:
		x->device = nd_attr_u32(a);
		x->known = true;
		break;
	case RDMA_NLDEV_ATTR_PORT_INDEX:
		p->number = nd_attr_u32(a);
		break;
	case RDMA_NLDEV_ATTR_CAP_FLAGS:
		p->capabilities = nd_attr_u64(a);
		break;
	case RDMA_NLDEV_ATTR_LID:
		p->lid = nd_attr_u32(a);
		break;
	case RDMA_NLDEV_ATTR_SM_LID:
		p->sm_lid = nd_attr_u32(a);
		break;
	case RDMA_NLDEV_ATTR_PORT_STATE:
		p->state = (enum nd_port_state)nd_attr_u8(a);
		break;
	case RDMA_NLDEV_ATTR_PORT_PHYS_STATE:
		p->physical = nd_attr_u8(a);
		break;
	case RDMA_NLDEV_ATTR_NDEV_INDEX:
		p->ifindex = (int)nd_attr_u32(a);
		break;
	case RDMA_NLDEV_ATTR_NDEV_NAME:
		nd_attr_text(a, p->netdev, sizeof(p->netdev));
		break;
	default:
		break;
	}
	return 0;
}

static int parse_port(const void *p, size_t n, struct nd_devices *out)
{
	struct port_arg x = { .known = false };
	struct nd_device *d;
	struct nd_port *place;
	int r = nd_attrs(p, n, port_attr, &x);

	if (r < 0)
		return r;
	d = x.known ? device_by_index(out, x.device) : NULL;
	/* a device that came after the devices were asked for */
	if (!d || !x.port.number)
		return 0;
	for (size_t i = 0; i < d->n_ports; i++)
		if (d->ports[i].number == x.port.number)
			return 0;
	place = nd_grow((void **)&d->ports, &d->n_ports, sizeof(x.port));
	if (!place)
		return -ENOMEM;
	*place = x.port;
	return 0;
}

static int resource_attr(const struct nd_attr *a, void *arg)
{
	struct nd_resource *r = arg;

	if (a->type == RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_NAME)
		nd_attr_text(a, r->name, sizeof(r->name));
	else if (a->type == RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_CURR)
		r->count = nd_attr_u64(a);
	return 0;
}

static int summary_attr(const struct nd_attr *a, void *arg)
{
	struct nd_device *d = arg;
	struct nd_resource r = { .count = 0 };
	int ret;

	if (a->type != RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY || d->n_resources == ND_RESOURCES_MAX)
		return 0;
	ret = nd_attrs(a->data, a->n, resource_attr, &r);
	if (ret >= 0 && r.name[0])
		d->resources[d->n_resources++] = r;
	return ret;
}

static int resources_attr(const struct nd_attr *a, void *arg)
{
	struct nd_device *d = arg;

	if (a->type == RDMA_NLDEV_ATTR_DEV_INDEX)
		d->index = nd_attr_u32(a);
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
		d->netns = nd_attr_u8(a) ? ND_NETNS_SHARED : ND_NETNS_EXCLUSIVE;
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

/* --- the scan ------------------------------------------------------------------------------------------- */

static void device_deinit(struct nd_device *d)
{
	for (size_t i = 0; i < d->n_ports; i++) {
		free(d->ports[i].gids.v);
		free(d->ports[i].pkeys);
	}
	free(d->ports);
}

void nd_devices_deinit(struct nd_devices *d)
{
	for (size_t i = 0; i < d->n; i++)
		device_deinit(&d->v[i]);
	free(d->v);
	*d = (struct nd_devices){ 0 };
}

static void restart_devices(void *arg)
{
	struct nd_devices *d = arg;

	for (size_t i = 0; i < d->n; i++)
		device_deinit(&d->v[i]);
	d->n = 0;
}

/* The ports of one device, in one dump. */
struct port_dump {
	struct nd_devices *d;
	size_t device;
};

static int port_message(uint16_t type, const void *payload, size_t n, void *arg)
{
	return nd_rdma_message(type, payload, n, ((struct port_dump *)arg)->d);
}

static void restart_ports(void *arg)
{
	struct port_dump *x = arg;

	x->d->v[x->device].n_ports = 0;
}

static int ask_ports(const struct nd_source *s, struct nd_devices *d, size_t i,
		     struct dray_err *reterr)
{
	struct {
		struct nlattr h;
		uint32_t index;
	} body = { { sizeof(body), RDMA_NLDEV_ATTR_DEV_INDEX }, d->v[i].index };
	struct port_dump arg = { d, i };

	return nd_dump(s, NETLINK_RDMA, ND_RECORD_RDMA_PORT, OP(RDMA_NLDEV_CMD_PORT_GET), &body,
		       sizeof(body), port_message, restart_ports, &arg, reterr);
}

static bool missing(int r)
{
	return r == -EPROTONOSUPPORT || r == -EOPNOTSUPP || r == -EAFNOSUPPORT || r == -EINVAL ||
	       r == -EPERM;
}

/* Counts and modes are worth having and not worth failing for. */
static void ask_rest(const struct nd_source *s, struct nd_devices *d)
{
	struct dray_err ignored = DRAY_ERR_NULL;

	(void)nd_dump(s, NETLINK_RDMA, ND_RECORD_RDMA_RES, OP(RDMA_NLDEV_CMD_RES_GET), NULL, 0,
		      nd_rdma_message, NULL, d, &ignored);
	(void)nd_request(s, NETLINK_RDMA, ND_RECORD_RDMA_SYS, OP(RDMA_NLDEV_CMD_SYS_GET), NULL, 0,
			 nd_rdma_message, d, &ignored);
}

/* *ret_answered: the kernel (or a recording of it) has said which devices there are, if only that there are none. */
static int ask_kernel(const struct nd_source *s, struct nd_devices *d, bool *ret_answered,
		      struct dray_err *reterr)
{
	char path[ND_PATH_MAX];
	struct dray_err err = DRAY_ERR_NULL;
	int r = nd_dump(s, NETLINK_RDMA, ND_RECORD_RDMA_DEV, OP(RDMA_NLDEV_CMD_GET), NULL, 0,
			nd_rdma_message, restart_devices, d, &err);

	/* a kernel without RDMA netlink may still have devices, of which sysfs tells */
	if (missing(r))
		return 0;
	*ret_answered = nd_is_live(s) ||
			access(nd_path(s, path, "/netlink/" ND_RECORD_RDMA_DEV), F_OK) == 0;
	for (size_t i = 0; r >= 0 && i < d->n; i++) {
		r = ask_ports(s, d, i, &err);
		/* gone since */
		if (r == -ENODEV || r == -EINVAL)
			r = 0;
	}
	if (r < 0)
		return dray_err_set(reterr, r, err.code, "%s", err.msg);
	ask_rest(s, d);
	return 0;
}

/* Numbers inside names compare as numbers. */
static int natural(const char *a, const char *b)
{
	while (*a && *b) {
		if (isdigit((unsigned char)*a) && isdigit((unsigned char)*b)) {
			char *ae, *be;
			unsigned long x = strtoul(a, &ae, 10), y = strtoul(b, &be, 10);

			if (x != y)
				return x < y ? -1 : 1;
			a = ae;
			b = be;
			continue;
		}
		if (*a != *b)
			break;
		a++;
		b++;
	}
	return (unsigned char)*a - (unsigned char)*b;
}

static int by_name(const void *a, const void *b)
{
	const struct nd_device *x = a, *y = b;
	int r = natural(x->name, y->name);

	return r ? r : strcmp(x->name, y->name);
}

static int by_number(const void *a, const void *b)
{
	const struct nd_port *x = a, *y = b;

	return x->number < y->number ? -1 : x->number > y->number;
}

static int fill(const struct nd_source *s, const struct nd_links *links, struct nd_devices *d)
{
	int r = 0;

	for (size_t i = 0; r >= 0 && i < d->n; i++) {
		r = nd_sysfs_device(s, &d->v[i]);
		if (r >= 0)
			r = nd_port_tables(s, links, &d->v[i]);
		if (d->v[i].n_ports)
			qsort(d->v[i].ports, d->v[i].n_ports, sizeof(struct nd_port), by_number);
	}
	if (d->n)
		qsort(d->v, d->n, sizeof(*d->v), by_name);
	return r;
}

int nd_devices_scan(const struct nd_source *s, const struct nd_links *links, struct nd_devices *ret,
		    struct dray_err *reterr)
{
	struct nd_devices d = { 0 };
	bool answered = false;
	int r = ask_kernel(s, &d, &answered, reterr);

	/* a device that is going is in sysfs for as long as somebody holds it, and no longer in netlink */
	if (r >= 0 && !answered)
		r = nd_sysfs_devices(s, &d);
	if (r >= 0)
		r = fill(s, links, &d);
	if (r < 0) {
		nd_devices_deinit(&d);
		return dray_err_set(reterr, r, r == -ENOMEM ? DRAY_E_NO_MEMORY : DRAY_E_IO,
				    "RDMA devices: %s", dray_errno_text(r));
	}
	for (size_t i = 0; i < d.n; i++)
		for (size_t k = 0; k < d.v[i].n_ports; k++)
			nd_gids_rank(&d.v[i].ports[k].gids,
				     &(struct nd_gid_choice){ .fixed_index = -1,
							      .infiniband = d.v[i].ports[k].layer ==
									    ND_LAYER_INFINIBAND });
	*ret = d;
	return 0;
}

const struct nd_device *nd_device_by_name(const struct nd_devices *d, const char *name)
{
	for (size_t i = 0; i < d->n; i++)
		if (!strcmp(d->v[i].name, name))
			return &d->v[i];
	return NULL;
}

bool nd_device_active(const struct nd_device *d)
{
	for (size_t i = 0; i < d->n_ports; i++)
		if (d->ports[i].state == ND_PORT_ACTIVE)
			return true;
	return false;
}
