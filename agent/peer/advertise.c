/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/peer/advertise.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Address bytes in network order compare like the addresses. */
static int compare_addr(const struct dray_addr *a, const struct dray_addr *b)
{
	if (a->sa.sa_family == AF_INET)
		return memcmp(&a->in.sin_addr, &b->in.sin_addr, sizeof(a->in.sin_addr));
	return memcmp(&a->in6.sin6_addr, &b->in6.sin6_addr, sizeof(a->in6.sin6_addr));
}

static bool usable(const struct iface_addr *a, bool v4, bool v6)
{
	if (a->addr.sa.sa_family != AF_INET && a->addr.sa.sa_family != AF_INET6)
		return false;
	return a->running && (a->addr.sa.sa_family == AF_INET ? v4 : v6) &&
	       !dray_addr_is_loopback(&a->addr) && !dray_addr_is_link_local(&a->addr) &&
	       !dray_addr_is_wildcard(&a->addr);
}

static bool better(const struct iface_addr *a, const struct iface_addr *b)
{
	bool a4 = a->addr.sa.sa_family == AF_INET, b4 = b->addr.sa.sa_family == AF_INET;

	if (a4 != b4)
		return a4;
	if (a->rank != b->rank)
		return a->rank < b->rank;
	if (a->index != b->index)
		return a->index < b->index;
	return compare_addr(&a->addr, &b->addr) < 0;
}

const struct iface_addr *advertise_pick(const struct iface_addr *a, size_t n, bool v4, bool v6)
{
	const struct iface_addr *best = NULL;

	for (size_t i = 0; i < n; i++)
		if (usable(&a[i], v4, v6) && (!best || better(&a[i], best)))
			best = &a[i];
	return best;
}

static bool has_attribute(const char *iface, const char *name)
{
	char path[128];

	snprintf(path, sizeof(path), "/sys/class/net/%s/%s", iface, name);
	return access(path, F_OK) == 0;
}

/* sysfs knows all of it but that a veth of docker0 is no bridge itself: names do not matter. */
static enum iface_rank rank_of(const char *iface)
{
	if (has_attribute(iface, "bridge") || has_attribute(iface, "tun_flags"))
		return IFACE_BRIDGE;
	return has_attribute(iface, "device") ? IFACE_DEVICE : IFACE_VIRTUAL;
}

int advertise_scan(struct iface_addr **ret, size_t *ret_n)
{
	struct ifaddrs *list, *i;
	struct iface_addr *a;
	size_t n = 0;

	if (getifaddrs(&list) < 0)
		return -errno;
	for (i = list; i; i = i->ifa_next)
		n++;
	a = calloc(n ? n : 1, sizeof(*a));
	if (!a) {
		freeifaddrs(list);
		return -ENOMEM;
	}
	n = 0;
	for (i = list; i; i = i->ifa_next) {
		int family = i->ifa_addr ? i->ifa_addr->sa_family : AF_UNSPEC;
		struct iface_addr *x = &a[n];

		if (family == AF_INET)
			x->addr.len = sizeof(x->addr.in);
		else if (family == AF_INET6)
			x->addr.len = sizeof(x->addr.in6);
		else
			continue;
		memcpy(&x->addr.ss, i->ifa_addr, x->addr.len);
		dray_addr_set_port(&x->addr, 0);
		x->index = if_nametoindex(i->ifa_name);
		x->rank = rank_of(i->ifa_name);
		x->running = (i->ifa_flags & IFF_UP) && (i->ifa_flags & IFF_RUNNING);
		n++;
	}
	freeifaddrs(list);
	*ret = a;
	*ret_n = n;
	return 0;
}
