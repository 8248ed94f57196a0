/* SPDX-License-Identifier: Apache-2.0 */
/* The engines that remotes of this agent belong to. */
#include "agent/control/mooncake/client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/config/network.h"
#include "agent/control/mooncake/client_internal.h"
#include "agent/control/mooncake/gid.h"
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

_Static_assert(MOONCAKE_DEVICES_MAX <= RAILS_ENGINE_PORTS, "each device is a port");
_Static_assert(MOONCAKE_DEVICES_MAX <= RAILS_MAX, "and a rail");

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

static bool is_same(const struct engine *e, const struct dray_addr *addr,
		    const struct mooncake_descriptor *d)
{
	const struct dray_addr *own = &e->link.link.addr;

	if (!dray_addr_same_host(own, addr) || dray_addr_port(own) != dray_addr_port(addr) ||
	    e->rdma != d->rdma || e->link.with_status != d->with_status)
		return false;
	if (!e->rdma)
		return true;
	/* an engine that was started again at this port has other queue pairs and, usually, another name */
	if (strcmp(e->server, d->server) != 0 || e->n_devices != d->n_devices)
		return false;
	for (unsigned i = 0; i < e->n_devices; i++)
		if (strcmp(e->devices[i].name, d->devices[i].name) != 0 ||
		    memcmp(&e->devices[i].gid, &d->devices[i].gid, sizeof(e->devices[i].gid)) != 0)
			return false;
	return true;
}

/* 0, or -errno with reterr: this agent does not reach its devices, or may not. */
static int check_devices(const struct mooncake_client *c, const struct mooncake_descriptor *d,
			 struct dray_err *reterr)
{
	char text[DRAY_ADDR_TEXT_MAX];

	if (!d->rdma)
		return 0;
	for (unsigned i = 0; i < d->n_devices; i++) {
		const struct mooncake_device *x = &d->devices[i];
		const struct dray_addr gid = mooncake_gid_address(&x->gid);

		/* those of InfiniBand, which have a LID, are no addresses */
		if (!x->lid && !networks_have(&c->cfg->mooncake.allow, &gid))
			return dray_err_set(
				reterr, -EACCES, DRAY_E_DENIED,
				"mooncake.allow does not have the address of the GID of Mooncake's "
				"device %s, %s",
				x->name, dray_addr_show(&gid, text, sizeof(text)));
	}
	if (rails_up(*c->deps.rails))
		return 0;
	return dray_err_set(
		reterr, -ENODEV, DRAY_E_PEER_UNREACHABLE,
		"Mooncake's engine uses the protocol \"rdma\", and no RDMA device of this agent is "
		"in use: see drayctl rails");
}

static int engine_start(struct mooncake_client *c, struct engine *e)
{
	struct rails_engine up = { .link = &e->link.link,
				   .segment = e->segment,
				   .n = e->n_devices };

	if (!e->rdma) {
		tell_workers(c, e, MOONCAKE_ENGINE_UP);
		return 0;
	}
	for (unsigned i = 0; i < e->n_devices; i++)
		up.ports[i] = (struct rails_engine_port){ e->devices[i].gid, e->devices[i].lid };
	return rails_engine_up(*c->deps.rails, &up);
}

static int no_room(struct dray_err *reterr)
{
	return dray_err_set(
		reterr, -ENOSPC, DRAY_E_QUOTA,
		"remotes of too many of Mooncake's engines are in use, most of them of this owner, "
		"or there is no memory for another one; release some");
}

static struct engine *engine_new(struct mooncake_client *c, const void *owner,
				 const struct dray_addr *addr, const struct mooncake_descriptor *d,
				 const char *segment)
{
	struct engine *e = calloc(1, sizeof(*e));

	if (!e || dray_handles_add(&c->engines, e, &e->handle) < 0) {
		free(e);
		return NULL;
	}
	e->owner = owner;
	e->link.link.peer = e->handle;
	e->link.link.addr = *addr;
	e->link.link.partial = d->partial;
	e->link.with_status = d->with_status;
	e->remotes = 1;
	e->since_ns = dray_now().ns;
	e->rdma = d->rdma;
	memcpy(e->server, d->server, sizeof(e->server));
	e->n_devices = d->n_devices;
	memcpy(e->devices, d->devices, sizeof(e->devices));
	e->queue_pairs = 1;
	snprintf(e->segment, sizeof(e->segment), "%s", segment);
	if (engine_start(c, e) == 0)
		return e;
	dray_handles_del(&c->engines, e->handle);
	free(e);
	return NULL;
}

dray_handle engine_use(struct mooncake_client *c, const void *owner, const struct dray_addr *addr,
		       const struct mooncake_descriptor *d, const char *segment,
		       struct dray_err *reterr)
{
	char text[DRAY_ADDR_TEXT_MAX];
	uint64_t held = 0;
	struct engine *e;

