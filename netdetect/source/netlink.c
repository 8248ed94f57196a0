/* SPDX-License-Identifier: Apache-2.0 */
#include "netdetect/source/netlink.h"

#include <errno.h>
#include <fcntl.h>
#include <libmnl/libmnl.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <rdma/rdma_netlink.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include "lib/cleanup.h"

#define REPEATS_MAX 8
/* Between two tries, so that a burst of changes can end; it doubles up to the second value. */
#define PAUSE_US 1000
#define PAUSE_MAX_US 8000
#define ANSWER_SECONDS 5
/* The kernel fills the reader's buffer, up to 32 KiB for each message of a dump. */
#define BUFFER 65536
#define RECEIVE_BUFFER (1 << 20)
#define REQUEST_MAX 256
#define RECORD_MAX (64 << 20)
/* Each request has a socket of its own, so one sequence number is enough. */
#define SEQUENCE 1

#define RDMA(cmd) RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, cmd)

struct query {
	const struct request *request;
	const void *body;
	size_t n;
	nd_message_fn fn;
	void *arg;
};

static const struct request {
	const char *record;
	int protocol;
	uint16_t type;
	bool dump; /* many messages until NLMSG_DONE, otherwise one */
} requests[] = {
	/* dumps of rtnetlink and sock_diag (TCP in state LISTEN) are recorded with both families in one file */
	[ND_GET_LINKS] = { "link", NETLINK_ROUTE, RTM_GETLINK, true },
	[ND_GET_ADDRS] = { "addr", NETLINK_ROUTE, RTM_GETADDR, true },
	[ND_GET_ROUTES] = { "route", NETLINK_ROUTE, RTM_GETROUTE, true },
	[ND_GET_RULES] = { "rule", NETLINK_ROUTE, RTM_GETRULE, true },
	[ND_GET_ROUTE_TO] = { "route_to", NETLINK_ROUTE, RTM_GETROUTE, false },
	[ND_GET_LISTENERS] = { "listen", NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, true },
	[ND_GET_RDMA_DEVICES] = { "rdma_dev", NETLINK_RDMA, RDMA(RDMA_NLDEV_CMD_GET), true },
	[ND_GET_RDMA_PORTS] = { "rdma_port", NETLINK_RDMA, RDMA(RDMA_NLDEV_CMD_PORT_GET), true },
	[ND_GET_RDMA_RESOURCES] = { "rdma_res", NETLINK_RDMA, RDMA(RDMA_NLDEV_CMD_RES_GET), true },
	[ND_GET_RDMA_SYSTEM] = { "rdma_sys", NETLINK_RDMA, RDMA(RDMA_NLDEV_CMD_SYS_GET), false },
};

DRAY_DEFINE_CLEANUP(struct mnl_socket *, mnl_socket_close);

const char *nd_record_name(enum nd_request r)
{
	return requests[r].record;
}

static int error_of(const struct nlmsghdr *h)
{
	const struct nlmsgerr *e = mnl_nlmsg_get_payload(h);

	if (mnl_nlmsg_get_payload_len(h) < sizeof(e->error) || e->error > 0)
		return -EBADMSG;
	/* 0 acknowledges a request that is no dump, and so ends it */
	return e->error ? e->error : 1;
}

/* The end of a dump that failed part way carries an error. */
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
	case NLMSG_ERROR:
		return error_of(h);
	case NLMSG_DONE:
		return done_of(h);
	case NLMSG_NOOP:
		return 0;
	case NLMSG_OVERRUN:
		return -ENOBUFS;
	default:
		return fn(h->nlmsg_type, mnl_nlmsg_get_payload(h), mnl_nlmsg_get_payload_len(h),
			  arg);
	}
}

int nd_messages(const void *buf, size_t n, nd_message_fn fn, void *arg)
{
	const uint8_t *p = buf;

	while (n) {
		const struct nlmsghdr *h = (const struct nlmsghdr *)(const void *)p;
		size_t step;
		int r;

		/* mnl_nlmsg_ok() accepts lengths above INT_MAX */
		if (n < sizeof(*h) || h->nlmsg_len < sizeof(*h) || h->nlmsg_len > n)
			return -EBADMSG;
		r = message(h, fn, arg);
		if (r)
			return r;
		/* the last message may lack its padding */
		step = dray_min(MNL_ALIGN((size_t)h->nlmsg_len), n);
		p += step;
		n -= step;
	}
	return 0;
}

