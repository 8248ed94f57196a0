/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections that have not said HELLO yet. The control thread reads that one message itself; the
 * session that comes of it goes to a worker, and the rest is not looked at here. A refused client
 * gets its reason as the answer to HELLO, so one that the credentials rule out stays until it has
 * asked.
 *
 * Strangers are few and short-lived: when there are too many, the one that has been silent
 * longest goes.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/control/session/internal.h"
#include "lib/cleanup.h"
#include "lib/log.h"
#include "lib/seqpacket.h"
#include "schema/gen/errors.h"

#ifndef SYS_pidfd_send_signal
#define SYS_pidfd_send_signal 424
#endif

#define HELLO_LIMIT_US 5000000
/* A HELLO of a later minor version may be longer than ours, but not by that much. */
#define HELLO_BYTES 4096
/* Messages thrown away before a refused connection is closed. */
#define DISCARD_MAX 16

struct stranger {
	struct dray_list link;
	struct sessions *owner;
	int fd;
	struct credentials who;
	struct dray_err denied; /* what its HELLO will be answered with */
	sd_event_source *io, *limit;
};

static struct stranger *stranger_free(struct stranger *x)
{
	if (!x)
		return NULL;
	x->io = sd_event_source_disable_unref(x->io);
	x->limit = sd_event_source_disable_unref(x->limit);
	dray_list_del(&x->link);
	x->owner->n_strangers--;
	dray_close(x->fd);
	free(x);
	return NULL;
}

/* The kernel hands a reset instead of our last word to a client whose messages were left unread. */
static void discard_input(struct stranger *x)
{
	uint8_t buf[64];
	struct dray_fds fds;
	bool t1, t2;

	for (unsigned i = 0; i < DISCARD_MAX; i++) {
		ssize_t n = dray_seqpacket_recv(x->fd, buf, sizeof(buf), &fds, &t1, &t2);

		if (n <= 0)
			return;
		regions_close_fds(x->owner->regions, fds.fd, fds.n);
	}
}

static void refuse(struct stranger *x, uint64_t request_id, const struct dray_err *err)
{
	uint8_t buf[DMSG_HEADER_SIZE + DMSG_ERROR_BODY_MAX];
	struct dmsg_error m = { .code = (uint32_t)err->code,
				.message = { err->msg, (uint32_t)strlen(err->msg) } };
	int n = dmsg_error_encode(buf, sizeof(buf), request_id, &m);

	x->owner->refused++;
	log_limited(DRAY_LOG_NOTICE, "session", "refused, %s uid=%u gid=%u pid=%d code=%s",
		    err->msg, x->who.uid, x->who.gid, x->who.pid,
		    dray_error_name((uint32_t)err->code));
	if (n > 0)
		dray_seqpacket_send(x->fd, buf, (size_t)n, NULL, 0);
	discard_input(x);
	stranger_free(x);
}

static int handle_pidfd(sd_event_source *source, int fd, uint32_t revents, void *arg)
{
	struct session *s = arg;

	(void)source;
	(void)fd;
	(void)revents;
	session_close(s, DRAY_E_SESSION_CLOSED, NULL, "the client's process ended");
	return 0;
}

/*
 * Signal 0 asks the kernel whether it is a pidfd and touches nobody; EPERM is said of pidfds
 * only, and so is EINVAL, where its process is of no PID namespace of ours, as in another
 * container. Asked before it is polled, since polling a descriptor of a file system in user space
 * may block.
 */
static bool is_pidfd(int fd)
{
	return syscall(SYS_pidfd_send_signal, fd, 0, NULL, 0) == 0 || errno == EPERM ||
	       errno == ESRCH || errno == EINVAL;
}

