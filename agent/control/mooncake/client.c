/* SPDX-License-Identifier: Apache-2.0 */
/* The engines that remotes of this agent belong to. */
#include "agent/control/mooncake/client.h"

#include <stdio.h>
#include <stdlib.h>

#include "agent/config/network.h"
#include "agent/control/mooncake/client_internal.h"
#include "agent/model/mooncake_message.h"
#include "lib/cleanup.h"
#include "lib/fds.h"
#include "lib/log.h"
#include "lib/share.h"
#include "lib/time.h"
#include "schema/gen/errors.h"

/* Engines with remotes at the same time; each has descriptors in every worker. */
#define ENGINES_MAX 4096u
/* Imports under way at the same time, at most. */
#define IMPORTS_MAX 1024u

struct engine {
	dray_handle handle;
	struct mooncake_link link; /* borrowed by workers until all have answered _DOWN */
	uint32_t remotes;
	const void *owner; /* of the first one */
	unsigned waits;    /* ending: workers that have not answered */
	bool ending, lost;
	int64_t since_ns;
	char segment[MOONCAKE_NAME_BYTES];
};

static void tell_workers(struct mooncake_client *c, struct engine *e, enum mooncake_message type)
{
	pool_message(c->deps.pool, &(struct transport_message){ .transport = TRANSPORT_MOONCAKE,
								.type = type,
								.peer = e->handle,
								.arg = &e->link });
}

static const char *state_of(const struct engine *e)
{
	return e->lost ? "lost" : e->ending ? "closing" : "ready";
}

static void tell_change(struct mooncake_client *c, const struct engine *e, const char *before,
			const char *after, const char *why)
{
	c->deps.changed(c->deps.arg, e->handle, e->segment, before, after, why);
}

static bool is_same(const struct engine *e, const struct dray_addr *addr, bool with_status)
{
	const struct dray_addr *own = &e->link.link.addr;

	return e->link.with_status == with_status && dray_addr_same_host(own, addr) &&
	       dray_addr_port(own) == dray_addr_port(addr);
}

dray_handle engine_use(struct mooncake_client *c, const void *owner, const struct dray_addr *addr,
		       bool with_status, const char *segment)
{
	char text[DRAY_ADDR_TEXT_MAX];
	uint64_t held = 0;
	struct engine *e;

	for (uint32_t at = 0; (e = dray_handles_next(&c->engines, &at, NULL));) {
		held += e->owner == owner;
		if (e->ending || e->lost || !is_same(e, addr, with_status))
			continue;
		e->remotes++;
		return e->handle;
	}
	if (!dray_share_fits(ENGINES_MAX - c->totals.engines, held, 1))
		return 0;
	e = calloc(1, sizeof(*e));
	if (!e || dray_handles_add(&c->engines, e, &e->handle) < 0) {
		free(e);
		return 0;
	}
	e->owner = owner;
	e->link.link.peer = e->handle;
	e->link.link.addr = *addr;
	e->link.with_status = with_status;
	e->remotes = 1;
	e->since_ns = dray_now().ns;
	snprintf(e->segment, sizeof(e->segment), "%s", segment);
	c->totals.engines++;
	log_info(AREA, "importing from an engine segment=%s data=%s version=%d", segment,
		 dray_addr_show(addr, text, sizeof(text)), with_status ? 2 : 1);
	tell_workers(c, e, MOONCAKE_ENGINE_UP);
	tell_change(c, e, "", state_of(e), "a client has imported from it");
	return e->handle;
}

void mooncake_release(struct mooncake_client *c, dray_handle engine)
{
	struct engine *e = c ? dray_handles_get(&c->engines, engine) : NULL;

	if (!e || --e->remotes)
		return;
	e->ending = true;
	e->waits = c->deps.pool->n;
	tell_workers(c, e, MOONCAKE_ENGINE_DOWN);
}

static void lose(struct mooncake_client *c, struct engine *e, uint32_t code, const char *why)
{
	if (e->lost || e->ending)
		return;
	tell_change(c, e, state_of(e), "lost", why);
	e->lost = true;
	log_notice(AREA, "an engine is lost: %s segment=%s", why, e->segment);
	c->deps.lost(*c->deps.sessions, e->handle, code, why);
}

