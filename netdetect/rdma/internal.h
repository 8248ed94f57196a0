/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that the readers of this folder share. */
#pragma once

#include "netdetect/rdma/device.h"

struct ibv_device;

/* device.c: all zero, or the subnet prefix fe80::/64 alone. */
bool nd_gid_is_unset(const struct in6_addr *gid);
/*
 * device.c: sets the netdev of a GID. link: the one here with the index or the name that the kernel gives for the GID, or NULL. Where
 * network namespaces share devices, the kernel lists the GIDs of all of them, each with the index and the name of its netdev there. So the
 * GID has this netdev only if it is an address of it.
 */
void nd_gid_set_link(struct nd_gid *g, const struct nd_links *links, const struct nd_link *link);
/* device.c: adds a table entry. link: as for nd_gid_set_link(). A P_Key of 0 is unset. 0 or -ENOMEM. */
int nd_port_add_gid(struct nd_port *p, uint32_t index, enum nd_gid_type type,
		    const struct in6_addr *gid, const struct nd_links *links,
		    const struct nd_link *link);
int nd_port_add_pkey(struct nd_port *p, uint16_t index, uint16_t value);

/* sysfs.c: adds the devices of /sys/class/infiniband. 0 or -ENOMEM. */
int nd_sysfs_devices(const struct nd_source *s, struct nd_devices *d);
/* sysfs.c: sets the uverbs nodes of all devices. */
void nd_sysfs_uverbs(const struct nd_source *s, struct nd_devices *d);
/*
 * sysfs.c: sets what netlink does not carry (PCI address, driver, board; rate and link layer of the ports) and adds the ports if netlink gave none. 0 or -ENOMEM.
 */
int nd_sysfs_device(const struct nd_source *s, struct nd_device *d);
/* sysfs.c: the GID and P_Key tables of all ports. 0 or -ENOMEM. */
int nd_sysfs_tables(const struct nd_source *s, const struct nd_links *links, struct nd_device *d);

/* The devices of libibverbs, which nd_verbs_tables() lists when it needs them first. All zero: not listed. */
struct nd_verbs {
	struct ibv_device **v;
	int n, error; /* error: errno of the listing */
	bool listed;
};
void nd_verbs_deinit(struct nd_verbs *x);

/*
 * verbs.c: the same tables and the MTUs, by libibverbs, with each GID proved by an address handle to itself. Unless
 * the device opens, errno is returned in d->open_error and nothing is read. A port that cannot be read has query_error.
 * 0, -ENOMEM, or nd_is_shortage().
 */
int nd_verbs_tables(struct nd_verbs *x, const struct nd_links *links, struct nd_device *d);

/*
 * keep.c: what the device said in an earlier scan stands for what it cannot say now, because a failure that passes must not end
 * paths that work. before: NULL, or the devices of that scan. 0 or -ENOMEM.
 */
int nd_device_keep(struct nd_device *d, const struct nd_devices *before,
		   const struct nd_links *links);
