/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/directory/stream.h"
#include "lib/fds.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "lib/time.h"
#include "lib/units.h"
#include "schema/gen/errors.h"

#define READ_BYTES 16384
/* A fast server must not keep the event loop from other work. */
#define READS_PER_TURN 8

enum stream_state {
	STREAM_RESOLVING,
	STREAM_CONNECTING,
	STREAM_SHAKING,
	STREAM_OPEN,
	STREAM_BROKEN
};

struct stream {
	struct stream_config cfg;
	enum stream_state state;
	struct resolver_query *query;
	struct dray_addr addrs[RESOLVER_ADDRS_MAX];
	unsigned n_addrs, next; /* next: the address after the one in use */
	struct dray_err why;    /* of the last address, and of the end */
	int64_t end_ns;         /* to be open */
	int fd;
	sd_event_source *io, *timer;
	SSL *ssl;
	bool reads_to_write; /* TLS wants to read before it writes on */
	bool writes_to_read;
	uint8_t *out; /* from `sent` on it waits */
	size_t out_n, out_size, sent;
};

static void disconnect(struct stream *s)
{
	SSL_free(dray_take(s->ssl));
	s->io = sd_event_source_disable_unref(s->io);
	s->fd = dray_close(s->fd);
}

struct stream *stream_close(struct stream *s)
{
	if (!s)
		return NULL;
	resolver_cancel(s->query);
	disconnect(s);
	sd_event_source_disable_unref(s->timer);
	free(s->out);
	free(s);
	return NULL;
}

/* It ends in a turn of its own, so that no caller finds itself closed. */
static void break_off(struct stream *s, const struct dray_err *why)
{
	if (s->state == STREAM_BROKEN)
		return;
	s->why = *why;
	s->state = STREAM_BROKEN;
	disconnect(s);
	sd_event_source_set_time(s->timer, 0);
	sd_event_source_set_enabled(s->timer, SD_EVENT_ONESHOT);
}

static void broken(struct stream *s, int code, const char *text)
{
	struct dray_err why = dray_err_of(code, "%s", text);

	break_off(s, &why);
}

/* What OpenSSL says of its last failure. */
static void tls_broken(struct stream *s)
{
	long verified = SSL_get_verify_result(s->ssl);
	unsigned long e = ERR_peek_error();
	const char *reason = e ? ERR_reason_error_string(e) : NULL;
	struct dray_err why =
		verified != X509_V_OK ?
			dray_err_of(
				DRAY_E_DENIED,
				"the server's certificate is refused: %s; see store.directory_ca_file, "
				"and the host in store.directory",
				X509_verify_cert_error_string(verified)) :
			dray_err_of(DRAY_E_PEER_LOST, "TLS: %s; does the server speak it there?",
				    reason ? reason : "the connection ended");

	ERR_clear_error();
	break_off(s, &why);
}

static void watch(struct stream *s)
{
	bool out = s->state == STREAM_CONNECTING || s->writes_to_read ||
		   (s->state == STREAM_OPEN && s->sent < s->out_n && !s->reads_to_write);

	sd_event_source_set_io_events(s->io, EPOLLIN | (out ? EPOLLOUT : 0));
}

/* --- bytes ------------------------------------------------------------------------------------------ */

/* >0: bytes; 0: not now; <0: the stream has broken. */
static ssize_t plain_send(struct stream *s, const void *p, size_t n)
{
	ssize_t r = send(s->fd, p, n, MSG_NOSIGNAL);

	if (r >= 0)
		return r;
	if (errno == EAGAIN || errno == EINTR)
		return 0;
	broken(s, DRAY_E_PEER_LOST, dray_errno_text(errno));
	return -1;
}

static ssize_t tls_send(struct stream *s, const void *p, size_t n)
{
	size_t done;

	ERR_clear_error();
	s->reads_to_write = false;
	if (SSL_write_ex(s->ssl, p, n, &done))
		return (ssize_t)done;
	switch (SSL_get_error(s->ssl, 0)) {
	case SSL_ERROR_WANT_WRITE:
		return 0;
	case SSL_ERROR_WANT_READ:
		s->reads_to_write = true;
		return 0;
	default:
		tls_broken(s);
		return -1;
	}
}

void stream_flush(struct stream *s)
{
	if (s->state != STREAM_OPEN)
		return;
	while (s->sent < s->out_n) {
		const uint8_t *p = s->out + s->sent;
		size_t left = s->out_n - s->sent;
		ssize_t n = s->ssl ? tls_send(s, p, left) : plain_send(s, p, left);

		if (n < 0)
			return;
		if (!n)
			break;
		s->sent += (size_t)n;
	}
	if (s->sent == s->out_n)
		s->sent = s->out_n = 0;
	watch(s);
}

