/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/data/transfer/loop.h"

#include <errno.h>
#include <time.h>

#include "lib/cleanup.h"

int loop_init(struct loop *l)
{
	*l = (struct loop){ .epoll_fd = epoll_create1(EPOLL_CLOEXEC) };
	return l->epoll_fd < 0 ? -errno : 0;
}

void loop_deinit(struct loop *l)
{
	l->epoll_fd = dray_close(l->epoll_fd);
}

int loop_add(struct loop *l, struct loop_source *s, int fd, uint32_t events, loop_fn fn)
{
	struct epoll_event ev = { .events = events | EPOLLET, .data.ptr = s };

	s->fd = fd;
	s->fn = fn;
	if (epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, fd, &ev) < 0) {
		s->fd = -1;
		return -errno;
	}
	return 0;
}

void loop_del(struct loop *l, struct loop_source *s)
{
	if (s->fd < 0)
		return;
	epoll_ctl(l->epoll_fd, EPOLL_CTL_DEL, s->fd, NULL);
	s->fd = -1;
	/* the source may be freed: drop its events of this turn */
	for (int i = l->batch_i; i < l->batch_n; i++)
		if (l->batch[i].data.ptr == s)
			l->batch[i].data.ptr = NULL;
}

int loop_turn(struct loop *l, int64_t timeout_ns)
{
	struct timespec ts = { .tv_sec = timeout_ns / 1000000000,
			       .tv_nsec = timeout_ns % 1000000000 };
	int n;

	/* most turns do not wait, and epoll_wait is cheaper than epoll_pwait2 */
	if (timeout_ns == 0)
		n = epoll_wait(l->epoll_fd, l->batch, LOOP_BATCH, 0);
	else
		n = epoll_pwait2(l->epoll_fd, l->batch, LOOP_BATCH, timeout_ns < 0 ? NULL : &ts,
				 NULL);
	if (n < 0)
		return errno == EINTR ? 0 : -errno;
	l->batch_n = n;
	for (l->batch_i = 0; l->batch_i < n;) {
		struct epoll_event *ev = &l->batch[l->batch_i++];
		struct loop_source *s = ev->data.ptr;

		if (s)
			s->fn(s, ev->events);
	}
	l->batch_n = l->batch_i = 0;
	return n;
}
