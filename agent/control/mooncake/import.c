/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Imports. With a metadata server: what it has of the segment, or, if it has none, as without. Otherwise: the name of the engine, and
 * one request and one answer at its handshake. Each address of the engine is tried for its share of the time; what it answers wrongly
 * ends the import. Last, the host for data is resolved; over RDMA that of the handshake, if the engine was not asked itself.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/config/network.h"
#include "agent/control/mooncake/ask.h"
#include "agent/control/mooncake/client_internal.h"
#include "agent/control/mooncake/lookup.h"
#include "lib/cleanup.h"
#include "lib/fds.h"
#include "lib/log.h"
#include "lib/share.h"
#include "lib/time.h"
#include "schema/gen/errors.h"

/* Of the answers to imports under way. */
#define ANSWERS_BYTES (16u << 20)

/* An engine ignores what the request says. */
static const char asking[] = "{}";

enum import_step {
	IMPORT_LOOKUP, /* at the metadata server */
	IMPORT_NAME,
	IMPORT_ENGINE,
	IMPORT_DATA_NAME,
};

struct mooncake_import {
	struct mooncake_client *c;
	uint64_t id;
	const void *owner;
	mooncake_import_fn fn;
	void *arg;
	char segment[MOONCAKE_NAME_BYTES];
	int64_t end_ns;
	enum import_step step;
	struct lookup *lookup;
	struct resolver_query *query;
	sd_event_source *timer;
	struct dray_addr addrs[RESOLVER_ADDRS_MAX];
	unsigned n, at;      /* addresses, and those that were tried */
	struct dray_err why; /* of the last one that failed */
	struct ask *ask;
	struct mooncake_descriptor d;
};

static void import_free(struct mooncake_import *i)
{
	ask_cancel(i->ask);
	lookup_cancel(i->lookup);
	resolver_cancel(i->query);
	sd_event_source_disable_unref(i->timer);
	mooncake_descriptor_clear(&i->d);
	dray_handles_del(&i->c->imports, i->id);
	free(i);
}

static void fail(struct mooncake_import *i, struct dray_err err)
{
	mooncake_import_fn fn = i->fn;
	void *arg = i->arg;

	i->c->totals.imports_failed++;
	log_limited(DRAY_LOG_INFO, AREA, "an import failed: %s segment=%s", err.msg, i->segment);
	import_free(i);
	fn(arg, &err, 0, NULL, NULL);
}

/* addr: of data connections; over RDMA of the handshake. */
static void succeed(struct mooncake_import *i, const struct dray_addr *addr)
{
	struct dray_err err = DRAY_ERR_NULL;
	dray_handle engine = engine_use(i->c, i->owner, addr, &i->d, i->segment, &err);
	struct mooncake_buffers *buffers = i->d.buffers;
	struct rail_keys *keys = i->d.keys;
	mooncake_import_fn fn = i->fn;
	void *arg = i->arg;

	if (!engine) {
		fail(i, err);
		return;
	}
	i->c->totals.imports++;
	log_debug(AREA, "imported %u buffers segment=%s", buffers->n, i->segment);
	i->d.buffers = NULL;
	i->d.keys = NULL;
	import_free(i);
	fn(arg, &DRAY_ERR_NULL, engine, buffers, keys);
}

static void data_named(void *arg, const struct dray_addr *addrs, unsigned n,
		       const struct dray_err *why)
{
	struct mooncake_import *i = arg;
	const struct dray_addr *first = NULL;

	i->query = NULL;
	for (unsigned k = 0; k < n && !first; k++)
		if (networks_have(&i->c->cfg->mooncake.allow, &addrs[k]))
			first = &addrs[k];
	if (first)
		succeed(i, first);
	else if (why)
		fail(i,
		     dray_err_of(DRAY_E_PEER_UNREACHABLE,
				 "the host that Mooncake's engine names for data: %s", why->msg));
	else
		fail(i,
		     dray_err_of(DRAY_E_DENIED,
				 "Mooncake's engine names %.100s for %s, and mooncake.allow does "
				 "not have its address",
				 i->d.host, i->d.rdma ? "its handshake" : "data"));
}