/* Takes the descriptor over where all is well. */
static int watch_pidfd(struct session *s, int *fd, struct dray_err *reterr)
{
	int r;

	if (!is_pidfd(*fd))
		return dray_err_set(reterr, -EINVAL, DRAY_E_INVALID,
				    "the descriptor that came with HELLO is not a pidfd");
	r = sd_event_add_io(s->owner->event, &s->pidfd_source, *fd, EPOLLIN, handle_pidfd, s);
	if (r < 0)
		return dray_err_set(reterr, r, r == -EPERM ? DRAY_E_INVALID : DRAY_E_IO,
				    "the pidfd cannot be watched: %s", dray_errno_text(r));
	sd_event_source_set_io_fd_own(s->pidfd_source, true);
	*fd = -1;
	return 0;
}

static int say_hello(struct stranger *x, struct session *s, uint64_t request_id,
		     struct dray_err *reterr)
{
	struct sessions *ss = x->owner;
	uint8_t buf[DMSG_HEADER_SIZE + DMSG_HELLO_REPLY_BODY_MAX];
	const char *segment = peers_segment(ss->peers);
	struct dmsg_hello_reply m = {
		.major = DMSG_MAJOR,
		.minor = DMSG_MINOR,
		.ops_inline_max = DMSG_OPS_INLINE_MAX,
		.session = s->handle,
		.incarnation = ss->incarnation,
		.segment = { segment, (uint32_t)strlen(segment) },
		.version = { DRAY_VERSION, sizeof(DRAY_VERSION) - 1 },
	};
	int n, r;

	memcpy(m.agent_id, ss->agent_id, sizeof(m.agent_id));
	n = dmsg_hello_reply_encode(buf, sizeof(buf), request_id, &m);
	r = n < 0 ? n : dray_seqpacket_send(x->fd, buf, (size_t)n, NULL, 0);
	return r < 0 ? dray_err_set(reterr, r, DRAY_E_IO, "HELLO cannot be answered: %s",
				    dray_errno_text(r)) :
		       0;
}

static int check_hello(struct sessions *ss, const struct dmsg_hello *m, unsigned n_fds,
		       struct dray_err *reterr)
{
	unsigned want = m->flags & DMSG_HELLO_FLAG_PIDFD ? 1 : 0;

	if (m->major_min > DMSG_MAJOR || m->major_max < DMSG_MAJOR)
		return dray_err_set(reterr, -EPROTO, DRAY_E_VERSION,
				    "the client speaks major versions %u to %u, the agent %d",
				    m->major_min, m->major_max, DMSG_MAJOR);
	if (n_fds != want)
		return dray_err_set(reterr, -EINVAL, DRAY_E_FD_COUNT,
				    "HELLO came with %u descriptors instead of %u", n_fds, want);
	if (ss->draining)
		return dray_err_set(reterr, -ESHUTDOWN, DRAY_E_DRAINING,
				    "the agent is draining and takes no new sessions");
	return 0;
}

/* The stranger becomes a session. */
static int hello(struct stranger *x, const struct dmsg_header *h, const uint8_t *body,
		 struct dray_fds *fds, struct dray_err *reterr)
{
	struct sessions *ss = x->owner;
	struct dmsg_hello m;
	struct session *s;
	int r;

	if (h->type != DMSG_HELLO)
		return dray_err_set(reterr, -EPROTO, DRAY_E_OUT_OF_ORDER,
				    "the first message is HELLO");
	r = dmsg_hello_decode(body, h->length, &m, reterr);
	if (r < 0)
		return r;
	if (x->denied.code) {
		*reterr = x->denied;
		return -EACCES;
	}
	r = check_hello(ss, &m, fds->n, reterr);
	if (r < 0)
		return r;
	r = session_open(ss, &x->who, &m, &s, reterr);
	if (r < 0)
		return r;
	if (fds->n)
		r = watch_pidfd(s, &fds->fd[0], reterr);
	if (r >= 0)
		r = say_hello(x, s, h->request_id, reterr);
	if (r < 0) {
		session_discard(s);
		return r;
	}
	/* the loop forgets the descriptor before a worker's loop gets it */
	x->io = sd_event_source_disable_unref(x->io);
	session_start(s, dray_take_fd(x->fd));
	stranger_free(x);
	return 0;
}

