/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/mooncake/lookup.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/cleanup.h"
#include "lib/plain.h"
#include "lib/time.h"
#include "schema/gen/errors.h"

struct lookup {
	struct lookup_deps deps;
	int64_t end_ns;
	enum metadata_key key; /* of the request in progress */
	struct http_call *call;
	lookup_fn fn;
	void *arg;
	struct mooncake_descriptor d;
	char segment[];
};

struct lookup *lookup_cancel(struct lookup *l)
{
	if (!l)
		return NULL;
	http_call_cancel(l->call);
	mooncake_descriptor_clear(&l->d);
	free(l);
	return NULL;
}

static void finish(struct lookup *l, enum lookup_result result, const struct dray_err *why)
{
	struct mooncake_descriptor d = l->d;
	lookup_fn fn = l->fn;
	void *arg = l->arg;

	if (result == LOOKUP_FOUND)
		l->d = (struct mooncake_descriptor){ .port = 0 };
	lookup_cancel(l);
	fn(arg, result, result == LOOKUP_FOUND ? &d : NULL, why);
}

static void fail(struct lookup *l, struct dray_err why)
{
	finish(l, LOOKUP_FAILED, &why);
}

static void absent(struct lookup *l)
{
	struct dray_err why;

	if (l->key == METADATA_SEGMENT) {
		why = dray_err_of(
			DRAY_E_NOT_FOUND,
			"the metadata server has no segment of this name; start its engine with "
			"%.80s, and give the name that it has there",
			l->deps.cfg->mooncake.metadata);
		finish(l, LOOKUP_UNKNOWN, &why);
		return;
	}
	fail(l, dray_err_of(DRAY_E_NOT_FOUND,
			    "the metadata server has the segment, but not the address of its "
			    "engine (rpc_meta); start the engine again"));
}

/* The keys are those that were asked for, but anybody can have written them. */
static int segment_take(struct lookup *l, const struct http_answer *answer, struct dray_err *reterr)
{
	char shown[81];
	int r = mooncake_descriptor_read(answer->body, answer->n, &l->d, reterr);

	if (r < 0 || !strcmp(l->d.name, l->segment))
		return r;
	dray_plain(shown, sizeof(shown), l->d.name, strlen(l->d.name));
	return dray_err_set(reterr, -EPROTO, DRAY_E_PROTOCOL,
			    "the metadata server has the description of another segment, \"%s\", "
			    "by this name; start its engine again",
			    shown);
}

static int address_take(struct lookup *l, const struct http_answer *answer, struct dray_err *reterr)
{
	unsigned port;
	int r = mooncake_address_read(answer->body, answer->n, l->d.host, &port, reterr);

	if (r < 0 || !l->d.rdma)
		return r;
	l->d.port = port;
	return port ? 0 :
		      dray_err_set(
			      reterr, -EPROTO, DRAY_E_PROTOCOL,
			      "what the metadata server has as the address of Mooncake's "
			      "engine lacks the port of its handshake; start the engine again");
}

static int ask(struct lookup *l, enum metadata_key key, struct dray_err *reterr);

static void on_answer(void *arg, const struct http_answer *answer, const struct dray_err *why)
{
	struct dray_err err = DRAY_ERR_NULL;
	struct lookup *l = arg;
	int r;

	l->call = NULL;
	if (why) {
		fail(l, dray_err_of(why->code, "the metadata server: %s", why->msg));
	} else if (answer->status == 404) {
		absent(l);
	} else if (answer->status != 200) {
		fail(l, metadata_refusal(l->deps.cfg, answer));
	} else if (l->key == METADATA_SEGMENT) {
		r = segment_take(l, answer, &err);
		if (r >= 0)
			r = ask(l, METADATA_ADDRESS, &err);
		if (r < 0)
			fail(l, err);
	} else if (address_take(l, answer, &err) < 0) {
		fail(l, err);
	} else {
		finish(l, LOOKUP_FOUND, NULL);
	}
}

static int ask(struct lookup *l, enum metadata_key key, struct dray_err *reterr)
{
	int64_t left = dray_max(l->end_ns - dray_now().ns, (int64_t)1);
	struct http_request request;
	int r = metadata_request(l->deps.cfg, key, l->segment, &request, reterr);

	if (r < 0)
		return r;
	l->key = key;
	request.event = l->deps.event;
	request.resolver = l->deps.resolver;
	request.timeout_ns = dray_min(request.timeout_ns, left);
	request.fn = on_answer;
	request.arg = l;
	return http_start(&l->call, &request, reterr);
}

int lookup_start(struct lookup **ret, const struct lookup_deps *deps, const char *segment,
		 int64_t timeout_ns, lookup_fn fn, void *arg, struct dray_err *reterr)
{
	size_t n = strlen(segment) + 1;
	struct lookup *l = calloc(1, sizeof(*l) + n);
	int r;

	if (!l)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "no memory for an import");
	l->deps = *deps;
	l->end_ns = dray_now().ns + timeout_ns;
	l->fn = fn;
	l->arg = arg;
	memcpy(l->segment, segment, n);
	r = ask(l, METADATA_SEGMENT, reterr);
	if (r < 0)
		lookup_cancel(l);
	else
		*ret = l;
	return r;
}
