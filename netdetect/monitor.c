/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Four sources, each of which may be missing: rtnetlink multicast; RDMA netlink's own (Linux 6.12);
 * the kernel's device events, which tell of RDMA devices on older kernels; async events of devices.
 */
#include "netdetect/monitor.h"

#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "lib/cleanup.h"
#include "lib/list.h"
#include "schema/gen/errors.h"

/* include/uapi/rdma/rdma_netlink.h; younger than the C library's headers may be */
#define GROUP_RDMA_NOTIFY 4
/* lib/kobject_uevent.c: the kernel's own messages, not those that udev sends on */
#define GROUP_UEVENT 1
/* Events of a storm that are held before some are lost. */
#define RECEIVE_BUFFER (1 << 20)

enum source { SOURCE_ROUTE, SOURCE_RDMA, SOURCE_UEVENT, SOURCE_SOCKETS };

/* A device held open for its async events. */
struct held {
	struct dray_list link;
	char name[ND_DEVICE_NAME_MAX];
	struct ibv_context *context;
	bool dead; /* going away, to be let go of */
};

struct nd_monitor {
	int epoll_fd;
	int sockets[SOURCE_SOCKETS]; /* -1: not here */
	struct dray_list held;
	char text[128];
};

static const int route_groups[] = { RTNLGRP_LINK, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR,
				    RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_ROUTE };
static const int rdma_groups[] = { GROUP_RDMA_NOTIFY };
static const int uevent_groups[] = { GROUP_UEVENT };

static int socket_new(int protocol, const int *groups, size_t n)
{
	int fd dray_auto_close =
		socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, protocol);
	struct sockaddr_nl any = { .nl_family = AF_NETLINK };
	int size = RECEIVE_BUFFER;

	if (fd < 0 || bind(fd, (struct sockaddr *)&any, sizeof(any)) < 0)
		return -errno;
	for (size_t i = 0; i < n; i++)
		if (setsockopt(fd, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &groups[i],
			       sizeof(groups[i])) < 0)
			return -errno;
	/* what the limit of the system allows is good enough */
	(void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
	return dray_take_fd(fd);
}

static int watch(struct nd_monitor *m, int fd, void *tag)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.ptr = tag };

	return epoll_ctl(m->epoll_fd, EPOLL_CTL_ADD, fd, &ev) < 0 ? -errno : 0;
}

static int open_sources(struct nd_monitor *m, struct dray_err *reterr)
{
	int fd = socket_new(NETLINK_ROUTE, route_groups, DRAY_ARRAY_SIZE(route_groups));

	if (fd < 0)
		return dray_err_set(reterr, fd, DRAY_E_IO, "events of links: %s",
				    dray_errno_text(fd));
	m->sockets[SOURCE_ROUTE] = fd;
	m->sockets[SOURCE_RDMA] = socket_new(NETLINK_RDMA, rdma_groups, 1);
	m->sockets[SOURCE_UEVENT] = socket_new(NETLINK_KOBJECT_UEVENT, uevent_groups, 1);
	for (int i = 0; i < SOURCE_SOCKETS; i++) {
		int r = m->sockets[i] < 0 ? 0 : watch(m, m->sockets[i], &m->sockets[i]);

		if (r < 0)
			return dray_err_set(reterr, r, DRAY_E_NO_MEMORY, "events of links: %s",
					    dray_errno_text(r));
	}
	snprintf(m->text, sizeof(m->text), "rtnetlink%s%s",
		 m->sockets[SOURCE_RDMA] >= 0 ? ", RDMA netlink" : "",
		 m->sockets[SOURCE_UEVENT] >= 0 ? ", device events" : "");
	return 0;
}

int nd_monitor_new(struct nd_monitor **ret, struct dray_err *reterr)
{
	struct nd_monitor *m = calloc(1, sizeof(*m));
	int r;

	if (!m)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a monitor");
	dray_list_init(&m->held);
	for (int i = 0; i < SOURCE_SOCKETS; i++)
		m->sockets[i] = -1;
	m->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	r = m->epoll_fd < 0 ? dray_err_set(reterr, -errno, DRAY_E_NO_FDS, "events of links: %m") :
			      open_sources(m, reterr);
	if (r < 0) {
		nd_monitor_free(m);
		return r;
	}
	*ret = m;
	return 0;
}

static void let_go(struct held *h)
{
	dray_list_del(&h->link);
	/* closing takes the descriptor out of the epoll set */
	ibv_close_device(h->context);
	free(h);
}

struct nd_monitor *nd_monitor_free(struct nd_monitor *m)
{
	if (!m)
		return NULL;
	dray_list_for_each(&m->held, h, struct held, link)
		let_go(h);
	for (int i = 0; i < SOURCE_SOCKETS; i++)
		dray_close(m->sockets[i]);
	dray_close(m->epoll_fd);
	free(m);
	return NULL;
}

int nd_monitor_fd(const struct nd_monitor *m)
{
	return m->epoll_fd;
}

const char *nd_monitor_describe(const struct nd_monitor *m)
{
	return m->text;
}

/* --- what has come --------------------------------------------------------------------------------- */

