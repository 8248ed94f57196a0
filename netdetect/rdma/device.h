/* SPDX-License-Identifier: Apache-2.0 */
/* RDMA devices and their ports (include/uapi/rdma/rdma_netlink.h, RDMA_NL_NLDEV). */
#pragma once

#include "netdetect/net/link.h"
#include "netdetect/rdma/gid.h"

#define ND_DEVICE_NAME_MAX 64
/* Most bytes of the headers of RoCE v2 around the payload: over IPv6, with extended atomic headers. */
#define ND_ROCE_HEADERS 96

enum nd_port_state { /* IB_PORT_*, IBTA 14.2.5.6 */
		     ND_PORT_NOP,
		     ND_PORT_DOWN,
		     ND_PORT_INIT,
		     ND_PORT_ARMED,
		     ND_PORT_ACTIVE,
		     ND_PORT_ACTIVE_DEFER,
};
enum nd_link_layer { ND_LAYER_UNSPECIFIED, ND_LAYER_INFINIBAND, ND_LAYER_ETHERNET };
const char *nd_port_state_name(enum nd_port_state s);
const char *nd_port_physical_name(unsigned s); /* POLLING, LINK_UP, ... */
const char *nd_link_layer_name(enum nd_link_layer l);

struct nd_pkey {
	uint16_t index, value;
	bool full; /* top bit: full membership; two limited members cannot communicate */
};

struct nd_port {
	uint32_t number;
	enum nd_port_state state;
	unsigned physical;
	enum nd_link_layer layer;
	uint64_t rate;                /* bit/s on the wire, 0 unknown */
	uint32_t lanes;               /* width: 1, 2, 4, 8, 12 */
	uint32_t active_mtu, max_mtu; /* bytes */
	uint32_t lid, sm_lid;
	int ifindex; /* netdev, 0: none in this namespace */
	char netdev[IFNAMSIZ];
	struct nd_gids gids;
	struct nd_pkey *pkeys;
	size_t n_pkeys;
	/* errno: its MTU, GIDs or P_Keys could not be read now; they are those of an earlier scan, or missing */
	int query_error;
};

struct nd_resource { /* "qp", "mr", ... */
	char name[16];
	uint64_t count;
};
#define ND_RESOURCES_MAX 16

struct nd_device {
	uint32_t index;
	char name[ND_DEVICE_NAME_MAX];
	char firmware[64];
	char protocol[16];               /* "roce", "ib", "iw", "usnic" */
	uint8_t node_type;               /* RDMA_NODE_*: 1 channel adapter, 4 RNIC */
	uint64_t node_guid, system_guid; /* host order */
	char driver[32];                 /* "mlx5_core", "rxe", "" unknown */
	char board[64];                  /* board_id of sysfs */
	char bdf[16];                    /* "" if it is not on PCI */
	int numa;                        /* -1 unknown */
	bool virtual_function;
	char uverbs[32]; /* "uverbs0", "" none */
	/* errno of opening the uverbs node; 0: it opens; ENOENT: no node; ELIBACC: libibverbs cannot be loaded */
	int open_error;
	struct nd_port *ports; /* by number */
	size_t n_ports;
	struct nd_resource resources[ND_RESOURCES_MAX];
	size_t n_resources;
};

enum nd_netns_mode { ND_NETNS_UNKNOWN, ND_NETNS_SHARED, ND_NETNS_EXCLUSIVE };

struct nd_devices {
	/* by name, with numbers in names compared as numbers: mlx5_2 before mlx5_10 */
	struct nd_device *v;
	size_t n;
	enum nd_netns_mode netns;
};

/*
 * Names of devices, and what netlink says of them. A kernel without RDMA gives no device and 0. -errno only if a request
 * failed, with *ret unchanged. Opens no device. Any thread; blocks.
 */
int nd_devices_list(const struct nd_source *s, struct nd_devices *ret, struct dray_err *reterr);
/*
 * Reads the rest of these devices: places, ports, GID tables (not ranked) and P_Key tables. links: of the same scan, to match
 * netdevs. before: an earlier scan, for ports that cannot be read now, or NULL. -errno if that failed, with *d empty. Opens and
 * closes each uverbs node once (live). Any thread; blocks.
 */
int nd_devices_read(const struct nd_source *s, const struct nd_links *links,
		    const struct nd_devices *before, struct nd_devices *d, struct dray_err *reterr);
void nd_device_deinit(struct nd_device *d);
void nd_devices_deinit(struct nd_devices *d);

/* A port could not be read, or the device could not be opened, for a reason that may be gone at the next scan. */
bool nd_device_failing(const struct nd_device *d);
/* Why the port has its best GID, or none that is usable. Returns buf. */
const char *nd_port_why(const struct nd_port *p, char buf[ND_REASON_MAX]);
/* False for iWARP, EFA and usNIC, whose GIDs are no addresses, and which no queue pair of an agent reaches. */
bool nd_device_is_usable_kind(const struct nd_device *d);
/* True if one of its ports is active. */
bool nd_device_active(const struct nd_device *d);
/* libibverbs.c: why the device does not open, if open_error is set. Valid for ever. */
const char *nd_device_open_text(const struct nd_device *d);

/* NULL: none. */
const struct nd_device *nd_device_by_name(const struct nd_devices *d, const char *name);
struct nd_port *nd_port_by_number(const struct nd_device *d, uint32_t number);

/* Adds an answer of RDMA netlink to a struct nd_devices, as nd_link_message does. */
int nd_rdma_message(uint16_t type, const void *payload, size_t n, void *arg);
