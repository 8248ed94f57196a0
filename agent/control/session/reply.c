/* SPDX-License-Identifier: Apache-2.0 */
/* Messages to a client after HELLO. They go through its worker, which alone writes to the socket. */
#include <errno.h>
#include <string.h>

#include "agent/control/session/internal.h"
#include "lib/assert.h"
#include "lib/cleanup.h"
#include "lib/fds.h"
#include "schema/gen/errors.h"

/* Room for every message sent here except the reply to ENV_GET. */
#define BODY_MAX DMSG_SEGMENT_GET_REPLY_BODY_MAX

void session_post(struct session *s, uint64_t request_id, struct packet *p)
{
	worker_post(s->owner->deps.pool->workers[s->worker],
		    &(struct command){ .type = COMMAND_SEND,
				       .session = s->handle,
				       .id = request_id,
				       .packet = p });
}

void session_send_fds(struct session *s, uint64_t request_id, uint16_t type,
		      const union dmsg_body *m, int *fds, unsigned n_fds)
{
	uint32_t cap = DMSG_HEADER_SIZE +
		       (type == DMSG_ENV_GET_REPLY ? DMSG_ENV_GET_REPLY_BODY_MAX : BODY_MAX);
	struct packet *p = s->closing ? NULL : packet_new(cap, n_fds);
	int length;

	if (!p) {
		/* the agent's own: closing them cannot block */
		for (unsigned i = 0; i < n_fds; i++)
			fds[i] = dray_close(fds[i]);
		session_doom(s);
		return;
	}
	length = dmsg_body_encode(type, p->data, cap, request_id, m);
	dray_assert(length > 0);
	p->length = (uint32_t)length;
	for (unsigned i = 0; i < n_fds; i++)
		p->fds[i] = dray_take_fd(fds[i]);
	session_post(s, request_id, p);
}

void session_send(struct session *s, uint64_t request_id, uint16_t type, const union dmsg_body *m)
{
	session_send_fds(s, request_id, type, m, NULL, 0);
}

void session_send_error(struct session *s, uint64_t request_id, uint32_t code, const char *message)
{
	session_send(
		s, request_id, DMSG_ERROR,
		&(union dmsg_body){ .error = { code, { message, (uint32_t)strlen(message) } } });
}

void text_copy(char *to, size_t size, struct dray_str from)
{
	size_t n = dray_min((size_t)from.n, size - 1);

	if (n) /* else from.p may be NULL */
		memcpy(to, from.p, n);
	to[n] = 0;
}

struct dray_str text_fit(struct dray_str s, uint32_t max)
{
	if (s.n <= max)
		return s;
	/* bytes 10xxxxxx continue a character */
	while (max && ((uint8_t)s.p[max] & 0xc0) == 0x80)
		max--;
	return (struct dray_str){ s.p, max };
}

void error_fold(struct dray_err *err, int ret)
{
	int code = DRAY_E_INTERNAL;

	if (ret == -ENOMEM)
		code = DRAY_E_NO_MEMORY;
	else if (dray_lacks_fds(ret))
		code = DRAY_E_NO_FDS;
	else if (ret == -ENOSPC)
		code = DRAY_E_NO_SPACE;
	dray_err_set(err, ret, code, "%s", dray_errno_text(ret));
}

void session_fail(struct session *s, uint64_t request_id, int ret, const struct dray_err *err)
{
	struct dray_err e = *err;

	error_fold(&e, ret);
	session_send_error(s, request_id, (uint32_t)e.code, e.msg);
}
