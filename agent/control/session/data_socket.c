/* SPDX-License-Identifier: Apache-2.0 */
/* The data socket: watched, and accepted from. */
#include <sys/socket.h>

#include "agent/control/session/internal.h"
#include "schema/gen/errors.h"

static void accepted(void *arg, int fd, const struct dray_addr *from)
{
	session_stranger_add(arg, fd);
}

static const struct acceptor_ops acceptor_ops = {
	.area = "session",
	.priority = ACCEPTOR_AFTER_CONNECTIONS,
	.accepted = accepted,
};

static int open_path(struct sessions *ss, const struct unix_listener_kind *kind,
		     struct dray_err *reterr)
{
	gid_t group;
	int r;

	r = unix_listener_group_parse(kind, ss->cfg->data.group, &group, reterr);
	if (r < 0)
		return r;
	return unix_listener_bind(&ss->listener, kind, ss->cfg->data.socket,
				  (mode_t)ss->cfg->data.mode, group, reterr);
}

int listener_open(struct sessions *ss, int fd, struct dray_err *reterr)
{
	static const struct unix_listener_kind kind = { "data", SOCK_SEQPACKET };
	int r;

	r = fd >= 0 ? unix_listener_adopt(&ss->listener, &kind, fd, reterr) :
		      open_path(ss, &kind, reterr);
	if (r < 0)
		return r;
	r = acceptor_start(&ss->acceptor, ss->event, ss->listener.fd, &acceptor_ops, ss);
	return r < 0 ? dray_err_set(reterr, r, DRAY_E_IO, "event loop: %s", dray_errno_text(r)) : 0;
}

void listener_close(struct sessions *ss)
{
	acceptor_stop(&ss->acceptor);
	unix_listener_close(&ss->listener);
}