static int handle_io(sd_event_source *source, int fd, uint32_t revents, void *arg)
{
	struct stranger *x = arg;
	struct sessions *ss = x->owner;
	struct dray_err err = DRAY_ERR_NULL;
	struct dmsg_header h;
	struct dray_fds fds;
	bool cut, fds_lost;
	uint8_t buf[HELLO_BYTES];
	uint64_t id = 0;
	ssize_t n;
	int r;

	(void)source;
	(void)revents;
	n = dray_seqpacket_recv(fd, buf, sizeof(buf), &fds, &cut, &fds_lost);
	if (n == -EAGAIN)
		return 0;
	if (n <= 0) {
		stranger_free(x);
		return 0;
	}
	r = dmsg_header_decode(buf, (size_t)n, &h, &err);
	id = dmsg_header_id(buf, (size_t)n);
	if (r >= 0 && cut)
		r = dray_err_set(&err, -EMSGSIZE, DRAY_E_TOO_LARGE, "HELLO has at most %d bytes",
				 HELLO_BYTES);
	if (r >= 0)
		r = dmsg_packet_check(&h, (size_t)n, &err);
	if (r >= 0 && fds_lost)
		r = dray_err_set(&err, -EMFILE, DRAY_E_FD_LIMIT,
				 "the descriptor that came with HELLO was lost");
	if (r >= 0)
		r = hello(x, &h, buf + DMSG_HEADER_SIZE, &fds, &err);
	if (r < 0) {
		error_fold(&err, r);
		refuse(x, id, &err);
	}
	regions_close_fds(ss->regions, fds.fd, fds.n);
	return 0;
}

static int handle_limit(sd_event_source *source, uint64_t usec, void *arg)
{
	struct stranger *x = arg;
	struct dray_err err = DRAY_ERR_NULL;

	(void)source;
	(void)usec;
	dray_err_set(&err, -ETIMEDOUT, DRAY_E_TIMEOUT, "no HELLO within %d s",
		     HELLO_LIMIT_US / 1000000);
	refuse(x, 0, &err);
	return 0;
}

static void make_room(struct sessions *ss)
{
	struct stranger *oldest = dray_list_first(&ss->strangers, struct stranger, link);
	struct dray_err err = DRAY_ERR_NULL;

	if (!oldest || ss->n_strangers < (uint32_t)ss->cfg->limits.strangers)
		return;
	dray_err_set(&err, -EBUSY, DRAY_E_BUSY,
		     "%" PRIu32 " connections wait without HELLO (limits.strangers)",
		     ss->n_strangers);
	refuse(oldest, 0, &err);
}

void session_stranger_add(struct sessions *ss, int fd)
{
	struct stranger *x;
	int r;

	make_room(ss);
	x = calloc(1, sizeof(*x));
	if (!x) {
		dray_close(fd);
		return;
	}
	x->owner = ss;
	x->fd = fd;
	dray_list_add(&ss->strangers, &x->link);
	ss->n_strangers++;
	admission_check(ss, fd, &x->who, &x->denied);
	r = sd_event_add_io(ss->event, &x->io, fd, EPOLLIN, handle_io, x);
	if (r >= 0)
		r = sd_event_add_time_relative(ss->event, &x->limit, CLOCK_MONOTONIC,
					       HELLO_LIMIT_US, 0, handle_limit, x);
	if (r < 0) {
		log_limited(DRAY_LOG_WARNING, "session", "a connection cannot be watched: %s",
			    dray_errno_text(r));
		stranger_free(x);
	}
}

void strangers_close(struct sessions *ss)
{
	dray_list_for_each(&ss->strangers, x, struct stranger, link)
		stranger_free(x);
}
