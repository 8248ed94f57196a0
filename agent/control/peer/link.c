/* SPDX-License-Identifier: Apache-2.0 */
/* The link of a peer, by which workers exchange bytes with it: its address and the key of its streams. */
#include <errno.h>
#include <openssl/crypto.h>
#include <string.h>

#include "agent/control/peer/internal.h"

#define KEY_LABEL "EXPORTER-dray-stream"

/* Bytes of one side in the context of the key. */
#define SIDE_SIZE (NONCE_SIZE + 16 + 8)

static void put_side(uint8_t *p, const uint8_t nonce[NONCE_SIZE], const uint8_t agent_id[16],
		     uint64_t incarnation)
{
	memcpy(p, nonce, NONCE_SIZE);
	memcpy(p + NONCE_SIZE, agent_id, 16);
	dray_le_put64(p + NONCE_SIZE + 16, incarnation);
}

/* The key is bound to both nonces, ids and incarnations; the connecting side comes first. */
static int derive_key(struct peer *peer, uint8_t ret[STREAM_KEY_SIZE])
{
	const struct peers_deps *d = &peer->p->deps;
	bool initiator = peer->fsm.initiator;
	uint8_t context[2 * SIDE_SIZE];

	put_side(context + (initiator ? 0 : SIDE_SIZE), peer->nonce, d->agent_id, d->incarnation);
	put_side(context + (initiator ? SIDE_SIZE : 0), peer->peer_nonce, peer->agent_id,
		 peer->incarnation);
	return conn_export(peer->conn, KEY_LABEL, context, sizeof(context), ret, STREAM_KEY_SIZE);
}

/*
 * The address that we connected to is proved. A peer that connected to us only claims its segment. A name, or a
 * loopback address of another host, cannot be used; then the peer's source address is tried with the segment's port.
 * Family 0 if the peer has no listener.
 */
static struct dray_addr find_addr(const struct peer *peer)
{
	struct dray_addr ret = peer->addr, claimed;
	char host[DRAY_HOST_BYTES];
	unsigned port;

	if (peer->fsm.initiator)
		return ret;
	if (dray_addr_parse(peer->segment, &claimed) == 0 &&
	    (!dray_addr_is_loopback(&claimed) || dray_addr_is_loopback(&ret)))
		return claimed;
	if (dray_host_port_split(peer->segment, host, &port) < 0 || !port)
		return (struct dray_addr){ .len = 0 };
	dray_addr_set_port(&ret, port);
	return ret;
}

int link_up(struct peer *peer, struct dray_err *reterr)
{
	const struct peers_deps *d = &peer->p->deps;
	struct peer_link *l = calloc(1, sizeof(*l));

	if (!l)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a link");
	if (derive_key(peer, l->stream_key) < 0) {
		free(l);
		return dray_err_set(reterr, -EIO, DRAY_E_INTERNAL,
				    "OpenSSL exports no key for data streams");
	}
	l->peer = peer->handle;
	l->addr = find_addr(peer);
	memcpy(l->agent_id, d->agent_id, sizeof(l->agent_id));
	memcpy(l->peer_agent_id, peer->agent_id, sizeof(l->peer_agent_id));
	l->incarnation = d->incarnation;
	l->may_find = peers_beyond_loopback(peer->p);
	l->peer_incarnation = peer->incarnation;
	peer->link = l;
	pool_peer_up(d->pool, l);
	return 0;
}

static void handle_released(void *arg)
{
	struct peer *peer = arg;

	OPENSSL_cleanse(peer->link->stream_key, STREAM_KEY_SIZE);
	free(peer->link);
	peer->link = NULL;
	dray_list_move(&peer->p->released, &peer->all_link);
	peers_wake(peer->p);
}

void link_down(struct peer *peer, dray_handle handle, uint32_t code)
{
	if (peer->link)
		pool_peer_down(peer->p->deps.pool, handle, code, handle_released, peer);
}
