/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Remotes of engines with Mooncake. The offsets of such a remote are addresses of the engine, and its ranges are the buffers that the
 * engine has registered, so that workers refuse what lies outside of them.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control/mooncake/client.h"
#include "agent/control/session/internal.h"
#include "agent/model/keys.h"
#include "agent/model/ranges.h"
#include "lib/cleanup.h"
#include "schema/gen/errors.h"

#define SCHEME_N (sizeof(MOONCAKE_SCHEME) - 1)

/* Over RDMA each buffer has a key for each device. */
static int count_buffers(struct remote *r, struct dray_err *reterr)
{
	uint32_t n = r->engine_keys ? r->engine_keys->n : r->buffers->n;
	int ret = owner_take(r->session->uid_owner, RESOURCE_ENGINE_BUFFERS, n, reterr);

	if (ret == 0)
		r->n_buffers = n;
	return ret;
}

/* An engine answers most imports with the same buffers and keys: those of its last remote. */
static void share(struct remote *r)
{
	struct dray_list *before = r->source_link.prev;
	const struct remote *other = dray_container_of(before, struct remote, source_link);

	if (before == &r->source->remotes)
		return;
	if (mooncake_buffers_same(other->buffers, r->buffers)) {
		mooncake_buffers_unref(r->buffers);
		r->buffers = mooncake_buffers_ref(other->buffers);
	}
	if (r->engine_keys && rail_keys_same(other->engine_keys, r->engine_keys)) {
		rail_keys_unref(r->engine_keys);
		r->engine_keys = rail_keys_ref(other->engine_keys);
	}
}

/* buffers, keys: consumed. NULL: with reterr. */
static struct remote *make(struct session *s, dray_handle engine, struct mooncake_buffers *buffers,
			   struct rail_keys *keys, struct dray_err *reterr)
{
	struct remote *r = remote_new(s, reterr);

	if (!r) {
		mooncake_buffers_unref(buffers);
		rail_keys_unref(keys);
		return NULL;
	}
	r->buffers = buffers;
	r->engine_keys = keys;
	if (count_buffers(r, reterr) < 0 || remote_join_source(r, engine, true, reterr) < 0) {
		remote_free(r);
		return NULL;
	}
	share(r);
	return r;
}

static void finish(struct pending_import *i, dray_handle engine, struct mooncake_buffers *buffers,
		   struct rail_keys *keys)
{
	struct session *s = i->session;
	const struct sessions_deps *d = &s->owner->deps;
	struct dray_err err = DRAY_ERR_NULL;
	struct remote *r = make(s, engine, buffers, keys, &err);

	if (!r) {
		mooncake_release(d->mooncake, engine);
		session_fail(s, i->request_id, -ENOMEM, &err);
		return;
	}
	r->view.mooncake = r->buffers;
	r->view.ranges = ranges_ref(r->buffers->ranges);
	r->view.o.length = r->buffers->v[r->buffers->n - 1].end;
	r->view.o.access = DMSG_ACCESS_READ | DMSG_ACCESS_WRITE;
	pool_publish(d->pool, &r->view.o);
	if (r->engine_keys)
		pool_keys(d->pool, OBJECT_REMOTE, r->view.o.handle, r->engine_keys);
	remote_reply_imported(r, i->request_id,
			      r->engine_keys ? DMSG_TRANSPORT_RDMA : DMSG_TRANSPORT_MOONCAKE, 0);
}

static void handle_imported(void *arg, const struct dray_err *err, dray_handle engine,
			    struct mooncake_buffers *buffers, struct rail_keys *keys)
{
	struct pending_import *i = arg;

	pending_import_uncount(i);
	if (err->code)
		session_fail(i->session, i->request_id, -EIO, err);
	else
		finish(i, engine, buffers, keys);
	free(i);
}

bool is_engine_token(struct dray_blob token)
{
	return token.n > SCHEME_N && !memcmp(token.p, MOONCAKE_SCHEME, SCHEME_N);
}

int import_engine(struct session *s, uint64_t request_id, struct dray_blob token,
		  uint32_t timeout_ms, struct dray_err *reterr)
{
	char segment[DMSG_TOKEN_MAX + 1];
	struct pending_import *i;
	int r;

	if (token.n - SCHEME_N >= sizeof(segment) || memchr(token.p, 0, token.n))
		return dray_err_set(reterr, -EINVAL, DRAY_E_TOKEN_INVALID,
				    "the token is no HOST:PORT behind " MOONCAKE_SCHEME);
	memcpy(segment, token.p + SCHEME_N, token.n - SCHEME_N);
	segment[token.n - SCHEME_N] = '\0';
	i = pending_import_new(s, request_id, reterr);
	if (!i)
		return -ENOSPC;
	i->is_mooncake = true;
	r = mooncake_import(s->owner->deps.mooncake, s->uid_owner, segment,
			    timeout_ms * DRAY_NS_PER_MS, handle_imported, i, &i->id, reterr);
	if (r < 0) {
		pending_import_uncount(i);
		free(i);
	}
	return r;
}
