/* SPDX-License-Identifier: Apache-2.0 */
/* What goes to a client after HELLO goes by its worker, which alone writes to the socket. */
#include <errno.h>
#include <string.h>

#include "agent/control/session/internal.h"
#include "lib/assert.h"
#include "schema/gen/errors.h"

void session_send(struct session *s, uint64_t request_id, const uint8_t *message, int length,
		  int *fds, unsigned n_fds)
{
	struct packet *p = NULL;

	/* every text we put in is within its limit */
	dray_assert(length > 0);
	if (!s->closing)
		p = packet_new((uint32_t)length, n_fds);
	if (!p) {
		regions_close_fds(s->owner->regions, fds, n_fds);
		/*
		 * a client that waits for an answer for ever is worse off than one without a
		 * session
		 */
		if (!s->closing)
			session_close(s, DRAY_E_NO_MEMORY, NULL, "no memory for an answer");
		return;
	}
	memcpy(p->data, message, (size_t)length);
	for (unsigned i = 0; i < n_fds; i++) {
		p->fds[i] = fds[i];
		fds[i] = -1;
	}
	worker_post(s->owner->pool->workers[s->worker], &(struct command){ .type = COMMAND_SEND,
									   .session = s->handle,
									   .id = request_id,
									   .packet = p });
}

void session_send_error(struct session *s, uint64_t request_id, uint32_t code, const char *message)
{
	uint8_t buf[DMSG_HEADER_SIZE + DMSG_ERROR_BODY_MAX];
	struct dmsg_error m = { .code = code, .message = { message, (uint32_t)strlen(message) } };

	session_send(s, request_id, buf, dmsg_error_encode(buf, sizeof(buf), request_id, &m), NULL,
		     0);
}

struct dray_str text_fit(struct dray_str s, uint32_t max)
{
	if (s.n <= max)
		return s;
	/* bytes 10xxxxxx go on with a character */
	while (max && ((uint8_t)s.p[max] & 0xc0) == 0x80)
		max--;
	return (struct dray_str){ s.p, max };
}

void error_fold(struct dray_err *err, int ret)
{
	int code = DRAY_E_INTERNAL;

	if (ret == -ENOMEM)
		code = DRAY_E_NO_MEMORY;
	else if (ret == -EMFILE || ret == -ENFILE)
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
