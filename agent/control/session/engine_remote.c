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

static int ranges_of(const struct mooncake_buffers *b, struct ranges **ret, struct dray_err *reterr)
{
	dray_auto_free uint8_t *wire = malloc((size_t)b->n * DMSG_RANGE_SIZE);

	if (!wire)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for a remote");
	for (uint32_t i = 0; i < b->n; i++)
		dmsg_range_put(wire + (size_t)i * DMSG_RANGE_SIZE,
			       &(struct dmsg_range){ .offset = b->v[i].start,
						     .length = b->v[i].end - b->v[i].start,
						     .count = 1 });
	return ranges_new(ret, wire, b->n, UINT64_MAX, reterr);
}

/* Each remote has its own copy, and over RDMA a key for each buffer and device. */
static int count_buffers(struct remote *r, const struct mooncake_buffers *buffers,
			 const struct rail_keys *keys, struct dray_err *reterr)
{
	uint32_t n = keys ? keys->n : buffers->n;
	int ret = owner_take(r->session->uid_owner, RESOURCE_ENGINE_BUFFERS, n, reterr);

	if (ret == 0)
		r->n_buffers = n;
	return ret;
}

static void finish(struct pending_import *i, dray_handle engine, struct mooncake_buffers *buffers,
		   struct rail_keys *keys)
{
	struct session *s = i->session;
	const struct sessions_deps *d = &s->owner->deps;
	struct dray_err err = DRAY_ERR_NULL;
	struct remote *r = remote_new(s, &err);

	if (!r || count_buffers(r, buffers, keys, &err) < 0 ||
	    remote_join_source(r, engine, true, &err) < 0 ||
	    ranges_of(buffers, &r->view.ranges, &err) < 0) {
		if (r)
			remote_free(r);
		free(buffers);
		rail_keys_unref(keys);
		mooncake_release(d->mooncake, engine);
		session_fail(s, i->request_id, -ENOMEM, &err);
		return;
	}
	r->buffers = buffers;
	r->view.mooncake = buffers;
	r->view.o.length = buffers->v[buffers->n - 1].end;
	r->view.o.access = DMSG_ACCESS_READ | DMSG_ACCESS_WRITE;
	pool_publish(d->pool, &r->view.o);
	if (keys)
		pool_keys(d->pool, OBJECT_REMOTE, r->view.o.handle, keys);
	remote_reply_imported(r, i->request_id,
			      keys ? DMSG_TRANSPORT_RDMA : DMSG_TRANSPORT_MOONCAKE, 0);
	rail_keys_unref(keys);
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
