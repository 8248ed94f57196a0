/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections before their HELLO. The control thread reads that one message; then it hands the
 * connection to a worker, which reads everything else. A refused client gets the reason as the reply to its HELLO, so
 * the connection of a client without permission stays until the client has sent HELLO.
 *
 * At most limits.strangers connections wait for HELLO; for a further connection the oldest is closed.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/control/session/internal.h"
#include "lib/file.h"
#include "lib/log.h"
#include "lib/seqpacket.h"
#include "lib/units.h"
#include "schema/gen/errors.h"

/* Supplementary groups that are checked, beside the gid. */
#define GROUPS_MAX 1024
/* Of the kernel, unless it is configured. */
#define OVERFLOW_UID 65534
#define HELLO_LIMIT_US 5000000
/* A HELLO of a later minor version may be longer than ours, but not by that much. */
#define HELLO_BYTES 4096

struct pending_client {
	struct dray_list link;
	struct sessions *owner;
	int fd;
	struct owner *uid_owner;
	struct ucred who;
	struct dray_err denied; /* the answer to its HELLO, if code is set */
	sd_event_source *io, *limit;
};

static void pending_client_free(struct pending_client *c)
{
	sd_event_source_disable_unref(c->io);
	sd_event_source_disable_unref(c->limit);
	dray_list_del(&c->link);
	c->owner->n_pending_clients--;
	c->uid_owner->pending_clients--;
	owner_unref(c->uid_owner);
	free(c);
}

/* message: the last one to the client, consumed; NULL: none. */
static void pending_client_end(struct pending_client *c, struct packet *message)
{
	/* before the descriptor may be closed by another thread */
	c->io = sd_event_source_disable_unref(c->io);
	owner_farewell(c->uid_owner, c->fd, message);
	pending_client_free(c);
}

static void refuse(struct pending_client *c, uint64_t request_id, struct dray_err err)
{
	c->owner->totals.refused++;
	owner_log(c->uid_owner, DRAY_LOG_NOTICE, "session",
		  "refused a client: %s uid=%u gid=%u pid=%d code=%s", err.msg, c->who.uid,
		  c->who.gid, c->who.pid, dray_error_name((uint32_t)err.code));
	pending_client_end(c, packet_new_error(request_id, (uint32_t)err.code, err.msg));
}

void pending_clients_go_on(struct sessions *ss, const struct owner *o)
{
	dray_list_for_each(&ss->pending_clients, c, struct pending_client, link)
		if (c->uid_owner == o)
			sd_event_source_set_enabled(c->io, SD_EVENT_ON);
}

static int handle_pidfd(sd_event_source *source, int fd, uint32_t revents, void *arg)
{
	struct session *s = arg;

	session_close(s, DRAY_E_SESSION_CLOSED, NULL, "the client's process ended");
	return 0;
}

/*
 * Signal 0 tests whether the descriptor is a pidfd, and has no effect on the process. The kernel returns EPERM for
 * pidfds only, and EINVAL if the process is outside our PID namespaces, as in another container. The test comes
 * before the poll, because polling a descriptor of a user-space file system may block.
 */
static bool is_pidfd(int fd)
{
	return syscall(SYS_pidfd_send_signal, fd, 0, NULL, 0) == 0 || errno == EPERM ||
	       errno == ESRCH || errno == EINVAL;
}

/* Consumes the descriptor on success. */
static int watch_pidfd(struct session *s, int *fd, struct dray_err *reterr)
{
	int r;

	if (!is_pidfd(*fd))
		return dray_err_set(
			reterr, -EINVAL, DRAY_E_INVALID,
			"the descriptor sent with HELLO is not a pidfd; send one of pidfd_open(2)");
	r = sd_event_add_io(s->owner->deps.event, &s->pidfd_source, *fd, EPOLLIN, handle_pidfd, s);
	if (r < 0)
		return dray_err_set(reterr, r, r == -EPERM ? DRAY_E_INVALID : DRAY_E_IO,
				    "the pidfd cannot be watched: %s", dray_errno_text(r));
	sd_event_source_set_io_fd_own(s->pidfd_source, true);
	*fd = -1;
	return 0;
}

