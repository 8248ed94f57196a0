/* SPDX-License-Identifier: Apache-2.0 */
/* Interfaces, addresses and routes of this network namespace (rtnetlink(7)). */
#pragma once

#include <net/if.h>
#include <netinet/in.h>

#include "lib/err.h"
#include "netdetect/source/source.h"

enum nd_link_kind {
	ND_LINK_DEVICE, /* has no IFLA_INFO_KIND, or is an InfiniBand port */
	ND_LINK_LOOPBACK,
	ND_LINK_BOND, /* bond or team */
	ND_LINK_VLAN,
	ND_LINK_MACVLAN, /* macvlan, ipvlan, macvtap */
	ND_LINK_VETH, /* veth, netkit: the only way out of a pod; the other end is a port of a bridge */
	ND_LINK_BRIDGE, /* bridge or openvswitch */
	ND_LINK_TUNNEL, /* vxlan, geneve, gre, ipip, sit, wireguard, tun, ... */
	ND_LINK_DUMMY,
	ND_LINK_VRF, /* its ports are routed by a table of their own */
	ND_LINK_OTHER,
};
const char *nd_link_kind_name(enum nd_link_kind k);

struct nd_link {
	int ifindex;
	char name[IFNAMSIZ];
	enum nd_link_kind kind;
	char kind_text[16]; /* IFLA_INFO_KIND, "" if none */
	int master;         /* ifindex of its bond, bridge or VRF; 0: none */
	int lower; /* ifindex of the link below (VLAN, MACVLAN); 0: none, or in another namespace */
	uint32_t vlan; /* VLAN id; 0: none */
	uint32_t mtu;
	uint32_t flags; /* IFF_* */
	bool up;        /* IFF_UP and IFF_LOWER_UP: packets can leave */
	uint8_t mac[20];
	uint8_t mac_n;
	char bdf[16];   /* PCI function of its device, "" if none */
	int numa;       /* node of its device, -1 unknown */
	uint32_t speed; /* Mb/s, 0 unknown */
};

struct nd_addr {
	int ifindex;
	uint8_t family; /* AF_INET, AF_INET6 */
	uint8_t prefix;
	uint8_t scope;        /* RT_SCOPE_* */
	uint32_t flags;       /* IFA_F_* */
	struct in6_addr addr; /* IPv4 as ::ffff:a.b.c.d */
};

struct nd_route {
	uint8_t family, prefix;
	uint8_t type; /* RTN_* */
	uint32_t table, metric;
	int ifindex;    /* 0: none */
	bool multipath; /* one of several next hops, each of which is an element */
	struct in6_addr dst, gateway, source; /* all zero: none; IPv4 mapped as above */
};

struct nd_links {
	struct nd_link *links; /* by ifindex */
	size_t n_links;
	struct nd_addr *addrs; /* by ifindex, then in the order of the kernel */
	size_t n_addrs;
	struct nd_route *routes; /* tables main and default, in the order of the kernel */
	size_t n_routes;
	/*
	 * Of all tables and the rules that choose one, with the next hops of multipath routes and without what changes as time passes: while it is the same, so are
	 * the kernel's answers to look-ups.
	 */
	uint64_t routes_hash;
};

/* Reads netlink and sysfs. 0, or -errno with *ret unchanged. Any thread; blocks. */
int nd_links_scan(const struct nd_source *s, struct nd_links *ret, struct dray_err *reterr);
void nd_links_deinit(struct nd_links *l);

/* NULL: none. */
const struct nd_link *nd_link_by_index(const struct nd_links *l, int ifindex);
/* The VRF of the link, or of the bond or bridge above it; NULL: none. */
const struct nd_link *nd_link_vrf(const struct nd_links *l, int ifindex);
const struct nd_link *nd_link_by_name(const struct nd_links *l, const char *name);

/*
 * Adds a message of one of the three dumps to a struct nd_links, as nd_message_fn. -EBADMSG if it is malformed,
 * -ENOMEM; unknown types and families are ignored. Pure.
 */
int nd_link_message(uint16_t type, const void *payload, size_t n, void *arg);

/* Reads 4 or 16 bytes in network order; IPv4 is mapped. */
void nd_addr_set(struct in6_addr *ret, uint8_t family, const void *bytes);
/* The bytes of the address in network order, without the mapping; *ret_n is 4 or 16. */
const uint8_t *nd_addr_bytes(const struct in6_addr *a, uint8_t family, size_t *ret_n);
/* "10.0.0.1" or "fe80::1"; buf of INET6_ADDRSTRLEN. */
const char *nd_addr_text(const struct in6_addr *a, uint8_t family, char *buf);
bool nd_addr_is_loopback(const struct in6_addr *a);

/* True if the first `bits` bits are equal. Both addresses are of the family. */
bool nd_prefix_covers(const struct in6_addr *prefix, uint8_t family, unsigned bits,
		      const struct in6_addr *a);

/*
 * Calls fn for each next hop that is alive in the value of an RTA_MULTIPATH, with its attributes. 0, -EBADMSG if one is cut short,
 * or what fn returned. Pure.
 */
typedef int (*nd_hop_fn)(int ifindex, const void *attrs, size_t n, void *arg);
int nd_multipath(const void *p, size_t n, nd_hop_fn fn, void *arg);

struct nd_next_hop {
	int ifindex;
	uint8_t type; /* RTN_UNICAST, RTN_LOCAL */
	bool direct;  /* no gateway */
};

/*
 * How packets from one address to another leave this host: asks the kernel (RTM_GETROUTE), or looks in the routes of
 * a recorded machine (longest prefix, then lowest metric), without those of VRFs. device: index of the VRF that routes them, or of the
 * interface that they must leave by; 0: none. 0; -ENETUNREACH; another -errno if the kernel could not be asked now.
 */
int nd_route_to(const struct nd_source *s, const struct nd_links *l, const struct in6_addr *to,
		const struct in6_addr *from, int device, struct nd_next_hop *ret);

/*
 * All next hops of that route, of which the kernel takes one for each pair of addresses. Linux older than 4.13 gives that one only.
 * Returns their number, or an error of nd_route_to().
 */
#define ND_NEXT_HOPS_MAX 64
int nd_route_hops(const struct nd_source *s, const struct nd_links *l, const struct in6_addr *to,
		  const struct in6_addr *from, int device,
		  struct nd_next_hop ret[ND_NEXT_HOPS_MAX]);