/* "add@/devices/...", then KEY=VALUE, each ended by a NUL: is it about an RDMA device? */
static bool about_rdma(const char *p, size_t n)
{
	static const char key[] = "SUBSYSTEM=infiniband";

	for (size_t at = 0; at + sizeof(key) - 1 <= n;) {
		const char *end = memchr(p + at, '\0', n - at);

		/* infiniband, infiniband_verbs, infiniband_mad */
		if (!memcmp(p + at, key, sizeof(key) - 1))
			return true;
		if (!end)
			return false;
		at = (size_t)(end - p) + 1;
	}
	return false;
}

static unsigned change_of(enum source s, const char *p, size_t n)
{
	if (s == SOURCE_ROUTE)
		return ND_CHANGE_LINKS;
	if (s == SOURCE_RDMA || about_rdma(p, n))
		return ND_CHANGE_DEVICES;
	return 0;
}

static unsigned drain_socket(enum source s, int fd)
{
	char buf[16384];
	unsigned got = 0;

	for (;;) {
		struct sockaddr_nl from = { 0 };
		socklen_t len = sizeof(from);
		ssize_t n = recvfrom(fd, buf, sizeof(buf), 0, (struct sockaddr *)&from, &len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == ENOBUFS) {
			got |= ND_CHANGE_OVERRUN;
			continue;
		}
		if (n <= 0)
			return got;
		/* port 0 is the kernel; anybody may send to a netlink socket */
		if (from.nl_pid == 0)
			got |= change_of(s, buf, (size_t)n);
	}
}

static unsigned drain_device(struct held *h)
{
	struct ibv_async_event ev;
	unsigned got = 0;

	while (ibv_get_async_event(h->context, &ev) == 0) {
		if (ev.event_type == IBV_EVENT_DEVICE_FATAL) {
			h->dead = true;
			got |= ND_CHANGE_DEVICES;
		}
		got |= ND_CHANGE_PORTS;
		ibv_ack_async_event(&ev);
	}
	/* the kernel has taken the device from under the descriptor */
	if (errno != EAGAIN && errno != EINTR) {
		h->dead = true;
		got |= ND_CHANGE_DEVICES;
	}
	return got;
}

static unsigned drain(struct nd_monitor *m, const struct epoll_event *ev)
{
	for (int i = 0; i < SOURCE_SOCKETS; i++)
		if (ev->data.ptr == &m->sockets[i])
			return drain_socket((enum source)i, m->sockets[i]);
	return drain_device(ev->data.ptr);
}

unsigned nd_monitor_read(struct nd_monitor *m)
{
	struct epoll_event ev[16];
	unsigned got = 0;
	int n = epoll_wait(m->epoll_fd, ev, DRAY_ARRAY_SIZE(ev), 0);

	for (int i = 0; i < n; i++)
		got |= drain(m, &ev[i]);
	dray_list_for_each(&m->held, h, struct held, link)
		if (h->dead)
			let_go(h);
	return got;
}

/* --- devices that are held ------------------------------------------------------------------------- */

static struct held *held_find(struct nd_monitor *m, const char *name)
{
	dray_list_for_each(&m->held, h, struct held, link)
		if (!strcmp(h->name, name))
			return h;
	return NULL;
}

static void hold(struct nd_monitor *m, struct ibv_device *device)
{
	struct held *h = calloc(1, sizeof(*h));
	int flags;

	if (!h)
		return;
	snprintf(h->name, sizeof(h->name), "%s", ibv_get_device_name(device));
	dray_list_init(&h->link);
	h->context = ibv_open_device(device);
	if (!h->context) {
		free(h);
		return;
	}
	flags = fcntl(h->context->async_fd, F_GETFL);
	if (flags < 0 || fcntl(h->context->async_fd, F_SETFL, flags | O_NONBLOCK) < 0 ||
	    watch(m, h->context->async_fd, h) < 0) {
		let_go(h);
		return;
	}
	dray_list_add(&m->held, &h->link);
}

static bool to_hold(struct nd_monitor *m, const struct nd_device *d)
{
	return d->open_error == 0 && !held_find(m, d->name);
}

static void hold_new(struct nd_monitor *m, const struct nd_scan *scan)
{
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n);

	if (!list)
		return;
	for (int i = 0; i < n; i++) {
		const struct nd_device *d =
			nd_device_by_name(&scan->devices, ibv_get_device_name(list[i]));

		if (d && to_hold(m, d))
			hold(m, list[i]);
	}
	ibv_free_device_list(list);
}

void nd_monitor_follow(struct nd_monitor *m, const struct nd_scan *scan)
{
	bool new = false;

	dray_list_for_each(&m->held, h, struct held, link) {
		const struct nd_device *d = nd_device_by_name(&scan->devices, h->name);

		/* of one that is going, the node goes first, and the kernel waits for us */
		if (!d || d->open_error)
			let_go(h);
	}
	for (size_t i = 0; i < scan->devices.n; i++)
		new |= to_hold(m, &scan->devices.v[i]);
	/* listing devices loads libraries of all makes: only where there is one to open */
	if (new)
		hold_new(m, scan);
}
