/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control thread's part in data streams: it checks the streams that peers connect and hands them to a
 * worker; it exchanges resets of broken streams over the control connection.
 */
#include <errno.h>
#include <inttypes.h>
#include <openssl/crypto.h>
#include <string.h>

#include "agent/control/peer/internal.h"
#include "lib/assert.h"

/* An attempt of ours whose READY may still be on its way, while the peer already opens streams. */
static bool is_expected(struct peers *p, const struct pmsg_stream_hello *h)
{
	peers_for_each_of(p, h->agent_id, x)
		if (x->fsm.initiator && x->fsm.state == PEER_STATE_HELLO && x->hello_sent &&
		    x->incarnation == h->incarnation)
			return true;
	return false;
}

static uint32_t check(struct peers *p, const struct pmsg_stream_hello *h, const uint8_t *wire,
		      struct peer **ret)
{
	struct peer *peer = peer_find_up(p, h->agent_id, NULL);
	uint8_t mac[32];
	int r;

	if (h->magic != PMSG_MAGIC_STREAM)
		return DRAY_E_BAD_MAGIC;
	if (h->major != PMSG_MAJOR)
		return DRAY_E_VERSION;
	if (memcmp(h->to_agent_id, p->deps.agent_id, sizeof(h->to_agent_id)) != 0 ||
	    h->to_incarnation != p->deps.incarnation)
		return DRAY_E_INCARNATION;
	if (!peer || peer->incarnation != h->incarnation || !peer->link)
		return DRAY_E_NOT_FOUND;
	if (stream_hello_mac(peer->link->stream_key, wire, mac) < 0 ||
	    CRYPTO_memcmp(mac, h->mac, sizeof(mac)) != 0)
		return DRAY_E_PEER_DENIED;
	/* only the holder of the key can use up a stream id */
	if (!dmsg_class_valid(h->class))
		return DRAY_E_INVALID;
	r = stream_table_use(&peer->streams, h->stream_id);
	if (r < 0)
		return r == -EEXIST ? DRAY_E_EXISTS : DRAY_E_QUOTA;
	*ret = peer;
	return DRAY_OK;
}

/* False unless all of it was sent; on a new socket that means a broken connection. */
static bool send_welcome(int fd, const struct peer_link *link, const struct pmsg_stream_hello *h,
			 uint32_t status)
{
	struct pmsg_stream_welcome w = {
		.magic = PMSG_MAGIC_STREAM,
		.status = status,
		.stream_id = h->stream_id,
	};
	uint8_t buf[PMSG_STREAM_WELCOME_SIZE];

	pmsg_stream_welcome_put(buf, &w);
	if (link && stream_welcome_mac(link->stream_key, buf, h->mac, w.mac) < 0)
		return false;
	pmsg_stream_welcome_put(buf, &w);
	return send(fd, buf, sizeof(buf), MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof(buf);
}

static void adopt(struct incoming *in, struct peer *peer, const struct pmsg_stream_hello *h)
{
	struct worker_pool *pool = peer->p->deps.pool;
	unsigned worker = pool_pick(pool);

	if (stream_table_add(&peer->streams, h->stream_id, worker) < 0) {
		send_welcome(in->fd, NULL, h, DRAY_E_QUOTA);
		incoming_refuse(in, "a data stream: the peer has %d streams already",
				STREAM_TABLE_MAX);
		return;
	}
	if (!send_welcome(in->fd, peer->link, h, DRAY_OK)) {
		stream_table_del(&peer->streams, stream_table_find(&peer->streams, h->stream_id));
		incoming_refuse(in, "a data stream closed before its welcome");
		return;
	}
	worker_post(pool->workers[worker], &(struct command){ .type = COMMAND_STREAM_ADOPT,
							      .session = peer->handle,
							      .id = h->stream_id,
							      .fd = dray_take_fd(in->fd),
							      .class = h->class });
	incoming_free(in);
}

void stream_handle_hello(struct incoming *in)
{
	struct pmsg_stream_hello h;
	struct peer *peer = NULL;
	uint32_t status;

	pmsg_stream_hello_get(in->hello, &h);
	status = check(in->p, &h, in->hello, &peer);
	if (status == DRAY_OK) {
		adopt(in, peer, &h);
		return;
	}
	if (status == DRAY_E_NOT_FOUND && is_expected(in->p, &h)) {
		in->held = true;
		return;
	}
	send_welcome(in->fd, NULL, &h, status);
	incoming_refuse(in, "a data stream: %s", dray_error_name(status));
}

void stream_handle_reset(struct peer *peer, uint64_t request_id, uint64_t stream_id)
{
	struct stream_entry *e = stream_table_find(&peer->streams, stream_id);

	if (!e) {
		/* a hello of this stream that arrives later must be refused */
		stream_table_use(&peer->streams, stream_id);
		peer_send(peer, PMSG_STREAM_RESET_REPLY, request_id, NULL);
		return;
	}
	if (e->resetting) {
		peer_protocol_error(peer,
				    dray_err_of(DRAY_E_PROTOCOL,
						"a second reset of stream %" PRIx64, stream_id));
		return;
	}
	e->resetting = true;
	e->reset_request = request_id;
	worker_post(peer->p->deps.pool->workers[e->worker],
		    &(struct command){ .type = COMMAND_STREAM_RESET,
				       .session = peer->handle,
				       .id = stream_id });
}

void peers_handle_stream_closed(struct peers *p, dray_handle handle, uint64_t stream_id)
{
	struct peer *peer = peer_get(p, handle);
	struct stream_entry *e = peer ? stream_table_find(&peer->streams, stream_id) : NULL;

	if (!e)
		return;
	if (e->resetting)
		peer_send(peer, PMSG_STREAM_RESET_REPLY, e->reset_request, NULL);
	stream_table_del(&peer->streams, e);
}

/* If the peer is lost instead, the workers end its streams by themselves. */
static void reset_done(struct peer *peer, struct pending_request *r, const struct dray_err *err,
		       const union pmsg_body *m)
{
	struct worker_pool *pool = peer->p->deps.pool;
	uint64_t worker = r->stream_id >> 32;

	if (err->code)
		return;
	dray_assert(worker < pool->n);
	worker_post(pool->workers[worker], &(struct command){ .type = COMMAND_STREAM_DEAD,
							      .session = peer->handle,
							      .id = r->stream_id });
}

static const struct request_kind reset_kind = {
	.type = PMSG_STREAM_RESET,
	.vital = true,
	.unanswered = "the peer did not reset a broken stream within transfer.slice_timeout",
	.done = reset_done,
};

void peers_handle_stream_lost(struct peers *p, dray_handle handle, uint64_t stream_id)
{
	struct peer *peer = peer_get_up(p, handle);

	if (peer)
		request_send(peer, &reset_kind, p->cfg->transfer.slice_timeout,
			     (struct pending_request){ .stream_id = stream_id },
			     &(union pmsg_body){ .stream_reset = { stream_id } });
}
