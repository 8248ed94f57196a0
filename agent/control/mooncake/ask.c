/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/mooncake/ask.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "lib/cleanup.h"

/* The first size of the buffer for the answer, which grows with what has come. */
#define BODY_BYTES 16384u

enum ask_step {
	ASK_CONNECT,
	ASK_HEAD,
	ASK_BODY,
	ASK_END,
};

struct ask {
	ask_fn fn;
	ask_grow_fn may_grow;
	void *arg;
	sd_event_source *io;
	int fd;
	enum ask_step step;
	enum mooncake_frame_type type;
	uint8_t head[MOONCAKE_FRAME_HEAD];
	size_t head_n;
	uint8_t *body;
	size_t body_n, body_cap, body_size;
	size_t request_n;
	uint8_t request[];
};

size_t ask_bytes(const struct ask *a)
{
	return a ? a->body_cap : 0;
}

struct ask *ask_cancel(struct ask *a)
{
	if (!a)
		return NULL;
	sd_event_source_disable_unref(a->io);
	dray_close(a->fd);
	free(a->body);
	free(a);
	return NULL;
}

static void end(struct ask *a, int error)
{
	uint8_t *body dray_auto_free = dray_take(a->body);
	size_t n = a->body_size;
	ask_fn fn = a->fn;
	void *arg = a->arg;

	/* the engine waits for the end of the connection before it serves others */
	ask_cancel(a);
	fn(arg, error, (const char *)body, error ? 0 : n);
}

/* Steps return 1: go on; 0: the socket is not ready; -errno. */
static int step_connect(struct ask *a)
{
	socklen_t len = sizeof(int);
	int error = 0;

	if (getsockopt(a->fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0 || error)
		return error ? -error : -EIO;
	/* a socket that was just connected takes this little at once, or it is unusable */
	if (send(a->fd, a->request, a->request_n, MSG_DONTWAIT | MSG_NOSIGNAL) !=
	    (ssize_t)a->request_n)
		return -EIO;
	a->step = ASK_HEAD;
	error = sd_event_source_set_io_events(a->io, EPOLLIN);
	return error < 0 ? error : 1;
}

static int receive(struct ask *a, void *p, size_t n, size_t *ret_n)
{
	ssize_t got = recv(a->fd, p, n, MSG_DONTWAIT);

	if (got < 0)
		return errno == EAGAIN ? 0 : errno == EINTR ? 1 : -errno;
	*ret_n = (size_t)got;
	return got ? 1 : -ENODATA;
}

static int step_head(struct ask *a)
{
	struct mooncake_frame f;
	size_t n = 0;
	int r = receive(a, a->head + a->head_n, MOONCAKE_FRAME_HEAD - a->head_n, &n);

	a->head_n += n;
	if (r <= 0 || a->head_n < MOONCAKE_FRAME_HEAD)
		return r;
	if (mooncake_frame_get(a->head, &f) < 0 || f.type != a->type || !f.body)
		return -EPROTO;
	a->body_size = (size_t)f.body;
	a->step = ASK_BODY;
	return 1;
}

/* The buffer grows with what has come, not by the length that the engine says. */
static int step_body(struct ask *a)
{
	size_t n = 0;
	int r;

	if (a->body_n == a->body_cap) {
		size_t grown = dray_max((size_t)BODY_BYTES, 2 * a->body_cap);
		size_t cap = dray_min(grown, a->body_size);
		uint8_t *p;

		if (a->may_grow && !a->may_grow(a->arg, cap - a->body_cap))
			return -EDQUOT;
		p = realloc(a->body, cap);
		if (!p)
			return -ENOMEM;
		a->body = p;
		a->body_cap = cap;
	}
	r = receive(a, a->body + a->body_n, a->body_cap - a->body_n, &n);
	a->body_n += n;
	if (r > 0 && a->body_n == a->body_size)
		a->step = ASK_END;
	return r;
}

static int on_io(sd_event_source *source, int fd, uint32_t revents, void *arg)
{
	static int (*const steps[])(struct ask * a) = {
		[ASK_CONNECT] = step_connect,
		[ASK_HEAD] = step_head,
		[ASK_BODY] = step_body,
	};
	struct ask *a = arg;
	int r = 1;

	/* a few steps for each event, so that an engine that sends fast does not hold up others */
	for (unsigned k = 0; r == 1 && a->step != ASK_END && k < 8; k++)
		r = steps[a->step](a);
	if (r < 0)
		end(a, r);
	else if (a->step == ASK_END)
		end(a, 0);
	return 0;
}

int ask_start(struct ask **ret, sd_event *event, const struct dray_addr *to,
	      enum mooncake_frame_type type, const char *request, size_t n, ask_fn fn,
	      ask_grow_fn may_grow, void *arg)
{
	struct ask *a = calloc(1, sizeof(*a) + MOONCAKE_FRAME_HEAD + n);
	int r = 0;

	if (!a)
		return -ENOMEM;
	a->fn = fn;
	a->may_grow = may_grow;
	a->arg = arg;
	a->type = type;
	mooncake_frame_put(a->request, &(struct mooncake_frame){ type, n });
	memcpy(a->request + MOONCAKE_FRAME_HEAD, request, n);
	a->request_n = MOONCAKE_FRAME_HEAD + n;
	a->fd = socket(to->sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (a->fd < 0 || (connect(a->fd, &to->sa, to->len) < 0 && errno != EINPROGRESS))
		r = -errno;
	if (r == 0)
		r = sd_event_add_io(event, &a->io, a->fd, EPOLLOUT, on_io, a);
	if (r < 0) {
		ask_cancel(a);
		return r;
	}
	*ret = a;
	return 0;
}
