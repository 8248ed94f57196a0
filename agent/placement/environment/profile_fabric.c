/* SPDX-License-Identifier: Apache-2.0 */
/* nccl and ucx: devices, GID index and interface. Both libraries choose the device near a GPU themselves. */
#include <arpa/inet.h>
#include <string.h>

#include "agent/placement/environment/internal.h"

static const struct nd_link *link_of_host(const struct env_facts *f)
{
	char text[INET6_ADDRSTRLEN];
	struct in6_addr wanted;

	if (!f->scan || !env_host_is_numeric(f))
		return NULL;
	/* a scan has IPv4 addresses as ::ffff:a.b.c.d */
	if (!env_host_is_ipv6(f)) {
		if (strlen(f->host) > 15)
			return NULL;
		memcpy(text, "::ffff:", 8);
		strncat(text, f->host, sizeof(text) - 8);
	}
	if (inet_pton(AF_INET6, env_host_is_ipv6(f) ? f->host : text, &wanted) != 1)
		return NULL;
	for (size_t i = 0; i < f->scan->links.n_addrs; i++)
		if (!memcmp(&f->scan->links.addrs[i].addr, &wanted, sizeof(wanted)))
			return nd_link_by_index(&f->scan->links, f->scan->links.addrs[i].ifindex);
	return NULL;
}

static int nccl_interface(const struct env_input *in, struct env_answer *a)
{
	const struct env_facts *f = in->facts;
	const struct nd_link *l;
	int r = env_host_check(in, a);

	if (r <= 0)
		return r;
	if (!f->scan)
		return env_omit(a, "interfaces are not scanned yet");
	l = link_of_host(f);
	if (!l)
		return env_omit(a, "%s is not an address of an interface of this node", f->host);
	if (strpbrk(l->name, ",:=^"))
		return env_omit(a, "a list cannot carry the name of interface %s", l->name);
	return env_set(a, env_format("=%s", l->name), "it has %s: %s", f->host, env_host_reason(f));
}

const struct env_profile env_profile_nccl = {
	.doc = "RDMA devices, GID index and interface for NCCL",
	.exact = true, /* otherwise mlx5_1 would also match mlx5_10 */
	.rules = { { "NCCL_IB_HCA", env_devices },
		   { "NCCL_IB_GID_INDEX", env_gid_index },
		   { "NCCL_SOCKET_IFNAME", nccl_interface } },
};

const struct env_profile env_profile_ucx = {
	.doc = "RDMA devices and GID index for UCX, and NIXL over it",
	.rules = { { "UCX_NET_DEVICES", env_devices }, { "UCX_IB_GID_INDEX", env_gid_index } },
};