/*
 * Each client gets a pidfd of its own. The kernel limits the number of epoll instances that one open file is in, nested ones
 * included, so a client could exhaust the limit of a file that it shared with others.
 */
static int reply_hello(struct pending_client *c, struct session *s, uint64_t request_id,
		       const struct dmsg_hello *hello, struct dray_err *reterr)
{
	struct sessions *ss = c->owner;
	uint8_t buf[DMSG_HEADER_SIZE + DMSG_HELLO_REPLY_BODY_MAX];
	const char *segment = peers_segment(ss->deps.peers);
	bool wants_pidfd = hello->flags & DMSG_HELLO_FLAG_AGENT_PIDFD;
	int pidfd dray_auto_close = wants_pidfd ? ss->deps.open_pidfd() : -1;
	struct dmsg_hello_reply m = {
		.major = DMSG_MAJOR,
		.minor = DMSG_MINOR,
		.ops_inline_max = DMSG_OPS_INLINE_MAX,
		.features = hello->features & DMSG_FEATURE_ALL,
		.session = s->handle,
		.incarnation = ss->deps.incarnation,
		.segment = { segment, (uint32_t)strlen(segment) },
		.version = { DRAY_VERSION, sizeof(DRAY_VERSION) - 1 },
		.flags = pidfd >= 0 ? DMSG_HELLO_REPLY_FLAG_PIDFD : 0,
	};
	int n, r;

	memcpy(m.agent_id, ss->deps.agent_id, sizeof(m.agent_id));
	n = dmsg_hello_reply_encode(buf, sizeof(buf), request_id, &m);
	r = n < 0 ? n : dray_seqpacket_send(c->fd, buf, (size_t)n, &pidfd, pidfd >= 0);
	/* clients of the agent's uid have sent so many descriptors that the kernel lets it send none */
	if (r == -ETOOMANYREFS) {
		m.flags = 0;
		n = dmsg_hello_reply_encode(buf, sizeof(buf), request_id, &m);
		r = dray_seqpacket_send(c->fd, buf, (size_t)n, NULL, 0);
	}
	return r < 0 ? dray_err_set(reterr, r, DRAY_E_IO, "the reply to HELLO cannot be sent: %s",
				    dray_errno_text(r)) :
		       0;
}

static int check_hello(struct sessions *ss, const struct dmsg_hello *m, unsigned n_fds,
		       struct dray_err *reterr)
{
	unsigned expected = m->flags & DMSG_HELLO_FLAG_PIDFD ? 1 : 0;

	if (m->major_min > DMSG_MAJOR || m->major_max < DMSG_MAJOR)
		return dray_err_set(
			reterr, -EPROTO, DRAY_E_VERSION,
			"the client supports major versions %u to %u, the agent %d; upgrade the older of the two",
			m->major_min, m->major_max, DMSG_MAJOR);
	if (n_fds != expected)
		return dray_err_set(
			reterr, -EINVAL, DRAY_E_FD_COUNT,
			"HELLO has %u descriptors instead of %u; send a pidfd with its flag only",
			n_fds, expected);
	if (ss->draining)
		return dray_err_set(
			reterr, -ESHUTDOWN, DRAY_E_DRAINING,
			"the agent is draining and accepts no new sessions; connect to another agent");
	return 0;
}

/* The connection becomes a session. */
static int handle_hello(struct pending_client *c, const struct dmsg_header *h, const uint8_t *body,
			struct dray_fds *fds, struct dray_err *reterr)
{
	struct sessions *ss = c->owner;
	struct dmsg_hello m;
	struct session *s = NULL;
	int r;

