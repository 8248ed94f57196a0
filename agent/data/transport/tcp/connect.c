/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening streams: connect, hello, welcome, and retries.
 *
 * Streams are opened when there is something to send: one first, the others once it is open. A failed
 * attempt is repeated after a pause that doubles, with jitter, while slices wait. They wait until their
 * deadline. But when no attempt has led to an answered frame for connect_timeout, and at least
 * GIVE_UP_ATTEMPTS were made, the peer counts as unreachable: then each failed attempt ends the waiting
 * transfers with peer_unreachable.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "agent/data/transport/tcp/tcp.h"
#include "lib/backoff.h"
#include "lib/congestion.h"

#define GIVE_UP_ATTEMPTS 3
#define UNREACHABLE \
	"no data stream to the peer could be opened: check the path to its segment address"

static void stop_unreachable(struct core *c, struct xfer *x, void *arg)
{
	struct tcp_channel *ch = arg;

	if (stage_channel_has(&ch->ch, x) && x->state == XFER_RUNNING)
		xfer_stop(c, x, DRAY_E_PEER_UNREACHABLE, UNREACHABLE, false);
}

void tcp_connect_failed(struct tcp_channel *ch)
{
	struct tcp *t = tcp_of(ch);
	struct core *c = t->c;
	int64_t pause;

	if (!ch->fails++)
		ch->failing_since_ns = c->now_ns;
	pause = backoff_pause(ch->fails, c->cfg.backoff_min_ns, c->cfg.backoff_max_ns);
	ch->connect_ns = c->now_ns + backoff_spread(dray_max(pause, (int64_t)DRAY_NS_PER_MS));
	tcp_timer(t, ch->connect_ns);
	if (!ch->n_open && ch->fails >= GIVE_UP_ATTEMPTS &&
	    c->now_ns - ch->failing_since_ns >= c->cfg.connect_timeout_ns)
		xfers_each(c, stop_unreachable, ch);
}

/* Closes a stream that never opened. */
static void give_up(struct tcp_requester *p)
{
	struct tcp_channel *ch = p->ch;

	ch->n_streams--;
	tcp_stream_close(&p->s, true);
	tcp_stream_free_later(&p->s);
	tcp_connect_failed(ch);
}

static struct tcp_requester *requester_new(struct tcp_channel *ch)
{
	struct tcp *t = tcp_of(ch);
	struct tcp_requester *p = tcp_stream_new(t, ch->peer, &tcp_requester_side, sizeof(*p),
						 offsetof(struct tcp_requester, q), 1);

	if (!p)
		return NULL;
	p->s.class = ch->ch.direct.class;
	p->s.state = TCP_CONNECTING;
	p->s.id = (uint64_t)t->c->index << 32 | (uint32_t)++t->next_stream;
	p->ch = ch;
	tcp_trailing_init(p);
	dray_list_init(&p->waiting);
	p->connect_by_ns = t->c->now_ns + t->c->cfg.connect_timeout_ns;
	dray_list_add(&ch->streams, &p->s.peer_link);
	ch->n_streams++;
	return p;
}

static void connect_one(struct tcp_channel *ch)
{
	struct tcp *t = tcp_of(ch);
	const struct dray_addr *addr = &ch->peer->link->addr;
	struct tcp_requester *p = requester_new(ch);
	dray_auto_close int fd = -1;

	if (!p) {
		tcp_connect_failed(ch);
		return;
	}
	fd = socket(addr->sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0) {
		give_up(p);
		return;
	}
	tcp_socket_setup(t, fd);
	dray_congestion_at(fd, addr);
	if ((connect(fd, &addr->sa, addr->len) < 0 && errno != EINPROGRESS) ||
	    tcp_stream_watch(&p->s, fd) < 0) {
		give_up(p);
		return;
	}
	dray_take_fd(fd);
	tcp_timer(t, p->connect_by_ns);
}

