/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queue pairs to engines: one request and one answer at the handshake for each of ours. An engine pairs as many as it makes itself, by
 * their order, and refuses other numbers; then it is asked again with its number. Of its queue pairs ours uses the first.
 *
 * The name of our end is the same for each queue pair that takes the place of another one, so that the engine destroys its ends of
 * that one.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "agent/config/network.h"
#include "agent/control/mooncake/ask.h"
#include "agent/control/mooncake/client_internal.h"
#include "agent/control/mooncake/connection.h"
#include "agent/control/mooncake/gid.h"
#include "lib/cleanup.h"
#include "lib/fds.h"
#include "lib/log.h"
#include "lib/time.h"
#include "lib/wire.h"
#include "schema/gen/errors.h"

/* Those of Mooncake's engines if they are not told otherwise (MC_NUM_QP_PER_EP). Agents make one. */
#define QUEUE_PAIRS_USUAL 2
#define REASON_BYTES 256

struct connect {
	struct dray_list link; /* in client->connects */
	struct mooncake_client *c;
	struct rails_engine_request request;
	char device[ND_DEVICE_NAME_MAX];
	struct connection_ends ends;
	unsigned n; /* queue pairs that the engine is asked for */
	bool repeated;
	struct ask *ask;
	sd_event_source *timer;
};

static void connect_free(struct connect *k)
{
	ask_cancel(k->ask);
	sd_event_source_disable_unref(k->timer);
	dray_list_del(&k->link);
	free(k);
}

static void connect_end(struct connect *k, const struct rails_engine_reply *reply)
{
	struct rails *rails = *k->c->deps.rails;
	uint64_t id = k->request.id;

	connect_free(k);
	rails_engine_connected(rails, id, reply);
}

static void refuse(struct connect *k, const char *why)
{
	connect_end(k, &(struct rails_engine_reply){ .refused = why });
}

static struct engine *engine_of(const struct connect *k)
{
	return dray_handles_get(&k->c->engines, k->request.engine);
}

/* Nobody answers there any more, so that its remotes are useless. */
static void lose(struct connect *k, const char *how)
{
	struct engine *e = engine_of(k);
	char why[REASON_BYTES];

	snprintf(why, sizeof(why),
		 "the handshake of Mooncake's engine %s; import its segment again when it is there",
		 how);
	if (e)
		engine_lose(k->c, e, DRAY_E_PEER_LOST, why);
	refuse(k, how);
}

static int on_timeout(sd_event_source *source, uint64_t usec, void *arg)
{
	lose(arg, "did not answer in time");
	return 0;
}

static int start(struct connect *k, const struct engine *e);

/* The number of queue pairs to ask for now; 0: another number does not help. */
static unsigned other_number(const struct connect *k, const struct connection_reply *reply)
{
	unsigned n = reply->n ? reply->n : QUEUE_PAIRS_USUAL;

	return k->repeated || n == k->n ? 0 : n;
}

static void handle_reply(struct connect *k, struct engine *e, const struct connection_reply *reply)
{
	const struct dray_addr gid = mooncake_gid_address(&reply->gid);
	unsigned n = *reply->refused ? other_number(k, reply) : 0;

	if (n) {
		k->repeated = true;
		k->n = n;
		if (start(k, e) < 0)
			refuse(k, "no memory, or no descriptor");
	} else if (*reply->refused) {
		refuse(k, reply->refused);
	} else if (!k->request.lid && !networks_have(&k->c->cfg->mooncake.allow, &gid)) {
		refuse(k, "mooncake.allow does not have the address of its GID");
	} else {
		e->queue_pairs = k->n;
		connect_end(k, &(struct rails_engine_reply){
				       .qpn = reply->qpn, .lid = reply->lid, .gid = reply->gid });
	}
}

static void answered(void *arg, int error, const char *body, size_t n)
{
	struct connect *k = arg;
	struct connection_reply reply;
	struct dray_err err = DRAY_ERR_NULL;
	struct engine *e = engine_of(k);

	k->ask = NULL;
	if (!e)
		refuse(k, "it is not in use any more");
	else if (dray_is_own_lack(error))
		refuse(k, dray_errno_text(error));
	else if (error == -EPROTO)
		lose(k, "sent something that is none");
	else if (error)
		lose(k, error == -ENODATA ? "was closed before its answer was complete" :
					    dray_errno_text(error));
	else if (connection_answer_read(body, n, &k->ends, &reply, &err) < 0)
		refuse(k, err.msg);
	else
		handle_reply(k, e, &reply);
}

/* 0 or -errno. */
static int start(struct connect *k, const struct engine *e)
{
	size_t n = 0;
	char *text dray_auto_free =
		connection_request(&k->ends, &k->request, k->n, ++k->c->last_unused, &n);

	return text ? ask_start(&k->ask, k->c->deps.event, &e->link.link.addr, MOONCAKE_CONNECTION,
				text, n, answered, NULL, k) :
		      -ENOMEM;
}

static void name_ends(struct connect *k, const struct engine *e)
{
	const struct rails_engine_request *q = &k->request;

	snprintf(k->ends.ours, sizeof(k->ends.ours), "dray-%016" PRIx64 "-%u.%u.%u.%u@%s",
		 dray_le_get64(k->c->deps.agent_id), dray_handle_index(e->handle), q->worker,
		 (unsigned)q->class, q->slot, k->device);
	snprintf(k->ends.theirs, sizeof(k->ends.theirs), "%s@%s", e->server,
		 e->devices[q->port].name);
}

void mooncake_client_connect(struct mooncake_client *c, const struct rails_engine_request *request)
{
	struct engine *e = dray_handles_get(&c->engines, request->engine);
	struct connect *k = e && request->port < e->n_devices ? calloc(1, sizeof(*k)) : NULL;
	int r;

	if (!k) {
		rails_engine_connected(*c->deps.rails, request->id,
				       &(struct rails_engine_reply){
					       .refused = e ? "no memory" : "it is not in use" });
		return;
	}
	k->c = c;
	k->request = *request;
	snprintf(k->device, sizeof(k->device), "%s", request->device);
	k->request.device = k->device;
	k->n = e->queue_pairs;
	name_ends(k, e);
	dray_list_add(&c->connects, &k->link);
	r = sd_event_add_time(c->deps.event, &k->timer, CLOCK_MONOTONIC,
			      (uint64_t)(dray_now().ns + c->cfg->peer.connect_timeout) / 1000, 0,
			      on_timeout, k);
	if (r >= 0)
		r = start(k, e);
	if (dray_is_own_lack(r))
		refuse(k, dray_errno_text(r));
	else if (r < 0)
		lose(k, dray_errno_text(r));
}

void connects_forget(struct mooncake_client *c)
{
	dray_list_for_each(&c->connects, k, struct connect, link)
		connect_free(k);
}
