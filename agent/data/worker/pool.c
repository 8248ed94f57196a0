/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/data/data.h"

#include <stdlib.h>

#include "agent/data/transfer/delegate.h"
#include "agent/data/transfer/transport.h"
#include "agent/data/transfer/workshare.h"
#include "agent/data/worker/internal.h"
#include "agent/model/keys.h"
#include "agent/model/peer_link.h"
#include "lib/assert.h"
#include "lib/ballast.h"
#include "lib/cleanup.h"
#include "lib/cpu.h"
#include "schema/gen/errors.h"

/* A command that workers must answer. A second request for the same drop waits for the same answers. */
struct broadcast {
	struct dray_map_node node; /* in pool->broadcasts */
	struct broadcast_key {
		uint64_t kind; /* enum object_kind, without padding after it */
		dray_handle handle;
	} key;
	unsigned missing;
	struct dray_list waiters;
};

struct waiter {
	struct dray_list link;
	void (*done)(void *arg);
	void *arg;
};

/* At most one helper for each CPU besides the owner's; none with one CPU or one worker. */
static int workshare_up(struct worker_pool *p, struct dray_err *reterr)
{
	struct dray_cpus limits;
	unsigned cpus;
	int ret;

	_Static_assert(WORKERS_MAX <= WORKSHARE_MAX, "a worker without a seat");
	dray_cpus_get(&limits);
	cpus = dray_cpus_whole(&limits);
	if (p->n < 2 || cpus < 2)
		return 0;
	ret = workshare_new(&p->workshare, p->n, dray_min(cpus, p->n) - 1);
	if (ret < 0)
		return dray_err_set(reterr, ret, DRAY_E_NO_MEMORY,
				    "no memory for work that workers share");
	if (delegates_new(&p->delegates, p->n) < 0)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY,
				    "no memory for slices that workers receive for each other");
	for (unsigned i = 0; i < p->n; i++) {
		ret = workshare_join(p->workshare, i, p->workers[i]->command_fd);
		if (ret < 0)
			return dray_err_set(
				reterr, ret, DRAY_E_NO_FDS,
				"cannot duplicate the descriptor that wakes worker %u: %s", i,
				dray_errno_text(ret));
		p->workers[i]->core.workshare = p->workshare;
		delegates_join(p->delegates, i, &p->workers[i]->counters);
		p->workers[i]->core.delegates = p->delegates;
	}
	return 0;
}

int pool_new(struct worker_pool *p, unsigned n, const struct data_config *cfg,
	     uint32_t max_transfers, struct dray_err *reterr)
{
	int ret;

	*p = (struct worker_pool){ 0 };
	dray_map_init(&p->broadcasts);
	dray_assert(n && n <= WORKERS_MAX);
	for (; p->n < n; p->n++) {
		ret = worker_make(&p->workers[p->n], p->n, cfg, max_transfers, reterr);
		if (ret < 0)
			goto failed;
	}
	ret = workshare_up(p, reterr);
	if (ret >= 0)
		return 0;
failed:
	pool_stop(p);
	return ret;
}

int pool_start(struct worker_pool *p, struct dray_err *reterr)
{
	for (unsigned i = 0; i < p->n; i++) {
		int ret = worker_start(p->workers[i], reterr);

		if (ret < 0)
			return ret;
	}
	return 0;
}

static struct broadcast *find(struct worker_pool *p, enum object_kind kind, dray_handle handle)
{
	const struct broadcast_key key = { kind, handle };

	return dray_map_entry(dray_map_find(&p->broadcasts, &key, sizeof(key)), struct broadcast,
			      node);
}

static void broadcast_free(struct worker_pool *p, struct broadcast *b, bool answered)
{
	dray_map_del(&p->broadcasts, &b->node);
	dray_list_for_each(&b->waiters, w, struct waiter, link) {
		if (answered)
			w->done(w->arg);
		free(w);
	}
	free(b);
}

bool pool_stop(struct worker_pool *p)
{
	bool ended = true;

	for (unsigned i = 0; i < p->n; i++)
		ended &= worker_stop(p->workers[i]);
	/* workers look at each other until the last one has ended */
	for (unsigned i = 0; i < p->n; i++) {
		if (ended)
			worker_release(p->workers[i]);
		p->workers[i] = NULL;
	}
	p->n = 0;
	/* a worker that did not end may still read it */
	p->workshare = ended ? workshare_free(p->workshare) : NULL;
	p->delegates = ended ? delegates_free(p->delegates) : NULL;
	dray_map_for_each(&p->broadcasts, b, struct broadcast, node)
		broadcast_free(p, b, false);
	dray_map_deinit(&p->broadcasts);
	return ended;
}

