/* SPDX-License-Identifier: Apache-2.0 */
#include "netdetect/net/path.h"

#include <errno.h>
#include <linux/errqueue.h>
#include <string.h>
#include <sys/ioctl.h>

#include "lib/cleanup.h"
#include "netdetect/net/link.h"

#define SMALL_BYTES 128
#define TRIES 2
#define PACKET_MAX 65535
/* Those of all usual sizes, about; forged reports could ask for more. */
#define PACKETS_MAX 16

/* A search among all sizes would need more answers than a host gives at once. */
static const uint32_t usual[] = { 9000, 4200, 1500, 1450, 1400, 1280, 576 };

enum answer { ARRIVED, TOO_LARGE, NOTHING };

/* What the kernel reports about earlier packets. *told: the size that a router forwards; 0: it did not say. */
static enum answer reported(struct nd_path *p, uint32_t *told)
{
	union {
		struct cmsghdr align;
		uint8_t bytes[512];
	} control;
	uint8_t data[SMALL_BYTES];
	struct iovec iov = { data, sizeof(data) };
	struct msghdr m = { .msg_iov = &iov,
			    .msg_iovlen = 1,
			    .msg_control = &control,
			    .msg_controllen = sizeof(control) };
	struct sock_extended_err e = { .ee_errno = 0 };

	*told = 0;
	if (recvmsg(p->fd, &m, MSG_ERRQUEUE | MSG_DONTWAIT) < 0)
		return NOTHING;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c))
		if (c->cmsg_len >= CMSG_LEN(sizeof(e)) &&
		    (c->cmsg_level == IPPROTO_IP || c->cmsg_level == IPPROTO_IPV6) &&
		    (c->cmsg_type == IP_RECVERR || c->cmsg_type == IPV6_RECVERR))
			memcpy(&e, CMSG_DATA(c), sizeof(e));
	if (e.ee_errno == EMSGSIZE)
		*told = e.ee_info;
	return e.ee_errno == EMSGSIZE ? TOO_LARGE : e.ee_errno == ECONNREFUSED ? ARRIVED : NOTHING;
}

static bool send_size(struct nd_path *p)
{
	static const uint8_t zeros[PACKET_MAX];
	uint32_t headers = (p->v6 ? 40 : 20) + 8, payload = p->size - headers;

	/* the first call may report an error of an earlier packet */
	for (int i = 0; i < TRIES; i++)
		if (send(p->fd, zeros, payload, MSG_DONTWAIT) >= 0)
			return true;
		else if (errno == EMSGSIZE)
			return false;
	return true;
}

static bool finish(struct nd_path *p, enum nd_path_proof proof, uint32_t mtu)
{
	p->proof = proof;
	p->mtu = mtu;
	return true;
}

static bool silent(struct nd_path *p)
{
	int mtu = 0;
	socklen_t n = sizeof(mtu);

	if (getsockopt(p->fd, p->v6 ? IPPROTO_IPV6 : IPPROTO_IP, p->v6 ? IPV6_MTU : IP_MTU, &mtu,
		       &n) < 0 ||
	    mtu <= 0)
		mtu = (int)p->link_mtu;
	return finish(p, ND_PATH_SILENT, (uint32_t)mtu);
}

/* The present size does not arrive. False: there is none below. */
static bool smaller(struct nd_path *p, enum answer got, uint32_t told)
{
	uint32_t next = 0;

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(usual) && !next; i++)
		if (usual[i] < p->size)
			next = usual[i];
	if (told >= SMALL_BYTES && told < p->size)
		next = told;
	p->proof = got == TOO_LARGE ? ND_PATH_REPORTED : ND_PATH_LOST;
	p->size = next;
	p->tries = 0;
	return next;
}

bool nd_path_step(struct nd_path *p, bool late)
{
	uint32_t told = 0;
	enum answer got = NOTHING;

	if (p->tries) {
		got = reported(p, &told);
		if (got == NOTHING && !late)
			return false;
	}
	for (;;) {
		if (got == ARRIVED && p->known)
			return finish(p, p->proof, p->size);
		if (got == ARRIVED) {
			p->known = true;
			p->size = dray_min(p->link_mtu, (uint32_t)PACKET_MAX);
			p->tries = 0;
		} else if (p->tries == TRIES && !p->known) {
			return silent(p);
		} else if ((got == TOO_LARGE || p->tries == TRIES) && !smaller(p, got, told)) {
			return finish(p, p->proof, SMALL_BYTES);
		}
		if (p->sent == PACKETS_MAX)
			return silent(p);
		p->tries++;
		p->sent++;
		if (send_size(p))
			return false;
		got = TOO_LARGE;
		told = 0;
	}
}

/* What the socket is bound to, such as the VRF of a process that `ip vrf exec` has started; 0: nothing. */
static int device_of(int fd)
{
	char name[IF_NAMESIZE] = "";
	socklen_t n = sizeof(name);

	if (getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, &n) < 0 || !n)
		return 0;
	return (int)if_nametoindex(name);
}

int nd_path_open(struct nd_path *p, const struct dray_addr *to)
{
	struct in6_addr there = dray_addr_in6(to), here;
	struct ifreq ifr = { .ifr_mtu = 0 };
	struct nd_next_hop hop;
	int on = 1, probe = IP_PMTUDISC_PROBE /* of IPv6, too */, level, r;

	*p = (struct nd_path){ .v6 = to->sa.sa_family == AF_INET6, .size = SMALL_BYTES };
	p->fd = socket(to->sa.sa_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (p->fd < 0 || connect(p->fd, &to->sa, to->len) < 0)
		return -errno;
	p->from.len = sizeof(p->from.ss);
	if (getsockname(p->fd, &p->from.sa, &p->from.len) < 0)
		return -errno;
	dray_addr_set_port(&p->from, 0);
	here = dray_addr_in6(&p->from);
	r = nd_route_to(&ND_SOURCE_LIVE, NULL, &there, &here, device_of(p->fd), &hop);
	if (r < 0)
		return r;
	if (!if_indextoname((unsigned)hop.ifindex, p->interface))
		return -errno;
	memcpy(ifr.ifr_name, p->interface, sizeof(ifr.ifr_name));
	if (ioctl(p->fd, SIOCGIFMTU, &ifr) < 0)
		return -errno;
	p->link_mtu = (uint32_t)ifr.ifr_mtu;
	level = p->v6 ? IPPROTO_IPV6 : IPPROTO_IP;
	if (setsockopt(p->fd, level, p->v6 ? IPV6_RECVERR : IP_RECVERR, &on, sizeof(on)) < 0 ||
	    setsockopt(p->fd, level, p->v6 ? IPV6_MTU_DISCOVER : IP_MTU_DISCOVER, &probe,
		       sizeof(probe)) < 0)
		return -errno;
	return 0;
}

void nd_path_close(struct nd_path *p)
{
	p->fd = dray_close(p->fd);
}
