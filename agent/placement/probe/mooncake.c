/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handshake daemon of a Mooncake engine. It serves one connection at a time until the client closes it. So the
 * whole request is sent as soon as the connection is made, and the connection is closed as soon as the reply is there.
 * No other request is ever sent: a body of a type that the daemon does not expect ends its process.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "agent/placement/probe/internal.h"
#include "agent/placement/probe/mooncake_frame.h"
#include "lib/cleanup.h"
#include "lib/err.h"

#define READ_BYTES 16384
#define READS_PER_CALL 8

static void send_request(struct probe *p)
{
	ssize_t n = send(p->fd, mooncake_metadata_request, MOONCAKE_REQUEST_SIZE, MSG_NOSIGNAL);

	/* the buffer of a new socket has room for the whole request */
	if (n != MOONCAKE_REQUEST_SIZE)
		probe_fail_address(p, "the request could not be sent: %s",
				   n < 0 ? dray_errno_text(errno) : "no room");
}

/* Grows with the bytes received, not by the length that the frame declares. */
static bool make_room(struct probe *p)
{
	size_t cap = p->in.cap ? p->in.cap * 2 : READ_BYTES;
	uint8_t *buf;

	if (p->in.n < p->in.cap)
		return true;
	buf = realloc(p->in.buf, cap);
	if (!buf)
		return false;
	p->in.buf = buf;
	p->in.cap = cap;
	return true;
}

static void ended(struct probe *p, int err)
{
	if (err)
		probe_fail_address(p, "no reply: %s", dray_errno_text(err));
	else if (!p->in.n)
		probe_fail_address(
			p,
			"it closed the connection without a reply; is it a Mooncake handshake daemon?");
	else
		probe_fail_address(p, "it closed the connection %zu bytes into its reply", p->in.n);
}

static void take_reply(struct probe *p, int r, const struct mooncake_segment *s, const char *why)
{
	if (r == MOONCAKE_E_NOT_YET)
		probe_fail(p, "the engine there has no segment yet");
	else if (r < 0)
		probe_fail_address(p, "no Mooncake descriptor: %s", why);
	else
		probe_succeed(p, "segment %.128s over %s, %llu buffers", s->name, s->protocol,
			      (unsigned long long)s->buffers);
}

static void ready(struct probe *p, bool connected)
{
	char why[MOONCAKE_WHY_MAX];
	struct mooncake_segment s;
	ssize_t n;
	int r;

	if (connected) {
		send_request(p);
		return;
	}
	for (unsigned i = 0; i < READS_PER_CALL; i++) {
		if (!make_room(p)) {
			p->result.lacking = true;
			probe_fail(p, "no memory for the reply");
			return;
		}
		n = recv(p->fd, p->in.buf + p->in.n, p->in.cap - p->in.n, 0);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (n <= 0) {
			ended(p, n < 0 ? errno : 0);
			return;
		}
		p->in.n += (size_t)n;
		r = mooncake_reply_parse(p->in.buf, p->in.n, &s, why);
		if (r != MOONCAKE_E_MORE) {
			take_reply(p, r, &s, why);
			return;
		}
	}
}

static void stop(struct probe *p)
{
	free(p->in.buf);
	p->in.buf = NULL;
	p->in.n = p->in.cap = 0;
}

const struct probe_ops probe_mooncake_ops = {
	.try_address = probe_connect,
	.ready = ready,
	.stop = stop,
};