void tcp_connect(struct tcp_channel *ch)
{
	const struct core *c = tcp_of(ch)->c;
	uint32_t want = ch->ch.direct.class == DMSG_CLASS_LATENCY ? c->cfg.tcp_latency_streams :
								    c->cfg.tcp_streams;

	if (ch->peer->down)
		return;
	if (!ch->n_open)
		want = 1;
	while (ch->n_streams < want) {
		if (ch->connect_ns > c->now_ns) {
			tcp_timer(tcp_of(ch), ch->connect_ns);
			return;
		}
		connect_one(ch);
	}
}

static int send_hello(struct tcp_requester *p)
{
	const struct peer_link *link = p->s.peer->link;
	uint8_t wire[PMSG_STREAM_HELLO_SIZE];
	struct pmsg_stream_hello hello = {
		.magic = PMSG_MAGIC_STREAM,
		.major = PMSG_MAJOR,
		.class = (uint8_t)p->s.class,
		.stream_id = p->s.id,
		.incarnation = link->incarnation,
		.to_incarnation = link->peer_incarnation,
	};
	int ret;

	memcpy(hello.agent_id, link->agent_id, sizeof(hello.agent_id));
	memcpy(hello.to_agent_id, link->peer_agent_id, sizeof(hello.to_agent_id));
	pmsg_stream_hello_put(wire, &hello);
	ret = stream_hello_mac(link->stream_key, wire, p->hello_mac);
	if (ret < 0)
		return ret;
	memcpy(hello.mac, p->hello_mac, sizeof(hello.mac));
	pmsg_stream_hello_put(wire, &hello);
	/* A socket that was just connected takes this little at once, or it is unusable. */
	return send(p->s.fd, wire, sizeof(wire), MSG_DONTWAIT | MSG_NOSIGNAL) ==
			       (ssize_t)sizeof(wire) ?
		       0 :
		       -EIO;
}

static int check_welcome(struct tcp_requester *p, const uint8_t *wire)
{
	struct pmsg_stream_welcome welcome;
	uint8_t mac[32], differs = 0;

	pmsg_stream_welcome_get(wire, &welcome);
	if (welcome.magic != PMSG_MAGIC_STREAM || welcome.stream_id != p->s.id || welcome.status)
		return -EPROTO;
	if (stream_welcome_mac(p->s.peer->link->stream_key, wire, p->hello_mac, mac) < 0)
		return -EPROTO;
	/* constant time */
	for (unsigned i = 0; i < sizeof(mac); i++)
		differs |= (uint8_t)(mac[i] ^ welcome.mac[i]);
	return differs ? -EPROTO : 0;
}

/* 0: complete and valid; -EAGAIN: not complete yet; or another error. */
static int receive_welcome(struct tcp_requester *p)
{
	struct tcp_stream *s = &p->s;
	ssize_t n;

	if (!s->in)
		s->in = tcp_pool_get(s->tcp);
	while (s->in_wr < PMSG_STREAM_WELCOME_SIZE) {
		n = recv(s->fd, s->in + s->in_wr, PMSG_STREAM_WELCOME_SIZE - s->in_wr,
			 MSG_DONTWAIT);
		if (n == 0)
			return -ECONNRESET;
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		s->in_wr += (uint32_t)n;
	}
	/* parse() returns the buffer to the pool. */
	s->in_rd = s->in_wr;
	return check_welcome(p, s->in);
}

void tcp_connect_step(struct tcp_requester *p)
{
	struct tcp_stream *s = &p->s;
	int ret;

	if (s->state == TCP_CONNECTING && s->writable) {
		int error = 0;
		socklen_t len = sizeof(error);

		if (getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0 || error ||
		    send_hello(p) < 0) {
			give_up(p);
			return;
		}
		s->state = TCP_GREETING;
	}
	if (s->state == TCP_GREETING && s->readable) {
		ret = receive_welcome(p);
		if (ret == -EAGAIN) {
			s->readable = false;
			return;
		}
		if (ret < 0) {
			give_up(p);
			return;
		}
		tcp_stream_opened(s);
		p->ch->n_open++;
		tcp_channel_pull_later(p->ch);
	}
}

void tcp_connect_tick(struct tcp_requester *p)
{
	if (p->s.tcp->c->now_ns >= p->connect_by_ns)
		give_up(p);
	else
		tcp_timer(p->s.tcp, p->connect_by_ns);
}