static int replay(const struct nd_source *s, const struct query *q)
{
	char path[ND_PATH_MAX];
	int fd dray_auto_close =
		open(nd_path(s, path, "/netlink/%s", q->request->record), O_RDONLY | O_CLOEXEC);
	dray_auto_free uint8_t *buf = NULL;
	struct stat st;
	size_t got = 0;

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
	return nd_messages(buf, got, q->fn, q->arg);
}

static int socket_open(int protocol, struct mnl_socket **ret)
{
	dray_auto(mnl_socket_close) struct mnl_socket *s = mnl_socket_open2(protocol, SOCK_CLOEXEC);
	struct timeval limit = { .tv_sec = ANSWER_SECONDS };
	int size = RECEIVE_BUFFER, one = 1;

	if (!s)
		return -errno;
	/* both are optional: less room for bursts, and answers that are not filtered by the kernel */
	(void)setsockopt(mnl_socket_get_fd(s), SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
	(void)mnl_socket_setsockopt(s, NETLINK_GET_STRICT_CHK, &one, sizeof(one));
	if (mnl_socket_bind(s, 0, MNL_SOCKET_AUTOPID) < 0 ||
	    setsockopt(mnl_socket_get_fd(s), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) < 0)
		return -errno;
	*ret = dray_take(s);
	return 0;
}

static int send_request(struct mnl_socket *s, const struct query *q)
{
	uint8_t buf[REQUEST_MAX] = { 0 };
	struct nlmsghdr *h = mnl_nlmsg_put_header(buf);

	if (q->n > sizeof(buf) - (size_t)MNL_NLMSG_HDRLEN)
		return -EMSGSIZE;
	h->nlmsg_type = q->request->type;
	h->nlmsg_flags = NLM_F_REQUEST | (q->request->dump ? NLM_F_ACK | NLM_F_DUMP : 0);
	h->nlmsg_seq = SEQUENCE;
	if (q->n)
		memcpy(mnl_nlmsg_put_extra_header(h, q->n), q->body, q->n);
	return mnl_socket_sendto(s, h, h->nlmsg_len) < 0 ? -errno : 0;
}

/* Any process can send to a netlink socket. */
static bool is_answer(const struct mnl_socket *s, const void *buf, ssize_t n)
{
	const struct nlmsghdr *h = buf;

	return (size_t)n >= sizeof(*h) && h->nlmsg_seq == SEQUENCE &&
	       mnl_nlmsg_portid_ok(h, mnl_socket_get_portid(s));
}

static int receive(struct mnl_socket *s, const struct query *q)
{
	dray_auto_free uint8_t *buf = malloc(BUFFER);

	if (!buf)
		return -ENOMEM;
	for (;;) {
		ssize_t n = mnl_socket_recvfrom(s, buf, BUFFER);
		int r;

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno == EAGAIN ? -ETIMEDOUT : -errno;
		if (!is_answer(s, buf, n))
			continue;
		r = nd_messages(buf, (size_t)n, q->fn, q->arg);
		if (r || !q->request->dump)
			return r;
	}
}

static int ask_once(const struct query *q)
{
	dray_auto(mnl_socket_close) struct mnl_socket *s = NULL;
	int r = socket_open(q->request->protocol, &s);

	if (r >= 0)
		r = send_request(s, q);
	return r < 0 ? r : receive(s, q);
}

static int ask_kernel(const struct query *q, size_t *count, uint64_t *sum)
{
	size_t n_before = count ? *count : 0;
	uint64_t sum_before = sum ? *sum : 0;
	useconds_t pause = PAUSE_US;
	int r = ask_once(q);

	for (int i = 0; (r == -EINTR || r == -ENOBUFS) && i < REPEATS_MAX; i++) {
		usleep(pause);
		pause = dray_min(2 * pause, (useconds_t)PAUSE_MAX_US);
		if (count)
			*count = n_before;
		if (sum)
			*sum = sum_before;
		r = ask_once(q);
	}
	return r;
}

bool nd_is_transient(int r)
{
	return r == -EINTR || r == -ENOBUFS || r == -ETIMEDOUT || r == -ENOMEM || nd_is_shortage(r);
}

int nd_query(const struct nd_source *s, enum nd_request request, const void *body, size_t n,
	     nd_message_fn fn, void *arg, size_t *count, uint64_t *sum, struct dray_err *reterr)
{
	struct query q = { &requests[request], body, n, fn, arg };
	int r = nd_is_live(s) ? ask_kernel(&q, count, sum) : replay(s, &q);

	if (r >= 0)
		return 0;
	return dray_err_set(reterr, r, nd_error_code(r), "the netlink request \"%s\" failed: %s",
			    q.request->record, dray_errno_text(r));
}