static int64_t time_left(const struct mooncake_import *i)
{
	return dray_max(i->end_ns - dray_now().ns, (int64_t)1);
}

static void arm(struct mooncake_import *i, int64_t at_ns)
{
	sd_event_source_set_time(i->timer, (uint64_t)at_ns / 1000 + 1);
	sd_event_source_set_enabled(i->timer, SD_EVENT_ONESHOT);
}

/* The descriptor is there, with the host for data. */
static int described(struct mooncake_import *i, struct dray_err *reterr)
{
	i->step = IMPORT_DATA_NAME;
	arm(i, i->end_ns);
	return resolver_lookup(i->c->resolver, i->d.host, i->d.port, time_left(i), data_named, i,
			       &i->query, reterr);
}

static void read_answer(struct mooncake_import *i, const char *body, size_t n)
{
	struct dray_err err = DRAY_ERR_NULL;
	int r = mooncake_descriptor_read(body, n, &i->d, &err);

	if (r >= 0 && i->d.rdma) {
		succeed(i, &i->addrs[i->at - 1]);
		return;
	}
	if (r >= 0)
		r = mooncake_name_host(i->d.name, i->d.host, &err);
	if (r >= 0)
		r = described(i, &err);
	if (r < 0)
		fail(i, err);
}

static void try_next(struct mooncake_import *i);

/* This address does not do. */
static void next_address(struct mooncake_import *i, struct dray_err why)
{
	i->why = why;
	i->ask = ask_cancel(i->ask);
	try_next(i);
}

static void next_after(struct mooncake_import *i, int error)
{
	char text[DRAY_ADDR_TEXT_MAX];
	const struct dray_addr *a = &i->addrs[i->at - 1];

	dray_addr_show(a, text, sizeof(text));
	if (dray_is_own_lack(-error))
		fail(i, dray_err_of(dray_lacks_fds(-error) ? DRAY_E_NO_FDS : DRAY_E_NO_MEMORY,
				    "this agent cannot connect to Mooncake's handshake at %s: %s",
				    text, dray_errno_text(error)));
	else if (error)
		next_address(i, dray_err_of(DRAY_E_PEER_UNREACHABLE,
					    "Mooncake's handshake at %s: %s; start the engine",
					    text, dray_errno_text(error)));
	else
		next_address(
			i,
			dray_err_of(
				DRAY_E_PEER_LOST,
				"Mooncake's handshake at %s was closed before its answer was complete",
				text));
}

static void answered(void *arg, int error, const char *body, size_t n)
{
	struct mooncake_import *i = arg;

	i->ask = NULL;
	if (error == -EPROTO)
		fail(i,
		     dray_err_of(DRAY_E_PROTOCOL,
				 "what answers at %.200s is no handshake of Mooncake", i->segment));
	else if (error == -EDQUOT)
		fail(i,
		     dray_err_of(DRAY_E_QUOTA,
				 "the answers to imports from Mooncake's engines that are under "
				 "way have %u MiB in all, and this owner's may have half of what "
				 "others leave; try again when some have ended",
				 ANSWERS_BYTES >> 20));
	else if (error)
		next_after(i, error == -ENODATA ? 0 : -error);
	else
		read_answer(i, body, n);
}

/* An owner may have half of what others leave. */
static bool answer_may_grow(void *arg, size_t n)
{
	const struct mooncake_import *i = arg, *other;
	uint64_t all = 0, held = 0;

	for (uint32_t at = 0; (other = dray_handles_next(&i->c->imports, &at, NULL));) {
		uint64_t bytes = ask_bytes(other->ask);

		all += bytes;
		held += other->owner == i->owner ? bytes : 0;
	}
	return dray_share_fits(ANSWERS_BYTES - all, held, n);
}

static int connect_to(struct mooncake_import *i, const struct dray_addr *a)
{
	i->step = IMPORT_ENGINE;
	return ask_start(&i->ask, i->c->deps.event, a, MOONCAKE_METADATA, asking,
			 sizeof(asking) - 1, answered, answer_may_grow, i);
}