void mooncake_client_message(struct mooncake_client *c, const struct transport_message *m)
{
	struct engine *e = c ? dray_handles_get(&c->engines, m->peer) : NULL;

	if (!e)
		return;
	if (m->type == MOONCAKE_ENGINE_LOST)
		lose(c, e, DRAY_E_PEER_LOST,
		     "Mooncake's engine does not answer any more; import its segment again");
	if (m->type != MOONCAKE_ENGINE_GONE || --e->waits)
		return;
	log_info(AREA, "no remote of an engine is left segment=%s", e->segment);
	tell_change(c, e, e->lost ? "lost" : "ready", "closed", "no remote of it is left");
	dray_handles_del(&c->engines, e->handle);
	c->totals.engines--;
	free(e);
}

void mooncake_client_reload(struct mooncake_client *c)
{
	struct engine *e;

	if (!c)
		return;
	imports_check(c);
	for (uint32_t at = 0; (e = dray_handles_next(&c->engines, &at, NULL));)
		if (!networks_have(&c->cfg->mooncake.allow, &e->link.link.addr))
			lose(c, e, DRAY_E_DENIED,
			     "mooncake.allow does not have the engine's address any more");
}

void mooncake_client_each(struct mooncake_client *c,
			  void (*fn)(void *arg, const struct dray_dbus_peer *peer), void *arg)
{
	int64_t now = dray_now().ns;
	const struct engine *e;

	if (!c)
		return;
	for (uint32_t at = 0; (e = dray_handles_next(&c->engines, &at, NULL));) {
		const struct peer_link *l = &e->link.link;

		/* relaxed: counters that order nothing */
		fn(arg,
		   &(struct dray_dbus_peer){
			   .peer = e->handle,
			   .agent_id = "",
			   .segment = e->segment,
			   .state = state_of(e),
			   .reason = "an engine with Mooncake",
			   .since_ns = dray_span(now - e->since_ns),
			   .initiator = true,
			   .imports = e->remotes,
			   .streams = atomic_load_explicit(&l->streams, memory_order_relaxed),
			   .transport = dmsg_transport_name(DMSG_TRANSPORT_MOONCAKE),
			   .key = "",
			   .sent_bytes = atomic_load_explicit(&l->bytes_sent, memory_order_relaxed),
			   .received_bytes =
				   atomic_load_explicit(&l->bytes_received, memory_order_relaxed),
		   });
	}
}

struct mooncake_client_totals mooncake_client_totals(const struct mooncake_client *c)
{
	return c ? c->totals : (struct mooncake_client_totals){ 0 };
}

int mooncake_client_new(struct mooncake_client **ret, const struct mooncake_client_deps *deps,
			struct dray_err *reterr)
{
	struct mooncake_client *c;
	int r;

	*ret = NULL;
	if (!deps->cfg->mooncake.import)
		return 0;
	c = calloc(1, sizeof(*c));
	if (!c)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY,
				    "mooncake.import: out of memory");
	c->deps = *deps;
	c->cfg = deps->cfg;
	c->imports_max = dray_fd_share(IMPORTS_MAX);
	dray_handles_init(&c->imports, c->imports_max, 0);
	dray_handles_init(&c->engines, ENGINES_MAX, DMSG_HANDLE_KIND_ENGINE);
	r = resolver_new(&c->resolver, deps->event, reterr);
	if (r < 0) {
		mooncake_client_free(c);
		return r;
	}
	if (!c->cfg->mooncake.allow.n)
		log_warning(AREA, "mooncake.allow is empty: no engine may be imported from");
	*ret = c;
	return 0;
}

struct mooncake_client *mooncake_client_free(struct mooncake_client *c)
{
	struct engine *e;

	if (!c)
		return NULL;
	imports_forget(c);
	for (uint32_t at = 0; (e = dray_handles_next(&c->engines, &at, NULL));)
		free(e);
	dray_handles_deinit(&c->engines);
	dray_handles_deinit(&c->imports);
	resolver_free(c->resolver);
	free(c);
	return NULL;
}