static void post_all(struct worker_pool *p, const struct command *cmd)
{
	for (unsigned i = 0; i < p->n; i++)
		worker_post(p->workers[i], cmd);
}

/* Posts a command about cmd->kind and cmd->handle that is over after so many answers. */
static void broadcast(struct worker_pool *p, struct command *cmd, unsigned answers,
		      void (*done)(void *arg), void *arg)
{
	struct broadcast *b = find(p, cmd->kind, cmd->handle);
	struct waiter *w;

	cmd->again = b;
	if (!b) {
		b = dray_calloc_sure(1, sizeof(*b));
		b->key = (struct broadcast_key){ cmd->kind, cmd->handle };
		b->missing = answers;
		dray_list_init(&b->waiters);
		dray_map_add(&p->broadcasts, &b->node, &b->key, sizeof(b->key));
	}
	if (done) {
		w = dray_calloc_sure(1, sizeof(*w));
		w->done = done;
		w->arg = arg;
		dray_list_add(&b->waiters, &w->link);
	}
	post_all(p, cmd);
}

void pool_publish(struct worker_pool *p, const struct object_view *view)
{
	/* a grant is for bytes of a peer that name it, which wake the worker, and before them it runs its commands */
	void (*send)(struct worker * w, const struct command *cmd) =
		view->kind == OBJECT_GRANT ? worker_leave : worker_post;

	for (unsigned i = 0; i < p->n; i++)
		send(p->workers[i], &(struct command){ .type = COMMAND_PUBLISH, .view = view });
}

void pool_opened(struct worker_pool *p, dray_handle region)
{
	post_all(p, &(struct command){ .type = COMMAND_OPENED, .handle = region });
}

void pool_keys(struct worker_pool *p, enum object_kind kind, dray_handle handle,
	       struct rail_keys *keys)
{
	for (unsigned i = 0; i < p->n; i++)
		worker_post(p->workers[i],
			    &(struct command){ .type = COMMAND_KEYS,
					       .kind = kind,
					       .handle = handle,
					       .keys = keys ? rail_keys_ref(keys) : NULL });
}

void pool_message(struct worker_pool *p, const struct transport_message *m)
{
	post_all(p, &(struct command){ .type = COMMAND_TRANSPORT, .message = *m });
}

static void drop(struct worker_pool *p, enum object_kind kind, enum drop_mode mode,
		 dray_handle handle, uint32_t code, void (*done)(void *arg), void *arg)
{
	broadcast(p,
		  &(struct command){ .type = COMMAND_DROP,
				     .kind = kind,
				     .mode = mode,
				     .handle = handle,
				     .code = code },
		  p->n, done, arg);
}

void pool_drop(struct worker_pool *p, enum object_kind kind, dray_handle handle, uint32_t code,
	       bool urgent, void (*done)(void *arg), void *arg)
{
	drop(p, kind, urgent ? DROP_URGENT : DROP_STOP, handle, code, done, arg);
}

void pool_retire(struct worker_pool *p, enum object_kind kind, dray_handle handle, uint32_t code,
		 void (*done)(void *arg), void *arg)
{
	drop(p, kind, DROP_RETIRE, handle, code, done, arg);
}

void pool_peer_up(struct worker_pool *p, struct peer_link *link)
{
	post_all(p,
		 &(struct command){ .type = COMMAND_PEER_UP, .session = link->peer, .link = link });
}

void pool_peer_down(struct worker_pool *p, dray_handle peer, uint32_t code, void (*done)(void *arg),
		    void *arg)
{
	unsigned answers = 0;

	transports_each(&p->workers[0]->core, i, peer_down)
		answers += p->n;
	broadcast(p,
		  &(struct command){ .type = COMMAND_PEER_DOWN,
				     .kind = OBJECT_PEER,
				     .handle = peer,
				     .session = peer,
				     .code = code },
		  answers, done, arg);
}

void pool_handle_dropped(struct worker_pool *p, enum object_kind kind, dray_handle handle)
{
	struct broadcast *b = find(p, kind, handle);

	if (b && !--b->missing)
		broadcast_free(p, b, true);
}

int pool_place(struct worker_pool *p, unsigned worker, const cpu_set_t *cpus, int node)
{
	int ret = -pthread_setaffinity_np(p->workers[worker]->thread, sizeof(*cpus), cpus);

	if (ret >= 0 && p->workshare)
		workshare_place(p->workshare, worker, node);
	return ret;
}

unsigned pool_pick(struct worker_pool *p)
{
	return p->next++ % p->n;
}