	if (check_devices(c, d, reterr) < 0)
		return 0;
	for (uint32_t at = 0; (e = dray_handles_next(&c->engines, &at, NULL));) {
		held += e->owner == owner;
		if (e->ending || e->lost || !is_same(e, addr, d))
			continue;
		e->remotes++;
		return e->handle;
	}
	e = dray_share_fits(ENGINES_MAX - c->totals.engines, held, 1) ?
		    engine_new(c, owner, addr, d, segment) :
		    NULL;
	if (!e) {
		no_room(reterr);
		return 0;
	}
	c->totals.engines++;
	if (e->rdma)
		log_info(AREA, "importing from an engine segment=%s handshake=%s devices=%u",
			 segment, dray_addr_show(addr, text, sizeof(text)), e->n_devices);
	else
		log_info(AREA, "importing from an engine segment=%s data=%s version=%d", segment,
			 dray_addr_show(addr, text, sizeof(text)), d->with_status ? 2 : 1);
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
	if (e->rdma)
		rails_engine_down(*c->deps.rails, engine);
	else
		tell_workers(c, e, MOONCAKE_ENGINE_DOWN);
}

void engine_lose(struct mooncake_client *c, struct engine *e, uint32_t code, const char *why)
{
	if (e->lost || e->ending)
		return;
	tell_change(c, e, state_of(e), "lost", why);
	e->lost = true;
	log_notice(AREA, "an engine is lost: %s segment=%s", why, e->segment);
	c->deps.lost(*c->deps.sessions, e->handle, code, why);
}

void mooncake_client_gone(struct mooncake_client *c, dray_handle engine)
{
	struct engine *e = c ? dray_handles_get(&c->engines, engine) : NULL;

	if (!e || --e->waits)
		return;
	log_info(AREA, "no remote of an engine is left segment=%s", e->segment);
	tell_change(c, e, e->lost ? "lost" : "ready", "closed", "no remote of it is left");
	dray_handles_del(&c->engines, e->handle);
	c->totals.engines--;
	free(e);
}

void mooncake_client_message(struct mooncake_client *c, const struct transport_message *m)
{
	struct engine *e = c ? dray_handles_get(&c->engines, m->peer) : NULL;

	if (m->type == MOONCAKE_ENGINE_GONE)
		mooncake_client_gone(c, m->peer);
	else if (e && m->type == MOONCAKE_ENGINE_LOST)
		engine_lose(c, e, DRAY_E_PEER_LOST,
			    "Mooncake's engine does not answer any more; import its segment again");
}

static bool is_allowed(const struct mooncake_client *c, const struct engine *e)
{
	bool all = networks_have(&c->cfg->mooncake.allow, &e->link.link.addr);

	for (unsigned i = 0; i < e->n_devices; i++) {
		const struct dray_addr gid = mooncake_gid_address(&e->devices[i].gid);

		all &= e->devices[i].lid || networks_have(&c->cfg->mooncake.allow, &gid);
	}
	return all;
}

void mooncake_client_reload(struct mooncake_client *c)
{
	struct engine *e;

	if (!c)
		return;
	imports_check(c);
	for (uint32_t at = 0; (e = dray_handles_next(&c->engines, &at, NULL));)
		if (!is_allowed(c, e))
			engine_lose(c, e, DRAY_E_DENIED,
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
		struct rails_traffic rdma = { .sent = 0 };
		struct dray_dbus_peer p = {
			.peer = e->handle,
			.agent_id = "",
			.segment = e->segment,
			.state = state_of(e),
			.reason = "an engine with Mooncake",
			.since_ns = dray_span(now - e->since_ns),
			.initiator = true,
			.imports = e->remotes,
			.transport = dmsg_transport_name(e->rdma ? DMSG_TRANSPORT_RDMA :
								   DMSG_TRANSPORT_MOONCAKE),
			.key = "",
		};

		if (e->rdma) {
			rdma = rails_peer_traffic(*c->deps.rails, e->handle);
			p.rails = rails_peer_count(*c->deps.rails, e->handle, &p.queue_pairs);
		}
		/* relaxed: counters that order nothing */
		p.streams = atomic_load_explicit(&l->streams, memory_order_relaxed);
		p.sent_bytes =
			rdma.sent + atomic_load_explicit(&l->bytes_sent, memory_order_relaxed);
		p.received_bytes = rdma.received +
				   atomic_load_explicit(&l->bytes_received, memory_order_relaxed);
		fn(arg, &p);
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
	dray_list_init(&c->connects);
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
	connects_forget(c);
	for (uint32_t at = 0; (e = dray_handles_next(&c->engines, &at, NULL));)
		free(e);
	dray_handles_deinit(&c->engines);
	dray_handles_deinit(&c->imports);
	resolver_free(c->resolver);
	free(c);
	return NULL;
}