void stream_flush_soon(struct stream *s)
{
	if (s->state == STREAM_OPEN)
		watch(s);
}

bool stream_put(struct stream *s, const void *p, size_t n)
{
	size_t size = dray_max(s->out_size, (size_t)4096);
	uint8_t *out;

	if (stream_unsent(s) + n > STREAM_BYTES_MAX)
		return false;
	if (s->out_n + n > s->out_size && s->sent) {
		memmove(s->out, s->out + s->sent, s->out_n - s->sent);
		s->out_n -= s->sent;
		s->sent = 0;
	}
	while (size < s->out_n + n)
		size *= 2;
	if (size != s->out_size) {
		out = realloc(s->out, size);
		if (!out)
			return false;
		s->out = out;
		s->out_size = size;
	}
	memcpy(s->out + s->out_n, p, n);
	s->out_n += n;
	return true;
}

size_t stream_unsent(const struct stream *s)
{
	return s->out_n - s->sent;
}

static ssize_t plain_receive(struct stream *s, void *buf, size_t n)
{
	ssize_t r = recv(s->fd, buf, n, 0);

	if (r > 0)
		return r;
	if (r < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	broken(s, DRAY_E_PEER_LOST,
	       r ? dray_errno_text(errno) : "the server has closed the connection");
	return -1;
}

static ssize_t tls_receive(struct stream *s, void *buf, size_t n)
{
	size_t done;

	ERR_clear_error();
	s->writes_to_read = false;
	if (SSL_read_ex(s->ssl, buf, n, &done))
		return (ssize_t)done;
	switch (SSL_get_error(s->ssl, 0)) {
	case SSL_ERROR_WANT_READ:
		return 0;
	case SSL_ERROR_WANT_WRITE:
		s->writes_to_read = true;
		return 0;
	case SSL_ERROR_ZERO_RETURN:
		broken(s, DRAY_E_PEER_LOST, "the server has closed the connection");
		return -1;
	default:
		tls_broken(s);
		return -1;
	}
}

/* False: the stream has been closed. */
static bool receive(struct stream *s)
{
	uint8_t buf[READ_BYTES];
	bool pending = true;

	for (unsigned i = 0; pending; i++) {
		ssize_t n = s->ssl ? tls_receive(s, buf, sizeof(buf)) :
				     plain_receive(s, buf, sizeof(buf));

		if (n <= 0)
			return true;
		if (!s->cfg.received(s->cfg.arg, buf, (size_t)n))
			return false;
		if (s->state != STREAM_OPEN)
			return true;
		/* what TLS has decrypted wakes nobody */
		pending = i + 1 < READS_PER_TURN || (s->ssl && SSL_pending(s->ssl));
	}
	return true;
}

/* --- connecting --------------------------------------------------------------------------------------- */

static void opened(struct stream *s)
{
	s->state = STREAM_OPEN;
	sd_event_source_set_enabled(s->timer, SD_EVENT_OFF);
	watch(s);
	s->cfg.opened(s->cfg.arg);
}

static void shake(struct stream *s)
{
	int r;

	ERR_clear_error();
	s->writes_to_read = false;
	r = SSL_connect(s->ssl);
	if (r == 1) {
		opened(s);
		return;
	}
	switch (SSL_get_error(s->ssl, r)) {
	case SSL_ERROR_WANT_WRITE:
		s->writes_to_read = true;
		break;
	case SSL_ERROR_WANT_READ:
		break;
	default:
		tls_broken(s);
		return;
	}
	watch(s);
}

/* What SSL_set_tlsext_host_name() does, which takes constants for variables. */
static long name_send(struct stream *s)
{
	return SSL_ctrl(s->ssl, SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name,
			(void *)(uintptr_t)s->cfg.host);
}

/* The certificate must be of the host in the configuration. */
static int tls_begin(struct stream *s)
{
	struct dray_addr a;
	bool address = dray_host_is_address(s->cfg.host, &a);

	s->ssl = SSL_new(s->cfg.tls);
	if (!s->ssl || !SSL_set_fd(s->ssl, s->fd))
		return -ENOMEM;
	if (address ? !X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(s->ssl), s->cfg.host) :
		      !SSL_set1_host(s->ssl, s->cfg.host) || !name_send(s))
		return -ENOMEM;
	return 0;
}

static void try_next(struct stream *s);

