/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening streams: connect, hello, welcome, and retries.
 *
 * Streams are opened when there is something to send: one first, the others once it is open. A failed
 * attempt is repeated after a pause that doubles, with jitter, while slices wait. They wait until their
 * deadline. But when no attempt has led to an answered frame for connect_timeout, and at least
 * GIVE_UP_ATTEMPTS were made, the peer counts as unreachable: then each failed attempt ends the waiting
 * transfers with peer_unreachable. Attempts that failed because this agent lacks descriptors or memory are counted apart, because they
 * say nothing about the peer, and end the transfers with no_fds or no_memory.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "agent/data/transport/tcp/tcp.h"
#include "lib/backoff.h"
#include "lib/congestion.h"
#include "lib/fds.h"

#define GIVE_UP_ATTEMPTS 3
#define UNREACHABLE \
	"no data stream to the peer could be opened: check the path to its segment address"

#define NO_FDS                                                                                    \
	"this agent has no free file descriptor for a data stream to the peer: raise its NOFILE " \
	"limit"
#define NO_MEMORY "this agent has no memory for a data stream to the peer"

/* Why no stream opens. */
struct reason {
	struct tcp_channel *ch;
	uint32_t code;
	const char *text;
};

static void stop_waiting(struct core *c, struct xfer *x, void *arg)
{
	const struct reason *r = arg;

	if (stage_channel_has(&r->ch->ch, x) && x->state == XFER_RUNNING)
		xfer_stop(c, x, r->code, r->text, false);
}

static struct reason reason_of(struct tcp_channel *ch, int error)
{
	if (!dray_is_own_lack(error))
		return (struct reason){ ch, DRAY_E_PEER_UNREACHABLE, UNREACHABLE };
	if (dray_lacks_fds(error))
		return (struct reason){ ch, DRAY_E_NO_FDS, NO_FDS };
	return (struct reason){ ch, DRAY_E_NO_MEMORY, NO_MEMORY };
}

void tcp_connect_failed(struct tcp_channel *ch, int error)
{
	struct tcp *t = tcp_of(ch);
	struct core *c = t->c;
	struct tcp_fails *f = dray_is_own_lack(error) ? &ch->lacking : &ch->refused;
	struct reason reason = reason_of(ch, error);
	int64_t pause;

	if (!f->n++)
		f->since_ns = c->now_ns;
	pause = backoff_pause(ch->refused.n + ch->lacking.n, c->cfg.backoff_min_ns,
			      c->cfg.backoff_max_ns);
	ch->connect_ns = c->now_ns + backoff_spread(dray_max(pause, (int64_t)DRAY_NS_PER_MS));
	tcp_timer(t, ch->connect_ns);
	if (!ch->n_open && f->n >= GIVE_UP_ATTEMPTS &&
	    c->now_ns - f->since_ns >= c->cfg.connect_timeout_ns)
		xfers_each(c, stop_waiting, &reason);
}

/* Closes a stream that never opened. */
static void give_up(struct tcp_requester *p, int error)
{
	struct tcp_channel *ch = p->ch;

	ch->n_streams--;
	tcp_stream_close(&p->s, true);
	tcp_stream_free_later(&p->s);
	tcp_connect_failed(ch, error);
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
	int ret;

	if (!p) {
		tcp_connect_failed(ch, -ENOMEM);
		return;
	}
	fd = socket(addr->sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0) {
		give_up(p, -errno);
		return;
	}
	tcp_socket_setup(t, fd);
	dray_congestion_at(fd, addr);
	ret = connect(fd, &addr->sa, addr->len) < 0 && errno != EINPROGRESS ?
		      -errno :
		      tcp_stream_watch(&p->s, fd);
	if (ret < 0) {
		give_up(p, ret);
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

		ret = getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0 ? -errno : -error;
		if (!ret)
			ret = send_hello(p);
		if (ret < 0) {
			give_up(p, ret);
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
			give_up(p, ret);
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
		give_up(p, -ETIMEDOUT);
	else
		tcp_timer(p->s.tcp, p->connect_by_ns);
}
