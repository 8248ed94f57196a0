/* SPDX-License-Identifier: Apache-2.0 */
#include "netdetect/source/netlink.h"

#include <errno.h>
#include <fcntl.h>
#include <libmnl/libmnl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "schema/gen/errors.h"

#define RESTARTS_MAX 8
/* What the kernel does not answer within this it does not answer at all. */
#define ANSWER_SECONDS 5
/* The kernel fills what a reader offers, up to 32 KiB a message of a dump. */
#define BUFFER 65536
#define RECEIVE_BUFFER (1 << 20)
#define REQUEST_MAX 256
/* A recorded dump that is larger is no dump. */
#define RECORD_MAX (64 << 20)

struct socket {
	struct mnl_socket *s;
	uint32_t seq, port;
};

/* --- messages ---------------------------------------------------------------------------------------- */

static int error_of(const struct nlmsghdr *h)
{
	const struct nlmsgerr *e = mnl_nlmsg_get_payload(h);

	if (mnl_nlmsg_get_payload_len(h) < sizeof(e->error))
		return -EBADMSG;
	return e->error > 0 ? -EBADMSG : e->error;
}

/* An end that carries an error reports a dump that broke off. */
static int done_of(const struct nlmsghdr *h)
{
	int error = 0;

	if (mnl_nlmsg_get_payload_len(h) >= sizeof(error))
		memcpy(&error, mnl_nlmsg_get_payload(h), sizeof(error));
	return error < 0 ? error : 1;
}

static int message(const struct nlmsghdr *h, nd_message_fn fn, void *arg)
{
	if (h->nlmsg_flags & NLM_F_DUMP_INTR)
		return -EINTR;
	switch (h->nlmsg_type) {
	case NLMSG_ERROR: {
		int r = error_of(h);

		/* 0: an acknowledgement, which ends a request that is no dump */
		return r < 0 ? r : 1;
	}
	case NLMSG_DONE:
		return done_of(h);
	case NLMSG_NOOP:
	case NLMSG_OVERRUN:
		return h->nlmsg_type == NLMSG_OVERRUN ? -ENOBUFS : 0;
	default:
		return fn(h->nlmsg_type, mnl_nlmsg_get_payload(h), mnl_nlmsg_get_payload_len(h),
			  arg);
	}
}

int nd_messages(const void *buf, size_t n, nd_message_fn fn, void *arg)
{
	const uint8_t *p = buf;

	while (n) {
		struct nlmsghdr h;
		size_t step;
		int r;

		if (n < sizeof(h))
			return -EBADMSG;
		memcpy(&h, p, sizeof(h));
		if (h.nlmsg_len < sizeof(h) || h.nlmsg_len > n)
			return -EBADMSG;
		r = message((const struct nlmsghdr *)(const void *)p, fn, arg);
		if (r)
			return r;
		/* the last one may lack its padding */
		step = dray_min(
			((size_t)h.nlmsg_len + MNL_ALIGNTO - 1) & ~(size_t)(MNL_ALIGNTO - 1), n);
		p += step;
		n -= step;
	}
	return 0;
}

/* --- a recorded machine ------------------------------------------------------------------------------- */

static int replay(const struct nd_source *s, const char *record, nd_message_fn fn, void *arg)
{
	char path[ND_PATH_MAX];
	int fd dray_auto_close =
		open(nd_path(s, path, "/netlink/%s", record), O_RDONLY | O_CLOEXEC);
	dray_auto_free uint8_t *buf = NULL;
	struct stat st;
	size_t got = 0;
	int r;

	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;
	if (fstat(fd, &st) < 0)
		return -errno;
	if (st.st_size > RECORD_MAX)
		return -EFBIG;
	buf = malloc((size_t)st.st_size + 1);
	if (!buf)
		return -ENOMEM;
	while (got < (size_t)st.st_size) {
		ssize_t n = read(fd, buf + got, (size_t)st.st_size - got);

		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		got += (size_t)n;
	}
	r = nd_messages(buf, got, fn, arg);
	return r > 0 ? 0 : r;
}

/* --- the kernel --------------------------------------------------------------------------------------- */

static void socket_close(struct socket *s)
{
	if (s->s)
		mnl_socket_close(s->s);
	s->s = NULL;
}