/* Connects to the next address that may be connected to, or ends the import. */
static void try_next(struct mooncake_import *i)
{
	const struct dray_config *cfg = i->c->cfg;
	char text[DRAY_ADDR_TEXT_MAX];

	while (i->at < i->n) {
		const struct dray_addr *a = &i->addrs[i->at++];
		int r;

		if (!networks_have(&cfg->mooncake.allow, a)) {
			i->why = dray_err_of(
				DRAY_E_DENIED,
				"mooncake.allow does not have the address of Mooncake's engine, %s",
				dray_addr_show(a, text, sizeof(text)));
			continue;
		}
		r = connect_to(i, a);
		if (r >= 0) {
			arm(i, dray_now().ns + time_left(i) / (int64_t)(i->n - i->at + 1));
			return;
		}
		next_after(i, -r);
		return;
	}
	fail(i, i->why);
}

static void named(void *arg, const struct dray_addr *addrs, unsigned n, const struct dray_err *why)
{
	struct mooncake_import *i = arg;

	i->query = NULL;
	if (why) {
		fail(i, dray_err_of(DRAY_E_PEER_UNREACHABLE, "%s", why->msg));
		return;
	}
	i->n = dray_min(n, (unsigned)RESOLVER_ADDRS_MAX);
	memcpy(i->addrs, addrs, i->n * sizeof(*addrs));
	try_next(i);
}

/* The import's time, or that of one of its addresses, is over. */
static int on_timer(sd_event_source *source, uint64_t usec, void *arg)
{
	struct mooncake_import *i = arg;
	char text[DRAY_ADDR_TEXT_MAX];
	struct dray_err err;

	if (i->step == IMPORT_LOOKUP) {
		fail(i,
		     dray_err_of(DRAY_E_TIMEOUT, "the metadata server %.80s did not answer in time",
				 i->c->cfg->mooncake.metadata));
		return 0;
	}
	if (i->step == IMPORT_NAME || i->step == IMPORT_DATA_NAME) {
		fail(i, dray_err_of(DRAY_E_TIMEOUT, "no name server answered in time"));
		return 0;
	}
	dray_addr_show(&i->addrs[i->at - 1], text, sizeof(text));
	err = dray_err_of(DRAY_E_TIMEOUT, "Mooncake's handshake at %s did not answer in time",
			  text);
	next_address(i, err);
	return 0;
}

/* Asks the engine itself. */
static int ask_engine(struct mooncake_import *i, struct dray_err *reterr)
{
	char host[DRAY_HOST_BYTES];
	unsigned port;

	if (!dray_endpoint_valid(i->segment) || dray_host_port_split(i->segment, host, &port) < 0)
		return dray_err_set(reterr, -EINVAL, DRAY_E_TOKEN_INVALID,
				    "\"%.100s\" is no HOST:PORT behind " MOONCAKE_SCHEME,
				    i->segment);
	i->step = IMPORT_NAME;
	return resolver_lookup(i->c->resolver, host, port, time_left(i), named, i, &i->query,
			       reterr);
}

static void looked_up(void *arg, enum lookup_result result, struct mooncake_descriptor *d,
		      const struct dray_err *why)
{
	struct mooncake_import *i = arg;
	struct dray_err err = DRAY_ERR_NULL;
	int r = 0;

	i->lookup = NULL;
	if (result == LOOKUP_FOUND) {
		i->d = *d;
		r = described(i, &err);
	} else if (result == LOOKUP_UNKNOWN && dray_endpoint_valid(i->segment)) {
		r = ask_engine(i, &err);
	} else {
		err = *why;
		r = -ENOENT;
	}
	if (r < 0)
		fail(i, err);
}