	if (h->type != DMSG_HELLO)
		return dray_err_set(reterr, -EPROTO, DRAY_E_OUT_OF_ORDER,
				    "the first message is %s; send HELLO first",
				    dmsg_type_name(h->type));
	r = dmsg_hello_decode(body, h->length, &m, reterr);
	if (r >= 0 && c->denied.code)
		r = dray_err_set(reterr, -EACCES, c->denied.code, "%s", c->denied.msg);
	if (r >= 0)
		r = check_hello(ss, &m, fds->n, reterr);
	if (r >= 0)
		r = session_open(ss, c->uid_owner, &c->who, &m, &s, reterr);
	if (r < 0)
		return r;
	if (fds->n)
		r = watch_pidfd(s, &fds->fd[0], reterr);
	if (r >= 0)
		r = reply_hello(c, s, h->request_id, &m, reterr);
	if (r < 0) {
		session_discard(s);
		return r;
	}
	/* this loop stops watching the descriptor before the worker gets it */
	c->io = sd_event_source_disable_unref(c->io);
	session_start(s, c->fd);
	pending_client_free(c);
	return 0;
}

DRAY_DEFINE_CLEANUP(struct owner *, owner_unref);

static int handle_io(sd_event_source *source, int fd, uint32_t revents, void *arg)
{
	struct pending_client *c = arg;
	dray_auto(owner_unref) struct owner *o = NULL;
	struct dray_err err = DRAY_ERR_NULL;
	struct dmsg_header h;
	struct dray_fds fds;
	bool cut, fds_lost;
	uint8_t buf[HELLO_BYTES];
	uint64_t id;
	ssize_t n;
	int r;

	if (account_stops(&c->uid_owner->account))
		return sd_event_source_set_enabled(c->io, SD_EVENT_OFF);
	n = dray_seqpacket_recv(fd, buf, sizeof(buf), &fds, &cut, &fds_lost);
	if (n == -EAGAIN)
		return 0;
	o = owner_ref(c->uid_owner);
	owner_count_fds(o, fds.n);
	if (n <= 0) {
		pending_client_end(c, NULL);
		owner_close_fds(o, fds.fd, fds.n);
		return 0;
	}
	r = dmsg_header_decode(buf, (size_t)n, &h, &err);
	id = dmsg_header_id(buf, (size_t)n);
	if (r >= 0 && cut)
		r = dray_err_set(&err, -EMSGSIZE, DRAY_E_TOO_LARGE, "HELLO has more than %d bytes",
				 HELLO_BYTES);
	if (r >= 0)
		r = dmsg_packet_check(&h, (size_t)n, &err);
	if (r >= 0 && fds_lost)
		r = dray_err_set(
			&err, -EMFILE, DRAY_E_FD_LIMIT,
			"the kernel dropped the descriptor of HELLO; raise the agent's NOFILE limit");
	if (r >= 0)
		r = handle_hello(c, &h, buf + DMSG_HEADER_SIZE, &fds, &err);
	if (r < 0) {
		error_fold(&err, r);
		refuse(c, id, err);
	}
	owner_close_fds(o, fds.fd, fds.n);
	return 0;
}

static int handle_limit(sd_event_source *source, uint64_t usec, void *arg)
{
	refuse(arg, 0,
	       dray_err_of(DRAY_E_TIMEOUT, "the client sent no HELLO within %d s",
			   HELLO_LIMIT_US / 1000000));
	return 0;
}

static bool has_id(const struct dray_strv *l, uint32_t id)
{
	int64_t allowed;

	for (size_t i = 0; i < l->n; i++)
		if (dray_int_parse(l->v[i], 0, &allowed) == 0 && allowed == id)
			return true;
	return false;
}

static bool gid_allowed(const struct dray_strv *l, int fd, gid_t gid)
{
	gid_t *groups dray_auto_free = NULL;
	socklen_t bytes = GROUPS_MAX * sizeof(*groups);

	if (!l->n || has_id(l, gid))
		return true;
	groups = calloc(1, bytes);
	if (!groups || getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &bytes) < 0)
		return false;
	for (size_t i = 0; i < bytes / sizeof(*groups); i++)
		if (has_id(l, groups[i]))
			return true;
	return false;
}