static void refused(struct stream *s, int code, const char *why)
{
	char text[DRAY_ADDR_TEXT_MAX];

	s->why = dray_err_of(code, "connecting to %s: %s",
			     dray_addr_show(&s->addrs[s->next - 1], text, sizeof(text)), why);
	disconnect(s);
}

static void connected(struct stream *s)
{
	socklen_t n = sizeof(int);
	int err = 0, yes = 1;

	if (getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &err, &n) < 0)
		err = errno;
	if (err) {
		refused(s, DRAY_E_PEER_UNREACHABLE, dray_errno_text(err));
		try_next(s);
		return;
	}
	setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
	/* TLS may use all the time left */
	sd_event_source_set_time(s->timer, (uint64_t)s->end_ns / 1000 + 1);
	if (!s->cfg.tls) {
		opened(s);
		return;
	}
	s->state = STREAM_SHAKING;
	if (tls_begin(s) < 0)
		broken(s, DRAY_E_NO_MEMORY, "no memory for TLS");
	else
		shake(s);
}

static int on_io(sd_event_source *source, int fd, uint32_t revents, void *arg)
{
	struct stream *s = arg;

	switch (s->state) {
	case STREAM_CONNECTING:
		connected(s);
		break;
	case STREAM_SHAKING:
		shake(s);
		break;
	case STREAM_OPEN:
		if (receive(s))
			stream_flush(s);
		break;
	case STREAM_RESOLVING:
	case STREAM_BROKEN:
		break;
	}
	return 0;
}

static int start_connecting(struct stream *s, const struct dray_addr *a)
{
	int r;

	s->fd = socket(a->sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (s->fd < 0)
		return -errno;
	if (connect(s->fd, &a->sa, a->len) < 0 && errno != EINPROGRESS)
		return -errno;
	r = sd_event_add_io(s->cfg.event, &s->io, s->fd, EPOLLOUT, on_io, s);
	return r < 0 ? r : 0;
}

static void try_next(struct stream *s)
{
	s->state = STREAM_CONNECTING;
	while (s->next < s->n_addrs) {
		int64_t now = dray_now().ns, left = dray_max(s->end_ns - now, (int64_t)0);
		int64_t share = left / (int64_t)(s->n_addrs - s->next);
		int r = start_connecting(s, &s->addrs[s->next++]);

		if (r == 0) {
			sd_event_source_set_time(s->timer, (uint64_t)(now + share) / 1000 + 1);
			sd_event_source_set_enabled(s->timer, SD_EVENT_ONESHOT);
			return;
		}
		refused(s, dray_lacks_fds(r) ? DRAY_E_NO_FDS : DRAY_E_PEER_UNREACHABLE,
			dray_errno_text(r));
	}
	break_off(s, &s->why);
}

static void on_addresses(void *arg, const struct dray_addr *addrs, unsigned n,
			 const struct dray_err *why)
{
	struct stream *s = arg;

	s->query = NULL;
	if (why) {
		break_off(s, why);
		return;
	}
	memcpy(s->addrs, addrs, n * sizeof(*addrs));
	s->n_addrs = n;
	try_next(s);
}

static int on_timer(sd_event_source *source, uint64_t usec, void *arg)
{
	struct stream *s = arg;
	struct dray_err why = s->why;

	if (s->state == STREAM_BROKEN) {
		s->cfg.ended(s->cfg.arg, &why);
	} else if (s->state == STREAM_CONNECTING) {
		refused(s, DRAY_E_TIMEOUT, "no answer");
		try_next(s);
	} else {
		broken(s, DRAY_E_TIMEOUT,
		       s->state == STREAM_SHAKING ? "no answer to the handshake of TLS" :
						    "its name was not resolved in time");
	}
	return 0;
}

int stream_open(struct stream **ret, const struct stream_config *cfg, struct dray_err *reterr)
{
	dray_auto(stream_close) struct stream *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory");
	s->cfg = *cfg;
	s->fd = -1;
	s->end_ns = dray_now().ns + cfg->timeout_ns;
	r = sd_event_add_time(cfg->event, &s->timer, CLOCK_MONOTONIC,
			      (uint64_t)s->end_ns / 1000 + 1, 1000, on_timer, s);
	if (r < 0)
		return dray_err_set(reterr, r, DRAY_E_IO, "%s", dray_errno_text(r));
	r = resolver_lookup(cfg->resolver, cfg->host, cfg->port, cfg->timeout_ns, on_addresses, s,
			    &s->query, reterr);
	if (r < 0)
		return r;
	*ret = dray_take(s);
	return 0;
}