static int socket_open(struct socket *s, int protocol)
{
	struct timeval limit = { .tv_sec = ANSWER_SECONDS };
	int size = RECEIVE_BUFFER, one = 1, error;

	*s = (struct socket){ .s = mnl_socket_open2(protocol, SOCK_CLOEXEC) };
	if (!s->s)
		return -errno;
	/* more room, and answers to exactly what is asked: where the kernel has neither, all works the same */
	(void)setsockopt(mnl_socket_get_fd(s->s), SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
	(void)mnl_socket_setsockopt(s->s, NETLINK_GET_STRICT_CHK, &one, sizeof(one));
	if (mnl_socket_bind(s->s, 0, MNL_SOCKET_AUTOPID) == 0 &&
	    setsockopt(mnl_socket_get_fd(s->s), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) ==
		    0) {
		s->port = mnl_socket_get_portid(s->s);
		return 0;
	}
	error = errno;
	socket_close(s);
	return -error;
}

static int send_request(struct socket *s, uint16_t type, uint16_t flags, const void *body, size_t n)
{
	uint8_t buf[REQUEST_MAX] = { 0 };
	struct nlmsghdr *h = mnl_nlmsg_put_header(buf);

	if (n > sizeof(buf) - (size_t)MNL_NLMSG_HDRLEN)
		return -EMSGSIZE;
	h->nlmsg_type = type;
	h->nlmsg_flags = NLM_F_REQUEST | flags;
	h->nlmsg_seq = ++s->seq;
	if (n)
		memcpy(mnl_nlmsg_put_extra_header(h, n), body, n);
	return mnl_socket_sendto(s->s, h, h->nlmsg_len) < 0 ? -errno : 0;
}

/* Is this an answer to what was asked last? Leftovers of an interrupted dump are not. */
static bool ours(const struct socket *s, const void *buf, ssize_t n)
{
	struct nlmsghdr h;

	if ((size_t)n < sizeof(h))
		return false;
	memcpy(&h, buf, sizeof(h));
	return h.nlmsg_seq == s->seq && (!h.nlmsg_pid || h.nlmsg_pid == s->port);
}

/* until_done: a dump; otherwise the first answer is the last. */
static int receive(struct socket *s, bool until_done, nd_message_fn fn, void *arg)
{
	dray_auto_free uint8_t *buf = malloc(BUFFER);

	if (!buf)
		return -ENOMEM;
	for (;;) {
		ssize_t n = mnl_socket_recvfrom(s->s, buf, BUFFER);
		int r;

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno == EAGAIN ? -ETIMEDOUT : -errno;
		if (!ours(s, buf, n))
			continue;
		r = nd_messages(buf, (size_t)n, fn, arg);
		if (r)
			return r > 0 ? 0 : r;
		if (!until_done)
			return 0;
	}
}

static int dump_live(int protocol, uint16_t type, const void *body, size_t n, nd_message_fn fn,
		     nd_restart_fn restart, void *arg)
{
	struct socket s;
	int r = socket_open(&s, protocol);

	for (int i = 0; r >= 0; i++) {
		r = send_request(&s, type, NLM_F_ACK | NLM_F_DUMP, body, n);
		if (r >= 0)
			r = receive(&s, true, fn, arg);
		if ((r != -EINTR && r != -ENOBUFS) || i == RESTARTS_MAX)
			break;
		/* what was dumped is not one moment's state, or not all of it */
		socket_close(&s);
		if (restart)
			restart(arg);
		r = socket_open(&s, protocol);
	}
	socket_close(&s);
	return r;
}

static const char *protocol_name(int protocol)
{
	switch (protocol) {
	case NETLINK_ROUTE:
		return "rtnetlink";
	case NETLINK_RDMA:
		return "RDMA netlink";
	case NETLINK_SOCK_DIAG:
		return "sock_diag";
	default:
		return "netlink";
	}
}

static int failed(int r, int protocol, const char *record, struct dray_err *reterr)
{
	if (r >= 0)
		return 0;
	return dray_err_set(reterr, r, r == -ENOMEM ? DRAY_E_NO_MEMORY : DRAY_E_IO, "%s, %s: %s",
			    protocol_name(protocol), record, dray_errno_text(r));
}

int nd_dump(const struct nd_source *s, int protocol, const char *record, uint16_t type,
	    const void *body, size_t n, nd_message_fn fn, nd_restart_fn restart, void *arg,
	    struct dray_err *reterr)
{
	int r = nd_is_live(s) ? dump_live(protocol, type, body, n, fn, restart, arg) :
				replay(s, record, fn, arg);

	return failed(r, protocol, record, reterr);
}

int nd_request(const struct nd_source *s, int protocol, const char *record, uint16_t type,
	       const void *body, size_t n, nd_message_fn fn, void *arg, struct dray_err *reterr)
{
	struct socket k;
	int r;

	if (!nd_is_live(s))
		return failed(replay(s, record, fn, arg), protocol, record, reterr);
	r = socket_open(&k, protocol);
	if (r >= 0) {
		r = send_request(&k, type, 0, body, n);
		if (r >= 0)
			r = receive(&k, false, fn, arg);
		socket_close(&k);
	}
	return failed(r, protocol, record, reterr);
}