/* The kernel's name for each uid that has no number in the agent's user namespace. */
static uid_t overflow_uid(void)
{
	static int64_t found = -1;
	char text[16];

	if (found >= 0)
		return (uid_t)found;
	if (dray_file_read(AT_FDCWD, "/proc/sys/kernel/overflowuid", 0, text, sizeof(text)) < 0 ||
	    sscanf(text, "%" SCNd64, &found) != 1)
		found = OVERFLOW_UID;
	return (uid_t)found;
}

/* The kernel's credentials of a client must match the lists of the configuration. */
static int check_credentials(const struct sessions *ss, int fd, struct ucred *ret,
			     struct dray_err *reterr)
{
	const struct dray_config *cfg = ss->deps.cfg;
	socklen_t bytes = sizeof(*ret);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, ret, &bytes) < 0)
		return dray_err_set(reterr, -errno, DRAY_E_DENIED,
				    "the kernel reports no credentials of the client: %s",
				    dray_errno_text(errno));
	if (ret->uid == overflow_uid() && !has_id(&cfg->data.allow_uids, ret->uid))
		return dray_err_set(
			reterr, -EACCES, DRAY_E_DENIED,
			"uid %u stands for all users of other user namespaces; list it in data.allow_uids to treat them as one user",
			ret->uid);
	if (cfg->data.allow_uids.n && !has_id(&cfg->data.allow_uids, ret->uid))
		return dray_err_set(reterr, -EACCES, DRAY_E_DENIED,
				    "uid %u is not in data.allow_uids; add it there", ret->uid);
	if (!gid_allowed(&cfg->data.allow_gids, fd, ret->gid))
		return dray_err_set(
			reterr, -EACCES, DRAY_E_DENIED,
			"neither gid %u nor another group of the client is in data.allow_gids; add one there",
			ret->gid);
	return 0;
}

/* The oldest connection of the owner that has most of them: an owner that opens many takes no room of others. */
static struct pending_client *oldest_of_most(struct sessions *ss)
{
	struct pending_client *most = NULL;

	dray_list_for_each(&ss->pending_clients, c, struct pending_client, link)
		if (!most || c->uid_owner->pending_clients > most->uid_owner->pending_clients)
			most = c;
	return most;
}

void pending_client_new(struct sessions *ss, const char *tenant, int fd)
{
	struct pending_client *c;
	int r;

	if (ss->n_pending_clients >= (uint32_t)ss->deps.cfg->limits.strangers)
		refuse(oldest_of_most(ss), 0,
		       dray_err_of(
			       DRAY_E_BUSY,
			       "%" PRIu32
			       " connections have not sent HELLO, as many as limits.strangers allows",
			       ss->n_pending_clients));
	c = calloc(1, sizeof(*c));
	if (!c) {
		owner_farewell(ss->deps.owners->own, fd, NULL);
		return;
	}
	c->owner = ss;
	c->fd = fd;
	check_credentials(ss, fd, &c->who, &c->denied);
	c->uid_owner = owner_get(ss->deps.owners, tenant, c->who.uid);
	if (!c->uid_owner) {
		owner_farewell(ss->deps.owners->own, fd, NULL);
		free(c);
		return;
	}
	c->uid_owner->pending_clients++;
	dray_list_add(&ss->pending_clients, &c->link);
	ss->n_pending_clients++;
	r = sd_event_add_io(ss->deps.event, &c->io, fd, EPOLLIN, handle_io, c);
	if (r >= 0)
		r = sd_event_add_time_relative(ss->deps.event, &c->limit, CLOCK_MONOTONIC,
					       HELLO_LIMIT_US, 0, handle_limit, c);
	if (r < 0) {
		log_limited(DRAY_LOG_WARNING, "session", "a connection cannot be watched: %s",
			    dray_errno_text(r));
		pending_client_end(c, NULL);
	}
}

void pending_clients_close(struct sessions *ss)
{
	dray_list_for_each(&ss->pending_clients, c, struct pending_client, link)
		pending_client_end(c, NULL);
}