/* The name of a segment that a metadata server has is any text. */
static int look_up(struct mooncake_import *i, struct dray_err *reterr)
{
	const struct lookup_deps deps = { .event = i->c->deps.event,
					  .resolver = i->c->resolver,
					  .cfg = i->c->cfg };

	for (const char *p = i->segment; *p || p == i->segment; p++)
		if (*p <= ' ' || *p > '~')
			return dray_err_set(reterr, -EINVAL, DRAY_E_TOKEN_INVALID,
					    "the name of a segment behind " MOONCAKE_SCHEME
					    " is ASCII without blanks");
	return lookup_start(&i->lookup, &deps, i->segment, time_left(i), looked_up, i, reterr);
}

static int start(struct mooncake_import *i, struct dray_err *reterr)
{
	int r = sd_event_add_time(i->c->deps.event, &i->timer, CLOCK_MONOTONIC,
				  (uint64_t)i->end_ns / 1000 + 1, 0, on_timer, i);

	if (r < 0)
		return dray_err_set(reterr, r, DRAY_E_NO_MEMORY, "no memory for an import");
	return *i->c->cfg->mooncake.metadata ? look_up(i, reterr) : ask_engine(i, reterr);
}

/* 0, or -ENOSPC: others need a place, too. A client would repeat what is busy. */
static int share_check(struct mooncake_client *c, const void *owner, struct dray_err *reterr)
{
	const struct mooncake_import *i;
	unsigned all = 0, held = 0;

	for (uint32_t at = 0; (i = dray_handles_next(&c->imports, &at, NULL)); all++)
		held += i->owner == owner;
	if (dray_share_fits(c->imports_max - all, held, 1))
		return 0;
	return dray_err_set(reterr, -ENOSPC, DRAY_E_QUOTA,
			    "%u imports from Mooncake's engines are under way, %u of them of this "
			    "owner, which may have half of what others leave; try again when some "
			    "have ended",
			    all, held);
}

int mooncake_import(struct mooncake_client *c, const void *owner, const char *segment,
		    int64_t timeout_ns, mooncake_import_fn fn, void *arg, uint64_t *ret_id,
		    struct dray_err *reterr)
{
	struct mooncake_import *i;
	int r;

	if (!c)
		return dray_err_set(
			reterr, -EOPNOTSUPP, DRAY_E_UNSUPPORTED,
			"this agent does not import segments of Mooncake's engines; set mooncake.import "
			"and mooncake.allow");
	if (strlen(segment) >= MOONCAKE_NAME_BYTES)
		return dray_err_set(reterr, -EINVAL, DRAY_E_TOKEN_INVALID,
				    "the name of the segment is too long");
	if (share_check(c, owner, reterr) < 0)
		return -ENOSPC;
	i = calloc(1, sizeof(*i));
	if (!i || dray_handles_add(&c->imports, i, &i->id) < 0) {
		free(i);
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for an import");
	}
	i->c = c;
	i->owner = owner;
	i->fn = fn;
	i->arg = arg;
	i->end_ns = dray_now().ns + (timeout_ns ? timeout_ns : MOONCAKE_IMPORT_TIMEOUT_NS);
	snprintf(i->segment, sizeof(i->segment), "%s", segment);
	r = start(i, reterr);
	if (r < 0) {
		import_free(i);
		return r;
	}
	*ret_id = i->id;
	return 0;
}

void mooncake_import_cancel(struct mooncake_client *c, uint64_t id)
{
	struct mooncake_import *i = c ? dray_handles_get(&c->imports, id) : NULL;

	if (i)
		import_free(i);
}

void imports_check(struct mooncake_client *c)
{
	struct mooncake_import *i;

	for (uint32_t at = 0; (i = dray_handles_next(&c->imports, &at, NULL));)
		if (i->ask && !networks_have(&c->cfg->mooncake.allow, &i->addrs[i->at - 1]))
			fail(i,
			     dray_err_of(
				     DRAY_E_DENIED,
				     "mooncake.allow does not have the engine's address any more"));
}

void imports_forget(struct mooncake_client *c)
{
	struct mooncake_import *i;

	for (uint32_t at = 0; (i = dray_handles_next(&c->imports, &at, NULL));)
		import_free(i);
}
