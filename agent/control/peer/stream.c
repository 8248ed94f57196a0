/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data streams as far as the control thread goes: those that peers connect are checked and handed to a
 * worker; resets of broken ones go over the control connection, in both directions.
 */
#include <errno.h>
#include <inttypes.h>
#include <openssl/crypto.h>
#include <string.h>

#include "agent/control/peer/internal.h"
#include "lib/assert.h"
#include "schema/gen/errors.h"

/* --- a stream of the peer's --------------------------------------------------------------------- */

/* Our own attempt, where READY may still be on its way: the peer is ahead of us. */
static bool is_expected(struct peers *p, const struct pmsg_stream_hello *h)
{
	table_for_each_of(p, h->agent_id, x)
		if (x->fsm.initiator && x->fsm.state == PEER_STATE_HELLO && x->hello_sent &&
		    x->incarnation == h->incarnation)
			return true;
	return false;
}

static uint32_t check(struct peers *p, const struct pmsg_stream_hello *h, const uint8_t *wire,
		      struct peer **ret)
{
	struct peer *peer = table_find_up(p, h->agent_id, NULL);
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
	/* only who holds the key gets as far as to use up an id */
	if (!dmsg_class_valid(h->class))
		return DRAY_E_INVALID;
	r = stream_table_use(&peer->streams, h->stream_id);
	if (r < 0)
		return r == -EEXIST ? DRAY_E_EXISTS : DRAY_E_QUOTA;
	*ret = peer;
	return DRAY_OK;
}

/* False where it does not go out whole: on a fresh socket that means that it is dead. */
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

static void adopt(struct stranger *s, struct peer *peer, const struct pmsg_stream_hello *h)
{
	struct worker_pool *pool = peer->p->deps.pool;
	unsigned worker = pool_pick(pool);

	if (stream_table_add(&peer->streams, h->stream_id, worker) < 0) {
		send_welcome(s->fd, NULL, h, DRAY_E_QUOTA);
		stranger_refuse(s, "a data stream: the peer has too many");
		return;
	}
	if (!send_welcome(s->fd, peer->link, h, DRAY_OK)) {
		stream_table_del(&peer->streams, stream_table_find(&peer->streams, h->stream_id));
		stranger_refuse(s, "a data stream ended before it was welcomed");
		return;
	}
	worker_post(pool->workers[worker], &(struct command){ .type = COMMAND_STREAM_ADOPT,
							      .session = peer->handle,
							      .id = h->stream_id,
							      .fd = dray_take_fd(s->fd),
							      .class = h->class });
	stranger_free(s);
}

void stream_handle_hello(struct stranger *s)
{
	struct pmsg_stream_hello h;
	struct peer *peer = NULL;
	uint32_t status;

	pmsg_stream_hello_get(s->hello, &h);
	status = check(s->p, &h, s->hello, &peer);
	if (status == DRAY_OK) {
		adopt(s, peer, &h);
		return;
	}
	if (status == DRAY_E_NOT_FOUND && is_expected(s->p, &h)) {
		s->held = true;
		return;
	}
	send_welcome(s->fd, NULL, &h, status);
	stranger_refuse(s, "a data stream: %s", dray_error_name(status));
}

static void send_reset_reply(struct peer *peer, uint64_t request_id)
{
	uint8_t buf[PMSG_HEADER_SIZE + PMSG_STREAM_RESET_REPLY_BODY_MAX];
	struct pmsg_stream_reset_reply m = {};

	peer_send(peer, buf, pmsg_stream_reset_reply_encode(buf, sizeof(buf), request_id, &m));
}

void stream_handle_reset(struct peer *peer, uint64_t request_id, uint64_t stream_id)
{
	struct stream_entry *e = stream_table_find(&peer->streams, stream_id);

	if (!e) {
		/* a hello of it that is still on its way comes too late now */
		stream_table_use(&peer->streams, stream_id);
		send_reset_reply(peer, request_id);
		return;
	}
	if (e->resetting) {
		peer_protocol_error(peer, DRAY_E_PROTOCOL, "a second reset of stream %" PRIx64,
				    stream_id);
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
	struct peer *peer = table_get(p, handle);
	struct stream_entry *e = peer ? stream_table_find(&peer->streams, stream_id) : NULL;

	if (!e)
		return;
	if (e->resetting)
		send_reset_reply(peer, e->reset_request);
	stream_table_del(&peer->streams, e);
}

/* --- a stream of ours --------------------------------------------------------------------------- */

void peers_handle_stream_lost(struct peers *p, dray_handle handle, uint64_t stream_id)
{
	uint8_t buf[PMSG_HEADER_SIZE + PMSG_STREAM_RESET_BODY_MAX];
	struct pmsg_stream_reset m = { .stream_id = stream_id };
	struct peer *peer = table_get(p, handle);
	struct request *r;

	/* with the peer lost its streams are over anyhow: the workers hear of that */
	if (!peer || !peer_fsm_is_up(&peer->fsm))
		return;
	r = request_new(peer, REQUEST_RESET, p->cfg->transfer.slice_timeout);
	if (!r) {
		conn_fail(peer->conn, DRAY_E_NO_MEMORY, "no memory for a stream's reset");
		return;
	}
	r->stream_id = stream_id;
	peer_send(peer, buf, pmsg_stream_reset_encode(buf, sizeof(buf), r->id, &m));
}

void stream_reset_done(struct peer *peer, uint64_t stream_id)
{
	struct worker_pool *pool = peer->p->deps.pool;
	uint64_t worker = stream_id >> 32;

	dray_assert(worker < pool->n);
	worker_post(pool->workers[worker], &(struct command){ .type = COMMAND_STREAM_DEAD,
							      .session = peer->handle,
							      .id = stream_id });
}
