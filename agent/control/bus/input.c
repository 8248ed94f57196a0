/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/bus/input.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "lib/ballast.h"
#include "lib/cleanup.h"

/* Reads of one job. */
#define READS_MAX 16

struct bus_input {
	struct owner_job job;
	struct owner *owner;
	int fd, pipe;
	sd_event_source *readable, *writable; /* the socket has bytes; the pipe has room */
	bool busy;                            /* the job is on the owner's thread */
	bool full, over; /* results of the job: the pipe is full; the input has ended */
	bool ending;
};

/* Whole writes of at most PIPE_BUF bytes into a pipe with room never fail. */
static bool has_room(int pipe)
{
	struct pollfd p = { .fd = pipe, .events = POLLOUT };

	return poll(&p, 1, 0) == 1 && p.revents & POLLOUT;
}

static void move_run(struct owner_job *j)
{
	struct bus_input *in = dray_container_of(j, struct bus_input, job);
	uint8_t bytes[PIPE_BUF];

	in->full = false;
	for (unsigned i = 0; i < READS_MAX && !in->over; i++) {
		ssize_t n;

		in->full = !has_room(in->pipe);
		if (in->full)
			return;
		n = read(in->fd, bytes, sizeof(bytes));
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		in->over = n <= 0 || write(in->pipe, bytes, (size_t)n) != n;
	}
}

static void input_free(struct bus_input *in)
{
	sd_event_source_disable_unref(in->readable);
	sd_event_source_disable_unref(in->writable);
	dray_close(in->pipe);
	if (in->fd >= 0)
		owner_farewell(in->owner, in->fd, NULL);
	owner_unref(in->owner);
	free(in);
}

static void move_done(struct owner_job *j)
{
	struct bus_input *in = dray_container_of(j, struct bus_input, job);

	in->busy = false;
	if (in->ending)
		input_free(in);
	else if (in->over)
		/* sd-bus reads the end */
		in->pipe = dray_close(in->pipe);
	else
		sd_event_source_set_enabled(in->full ? in->writable : in->readable,
					    SD_EVENT_ONESHOT);
}

static int handle_ready(sd_event_source *source, int fd, uint32_t revents, void *arg)
{
	struct bus_input *in = arg;

	in->busy = true;
	owner_close_job(in->owner, &in->job, move_run, move_done);
	return 0;
}

static int watch(struct bus_input *in)
{
	sd_event *event = in->owner->all->event;
	int r = sd_event_add_io(event, &in->readable, in->fd, EPOLLIN, handle_ready, in);

	if (r >= 0)
		r = sd_event_source_set_enabled(in->readable, SD_EVENT_ONESHOT);
	if (r >= 0)
		r = sd_event_add_io(event, &in->writable, in->pipe, EPOLLOUT, handle_ready, in);
	return r < 0 ? r : sd_event_source_set_enabled(in->writable, SD_EVENT_OFF);
}

int bus_input_new(struct bus_input **ret, struct owner *o, int fd, int *ret_read, int *ret_write)
{
	struct bus_input *in = dray_calloc_sure(1, sizeof(*in));
	int ends[2] = { -1, -1 }, out = fcntl(fd, F_DUPFD_CLOEXEC, 3), r = 0;

	in->owner = owner_ref(o);
	in->fd = fd;
	in->pipe = -1;
	if (out < 0 || pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0)
		r = -errno;
	in->pipe = ends[1];
	if (r >= 0)
		r = watch(in);
	if (r < 0) {
		dray_close(out);
		dray_close(ends[0]);
		input_free(in);
		return r;
	}
	*ret_read = ends[0];
	*ret_write = out;
	*ret = in;
	return 0;
}

int bus_input_fd(const struct bus_input *in)
{
	return in->fd;
}

void bus_input_end(struct bus_input *in)
{
	if (!in)
		return;
	in->ending = true;
	sd_event_source_set_enabled(in->readable, SD_EVENT_OFF);
	sd_event_source_set_enabled(in->writable, SD_EVENT_OFF);
	if (!in->busy)
		input_free(in);
}
