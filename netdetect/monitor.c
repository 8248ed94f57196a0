/* SPDX-License-Identifier: Apache-2.0 */
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

/* include/uapi/rdma/rdma_netlink.h; installed headers may be older */
#define GROUP_RDMA_NOTIFY (1u << (4 - 1))
/* lib/kobject_uevent.c: messages of the kernel; udev repeats them in another group */
#define GROUP_UEVENT 1u
#define RTMGRP_IPV6_RULE (1u << (RTNLGRP_IPV6_RULE - 1))
#define ROUTE_GROUPS                                                                 \
	(RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR | RTMGRP_IPV4_ROUTE | \
	 RTMGRP_IPV6_ROUTE | RTMGRP_IPV4_RULE | RTMGRP_IPV6_RULE)
/* Room for a burst of events. */
#define RECEIVE_BUFFER (1 << 20)

/* All but the first may be missing. The last reports RDMA devices on kernels without the second. */
enum source { SOURCE_ROUTE, SOURCE_RDMA, SOURCE_UEVENT, SOURCE_N };

/* A device held open for its async events. */
struct open_device {
	struct dray_list link;
	char name[ND_DEVICE_NAME_MAX];
	struct ibv_context *context;
	bool dead; /* being removed: close it */
};

struct nd_monitor {
	int epoll_fd;
	int sockets[SOURCE_N]; /* -1: missing */
	struct dray_list devices;
	char text[128];
};

static int socket_new(int protocol, uint32_t groups)
{
	int fd dray_auto_close =
		socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, protocol);
	struct sockaddr_nl address = { .nl_family = AF_NETLINK, .nl_groups = groups };
	int size = RECEIVE_BUFFER;

	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
		return -errno;
	/* a lower limit of the system is acceptable */
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
	int fd = socket_new(NETLINK_ROUTE, ROUTE_GROUPS);

	if (fd < 0)
		return dray_err_set(reterr, fd, nd_error_code(fd),
				    "rtnetlink events cannot be received: %s", dray_errno_text(fd));
	m->sockets[SOURCE_ROUTE] = fd;
	m->sockets[SOURCE_RDMA] = socket_new(NETLINK_RDMA, GROUP_RDMA_NOTIFY);
	m->sockets[SOURCE_UEVENT] = socket_new(NETLINK_KOBJECT_UEVENT, GROUP_UEVENT);
	for (int i = 0; i < SOURCE_N; i++) {
		int r = m->sockets[i] >= 0            ? watch(m, m->sockets[i], &m->sockets[i]) :
			nd_is_shortage(m->sockets[i]) ? m->sockets[i] :
							0;

		if (r < 0)
			return dray_err_set(reterr, r, nd_error_code(r),
					    "netlink events cannot be watched: %s",
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
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY,
				    "out of memory for the monitor");
	dray_list_init(&m->devices);
	for (int i = 0; i < SOURCE_N; i++)
		m->sockets[i] = -1;
	m->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	r = m->epoll_fd < 0 ? dray_err_set(reterr, -errno, DRAY_E_NO_FDS,
					   "no epoll descriptor for the monitor: %m") :
			      open_sources(m, reterr);
	if (r < 0) {
		nd_monitor_free(m);
		return r;
	}
	*ret = m;
	return 0;
}

static void device_close(struct open_device *d)
{
	dray_list_del(&d->link);
	/* this removes the descriptor from the epoll set */
	ibv_close_device(d->context);
	free(d);
}

struct nd_monitor *nd_monitor_free(struct nd_monitor *m)
{
	if (!m)
		return NULL;
	dray_list_for_each(&m->devices, d, struct open_device, link)
		device_close(d);
	for (int i = 0; i < SOURCE_N; i++)
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

/* True if an event ("add@/devices/...", then KEY=VALUE, each ended by a NUL) is about an RDMA device. */
static bool about_rdma(const char *p, size_t n)
{
	static const char key[] = "SUBSYSTEM=infiniband";

	for (size_t at = 0; at + sizeof(key) - 1 <= n;) {
		const char *end = memchr(p + at, '\0', n - at);

		/* also matches infiniband_verbs and infiniband_mad */
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
		/* port 0 is the kernel; any process can send to a netlink socket */
		if (from.nl_pid == 0)
			got |= change_of(s, buf, (size_t)n);
	}
}

static unsigned drain_device(struct open_device *d)
{
	struct ibv_async_event ev;
	unsigned got = 0;

	while (ibv_get_async_event(d->context, &ev) == 0) {
		if (ev.event_type == IBV_EVENT_DEVICE_FATAL) {
			d->dead = true;
			got |= ND_CHANGE_DEVICES;
		}
		got |= ND_CHANGE_PORTS;
		ibv_ack_async_event(&ev);
	}
	/* the kernel has removed the device although it is open */
	if (errno != EAGAIN && errno != EINTR) {
		d->dead = true;
		got |= ND_CHANGE_DEVICES;
	}
	return got;
}

static unsigned drain(struct nd_monitor *m, const struct epoll_event *ev)
{
	for (int i = 0; i < SOURCE_N; i++)
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
	dray_list_for_each(&m->devices, d, struct open_device, link)
		if (d->dead)
			device_close(d);
	return got;
}

static bool should_open(struct nd_monitor *m, const struct nd_device *device)
{
	dray_list_for_each(&m->devices, d, struct open_device, link)
		if (!strcmp(d->name, device->name))
			return false;
	return !device->open_error;
}

/* 0 also if the device itself refuses; only a nd_is_shortage() is returned. */
static int device_open(struct nd_monitor *m, struct ibv_device *device)
{
	struct open_device *d = calloc(1, sizeof(*d));
	int flags, r = 0;

	if (!d)
		return 0;
	snprintf(d->name, sizeof(d->name), "%s", ibv_get_device_name(device));
	dray_list_init(&d->link);
	d->context = ibv_open_device(device);
	if (!d->context) {
		r = -errno;
		free(d);
		return nd_is_shortage(r) ? r : 0;
	}
	flags = fcntl(d->context->async_fd, F_GETFL);
	if (flags < 0 || fcntl(d->context->async_fd, F_SETFL, flags | O_NONBLOCK) < 0 ||
	    watch(m, d->context->async_fd, d) < 0)
		device_close(d);
	else
		dray_list_add(&m->devices, &d->link);
	return r;
}

static int open_missing(struct nd_monitor *m, const struct nd_scan *scan)
{
	int n = 0, r = nd_descriptors_check();
	struct ibv_device **list = r < 0 ? NULL : ibv_get_device_list(&n);

	if (!list)
		return r;
	for (int i = 0; i < n; i++) {
		const struct nd_device *d =
			nd_device_by_name(&scan->devices, ibv_get_device_name(list[i]));

		if (r >= 0 && d && should_open(m, d))
			r = device_open(m, list[i]);
	}
	ibv_free_device_list(list);
	return r;
}

int nd_monitor_follow(struct nd_monitor *m, const struct nd_scan *scan)
{
	bool missing = false;

	dray_list_for_each(&m->devices, d, struct open_device, link) {
		const struct nd_device *found = nd_device_by_name(&scan->devices, d->name);

		/* a device that is being removed loses its node first; then the kernel waits for this close */
		if (!found || found->open_error)
			device_close(d);
	}
	for (size_t i = 0; i < scan->devices.n; i++)
		missing |= should_open(m, &scan->devices.v[i]);
	/* listing devices loads the libraries of all vendors, so only if one is to be opened */
	return missing ? open_missing(m, scan) : 0;
}
